"""``CheckpointStore``: what people call from their own code."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from provisioner.checkpoint import AsyncCheckpointStore, CheckpointStore, layout
from provisioner.checkpoint import restore as restoring
from provisioner.checkpoint.inputs import plain
from provisioner.checkpoint.layout import Position
from provisioner.checkpoint.restore import restore
from provisioner.checkpoint.store import Store, open_store
from provisioner.errors import Abandoned, ConfigError, CorruptCheckpoint, Fenced, StoreError
from provisioner.model import JobRef

JOB = JobRef("digits", "1a2b3c4d")


def write(path: Path, seed: int = 1, *, size: int = 3_000_000) -> Path:
    """Write a checkpoint of two files."""
    (path / "sub").mkdir(parents=True)
    (path / "weights.bin").write_bytes(random.Random(seed).randbytes(size))
    (path / "sub" / "state.json").write_text(json.dumps({"seed": seed}))
    return path


def content(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> CheckpointStore:
    return CheckpointStore(f"file://{root}")


@pytest.fixture
def lines(store: CheckpointStore) -> list[str]:
    told: list[str] = []
    store.report = told.append
    return told


def damage(root: Path, kind: str, which: int = -1) -> None:
    """Flip a bit of one manifest or pack, by default the one that was written last."""
    path = sorted((root / kind).iterdir(), key=lambda path: path.stat().st_mtime_ns)[which]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def take_up(root: Path, epoch: int, *, age_s: float, end: object = None) -> None:
    """Let it look as if a machine had taken the job up and had written its last heartbeat ``age_s`` seconds ago."""
    folder = root / "epochs" / str(epoch)
    folder.mkdir(parents=True, exist_ok=True)
    (root / "spec.json").write_text(json.dumps({"version": 1, "job": {"name": JOB.name, "uid": JOB.uid}}))
    (folder / "owner.json").write_text(json.dumps({"token": "t", "node": "n", "time": 0}))
    (folder / "heartbeat.json").write_text(json.dumps({"epoch": epoch, "seq": 1, "end": end}))
    for path in folder.iterdir():
        os.utime(path, (time.time() - age_s, time.time() - age_s))


def test_what_is_saved_is_listed_and_comes_back(store: CheckpointStore, tmp_path: Path) -> None:
    before = time.time()
    entry = write(tmp_path / "step-40")
    seen: list[tuple[int, int]] = []
    commit = store.save(entry, metadata={"loss": 0.5}, progress=lambda done, total: seen.append((done, total)))
    assert (commit.position, commit.uploaded_bytes) == (Position(0, 40), commit.total_bytes)
    assert seen[-1] == (commit.total_bytes, commit.total_bytes)
    latest = store.latest()
    assert latest is not None
    assert (latest.step, latest.files, latest.entry, latest.metadata) == (40, 2, "step-40", {"loss": 0.5})
    assert before - 1 < latest.time < time.time() + 1
    assert [found.key for found in store.list()] == [commit.key]
    restored = store.restore(tmp_path / "out")
    assert restored.directory / restored.entry == tmp_path / "out"
    assert content(tmp_path / "out") == content(entry)


def test_a_second_save_sends_what_changed_and_gets_the_next_step(store: CheckpointStore, tmp_path: Path) -> None:
    entry = write(tmp_path / "model")
    assert store.save(entry).position.step == 1
    (entry / "sub" / "more").write_bytes(b"x" * 1000)
    second = store.save(entry)
    assert (second.position.step, second.uploaded_bytes) == (2, 1000)
    third = store.save(write(tmp_path / "ckpt_000010"))
    assert (third.position.step, third.uploaded_bytes) == (10, 0)
    assert store.save(write(tmp_path / "step-7")).position.step == 11, "an older number is not taken for the next save"
    assert [(found.step, found.new_bytes) for found in store.list()] == [(11, 0), (10, 0), (2, 1000), (1, 3_000_011)]


def test_a_step_that_is_given_may_be_an_older_one_and_replaces_its_own(store: CheckpointStore, tmp_path: Path) -> None:
    store.save(write(tmp_path / "a", 1), 40)
    store.save(write(tmp_path / "b", 2), 20)
    store.save(write(tmp_path / "c", 3), 40)
    assert [(found.step, found.entry) for found in store.list()] == [(40, "c"), (20, "b")]
    store.restore(tmp_path / "out")
    assert content(tmp_path / "out") == content(tmp_path / "c")


def test_two_who_save_at_once_get_a_step_each(store: CheckpointStore, tmp_path: Path) -> None:
    other = CheckpointStore(store.uri)
    theirs: list[int] = []

    def meanwhile(*_: int) -> None:
        if not theirs:
            theirs.append(other.save(write(tmp_path / "theirs", 2)).position.step)

    assert store.save(write(tmp_path / "ours", 1), progress=meanwhile).position.step == 2
    assert theirs == [1]
    assert [found.entry for found in store.list()] == ["ours", "theirs"]
    theirs.clear()
    with pytest.raises(ConfigError, match="step 3 is there already"):
        store.save(tmp_path / "ours", 3, progress=lambda *_: other.save(tmp_path / "theirs", 3), replace=False)


@pytest.mark.parametrize("kind", ["checkpoints", "packs"])
def test_restore_takes_an_older_one_and_says_so_but_never_when_a_step_was_asked_for(
    store: CheckpointStore, lines: list[str], root: Path, tmp_path: Path, kind: str
) -> None:
    store.save(write(tmp_path / "step-1", 1))
    store.save(write(tmp_path / "step-2", 2))
    damage(root, kind)
    with pytest.raises(CorruptCheckpoint, match=r"checkpoints/000000000002-000000\.json"):
        store.restore(tmp_path / "exact", step=2)
    assert not (tmp_path / "exact").exists()
    assert lines == []
    assert store.restore(tmp_path / "out").position.step == 1
    assert content(tmp_path / "out") == content(tmp_path / "step-1")
    assert len(lines) == 1
    assert "000000000002-000000.json is not usable" in lines[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "step-1", "step-2", "store"]


def test_damaged_manifests_are_listed_with_their_problem_and_never_the_latest(
    store: CheckpointStore, root: Path, tmp_path: Path
) -> None:
    store.save(write(tmp_path / "step-1", 1))
    store.save(write(tmp_path / "step-2", 2))
    damage(root, "checkpoints")
    assert [(found.step, bool(found.problem)) for found in store.list()] == [(2, True), (1, False)]
    latest = store.latest()
    assert latest is not None
    assert latest.step == 1
    assert [(one.checkpoint.step, bool(one.problems)) for one in store.verify(everything=True)] == [
        (2, True),
        (1, False),
    ]


def test_nothing_restorable_is_an_error_that_says_so(
    store: CheckpointStore, lines: list[str], root: Path, tmp_path: Path
) -> None:
    store.save(write(tmp_path / "step-1"))
    damage(root, "packs")
    with pytest.raises(StoreError, match="no checkpoint that can be restored"):
        store.restore(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(StoreError, match="no checkpoint of step 9") as raised:
        store.restore(tmp_path / "out", step=9)
    assert raised.value.hint == "the newest steps are 1"


def test_a_damaged_pack_is_found_and_sent_again(store: CheckpointStore, root: Path, tmp_path: Path) -> None:
    entry = write(tmp_path / "step-1")
    store.save(entry)
    damage(root, "packs")
    fresh = CheckpointStore(store.uri)
    assert fresh.verify(quick=True)[0].problems == (), "quick does not read"
    (one,) = fresh.verify()
    assert one.damaged == (next((root / "packs").iterdir()).name,)
    assert fresh.save(entry).uploaded_bytes == 3_000_011, "who has found the damage does not count on it"
    unaware = CheckpointStore(store.uri)
    damage(root, "packs")
    assert unaware.save(entry).uploaded_bytes == 0
    assert CheckpointStore(store.uri).verify()[0].problems
    unaware.save(entry, resend=True)
    assert not CheckpointStore(store.uri).verify()[0].problems


def test_what_checkpoints_share_is_verified_once(store: CheckpointStore, root: Path, tmp_path: Path) -> None:
    entry = write(tmp_path / "run")
    for number in range(4):
        (entry / "step").write_bytes(bytes([number + 1]) * 100)
        store.save(entry)
    read: list[int] = []
    found = store.verify(everything=True, progress=lambda done, _total: read.append(done))
    assert [one.checkpoint.step for one in found] == [4, 3, 2, 1]
    # Each checkpoint counts up from nothing, in as many calls as its requests happen to end in.
    before = [0, *read]
    assert sum(now - was if now > was else now for was, now in zip(before, read, strict=False)) < 3_010_000
    damage(root, "packs", 0)
    found = CheckpointStore(store.uri).verify(everything=True)
    assert [bool(one.problems) for one in found] == [True] * 4, "each of them has the damaged pack"


def test_a_job_restores_what_was_saved_by_hand_into_its_place(
    store: CheckpointStore, root: Path, tmp_path: Path
) -> None:
    job = CheckpointStore(store.uri, job=JOB, epoch=2)
    job.save(write(tmp_path / "step-100", 1))
    take_up(root, 3, age_s=3600)
    commit = store.save(write(tmp_path / "mended", 2))
    assert commit.position == Position(3, 101)
    found = restore(open_store(store.uri), JOB, tmp_path / "node")
    assert found is not None
    assert found.position == commit.position
    assert content(found.directory / found.entry) == content(tmp_path / "mended")


def test_a_job_is_not_given_a_step_that_is_not_newer(store: CheckpointStore, root: Path, tmp_path: Path) -> None:
    CheckpointStore(store.uri, job=JOB, epoch=2).save(write(tmp_path / "step-100", 1))
    for step in (99, 100):
        with pytest.raises(ConfigError, match=f"step {step} is not newer than step 100"):
            store.save(tmp_path / "step-100", step)
    assert store.save(tmp_path / "step-100", 99, force=True).position == Position(2, 99)
    assert not (root / "epochs").exists()


def test_nobody_saves_by_hand_while_a_machine_trains(store: CheckpointStore, root: Path, tmp_path: Path) -> None:
    entry = write(tmp_path / "step-5")
    take_up(root, 1, age_s=5)
    with pytest.raises(ConfigError, match=r"a machine trains here \(epoch 1"):
        store.save(entry)
    assert store.list() == []
    take_up(root, 1, age_s=5, end={"reason": "done"})
    store.save(entry)  # it has said that it is at its end
    take_up(root, 1, age_s=61)
    store.save(entry)
    take_up(root, 1, age_s=5)
    store.save(entry, force=True)
    assert [found.step for found in store.list()] == [7, 6, 5]
    assert {found.job for found in store.list()} == {JOB}
    assert list(root.rglob("*.clock")) == []


def test_a_machine_that_comes_while_something_is_saved_by_hand_has_the_place(
    store: CheckpointStore, root: Path, tmp_path: Path
) -> None:
    take_up(root, 1, age_s=3600)
    with pytest.raises(ConfigError, match="taken the job up meanwhile"):
        store.save(write(tmp_path / "step-5"), progress=lambda *_: take_up(root, 2, age_s=0))
    assert store.list() == []


def test_an_owner_is_fenced_by_a_newer_epoch_only(store: CheckpointStore, root: Path, tmp_path: Path) -> None:
    owner = CheckpointStore(store.uri, job=JOB, epoch=2)
    take_up(root, 2, age_s=0)
    owner.save(write(tmp_path / "step-5"))
    owner.save(tmp_path / "step-5", 4)
    take_up(root, 3, age_s=3600)
    with pytest.raises(Fenced):
        owner.save(tmp_path / "step-5")


def test_who_names_a_job_sees_its_checkpoints_only(
    store: CheckpointStore, lines: list[str], root: Path, tmp_path: Path
) -> None:
    CheckpointStore(store.uri, job=JobRef("digits", "ffffffff"), epoch=9).save(write(tmp_path / "step-9", 9))
    ours = CheckpointStore(store.uri, job=JOB, epoch=1, report=lines.append)
    ours.save(write(tmp_path / "step-1", 1), 1)
    assert [found.step for found in ours.list()] == [1]
    assert [found.step for found in store.list()] == [9, 1]
    assert ours.restore(tmp_path / "out").position == Position(1, 1)
    with pytest.raises(StoreError, match="belongs to another job"):
        ours.remove(9, force=True)
    assert len(lines) == 1


def test_the_newest_is_removed_only_by_force_and_a_step_of_two_epochs_only_by_its_epoch(
    store: CheckpointStore, root: Path, tmp_path: Path
) -> None:
    entry = write(tmp_path / "run")
    for epoch, step in ((1, 10), (1, 20), (2, 20)):
        CheckpointStore(store.uri, job=JOB, epoch=epoch).save(entry, step)
    with pytest.raises(ConfigError, match="epochs 1 and 2"):
        store.remove(20)
    with pytest.raises(ConfigError, match="newest"):
        store.remove(20, 2)
    assert store.remove(20, 1).position == Position(1, 20)
    store.remove(20, 2, force=True)
    assert [found.step for found in store.list()] == [10]
    damage(root, "checkpoints")
    assert store.remove(10).problem, "a damaged one goes without force"
    assert store.list() == []


def test_it_takes_two_sweeps_until_something_is_gone(store: CheckpointStore, root: Path, tmp_path: Path) -> None:
    store.save(write(tmp_path / "step-1", 1))
    store.save(write(tmp_path / "step-2", 2))
    store.remove(1)
    assert store.sweep().condemned == 0, "an hour is the grace"
    preview = store.sweep(0, dry_run=True)
    assert (preview.condemned, preview.kept) == (1, 1)
    assert store.sweep(0).deleted == 1
    assert len(list((root / "packs").iterdir())) == 1
    store.restore(tmp_path / "out")


def test_copies_hold_the_same_and_are_not_sent_twice(store: CheckpointStore, tmp_path: Path) -> None:
    store.save(write(tmp_path / "step-1", 1))
    newest = store.latest()
    assert newest is not None
    other = CheckpointStore(f"file://{tmp_path}/other")
    assert store.outstanding(other, newest) == 3_000_011
    assert store.copy_to(other).bytes == 3_000_011
    assert store.outstanding(other, newest) == 0
    assert store.copy_to(other.uri, 1).bytes == 0
    other.restore(tmp_path / "out")
    assert content(tmp_path / "out") == content(tmp_path / "step-1")


def test_a_copy_does_not_replace_another_checkpoint_of_the_same_step_unasked(
    store: CheckpointStore, root: Path, tmp_path: Path
) -> None:
    other = CheckpointStore(f"file://{tmp_path}/other")
    store.save(write(tmp_path / "a", 1), 7)
    other.save(write(tmp_path / "b", 2), 7)
    with pytest.raises(ConfigError, match="another checkpoint of step 7 is there already"):
        store.copy_to(other)
    store.copy_to(other, replace=True)
    other.restore(tmp_path / "out")
    assert content(tmp_path / "out") == content(tmp_path / "a")


def test_who_names_a_store_and_not_the_place_in_it_is_told_what_there_is(root: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        CheckpointStore(f"file://{root}/{name}").save(write(tmp_path / name))
    (root / "else").mkdir()
    store = CheckpointStore(f"file://{root}")
    assert store.list() == []
    with pytest.raises(StoreError, match="no checkpoint") as raised:
        store.restore(tmp_path / "out")
    assert raised.value.hint == f"below it there are first, second: name one, as file://{root}/first"


def test_looking_at_a_directory_that_is_not_there_does_not_make_it(store: CheckpointStore, tmp_path: Path) -> None:
    assert (store.latest(), store.list()) == (None, [])
    for call in (
        lambda: store.restore(tmp_path / "out"),
        store.verify,
        lambda: store.remove(1),
        store.sweep,
        lambda: store.copy_to(f"file://{tmp_path}/other"),
    ):
        with pytest.raises(StoreError, match="no such directory"):
            call()
    assert list(tmp_path.iterdir()) == []


def test_metadata_comes_back_as_json_has_it_or_is_refused() -> None:
    class Scalar:
        def item(self) -> float:
            return 0.25

    given = {"loss": Scalar(), 10: "ten", 9: ("a", None, True)}
    assert plain(given) == {"loss": 0.25, "10": "ten", "9": ["a", None, True]}
    for value in (float("nan"), float("inf"), object(), {1, 2}, b"bytes"):
        with pytest.raises(ConfigError, match="metadata"):
            plain({"value": value})


def test_numbers_as_names_of_metadata_do_not_damage_the_manifest(store: CheckpointStore, tmp_path: Path) -> None:
    numbered: dict[Any, str] = {10: "ten", 9: "nine"}
    store.save(write(tmp_path / "step-1"), metadata=numbered)
    latest = store.latest()
    assert latest is not None
    assert latest.metadata == {"9": "nine", "10": "ten"}


def test_what_cannot_be_saved_is_named(store: CheckpointStore, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "nowhere").symlink_to("gone")
    cases = {"missing": "no such file", "pipe": "neither a file", "nowhere": "no such file", ".": "lies in it"}
    for name, message in cases.items():
        with pytest.raises(ConfigError, match=message):
            store.save(tmp_path / name)
    for step in (-1, 10**12):
        with pytest.raises(ConfigError, match=r"a step is a number from 0 to"):
            store.save(write(tmp_path / f"step{step}"), step)
    assert store.list() == []


def test_a_link_that_is_named_is_followed(store: CheckpointStore, tmp_path: Path) -> None:
    write(tmp_path / "step-40")
    (tmp_path / "latest").symlink_to("step-40")
    commit = store.save(tmp_path / "latest")
    assert (commit.position.step, commit.entry) == (40, "step-40")


@pytest.mark.parametrize(
    "uri",
    [
        *("s3://bu cket/x", "s3://b:80/x", "s3://b/a//b", "s3://b/../x", "s3://b[", "s3://b/x\n", "file:///a\nb"),
        "ftp://x/y",
        "directory",
        "file://relative/x",
        "s3://",
        "s3://bucket/a?b",
        "s3://key:secret@bucket/x",
        "s3://b/\udcff",
    ],
)
def test_a_uri_that_leads_nowhere_is_refused_without_its_key(uri: str) -> None:
    with pytest.raises(ConfigError) as raised:
        CheckpointStore(uri)
    assert "secret" not in str(raised.value)


def test_a_target_that_is_taken_is_left_alone(store: CheckpointStore, tmp_path: Path) -> None:
    store.save(write(tmp_path / "step-1"))
    (tmp_path / "dangling").symlink_to("gone")
    (tmp_path / "file").write_text("mine")
    for name in ("step-1", "dangling", "file"):
        with pytest.raises(ConfigError, match="is there already"):
            store.restore(tmp_path / name)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_directory_in_which_we_stand_is_filled_and_not_replaced(
    store: CheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = write(tmp_path / "step-1")
    (entry / "sub").chmod(0o555)
    entry.chmod(0o750)
    (entry / "link").symlink_to("sub")
    store.save(entry)
    store.save(entry / "weights.bin")
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    inode = here.stat().st_ino
    with pytest.raises(ConfigError, match="the checkpoint is a file"):
        store.restore(".")
    assert list(here.iterdir()) == []
    store.restore(".", step=1)
    assert here.stat().st_ino == inode
    assert content(here) == content(entry)
    assert (here / "link").is_symlink()
    assert [path.stat().st_mode & 0o777 for path in (here, here / "sub")] == [0o750, 0o555]
    (entry / "sub").chmod(0o755)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_directory_without_write_permission_comes_back_for_who_is_not_root(store: CheckpointStore) -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o777)
        entry = write(place / "step-1")
        entry.chmod(0o555)
        CheckpointStore(f"file://{place}/store").save(entry)
        subprocess.run(["chmod", "-R", "a+rX", place / "store"], check=True)
        script = f"""
