"""What becomes of a finished checkpoint at the node: its metadata, its copies, sweeps, and the end of a fenced node."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from provisioner.checkpoint import layout
from provisioner.checkpoint.layout import Position
from provisioner.checkpoint.restore import committed, restore
from provisioner.checkpoint.retention import Best, Policy
from provisioner.checkpoint.save import Saver
from provisioner.checkpoint.store import Store, open_store
from provisioner.errors import ConfigError, Fenced, StoreError, Unreachable
from provisioner.model import JobRef
from provisioner.node import bootstrap
from provisioner.node.bootstrap import Access
from provisioner.node.commits import Committer
from provisioner.node.fencing import Eviction
from provisioner.node.metadata import Metadata, _read
from provisioner.node.replicas import Replica, Replicas, Rules
from provisioner.node.stores import Stores
from provisioner.node.upkeep import Broom, Upkeep

JOB = JobRef("digits", "1a2b3c4d")


def until(ready, timeout: float = 10):
    end = time.monotonic() + timeout
    while not ready():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.01)


# -- metadata ----------------------------------------------------------------------------------------------------------


def metadata_of(tmp_path: Path, text: str | bytes) -> tuple[dict[str, object], list[str]]:
    lines: list[str] = []
    (tmp_path / "metadata.json").write_bytes(text.encode() if isinstance(text, str) else text)
    reader = Metadata(lines.append)
    found = reader.of(tmp_path)
    assert reader.of(tmp_path) == found
    return found, lines


def test_plain_values_of_metadata_json_are_taken_over(tmp_path):
    text = '{"loss": 0.25, "step": 7, "note": "\\u540d", "ema": true, "none": null}'
    assert metadata_of(tmp_path, text) == ({"loss": 0.25, "step": 7, "note": "名", "ema": True, "none": None}, [])


def test_what_is_not_plain_is_left_out_and_told_once(tmp_path):
    found, (line,) = metadata_of(tmp_path, '{"loss": 1, "history": [1], "nan": NaN, "big": 1e999, "deep": {}}')
    assert found == {"loss": 1}
    assert "'big', 'deep', 'history', 'nan' left out" in line


@pytest.mark.parametrize(
    "text",
    ["", "[1]", "7", "{", b"\xff\xfe{", "[" * 10_000, '{"a": "' + "x" * 17_000 + '"}', '{"a": ' + "9" * 9000 + "}"],
)
def test_a_strange_metadata_json_costs_a_line_and_no_commit(text, tmp_path):
    found, (line,) = metadata_of(tmp_path, text)
    assert found == {}
    assert line.startswith("metadata.json of a checkpoint")


def test_a_file_a_directory_without_one_and_a_pipe_have_no_metadata(tmp_path):
    lines: list[str] = []
    (tmp_path / "step-1.npz").touch()
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "metadata.json")
    assert [Metadata(lines.append).of(tmp_path / name) for name in ("step-1.npz", ".", "pipe", "gone")] == [{}] * 4
    assert len(lines) == 1


# -- commits -----------------------------------------------------------------------------------------------------------


def checkpoint(directory: Path, step: int, **metadata: object) -> Path:
    draft = directory / f".step-{step}"
    draft.mkdir(parents=True)
    (draft / "data").write_bytes(step.to_bytes(4, "big") * 1000)
    (draft / "metadata.json").write_text(json.dumps(metadata))
    return draft.rename(directory / f"step-{step}")


def saved(store: Store, directory: Path, step: int, **metadata: object) -> Path:
    entry = checkpoint(directory, step, **metadata)
    Saver(store, JOB, 1, fence=lambda: None).save(entry, step, metadata)
    return entry


@pytest.fixture
def primary(tmp_path: Path) -> Store:
    return open_store(f"file://{tmp_path}/primary").at("digits")


@pytest.fixture
def other(tmp_path: Path) -> Store:
    return open_store(f"file://{tmp_path}/other").at("digits")


def test_the_best_by_the_metadata_of_the_command_stays(primary, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    commits: list[int] = []
    committer = Committer(
        out,
        Saver(primary, JOB, 1, fence=lambda: None),
        policy=Policy(1, best=Best("loss", "min")),
        protect=set,
        on_commit=lambda commit, _entry: commits.append(commit.position.step),
        on_fenced=lambda _fenced: None,
        report=lambda _line: None,
    )
    committer.start()
    for step, loss in ((10, 0.5), (20, 0.1), (30, 0.4), (40, 0.3)):
        checkpoint(out, step, loss=loss)
        until(lambda step=step: step in commits)
    assert committer.finish(10)
    assert [position.step for position in committed(primary)] == [40, 20]


class Stumbling(Saver):
    """A saver whose disk fails for the steps in ``faults``, so many times."""

    def __init__(self, store: Store, faults: dict[int, list[int]]) -> None:
        super().__init__(store, JOB, 1, fence=lambda: None)
        self.faults = faults
        self.tries: list[int] = []

    def save(self, entry, step, metadata=None, progress=None):
        self.tries.append(step)
        if self.faults.get(step):
            number = self.faults[step].pop(0)
            raise OSError(number, os.strerror(number))
        return super().save(entry, step, metadata, progress)


class StumblingRead:
    """Reads a file on a disk that fails so many times."""

    def __init__(self, read, faults: list[int]) -> None:
        self.read, self.faults = read, faults

    def __call__(self, path: Path) -> bytes | None:
        if self.faults:
            number = self.faults.pop(0)
            raise OSError(number, os.strerror(number))
        return self.read(path)


class Committing:
    def __init__(self, directory: Path, saver: Saver) -> None:
        self.out = directory / "out"
        self.out.mkdir()
        self.lines: list[str] = []
        self.commits: list[int] = []
        self.committer = Committer(
            self.out,
            saver,
            policy=Policy(9),
            protect=set,
            on_commit=lambda commit, _entry: self.commits.append(commit.position.step),
            on_fenced=lambda _fenced: None,
            report=self.lines.append,
        )
        self.committer.start()


def test_a_disk_that_stumbles_costs_no_checkpoint(primary, tmp_path, monkeypatch):
    monkeypatch.setattr("provisioner.node.commits.READ_PAUSE_S", 0.01)
    saver = Stumbling(primary, {10: [errno.EMFILE], 20: [errno.EIO] * 5})
    node = Committing(tmp_path, saver)
    checkpoint(node.out, 10)
    until(lambda: node.commits == [10])
    checkpoint(node.out, 20)
    until(lambda: any("passed over" in line for line in node.lines))
    assert saver.tries == [10, 10, *[20] * 5]
    assert node.committer.finish(10)  # the end tries it once more
    assert node.commits == [10, 20]
    assert ["Trying again" in line for line in node.lines] == [True, True, False]


def test_a_disk_that_stumbles_costs_no_metadata(primary, tmp_path, monkeypatch):
    """What says which checkpoint is the best: without it the best one is removed as any other."""
    monkeypatch.setattr("provisioner.node.commits.READ_PAUSE_S", 0.01)
    read = StumblingRead(_read, [errno.EMFILE, errno.EIO])
    monkeypatch.setattr("provisioner.node.metadata._read", read)
    node = Committing(tmp_path, Saver(primary, JOB, 1, fence=lambda: None))
    checkpoint(node.out, 10, loss=0.25)
    until(lambda: node.commits == [10])
    assert node.committer.finish(10)
    assert node.committer.last is not None
    assert node.committer.last.manifest.metadata == {"loss": 0.25}
    assert ["Trying again" in line for line in node.lines] == [True]


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_a_last_checkpoint_that_cannot_be_read_is_not_taken_for_committed(number, primary, tmp_path, monkeypatch):
    monkeypatch.setattr("provisioner.node.commits.READ_PAUSE_S", 0.01)
    saver = Stumbling(primary, {20: [number] * 99})
    node = Committing(tmp_path, saver)
    checkpoint(node.out, 10)
    until(lambda: node.commits == [10])
    checkpoint(node.out, 20)
    until(lambda: any("step-20 cannot be read" in line and "passed over" in line for line in node.lines))
    assert not node.committer.finish(10)
    assert node.commits == [10]
    assert saver.tries.count(20) == (7 if number == errno.EIO else 1)


def test_one_that_was_passed_over_does_not_count_once_a_newer_one_is_committed(primary, tmp_path):
    saver = Stumbling(primary, {10: [errno.ELOOP]})
    node = Committing(tmp_path, saver)
    checkpoint(node.out, 10)
    until(lambda: node.lines)
    checkpoint(node.out, 20)
    assert node.committer.finish(10)
    assert node.commits == [20]


def test_a_directory_that_cannot_be_listed_at_the_end_is_no_empty_one(primary, tmp_path, monkeypatch):
    monkeypatch.setattr("provisioner.node.commits.READ_PAUSE_S", 0.01)
    node = Committing(tmp_path, Saver(primary, JOB, 1, fence=lambda: None))

    def no_descriptor(_path):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("provisioner.node.commits.os", SimpleNamespace(scandir=no_descriptor))
    checkpoint(node.out, 10)
    assert not node.committer.finish(10)
    assert len([line for line in node.lines if "Too many open files" in line]) == 1


def test_training_that_goes_back_is_told_once_and_a_superseded_checkpoint_never(primary, tmp_path):
    node = Committing(tmp_path, Saver(primary, JOB, 1, fence=lambda: None))
    for step in (80, 90, 100):
        checkpoint(node.out, step)
    until(lambda: 100 in node.commits)
    (node.out / "step-90" / "data").unlink(missing_ok=True)  # the trainer tidies up
    checkpoint(node.out, 200)
    until(lambda: 200 in node.commits)
    time.sleep(0.05)
    for step in (150, 160, 170):
        checkpoint(node.out, step)
        time.sleep(0.1)
    until(lambda: node.lines)
    checkpoint(node.out, 210)
    assert node.committer.finish(10)
    assert node.commits[-2:] == [200, 210]
    (line,) = node.lines
    assert line.startswith("step 150 is older than step 200, which is committed: it is not saved")


# -- copies ------------------------------------------------------------------------------------------------------------


class Heard:
    """Everything that replicas tell."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.copied: list[tuple[str, int]] = []
        self.fenced: list[Fenced] = []

    def rules(self, *, policy: Policy | None = None, fence=lambda: None) -> Rules:
        return Rules(
            JOB,
            policy or Policy(3),
            (),
            3600,
            fence,
            self.fenced.append,
            self.lines.append,
            lambda uri, copied: self.copied.append((uri, copied.position.step)),
        )


