"""What is saved comes back bit for bit, or an older one does, or nothing: never something else."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provisioner.checkpoint import layout
from provisioner.checkpoint.layout import Position
from provisioner.checkpoint.manifest import File, Folder, Link, Manifest, decode, encode
from provisioner.checkpoint.restore import committed, restore
from provisioner.checkpoint.retention import prune
from provisioner.checkpoint.save import Saver
from provisioner.checkpoint.store import Store, open_store
from provisioner.errors import Abandoned, CorruptCheckpoint, DiskFull, Fenced, StoreError, Unstable
from provisioner.model import JobRef

JOB = JobRef("digits", "1a2b3c4d")
CHUNK = 16

names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=12).filter(
    lambda name: name not in {".", ".."} and len(name.encode()) < 200
)
contents = st.binary(max_size=3 * CHUNK + 1) | st.sampled_from([b"", b"x" * CHUNK, b"x" * 2 * CHUNK])
trees = st.recursive(
    contents | st.none() | st.tuples(st.just("link"), names),
    lambda inner: st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)


def build(path: Path, tree) -> None:
    if isinstance(tree, bytes):
        path.write_bytes(tree)
        path.chmod(0o600 + 8 * (len(tree) % 8))
    elif isinstance(tree, tuple):
        path.symlink_to(tree[1])
    else:
        path.mkdir()
        for name, inner in (tree or {}).items():
            build(path / name, inner)
        path.chmod(0o755)


def shape(path: Path) -> object:
    if path.is_symlink():
        return ("link", str(path.readlink()))
    mode = stat.S_IMODE(path.stat().st_mode)
    if path.is_dir():
        return mode, {child.name: shape(child) for child in path.iterdir()}
    return mode, path.read_bytes()


def saver(store: Store, epoch: int = 1, job: JobRef = JOB, chunk_bytes: int = CHUNK) -> Saver:
    return Saver(store, job, epoch, fence=lambda: None, chunk_bytes=chunk_bytes, clock=lambda: 1.0)


def new_store() -> Store:
    return open_store("memory://").at("digits")


def write(path: Path, **files: bytes) -> Path:
    path.mkdir(parents=True)
    for name, data in files.items():
        (path / name).write_bytes(data)
    return path


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=st.dictionaries(names, trees, max_size=5) | contents)
def test_any_tree_comes_back_as_it_was(tree, tmp_path_factory):
    where = tmp_path_factory.mktemp("tree")
    entry = where / "step-7"
    build(entry, tree)
    store = new_store()
    saver(store).save(entry, 7)
    found = restore(store, JOB, where / "restored")
    assert found is not None
    assert found.position == Position(epoch=1, step=7)
    assert shape(found.directory / found.entry) == shape(entry)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_anywhere_leads_to_an_older_one_or_nothing_never_to_wrong_bytes(data, tmp_path_factory):
    where = tmp_path_factory.mktemp("damage")
    store = new_store()
    saved = {}
    for step in (10, 20, 30):
        entry = write(where / f"step-{step}", a=bytes([step]) * 40, b=b"shared", c=bytes(range(step, step + 20)))
        saver(store).save(entry, step)
        saved[step] = shape(entry)
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from([stored.key for stored in store.objects("")]))
        body = store.get(key)
        assert body is not None
        at = data.draw(st.integers(0, max(0, len(body) - 1)))
        damage = data.draw(st.sampled_from(["flip", "cut", "remove"]))
        if damage == "remove":
            store.delete([key])
        elif damage == "cut":
            store.put(key, body[:at])
        else:
            store.put(key, body[:at] + bytes([body[at] ^ 0x40]) + body[at + 1 :] if body else b"x")
    found = restore(store, JOB, where / "restored")
    if found is not None:
        assert shape(found.directory / found.entry) == saved[found.position.step]
    assert [path.name for path in (where / "restored").iterdir() if path.name.startswith(".")] == []


def test_a_damaged_shared_chunk_is_uploaded_again_by_the_next_save(tmp_path):
    store = new_store()
    entry = write(tmp_path / "step-1", a=b"same bytes")
    saver(store).save(entry, 1)
    (chunk,) = [stored.key for stored in store.objects(layout.CHUNKS)]
    store.put(chunk, b"lame bytes")
    distrust: set[str] = set()
    assert restore(store, JOB, tmp_path / "r", distrust=distrust) is None
    again = saver(store)
    again.distrust = frozenset(distrust)
    again.save(entry, 1)
    assert restore(store, JOB, tmp_path / "r") is not None


def test_the_highest_epoch_wins_then_the_highest_step(tmp_path):
    store = new_store()
    for epoch, step in ((1, 90), (2, 10), (2, 40), (1, 95)):
        saver(store, epoch).save(write(tmp_path / f"{epoch}" / f"step-{step}", a=b"%d" % step), step)
    found = restore(store, JOB, tmp_path / "r")
    assert found is not None
    assert found.position == (2, 40)


def test_another_jobs_checkpoint_is_never_restored_overwritten_or_removed(tmp_path):
    store = new_store()
    foreign = JobRef("digits", "ffffffff")
    entry = write(tmp_path / "step-50", a=b"theirs")
    saver(store, 1, foreign).save(entry, 50)
    lines: list[str] = []
    assert restore(store, JOB, tmp_path / "r", report=lines.append) is None
    assert "another job" in lines[0]
    with pytest.raises(StoreError, match="another job"):
        saver(store, 1).save(write(tmp_path / "own" / "step-50", a=b"ours"), 50)
    for step in (60, 70, 80):
        saver(store, 1).save(write(tmp_path / f"step-{step}", a=b"ours"), step)
    prune(store, JOB, 1, newest=Position(1, 80))
    assert committed(store) == [(1, 80), (1, 50)]


def test_unchanged_bytes_are_not_sent_again(tmp_path):
    store = new_store()
    keeper = saver(store)
    first = keeper.save(write(tmp_path / "step-1", a=os.urandom(100), b=b"x"), 1)
    (tmp_path / "step-1").rename(tmp_path / "step-2")
    second = keeper.save(tmp_path / "step-2", 2)
    assert (first.uploaded_bytes, second.uploaded_bytes) == (101, 0)
    assert saver(store).save(tmp_path / "step-2", 3).uploaded_bytes == 0


def test_a_file_that_changes_while_it_is_read_commits_nothing(tmp_path):
    store = new_store()
    entry = write(tmp_path / "step-1", a=b"1" * 64, z=b"2" * 64)
    real_put = store.put

    def put(key, data):
        (entry / "z").write_bytes(b"3" * 64)
        real_put(key, data)

    store.put = put  # type: ignore[method-assign]
    with pytest.raises(Unstable):
        saver(store).save(entry, 1)
    assert committed(store) == []


def test_a_file_that_is_added_late_or_removed_commits_nothing(tmp_path):
    store = new_store()
    entry = write(tmp_path / "step-1", a=b"1" * 64)
    real_put = store.put

    def put(key, data):
        (entry / "late").write_bytes(b"")
        real_put(key, data)

    store.put = put  # type: ignore[method-assign]
    with pytest.raises(Unstable):
        saver(store).save(entry, 1)
    with pytest.raises(Unstable):
        saver(store).save(tmp_path / "step-none", 1)
    assert committed(store) == []


def test_a_fenced_or_cancelled_save_commits_nothing(tmp_path):
    store = new_store()
    entry = write(tmp_path / "step-1", a=b"1" * 64)

    def fence():
        raise Fenced("epoch 2 owns the job")

    with pytest.raises(Fenced):
        Saver(store, JOB, 1, fence=fence).save(entry, 1)
    told = threading.Event()
    told.set()
    with pytest.raises(Abandoned):
        Saver(store, JOB, 1, fence=lambda: None, cancel=told).save(entry, 1)
    assert committed(store) == []


def test_a_save_that_meets_its_own_manifest_is_committed(tmp_path):
    """The answer to the first write was lost, and the client has tried again by itself."""
    store = new_store()
    entry = write(tmp_path / "step-1", a=b"1")
    real_create = store.create

    def create(key, data):
        real_create(key, data)
        return real_create(key, data)

    store.create = create  # type: ignore[method-assign]
    assert saver(store).save(entry, 1).key == "checkpoints/000000000001-000001.json"


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "step-1/../../x",
        "/etc/x",
        "step-1//x",
        "other/x",
        "step-1/./x",
        "step-1/x/",
        "",
        "step-1/\0",
        "step-1/..",
    ],
)
@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_a_path_that_leaves_the_entry_is_refused(path, kind, tmp_path):
    parts: dict[str, tuple] = {
        "file": (File(path, 0, 0o600, ()),),
        "folder": (Folder(path, 0o700),),
        "link": (Link(path, "x"),),
    }
    manifest = Manifest(
        JOB, 1, 1, "step-1", 0.0, CHUNK,
        files=parts["file"] if kind == "file" else (),
        folders=parts["folder"] if kind == "folder" else (),
        links=parts["link"] if kind == "link" else (),
    )  # fmt: skip
    with pytest.raises(CorruptCheckpoint):
        decode(encode(manifest))


def test_nothing_is_written_through_a_link(tmp_path):
    """Two paths contradict each other: one is a link, another lies below it."""
    store = new_store()
    manifest = Manifest(
        JOB, 1, 1, "step-1", 0.0, CHUNK,
        files=(File("step-1/l/x", 0, 0o600, ()),),
        folders=(Folder("step-1", 0o700),),
        links=(Link("step-1/l", str(tmp_path / "outside")),),
    )  # fmt: skip
    (tmp_path / "outside").mkdir()
    store.put(layout.manifest(manifest.position), encode(manifest))
    assert restore(store, JOB, tmp_path / "r") is None
    assert list((tmp_path / "outside").iterdir()) == []


def test_r17_a_restore_looks_for_room_first_and_names_the_disk(tmp_path):
    store = new_store()
    saver(store).save(write(tmp_path / "step-1", a=b"1" * 64), 1)
    with pytest.raises(DiskFull, match=str(tmp_path / "r")):
        restore(store, JOB, tmp_path / "r", free_bytes=lambda _path: 1000)
    assert list((tmp_path / "r").iterdir()) == []


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 9)), min_size=1, max_size=10, unique=True),
    keep=st.integers(1, 4),
    broken=st.sets(st.integers(0, 9), max_size=3),
)
def test_retention_keeps_the_newest_valid_ones_and_what_is_protected(steps, keep, broken, tmp_path_factory):
    where = tmp_path_factory.mktemp("retention")
    store = new_store()
    for epoch, step in steps:
        saver(store, epoch).save(write(where / f"{epoch}" / f"step-{step}", a=b"x"), step)
    order = committed(store)
    bad = {order[index] for index in broken if index < len(order)}
    for position in bad:
        store.put(layout.manifest(position), b"{}")
    newest, oldest = order[0], order[-1]
    prune(store, JOB, keep, newest=newest, protect=[oldest])
    left = committed(store)
    good = [position for position in order if position not in bad]
    assert set(good[:keep]) | {newest, oldest} | bad == set(left)


def test_more_chunks_than_room_in_memory_go_through(tmp_path):
    store = new_store()
    entry = write(tmp_path / "step-1", a=os.urandom(CHUNK * 300 + 3))
    saver(store).save(entry, 1)
    found = restore(store, JOB, tmp_path / "r")
    assert found is not None
    assert shape(found.directory / "step-1") == shape(entry)