import os
from provisioner.checkpoint import CheckpointStore
CheckpointStore("file://{place}/store").restore("{place}/first")  # what is imported late may lie out of reach later
os.setuid(65534)
CheckpointStore("file://{place}/store").restore("{place}/out")
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert (place / "out").stat().st_mode & 0o777 == 0o555
        assert content(place / "out") == content(entry)


class SlowStore(Store):
    """Each pack takes its time; ``begun`` says that one is under way."""

    begun = threading.Event()

    def put(self, key: str, data: object) -> None:
        if key.startswith(layout.PACKS):
            self.begun.set()
            time.sleep(0.2)
        super().put(key, data)


def slow(root: Path) -> SlowStore:
    plain = open_store(f"file://{root}")
    made = SlowStore.__new__(SlowStore)
    made.__dict__.update(plain.__dict__)
    made.begun = threading.Event()
    return made


def test_a_save_that_is_cancelled_commits_nothing(root: Path, tmp_path: Path) -> None:
    inner = slow(root)
    store = CheckpointStore(inner)
    cancel = threading.Event()
    threading.Thread(target=lambda: (inner.begun.wait(), cancel.set())).start()
    with pytest.raises(Abandoned):
        store.save(write(tmp_path / "step-1", size=60_000_000), cancel=cancel)
    assert store.list() == []
    store.save(write(tmp_path / "step-2"))  # and it can be used again


