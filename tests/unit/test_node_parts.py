"""The node's parts, one by one."""

from __future__ import annotations

import itertools
import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from provisioner.checkpoint import layout
from provisioner.checkpoint.store import open_store
from provisioner.errors import ConfigError, Fenced, Unreachable
from provisioner.node import bootstrap, machine, rooms
from provisioner.node.heartbeat import Heartbeat
from provisioner.node.logs import Log, split
from provisioner.node.progress import Progress
from provisioner.telemetry import events


def test_progress_prefers_the_status_file_then_the_output_then_the_commit(tmp_path):
    status = tmp_path / "status.json"
    progress = Progress(status, clock=lambda: 5.0)
    progress.restored_step = 40
    assert progress.step() == 40
    progress.on_commit(41)
    assert progress.step() == 41
    assert not progress.on_line(b"resumed at step 40")
    assert progress.first_step_at == 5.0  # the commit: a script that prints no steps has trained all the same
    assert progress.on_line(b"Step: 42 loss 0.1, was step=41, max_step=900, steps=100") is False
    assert progress.step() == 41
    status.write_text('{"step": 43')
    assert progress.poll() is False
    status.write_text('{"step": 43}')
    assert progress.poll() is False
    assert (progress.step(), progress.furthest()) == (43, 43)
    for nonsense in ('{"step": Infinity}', '{"step": 44, "save_s": 1%s}' % ("0" * 400), '[{"step": 44}]', '"44"'):
        status.write_text(nonsense)
        assert progress.poll() is False
    assert progress.step() == 43, "a wrong figure ends no training"


def test_the_first_step_on_the_output_is_told_once(tmp_path):
    progress = Progress(tmp_path / "status.json", clock=lambda: 5.0)
    progress.restored_step = 40
    assert [progress.on_line(b"step %d" % step) for step in (40, 41, 42)] == [False, True, False]
    assert progress.first_step_at == 5.0


@pytest.mark.parametrize(
    ("line", "step"),
    [
        (b"step 17step 18", 18),
        (b"rank 0: step 17rank 1: step 17", 17),
        (b"step 17 loss 0.5step 17 loss 0.4", 17),
        (b"epoch 3step 18", 18),
        (b"a step=12ms", None),
        (b"substep 3, max_step=900", None),
    ],
)
def test_lines_of_two_processes_that_run_into_each_other_still_name_their_step(tmp_path, line, step):
    progress = Progress(tmp_path / "status.json")
    progress.on_line(line)
    assert progress.step() == step


@given(st.lists(st.binary(min_size=1, max_size=50).filter(lambda b: not set(b) & {10, 13}), max_size=20), st.integers())
def test_lines_are_split_whatever_the_pipe_cuts(lines, seed):
    read, write = os.pipe()
    data = b"".join(line + [b"\n", b"\r", b"\r\n"][(seed + index) % 3] for index, line in enumerate(lines))
    os.write(write, data)
    os.close(write)
    taken: list[bytes] = []
    split(read, taken.append)
    os.close(read)
    assert taken == lines


class FlakyStore:
    """A store that is away while ``away`` is set."""

    def __init__(self):
        self.real = open_store("memory://").at("digits")
        self.away = False
        self.puts: list[str] = []

    def __getattr__(self, name):
        def call(*args):
            if self.away:
                raise Unreachable("no answer")
            if name == "put":
                self.puts.append(args[0])
            return getattr(self.real, name)(*args)

        return call


def test_log_parts_survive_a_store_that_is_away_and_go_on_after_a_restart(tmp_path):
    store = FlakyStore()
    store.away = True
    log = Log(tmp_path / "log.txt", store, 3, every_s=0.01)  # type: ignore[arg-type]
    log.start()
    for number in range(100):
        log.line(b"line %d" % number)
    store.away = False
    log.finish(5)
    again = Log(tmp_path / "log.txt", store, 3, every_s=0.01)  # type: ignore[arg-type]
    again.start()
    again.say("second process")
    again.finish(5)
    parts = store.real.objects(layout.logs(3))
    text = b"".join(zstandard.decompress(store.real.get(part.key) or b"") for part in parts)
    assert text == b"".join(b"line %d\n" % number for number in range(100)) + b"[failover] second process\n"
    assert again.last_key == layout.log_part(3, len(parts) - 1)
    assert (tmp_path / "log.txt").read_bytes() == text
    assert (tmp_path / "log.txt").stat().st_mode & 0o777 == 0o600


def test_r09_heartbeats_are_spaced_and_superseded_ones_are_dropped():
    """A fake clock: every wait is recorded, every write has its time."""
    now = [100.0]
    times: list[float] = []
    steps = itertools.count()
    beat: Heartbeat

    def sleep(seconds):
        now[0] += seconds

    store = SimpleNamespace(get=lambda _key: None, put=lambda _key, _body: times.append(now[0]))
    beat = Heartbeat(
        store,  # type: ignore[arg-type]
        1,
        every_s=5,
        sample=lambda: {"step": next(steps)},
        fence=beat_hurries_itself(lambda: beat),
        on_fenced=lambda _fenced: None,
        monotonic=lambda: now[0],
        sleep=sleep,
    )
    beat.start()
    while len(times) < 20:
        pass
    beat.stop()
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert min(gaps) >= 1.0