def test_a_commit_is_copied_whole_and_older_copies_go(primary, other, tmp_path):
    heard = Heard()
    replica = Replica("file:///other", lambda: other, primary, heard.rules(policy=Policy(1)), bytes_before=500)
    assert replica.state() == {"uri": "file:///other", "step": None, "bytes": 500, "behind": 0, "error": None}
    replica.start()
    for step in (10, 20):
        replica.want(Position(1, step), saved(primary, tmp_path, step))
        until(lambda step=step: heard.copied and heard.copied[-1][1] == step)
    replicas = Replicas([replica])
    assert replicas.finish(10) == []
    assert [position.step for position in committed(other)] == [20]
    found = restore(other, JOB, tmp_path / "r")
    assert found is not None
    assert (found.directory / found.entry / "data").read_bytes() == (tmp_path / "step-20" / "data").read_bytes()
    (state,) = replicas.states()
    assert (state["step"], state["behind"], state["error"]) == (20, 0, None)
    assert state["bytes"] > 500
    assert heard.lines == []


def test_the_best_copy_is_chosen_by_what_the_last_save_of_a_step_says(primary, other, tmp_path):
    heard = Heard()
    replica = Replica("other", lambda: other, primary, heard.rules(policy=Policy(1, best=Best("loss", "min"))))
    replica.start()
    for count, (step, loss) in enumerate(((10, 0.2), (20, 0.1), (20, 0.9), (30, 0.5), (40, 0.6)), 1):
        entry = saved(primary, tmp_path / str(count), step, loss=loss)
        replica.want(Position(1, step), entry)
        until(lambda count=count: len(heard.copied) == count)
    assert Replicas([replica]).finish(10) == []
    assert [position.step for position in committed(other)] == [40, 30]