def test_the_same_by_coroutines(root: Path, tmp_path: Path) -> None:
    async def use() -> None:
        async with AsyncCheckpointStore(f"file://{root}") as store:
            assert await store.latest() is None
            await store.save(write(tmp_path / "step-1", 1))
            commit = await store.save(write(tmp_path / "step-2", 2), metadata={"loss": 1})
            assert [found.step for found in await store.list()] == [2, 1]
            assert not (await store.verify())[0].problems
            await store.restore(tmp_path / "out", seeds=[tmp_path / "step-2"])
            copied = await store.copy_to(f"file://{tmp_path}/other")
            assert copied.position == commit.position
            await store.remove(1)
            assert (await store.sweep(0)).deleted == 1

    asyncio.run(use())
    assert content(tmp_path / "out") == content(tmp_path / "step-2")


def test_a_coroutine_that_is_cancelled_has_let_go_when_it_returns(root: Path, tmp_path: Path) -> None:
    inner = slow(root)
    entry = write(tmp_path / "step-1", size=60_000_000)

    async def use() -> None:
        store = AsyncCheckpointStore(inner)
        saving = asyncio.ensure_future(store.save(entry))
        await asyncio.to_thread(inner.begun.wait)
        saving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await saving
        assert [thread.name for thread in threading.enumerate() if thread.name.startswith("upload")] == []
        assert await store.list() == []

    asyncio.run(use())


