"""What is saved comes back bit for bit, or an older one does, or nothing: never something else."""

from __future__ import annotations

import os
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provisioner.checkpoint import layout
from provisioner.checkpoint.layout import Position
from provisioner.checkpoint.manifest import File, Folder, Link, Manifest, decode, encode
from provisioner.checkpoint.restore import committed, restore
from provisioner.checkpoint.retention import Policy, prune
from provisioner.checkpoint.save import Saver
from provisioner.errors import (
    Abandoned,
    ConfigError,
    CorruptCheckpoint,
    DiskFull,
    Fenced,
    StoreError,
    Unreachable,
    Unstable,
)
from provisioner.model import JobRef
from tests.trees import JOB, SMALL, new_store, saver, shape, write


def test_a_damaged_shared_pack_is_uploaded_again_by_the_next_save(tmp_path):
    store = new_store()
    entry = write(tmp_path / "step-1", a=b"same bytes")
    saver(store).save(entry, 1)
    (pack,) = [stored.key for stored in store.objects(layout.PACKS)]
    store.put(pack, b"lame bytes")
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
    prune(store, JOB, Policy(1), newest=Position(1, 80))
    assert committed(store) == [(1, 80), (1, 50)]


def test_a_store_in_memory_keeps_what_it_was_given(tmp_path):
    """Its buffers are the caller's otherwise, and those are used for the next bytes."""
    store = new_store()
    data = bytearray(b"first")
    store.put("x", memoryview(data))
    store.put("y", [memoryview(data)[:2], memoryview(data)[2:]])
    data[:] = b"other"
    assert (store.get("x"), store.get("y")) == (b"first", b"first")


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


def test_r01_a_manifest_whose_answer_was_lost_is_committed_by_the_next_try(tmp_path):
    """The manifest reached the store, the answer did not: the save fails, and what follows takes nothing as foreign."""
    store = new_store()
    entry = write(tmp_path / "step-1", a=b"1")
    real_put = store.put

    def put(key, data):
        real_put(key, data)
        if key.startswith(layout.CHECKPOINTS):
            raise Unreachable("no answer")

    store.put = put  # type: ignore[method-assign]
    keeper = saver(store)
    with pytest.raises(Unreachable):
        keeper.save(entry, 1)
    store.put = real_put  # type: ignore[method-assign]
    again = keeper.save(entry, 1)
    assert (again.key, again.uploaded_bytes) == ("checkpoints/000000000001-000001.json", 0)
    assert committed(store) == [(1, 1)]


@pytest.mark.parametrize("step", [-1, 10**12])
def test_a_step_that_no_restore_would_find_is_refused_before_anything_is_sent(step, tmp_path):
    store = new_store()
    with pytest.raises(ConfigError, match=str(step)):
        saver(store).save(write(tmp_path / "step", a=b"1"), step)
    assert store.objects("") == []


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
        JOB, 1, 1, "step-1", 0.0, {},
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
        JOB, 1, 1, "step-1", 0.0, {},
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
    prune(store, JOB, Policy(keep), newest=newest, protect=[oldest])
    left = committed(store)
    good = [position for position in order if position not in bad]
    assert set(good[:keep]) | {newest, oldest} | bad == set(left)


def test_more_bytes_than_all_buffers_together_go_through(tmp_path):
    store = new_store()
    entry = write(tmp_path / "step-1", a=os.urandom(100 * SMALL.pack + 3))
    saver(store).save(entry, 1)
    found = restore(store, JOB, tmp_path / "r")
    assert found is not None
    assert shape(found.directory / "step-1") == shape(entry)