class Gate:
    """A store whose writes wait or fail."""

    def __init__(self, real: Store) -> None:
        self.real = real
        self.open = threading.Event()
        self.problem: Exception | None = None
        self.puts = 0

    def __getattr__(self, name):
        return getattr(self.real, name)

    def put(self, key, data):
        self.puts += 1
        self.open.wait(20)
        if self.problem is not None:
            raise self.problem
        self.real.put(key, data)


def test_while_a_slow_replica_copies_newer_commits_supersede_each_other(primary, other, tmp_path):
    heard, gate = Heard(), Gate(other)
    replica = Replica("slow", lambda: gate, primary, heard.rules())  # type: ignore[arg-type,return-value]
    replica.start()
    replica.want(Position(1, 10), saved(primary, tmp_path, 10))
    until(lambda: gate.puts)
    assert replica.in_use() == {Position(1, 10)}
    began = time.monotonic()
    for step in (20, 30, 40):
        replica.want(Position(1, step), saved(primary, tmp_path, step))
    assert replica.state()["behind"] == 4
    assert time.monotonic() - began < 5, "a commit waited for the replica"
    gate.open.set()
    until(lambda: replica.state()["behind"] == 0)
    assert [step for _, step in heard.copied] == [10, 40]
    until(lambda: replica.in_use() == set())
    replica.abandon()


