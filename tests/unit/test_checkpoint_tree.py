"""Whatever a directory holds comes back: every byte, name, link and permission bit, and the holes."""

from __future__ import annotations

import os
import resource
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.checkpoint.layout import Position
from provisioner.checkpoint.manifest import Manifest
from provisioner.checkpoint.restore import SCRATCH, load, pull, restore
from provisioner.checkpoint.save import Saver
from provisioner.checkpoint.scratch import scratch
from provisioner.checkpoint.store import Store, open_store
from provisioner.checkpoint.verify import verify
from provisioner.errors import ConfigError
from tests import trees
from tests.trees import JOB, SMALL, blobs, build, new_store, saver, shape


@contextmanager
def folder() -> Iterator[Path]:
    """Give a folder that everybody may enter, whoever the test is later."""
    path = Path(tempfile.mkdtemp(prefix="tree-"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def store_of(kind: str, where: Path) -> Store:
    return new_store() if kind == "memory" else open_store(f"file://{where}/store").at("digits")


@pytest.mark.parametrize("kind", ["memory", "file"])
@settings(max_examples=75)
@given(tree=trees.entries, name=trees.names)
def test_any_tree_comes_back_as_it_was(kind, tree, name):
    with folder() as where:
        (where / "data").mkdir()
        entry = build(where / "data" / name, tree)
        store = store_of(kind, where)
        commit = saver(store).save(entry, 7, {"loss": 0.5})
        found = restore(store, JOB, where / "restored", threads=2)
        assert found is not None
        assert found.position == Position(epoch=1, step=7)
        assert found.entry == name
        assert shape(found.directory / name) == shape(entry)
        assert load(store, commit.position, JOB) == commit.manifest
        assert verify(store, commit.manifest, threads=2) == []
        assert commit.uploaded_bytes == sum(blobs(commit.manifest).values())


@settings(max_examples=75)
@given(
    tree=trees.directories,
    edits=st.lists(st.tuples(st.sampled_from(["byte", "add", "cut", "remove", "copy", "mode"]), st.integers(0, 10**4))),
)
def test_a_second_save_is_right_too_and_sends_what_is_new(tree, edits):
    with folder() as where:
        entry = build(where / "step-1", tree)
        store = new_store()
        keeper = saver(store)
        first = keeper.save(entry, 1)
        for edit, number in edits:
            change(entry, edit, number)
        second = keeper.save(entry, 2)
        third = saver(store).save(entry, 3)
        for commit in (second, third):
            found = restore(store, JOB, where / "restored", position=commit.position, threads=2)
            assert found is not None
            assert shape(found.directory / "step-1") == shape(entry)
        assert second.uploaded_bytes <= at_most(first.manifest, second.manifest)
        assert third.uploaded_bytes <= at_most(second.manifest, third.manifest)
        used = sum(blobs(third.manifest).values())
        assert sum(third.manifest.packs.values()) <= 2 * used, "packs that are mostly waste are replaced"


def change(entry: Path, edit: str, number: int) -> None:
    files = sorted(path for path in entry.rglob("*") if stat.S_ISREG(path.lstat().st_mode))
    if edit == "add" or not files:
        (entry / f"added-{number}").write_bytes(trees.pattern(str(number), number % 1500))
        return
    file = files[number % len(files)]
    data = bytearray(file.read_bytes())
    if edit == "byte" and data:
        data[number % len(data)] ^= 0x55
        file.write_bytes(data)
    elif edit == "cut":
        file.write_bytes(data[: len(data) // 2])
    elif edit == "remove":
        file.unlink()
    elif edit == "copy":
        (entry / f"copy-{number}").write_bytes(data)
    elif edit == "mode":
        file.chmod(0o640)


def at_most(old: Manifest, new: Manifest) -> int:
    """Return the bytes that a save after ``old`` may send: what is new, and what is moved out of poor packs."""
    had, has = blobs(old), blobs(new)
    fresh = sum(length for digest, length in has.items() if digest not in had)
    place = {blob.digest: blob.pack for _, _, blob in old.stored()}
    used: dict[str, int] = {}
    for digest, length in has.items():
        if digest in place:
            used[place[digest]] = used.get(place[digest], 0) + length
    poor = sum(bytes_ for pack, bytes_ in used.items() if 2 * bytes_ < old.packs[pack])
    small = [bytes_ for pack, bytes_ in used.items() if 2 * old.packs[pack] < SMALL.pack]
    return fresh + poor + (sum(small) + fresh if len(small) > 8 else 0)


@pytest.mark.parametrize(
    ("edit", "most"), [("nothing", 0), ("renamed", 0), ("one byte", 1 << 20), ("a tenth", 3 << 20)]
)
def test_a_large_file_that_changed_a_little_costs_little(edit, most, tmp_path):
    entry = trees.write(tmp_path / "step-1", a=trees.pattern("a", 25 << 20), b=trees.pattern("b", 1000))
    store = new_store()
    keeper = Saver(store, JOB, 1, fence=lambda: None)
    keeper.save(entry, 1)
    data = bytearray((entry / "a").read_bytes())
    if edit == "renamed":
        (entry / "a").rename(entry / "z")
    elif edit == "one byte":
        data[12345678] ^= 1
        (entry / "a").write_bytes(data)
    elif edit == "a tenth":
        data[5 << 20 : 15 << 19] = trees.pattern("c", 5 << 19)
        (entry / "a").write_bytes(data)
    assert keeper.save(entry, 2).uploaded_bytes <= most
    found = restore(store, JOB, tmp_path / "r")
    assert found is not None
    assert shape(found.directory / "step-1") == shape(entry)


def test_a_sparse_file_of_a_terabyte_costs_what_is_in_it_and_stays_sparse(tmp_path):
    entry = tmp_path / "step-1"
    entry.mkdir()
    with (entry / "huge").open("wb") as file:
        for at in (0, 3 << 30, (1 << 40) - 5):
            file.seek(at)
            file.write(b"data!")
        file.truncate(1 << 40)
    with (entry / "empty").open("wb") as file:
        file.truncate(5 << 30)
    (entry / "zeros").write_bytes(bytes(3 << 20))
    store = new_store()
    commit = Saver(store, JOB, 1, fence=lambda: None).save(entry, 1)
    assert commit.uploaded_bytes <= 3 * (8 << 20)
    found = restore(store, JOB, tmp_path / "r")
    assert found is not None
    back = found.directory / "step-1"
    for name in ("huge", "empty", "zeros"):
        assert (back / name).stat().st_size == (entry / name).stat().st_size
    assert trees.disk_blocks(back) <= 4 * (8 << 20)
    with (back / "huge").open("rb") as file:
        for at in (0, 3 << 30, (1 << 40) - 5):
            file.seek(at)
            assert file.read(5) == b"data!"


def test_bytes_that_are_all_zero_are_not_sent_and_come_back_as_a_hole(tmp_path):
    entry = trees.write(tmp_path / "step-1", zeros=bytes(5 << 20), some=bytes(3 << 20) + b"1" + bytes(3 << 20))
    store = new_store()
    commit = Saver(store, JOB, 1, fence=lambda: None).save(entry, 1)
    assert commit.uploaded_bytes == 1 << 20
    found = restore(store, JOB, tmp_path / "r")
    assert found is not None
    assert shape(found.directory / "step-1") == shape(entry)
    assert trees.disk_blocks(found.directory) <= 2 << 20


@contextmanager
def somebody_without_privileges(*owned: Path) -> Iterator[None]:
    """Be a user to whom permission bits mean something."""
    if os.geteuid() != 0:
        yield
        return
    for path in owned:
        os.chown(path, 65534, 65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("mode", [0o555, 0o500, 0o755])
def test_folders_and_files_that_nobody_may_write_come_back_to_an_ordinary_user(mode):
    with folder() as where, somebody_without_privileges(where):
        entry = where / "step-1"
        (entry / "deep" / "deeper").mkdir(parents=True)
        for place in (entry, entry / "deep", entry / "deep" / "deeper"):
            (place / "f").write_bytes(trees.pattern(place.name, 700))
            (place / "f").chmod(0o400)
            (place / "l").symlink_to("f")
        store = new_store()
        for place in (entry / "deep" / "deeper", entry / "deep", entry):
            place.chmod(mode)
        expected = shape(entry)
        saver(store).save(entry, 1)
        found = restore(store, JOB, where / "restored", threads=2)
        assert found is not None
        assert shape(found.directory / "step-1") == expected
        manifest = load(store, Position(1, 1), JOB)
        assert manifest is not None
        pull(store, manifest, where / "pulled", threads=2)
        assert shape(where / "pulled") == expected
        assert sorted(path.name for path in where.iterdir()) == ["pulled", "restored", "step-1"]


def test_a_restore_that_fails_leaves_nothing_behind_read_only_folders_neither():
    with folder() as where, somebody_without_privileges(where):
        entry = build(
            where / "step-1", trees.Directory({"d": trees.Directory({"f": trees.Content((("a", 600),))}, 0o500)}, 0o500)
        )
        store = new_store()
        commit = saver(store).save(entry, 1)
        for pack in commit.manifest.packs:
            store.put(f"packs/{pack}", bytes(commit.manifest.packs[pack]))
        assert restore(store, JOB, where / "restored", threads=2) is None
        assert list((where / "restored").iterdir()) == []


def test_what_a_killed_restore_left_is_removed_by_the_next_and_one_that_runs_is_not_disturbed(tmp_path):
    store = new_store()
    commit = saver(store).save(trees.write(tmp_path / "step-1", a=b"1"), 1)
    for place, prefix in ((tmp_path / "r", ".restoring-"), (tmp_path, f"{SCRATCH}12-")):
        place.mkdir(exist_ok=True)
        left = trees.write(place / f"{prefix}left_012", a=b"half")
        left.chmod(0o500)
        (place / f"{prefix}link_012").symlink_to(tmp_path / "step-1")
        others = [place / name for name in (f"{SCRATCH}results", f"{prefix}left_0123", f"{prefix}Left_012")]
        for other in others:
            other.mkdir()
        with scratch(place, prefix) as running:
            (running / "a").write_bytes(b"half")
            if prefix.startswith(SCRATCH):
                pull(store, commit.manifest, tmp_path / "pulled")
            else:
                restore(store, JOB, place)
            assert not left.exists()
            assert all(other.exists() for other in others)
            assert (running / "a").exists()
        assert not running.exists()
    assert shape(tmp_path / "pulled") == shape(tmp_path / "step-1")


def test_a_pull_never_writes_over_what_is_there(tmp_path):
    store = new_store()
    commit = saver(store).save(trees.write(tmp_path / "step-1", a=b"1"), 1)
    trees.write(tmp_path / "taken", mine=b"mine")
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "file").write_bytes(b"mine")
    before = shape(tmp_path)
    for name in ("taken", "link", "file"):
        with pytest.raises(ConfigError, match="is there already"):
            pull(store, commit.manifest, tmp_path / name)
    assert shape(tmp_path) == before
    (tmp_path / "empty").mkdir()
    pull(store, commit.manifest, tmp_path / "empty")
    assert shape(tmp_path / "empty") == shape(tmp_path / "step-1")


def test_five_thousand_files_need_few_requests_and_few_open_files(tmp_path):
    entry = tmp_path / "step-1"
    for number in range(5000):
        if number % 100 == 0:
            (entry / f"d{number}").mkdir(parents=True)
        (entry / f"d{number - number % 100}" / f"f{number}").write_bytes(trees.pattern(str(number), 200 + number % 50))
    store = open_store(f"file://{tmp_path}/store").at("digits")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (held + 64, limits[1]))
    try:
        Saver(store, JOB, 1, fence=lambda: None).save(entry, 1)
        assert store.requests < 20
        found = restore(store, JOB, tmp_path / "r")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert store.requests < 30
    assert found is not None
    assert shape(found.directory / "step-1") == shape(entry)


@settings(max_examples=40)
@given(
    tree=trees.directories, edits=st.lists(st.tuples(st.sampled_from(["byte", "add", "cut"]), st.integers(0, 10**4)))
)
def test_what_lies_on_the_disk_is_used_where_it_matches_and_never_believed(tree, edits):
    with folder() as where:
        entry = build(where / "step-1", tree)
        store = new_store()
        commit = Saver(store, JOB, 1, fence=lambda: None, threads=2).save(entry, 1)
        expected = shape(entry)
        for edit, number in edits:
            change(entry, edit, number)
        found = restore(store, JOB, where / "r", seeds=[entry, where / "none"], threads=2)
        assert found is not None
        assert shape(found.directory / "step-1") == expected
        if not edits:
            assert found.fetched_bytes == 0
        assert found.fetched_bytes <= sum(blobs(commit.manifest).values())