def test_the_classes_are_imported_when_they_are_asked_for() -> None:
    script = """
import sys
import provisioner.checkpoint
assert not [name for name in sys.modules if name.startswith(("obstore", "provisioner.checkpoint."))]
from provisioner.checkpoint import CheckpointStore
for name in ("pydantic", "boto3", "click", "rich", "provisioner.config"):
    assert name not in sys.modules, name
try:
    provisioner.checkpoint.Nothing
except AttributeError:
    print("fine")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "fine\n", done.stderr


class Index:
    """A whole number as numpy has it."""

    def __index__(self) -> int:
        return 7


@pytest.mark.parametrize("wrong", [True, 1.0, "1", b"1"])
def test_steps_and_epochs_are_whole_numbers(tmp_path: Path, wrong: Any) -> None:
    store = CheckpointStore(f"file://{tmp_path}/store")
    assert store.save(write(tmp_path / "run"), Index()).position.step == 7  # type: ignore[arg-type]
    assert store.find(Index()).step == 7  # type: ignore[arg-type]
    calls: list[Any] = [
        lambda: store.save(tmp_path / "run", wrong),
        lambda: store.restore(tmp_path / "back", wrong),
        lambda: store.find(7, wrong),
        lambda: store.verify(wrong),
        lambda: store.remove(wrong),
        lambda: store.copy_to(f"file://{tmp_path}/other", wrong),
        lambda: CheckpointStore(store.uri, epoch=wrong),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match="not a whole number"):
            call()
    assert [one.step for one in store.list()] == [7]
    assert not (tmp_path / "other").exists()


def test_what_is_handed_over_by_mistake_is_refused(tmp_path: Path) -> None:
    store = CheckpointStore(f"file://{tmp_path}/store")
    store.save(write(tmp_path / "run"), 1)
    (tmp_path / "loop").symlink_to("loop")
    odd: Any = [
        lambda: CheckpointStore(None),  # type: ignore[arg-type]
        lambda: CheckpointStore(b"s3://b/p"),  # type: ignore[arg-type]
        lambda: store.copy_to(None),  # type: ignore[arg-type]
        *(lambda grace=grace: store.sweep(grace) for grace in ("1h", -5, float("nan"), True, None)),
        lambda: store.save(tmp_path / "run", cancel=True),  # type: ignore[arg-type]
        lambda: store.verify(cancel=True),  # type: ignore[arg-type]
        lambda: store.remove(None),  # type: ignore[arg-type]
        lambda: store.restore(tmp_path / "back", seeds="run"),
        lambda: store.restore(tmp_path / "back", seeds=[tmp_path / "missing"]),
        lambda: store.restore(""),
        lambda: store.save(""),
        lambda: store.save(tmp_path / "loop"),
    ]
    for call in odd:
        with pytest.raises(ConfigError):
            call()
    with pytest.raises(ConfigError, match="a path") as refusal:
        CheckpointStore(tmp_path / "store")  # type: ignore[arg-type]
    assert refusal.value.hint == f"write file://{tmp_path}/store"


def test_of_two_restores_of_a_file_to_one_place_the_second_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(f"file://{tmp_path}/store")
    (tmp_path / "model.pt").write_bytes(b"model")
    store.save(tmp_path / "model.pt", 1)
    target = tmp_path / "back.pt"
    real = restoring.write

    def slow(*arguments: Any, **options: Any) -> int:
        target.write_bytes(b"the first")
        return real(*arguments, **options)

    monkeypatch.setattr(restoring, "write", slow)
    with pytest.raises(ConfigError, match="is there already"):
        store.restore(target)
    assert target.read_bytes() == b"the first"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back.pt", "model.pt", "store"]


def test_an_empty_directory_whose_parent_cannot_be_written_is_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(f"file://{tmp_path}/store")
    store.save(write(tmp_path / "run"), 1)
    target = tmp_path / "locked" / "mine"
    target.mkdir(parents=True)
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != target.parent)
    inode = target.stat().st_ino
    store.restore(target)
    assert content(target) == content(tmp_path / "run")
    assert target.stat().st_ino == inode