def test_a_broken_replica_is_told_once_and_neither_hammered_nor_waited_for(primary, other, tmp_path):
    heard, gate = Heard(), Gate(other)
    gate.open.set()
    gate.problem = Unreachable("no answer")
    broken = Replica("broken", lambda: gate, primary, heard.rules())  # type: ignore[arg-type,return-value]
    replicas = Replicas([broken])
    replicas.start()
    for step in (10, 20, 30):
        replicas.want(Position(1, step), saved(primary, tmp_path, step))
        until(lambda: broken.state()["error"])
    time.sleep(0.3)
    tries = gate.puts
    assert len([line for line in heard.lines if "is not copied yet: no answer" in line]) == 1
    began = time.monotonic()
    assert replicas.finish(30) == ["broken"]
    assert time.monotonic() - began < 1
    assert gate.puts == tries
    assert broken.state()["error"] == "no answer"


def test_a_replica_that_comes_back_gets_the_newest(primary, other, tmp_path, monkeypatch):
    heard, gate = Heard(), Gate(other)
    monkeypatch.setattr("provisioner.node.replicas.LONGEST_PAUSE_S", 0.05)
    gate.open.set()
    gate.problem = StoreError("full")
    replica = Replica("other", lambda: gate, primary, heard.rules())  # type: ignore[arg-type,return-value]
    replica.start()
    for step in (10, 20):
        replica.want(Position(1, step), saved(primary, tmp_path, step))
    until(lambda: replica.state()["error"])
    gate.problem = None
    until(lambda: replica.state()["behind"] == 0)
    assert replica.state()["error"] is None
    assert heard.copied[-1] == ("other", 20)
    replica.abandon()


def test_a_replica_that_cannot_be_opened_is_broken_and_nothing_more(primary, tmp_path):
    def nowhere() -> Store:
        raise ConfigError("no such store")

    heard = Heard()
    replica = Replica("nowhere", nowhere, primary, heard.rules())
    replica.start()
    replica.want(Position(1, 10), saved(primary, tmp_path, 10))
    until(lambda: replica.state()["error"] == "no such store")
    replica.abandon()
    until(lambda: replica.ended(0.1))


