"""A directory that serves as a store: what a writer that was killed has left there, and sweeps beside writers."""

from __future__ import annotations

import os
import threading
import time

import pytest

from provisioner.checkpoint.layout import Position
from provisioner.checkpoint.restore import load
from provisioner.checkpoint.retention import Policy, prune
from provisioner.checkpoint.store import open_store
from provisioner.checkpoint.sweep import sweep
from provisioner.checkpoint.verify import verify
from provisioner.errors import StoreError
from tests.trees import JOB, pattern, saver, write

OLD = [f"{'0' * 32}-{'0' * 8}#1", f"{'0' * 32}-{'0' * 8}#27"]
YOUNG = f"{'f' * 32}-{'0' * 8}#1"


@pytest.mark.parametrize(("grace_s", "left"), [(3600, {YOUNG}), (0, set())])
def test_unfinished_files_go_once_they_are_older_than_the_grace(grace_s, left, tmp_path):
    store = open_store(f"file://{tmp_path}/store").at("digits")
    saver(store).save(write(tmp_path / "step-1", a=b"1"), 1)
    packs = tmp_path / "store" / "digits" / "packs"
    others = {path.name for path in packs.iterdir()}
    (packs / "somebody's notes #1").write_bytes(b"not ours")
    others.add("somebody's notes #1")
    for name in (*OLD, YOUNG):
        (packs / name).write_bytes(b"half a pack")
    hour_ago = time.time() - 3601
    for name in (*OLD, "somebody's notes #1"):
        os.utime(packs / name, (hour_ago, hour_ago))
    sweep(store, grace_s=grace_s, dry_run=True)
    assert len(list(packs.iterdir())) == len(others) + 3
    sweep(store, grace_s=grace_s)
    assert {path.name for path in packs.iterdir()} == others | left


def test_a_sweep_that_takes_a_file_from_under_a_writers_hands_costs_it_a_try_and_nothing_else(tmp_path):
    store = open_store(f"file://{tmp_path}/store")
    data = pattern("data", 4 << 20)
    done = threading.Event()

    def meddle() -> None:
        while not done.is_set():
            for path in tmp_path.rglob("*#*"):
                path.unlink(missing_ok=True)
                return

    meddler = threading.Thread(target=meddle)
    meddler.start()
    for _ in range(200):
        store.put("packs/x", data)
        if store.retries:
            break
    done.set()
    meddler.join()
    assert store.get("packs/x") == data
    assert store.retries <= 1


def test_saves_removals_and_two_sweeps_beside_each_other_leave_every_commit_whole(tmp_path):
    """Real threads on a real directory, none of which waits for another; the sweeps have no grace."""
    store = open_store(f"file://{tmp_path}/store").at("digits")
    done = threading.Event()
    failed: list[BaseException] = []
    given_up: list[str] = []

    def keep_sweeping() -> None:
        try:
            while not done.is_set():
                sweep(store, grace_s=0)
                time.sleep(0.005)
        except BaseException as error:  # noqa: BLE001 - shown by the test's own thread
            failed.append(error)

    sweepers = [threading.Thread(target=keep_sweeping) for _ in range(2)]
    for thread in sweepers:
        thread.start()
    keeper = saver(store)
    try:
        for step in range(1, 40):
            entry = write(
                tmp_path / f"{step}" / "state",
                shared=pattern("shared", 900),
                own=pattern(f"own {step}", 300),
                turn=pattern(f"turn {step % 3}", 700),
            )
            try:
                commit = keeper.save(entry, step)
            except StoreError as error:  # five times in a row a sweep was faster: nothing was announced
                given_up.append(str(error))
                continue
            prune(store, JOB, Policy(1 + step % 2), newest=commit.position)
            manifest = load(store, Position(1, step), JOB)
            assert manifest == commit.manifest
            assert verify(store, manifest) == []
    finally:
        done.set()
        for thread in sweepers:
            thread.join()
    assert failed == []
    assert all("vanishes" in text for text in given_up)