def beat_hurries_itself(beat):
    """Return a fence that asks for the next heartbeat at once, as a trainer with 20 steps a second would."""
    return lambda: beat().hurry()


def test_r09_a_store_that_refuses_is_left_alone_longer_and_longer():
    waits: list[float] = []
    fails = threading.Event()

    def put(_key, _body):
        raise Unreachable("429")

    beat = Heartbeat(
        SimpleNamespace(get=lambda _key: None, put=put),  # type: ignore[arg-type]
        1,
        every_s=5,
        sample=dict,
        fence=lambda: None,
        on_fenced=lambda _fenced: None,
    )

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 8:
            fails.set()
            beat.stop()
        return True

    beat._closing.wait = wait  # type: ignore[method-assign,assignment]
    beat._sleep = lambda _seconds: None
    beat.start()
    assert fails.wait(10)
    assert waits[0] < waits[2] < waits[4]
    assert max(waits) <= 30 * 1.3


def test_a_fenced_heartbeat_is_the_last():
    store = open_store("memory://").at("digits")
    seen: list[Fenced] = []
    told = threading.Event()

    def fence():
        raise Fenced("epoch 2 owns the job")

    def on_fenced(fenced):
        seen.append(fenced)
        told.set()

    beat = Heartbeat(store, 1, every_s=1, sample=dict, fence=fence, on_fenced=on_fenced)
    beat.start()
    assert told.wait(5)
    beat.finish({"reason": "x"}, 1)
    assert store.get(layout.heartbeat(1)) is None


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", '{"version": 2}', '{"version": 1, "job": 3}', '{"version": 1, "job": {"name": "canary-secret"}}'],
)
def test_a_broken_bootstrap_file_is_named_and_not_quoted(text, tmp_path):
    path = tmp_path / "bootstrap.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"bootstrap\.json") as caught:
        bootstrap.load(path)
    assert "canary" not in str(caught.value)


def test_a_bootstrap_shows_none_of_its_secrets(tmp_path):
    path = tmp_path / "bootstrap.json"
    canary = "canary-1234"
    path.write_text(
        json.dumps(
            {
                "version": 1,
                "job": {"name": "digits", "uid": "1a2b3c4d"},
                "epoch": 1,
                "token": canary,
                "store": {
                    "uri": "s3://b/p",
                    "credentials": {"access_key_id": canary, "secret_access_key": canary, "session_token": canary},
                },
                "command": "true",
                "env": {"A": canary},
            }
        )
    )
    boot = bootstrap.load(path)
    assert boot.command == ("bash", "-c", "true")
    assert canary not in repr(boot)


def test_the_disk_is_named_when_it_is_full(tmp_path):
    assert machine.full_disk(tmp_path, below=0) == ""
    assert str(machine.mount_of(tmp_path)) in machine.full_disk(tmp_path, below=2**62)
    assert machine.disk(Path("/no/such/place")) == {}
    assert machine.oom_kills() >= 0
    assert machine.Gpus().latest() == []


def test_the_event_log_hides_secrets_survives_torn_lines_and_a_disk_that_takes_nothing(tmp_path):
    path = tmp_path / "events.jsonl"
    shown: list[dict] = []
    log = events.EventLog(path, redact=events.Redactor(["s3cr3t-value", "abc"]), clock=lambda: 12.5, also=shown.append)
    log.emit("claim", zone="us-east-1a", error="key s3cr3t-value abc 名")
    with path.open("ab") as file:
        file.write(b'{"time": 1, "kind": "to')
    assert list(events.read(path)) == [
        {"time": 12.5, "kind": "claim", "zone": "us-east-1a", "error": "key [hidden] abc 名"}
    ]
    assert shown == list(events.read(path))
    assert path.stat().st_mode & 0o777 == 0o600
    lost = events.EventLog(tmp_path / "no" / "such" / "events.jsonl")
    lost.emit("x")
    assert lost.lost == 1
    assert list(events.read(lost.path)) == []


def test_what_an_earlier_run_left_goes_even_from_folders_without_a_write_bit(tmp_path):
    """As root nothing is forbidden: what counts then is that it goes all the same."""
    runs = tmp_path / "runs"
    frozen = runs / "e1-a" / "restored" / "step-10" / "weights"
    frozen.mkdir(parents=True)
    (frozen / "data").touch()
    for path in (frozen, frozen.parent):
        path.chmod(0o555)
    (runs / "e2-b").mkdir()
    os.utime(runs / "e1-a", (1, 1))
    made = rooms.prepare(tmp_path, 3)
    assert {path.name for path in runs.iterdir()} == {"e2-b", made.run.name}