def test_a_hanging_replica_gets_the_time_that_is_left_and_no_more(primary, other, tmp_path):
    gate = Gate(other)
    replica = Replica("hangs", lambda: gate, primary, Heard().rules())  # type: ignore[arg-type,return-value]
    replicas = Replicas([replica])
    replicas.start()
    replicas.want(Position(1, 10), saved(primary, tmp_path, 10))
    until(lambda: gate.puts)
    began = time.monotonic()
    assert replicas.finish(0.5) == ["hangs"]
    assert time.monotonic() - began < 1.5
    gate.open.set()
    until(lambda: replica.ended(0.1))
    assert committed(other) == []  # given up before its manifest


def test_the_last_commit_is_copied_even_when_another_copy_is_under_way_at_the_end(primary, other, tmp_path):
    heard, gate = Heard(), Gate(other)
    replica = Replica("other", lambda: gate, primary, heard.rules())  # type: ignore[arg-type,return-value]
    replicas = Replicas([replica])
    replicas.start()
    replicas.want(Position(1, 10), saved(primary, tmp_path, 10))
    until(lambda: gate.puts)
    replicas.want(Position(1, 20), saved(primary, tmp_path, 20))
    threading.Timer(0.3, gate.open.set).start()
    assert replicas.finish(10) == []
    assert committed(other)[0] == Position(1, 20)


def test_a_fenced_node_copies_nothing_more(primary, other, tmp_path):
    heard = Heard()

    def fence() -> None:
        raise Fenced("epoch 2 owns the job")

    replica = Replica("other", lambda: other, primary, heard.rules(fence=fence))
    replica.start()
    replica.want(Position(1, 10), saved(primary, tmp_path, 10))
    until(lambda: replica.ended(0.1))
    assert len(heard.fenced) == 1
    assert other.objects("") == []


# -- sweeps ------------------------------------------------------------------------------------------------------------


def test_a_sweep_is_seldom_and_what_fails_is_told_once(monkeypatch, primary):
    now, lines = [0.0], []
    answers = [StoreError("unreadable"), StoreError("unreadable"), None, StoreError("again")]
    done = SimpleNamespace(deleted=2, deleted_bytes=3 * 2**20)

    def swept(_store, *, grace_s):
        assert grace_s == 60
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        return done

    monkeypatch.setattr("provisioner.checkpoint.sweep.sweep", swept)
    broom = Broom(primary, grace_s=60, report=lines.append, monotonic=lambda: now[0])
    for _ in range(4):
        assert broom.due
        broom.sweep()
        assert not broom.due
        now[0] += 600
    assert [line.split(": ")[-1] for line in lines] == [
        "unreadable",
        "3.0 MiB removed that no checkpoint needs any more",
        "again",
    ]


class CountingBroom:
    due = True

    def __init__(self) -> None:
        self.swept = 0

    def sweep(self) -> None:
        self.swept += 1


def test_a_sweep_waits_for_the_commit_and_never_begins_after_a_stop():
    broom, busy, fenced = CountingBroom(), threading.Event(), []
    parts = {"busy": busy.is_set, "fence": lambda: None, "on_fenced": fenced.append}
    keeper = Upkeep(broom, **parts)  # type: ignore[arg-type]
    keeper.start()
    busy.set()
    keeper.after_commit()
    time.sleep(0.2)
    assert broom.swept == 0
    busy.clear()
    until(lambda: broom.swept == 1)
    busy.set()
    keeper.after_commit()
    keeper.stop()
    busy.clear()
    time.sleep(0.7)
    assert broom.swept == 1


def test_a_fenced_node_sweeps_nothing():
    broom, fenced = CountingBroom(), []

    def fence() -> None:
        raise Fenced("epoch 2")

    keeper = Upkeep(broom, busy=lambda: False, fence=fence, on_fenced=fenced.append)  # type: ignore[arg-type]
    keeper.start()
    keeper.after_commit()
    until(lambda: fenced)
    assert broom.swept == 0


def test_a_real_sweep_removes_what_retention_let_go(primary, tmp_path):
    for step in (10, 20):
        saved(primary, tmp_path, step, loss=1 / step)
    primary.delete([layout.manifest(Position(1, 10))])
    lines: list[str] = []
    broom = Broom(primary, grace_s=0, report=lines.append)
    broom.sweep()
    broom.sweep()
    assert restore(primary, JOB, tmp_path / "r") is not None
    assert len(primary.objects(layout.PACKS)) == 1  # both files of step 20
    assert len(lines) == 1


# -- the fence ---------------------------------------------------------------------------------------------------------


def test_a_fenced_node_that_hangs_is_gone_by_the_short_way():
    told: list[Fenced] = []
    left = threading.Event()
    evict = Eviction(told.append, left.set, after_s=0.1)
    for _ in range(3):
        evict(Fenced("epoch 2"))
    assert left.wait(5)
    assert len(told) == 1


def test_a_fenced_node_that_ends_by_itself_is_not_struck():
    left = threading.Event()
    evict = Eviction(lambda _fenced: None, left.set, after_s=0.2)
    evict(Fenced("epoch 2"))
    evict.over()
    assert not left.wait(0.5)
    Eviction(lambda _fenced: None, left.set).over()  # never fenced


# -- what the node is told ---------------------------------------------------------------------------------------------

KEY = {"access_key_id": "AKIA0", "secret_access_key": "canary-replica"}
BOOT = {
    "version": 1,
    "job": {"name": "digits", "uid": "1a2b3c4d"},
    "epoch": 1,
    "token": "t",
    "store": {"uri": "s3://own/p/", "endpoint": None, "region": "us-east-1"},
    "command": "true",
}


def load(tmp_path: Path, **more: object) -> bootstrap.Bootstrap:
    (tmp_path / "bootstrap.json").write_text(json.dumps(BOOT | more))
    return bootstrap.load(tmp_path / "bootstrap.json")


def test_replicas_and_retention_are_read_and_a_replicas_key_is_a_secret(tmp_path):
    boot = load(
        tmp_path,
        replicas=[{"uri": "s3://near", "endpoint": "http://x", "region": "r", "credentials": KEY}, BOOT["store"]],
        retention={"last": 2, "every": 100, "best": {"metric": "loss", "mode": "max"}, "sweep_after_s": 60.0},
    )
    assert boot.retention == Policy(2, 100, Best("loss", "max", 1))
    assert boot.sweep_after_s == 60
    assert [access.uri for access in boot.stores] == ["s3://near", "s3://own/p/"]
    assert "canary-replica" in boot.secrets
    assert "canary" not in repr(boot)
    stores = Stores(boot, {})
    own = stores.own(timeout_s=1, retry_s=0)
    assert stores.replicas() == [boot.stores[0]]
    near, same = stores.nearest_first(own, lambda _line: None)
    assert same is own
    assert (near.uri, stores.name_of(near.uri), stores.name_of(own.uri)) == (
        "s3://near/digits",
        "s3://near",
        "s3://own/p/",
    )


def test_a_file_without_them_is_read_as_before(tmp_path):
    boot = load(tmp_path)
    assert (boot.stores, boot.retention, boot.sweep_after_s) == ((), Policy(3), 3600)
    assert Stores(boot, {}).nearest_first(Stores(boot, {}).own(timeout_s=1, retry_s=0), lambda _line: None) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"replicas": [{}]},
        {"replicas": 7},
        {"retention": {"last": -1}},
        {"retention": {"best": {"metric": "loss", "mode": "lowest"}}},
    ],
)
def test_what_the_node_cannot_read_is_named(wrong, tmp_path):
    with pytest.raises(ConfigError, match=r"bootstrap\.json: not in the form"):
        load(tmp_path, **wrong)


def test_a_replica_that_cannot_be_opened_is_passed_over_for_the_restore(tmp_path):
    (tmp_path / "file").touch()
    lines: list[str] = []
    boot = load(tmp_path, replicas=[{"uri": f"file://{tmp_path}/file/store"}, BOOT["store"]])
    stores = Stores(boot, {})
    own = stores.own(timeout_s=1, retry_s=0)
    assert stores.nearest_first(own, lines.append) == [own]
    assert len(lines) == 1
    assert boot.stores[1] == Access("s3://own/p/", None, "us-east-1", None)
