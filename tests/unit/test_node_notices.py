"""Sources of notices, one by one: EC2's answers, signals, hints and a GPU that is played."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from signal import Signals
from types import SimpleNamespace

import pytest

from provisioner.checkpoint import layout
from provisioner.checkpoint.store import open_store
from provisioner.errors import Unreachable
from provisioner.node.card_memory import family
from provisioner.node.notices import signals
from provisioner.node.notices.asking import Answer
from provisioner.node.notices.ec2 import Ec2
from provisioner.node.notices.gpu import Gpu
from provisioner.node.notices.hints import Hints
from provisioner.node.notices.source import Notice, SourceAbsent, SourceAway, SourceSilent
from provisioner.node.notices.watching import Lookout
from provisioner.node.verdict import Cause
from tests.played_nvml import PlayedNvml


class ScriptedEc2(Ec2):
    """Answers from a script of (status, body)."""

    def __init__(self, *answers):
        super().__init__("http://127.0.0.1:1", clock=lambda: 1000.0)
        self.answers = list(answers)
        self.asked: list[tuple[str, str]] = []

    def _ask(self, method, path, headers):
        self.asked.append((method, path))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Answer(answer[0], {}, answer[1])


class Told:
    """What a lookout does: requests to stop, and lines."""

    def __init__(self):
        self.stops: list[tuple[str, float]] = []
        self.lines: list[str] = []

    def lookout(self, *watched, **options):
        return Lookout(
            watched,
            stop=lambda reason, seconds, _cause: self.stops.append((reason, seconds)),
            note=lambda _kind, line, **_fields: self.lines.append(line),
            clock=lambda: 1000.0,
            **options,
        )


NOTICE = b'{"action": "terminate", "time": "1970-01-01T00:20:00Z"}'


def test_r30_an_expired_token_is_renewed_once():
    metadata = ScriptedEc2((200, b"old"), (401, b""), (200, b"new"), (200, NOTICE))
    assert metadata.watch(0) == Notice("spot terminate", metadata.name, 1200.0)
    assert [method for method, _ in metadata.asked] == ["PUT", "GET", "PUT", "GET"]


@pytest.mark.parametrize(
    ("plain", "told"),
    [
        ((401, b""), "hop limit is 1"),
        ((200, b"ami-id"), "hop limit is 1"),
        ((503, b""), "does not answer"),
        (SourceAway("no connection: TimeoutError"), "no connection: TimeoutError"),
    ],
)
def test_r30_a_token_that_does_not_come_back_is_told_from_a_service_that_is_not_there(plain, told):
    metadata = ScriptedEc2(SourceSilent("it takes the connection and does not answer"), plain)
    with pytest.raises(SourceAway, match=told):
        metadata.watch(0)


def test_r30_where_nobody_takes_the_connection_nothing_more_is_asked():
    metadata = ScriptedEc2(SourceAway("no connection: TimeoutError"))
    with pytest.raises(SourceAway, match="no connection"):
        metadata.watch(0)


def test_r30_a_service_that_is_away_is_asked_on_and_reported_once():
    away = SourceAway("TimeoutError")
    metadata = ScriptedEc2(away, (503, b""), away, (200, b"t"), (404, b""), (404, b""), (200, NOTICE), (200, NOTICE))
    told = Told()
    lookout = told.lookout(metadata)
    for _ in range(6):
        lookout.ask(metadata)
    assert told.stops == [("notice: spot terminate", 200.0)]
    assert len(told.lines) == 3
    assert "asking on" in told.lines[0]
    assert "answers again" in told.lines[1]


def test_a_rebalance_recommendation_is_advice():
    metadata = ScriptedEc2((200, b"t"), (404, b""), (200, b'{"noticeTime": "2020-10-26T23:42:18Z"}'))
    told = Told()
    told.lookout().ask(metadata)
    assert told.stops == []
    assert told.lines == ["the EC2 metadata service gives notice: rebalance recommendation; going on"]


def test_a_source_that_hangs_holds_up_neither_the_others_nor_the_end():
    forever = threading.Event()
    stuck = SimpleNamespace(name="stuck", every_s=1.0, watch=lambda _wait: forever.wait() and None)
    ready = SimpleNamespace(name="ready", every_s=1.0, watch=lambda _wait: Notice("gone", "ready"))
    told = Told()
    begin = time.monotonic()
    told.lookout(stuck, ready, grace_s=7.0).look(timeout_s=0.2)
    assert time.monotonic() - begin < 2
    assert told.stops == [("notice: gone", 7.0)]
    forever.set()


@pytest.mark.parametrize(
    ("number", "environ", "seconds"),
    [
        ("SIGTERM", {}, 25.0),
        ("SIGTERM", {"FAILOVER_GRACE_S": "9"}, 9.0),
        ("SIGTERM", {"FAILOVER_GRACE_S": "soon"}, 25.0),
        ("SIGTERM", {"SLURM_JOB_END_TIME": "1100"}, 25.0),
        ("SIGUSR1", {"SLURM_JOB_END_TIME": "1100"}, 100.0),
        ("SIGUSR1", {"SLURM_JOB_END_TIME": "1100", "FAILOVER_GRACE_S": "5"}, 5.0),
        ("SIGUSR1", {"SLURM_JOB_END_TIME": "90000"}, 25.0),
        ("SIGUSR1", {"SLURM_JOB_END_TIME": "900"}, 25.0),
    ],
)
def test_what_a_signal_leaves(number, environ, seconds):
    assert signals.seconds_left(Signals[number], environ, now=1000.0) == seconds


def hint(store, **content):
    store.put(layout.hint(3), json.dumps(content).encode())


def test_a_hint_of_the_controller_is_advice_or_final_as_it_says_and_read_no_more_often_than_a_heartbeat():
    store = open_store("memory://").at("digits")
    now = [0.0]
    hints = Hints(store, 3, every_s=5.0, monotonic=lambda: now[0])
    told = Told()
    lookout = told.lookout()

    def heartbeat():
        now[0] += 5.0
        lookout.ask(hints)

    heartbeat()
    hint(store, kind="AutoDL's stock shrinks", deadline=None, detail="1 card left")
    now[0] += 1.0
    lookout.ask(hints)
    assert told.lines == [], "a heartbeat in a hurry does not read"
    heartbeat()
    heartbeat()
    assert told.lines == ["the controller gives notice: AutoDL's stock shrinks (1 card left); going on"]
    hint(store, kind="the balance runs out", deadline=1300.0, detail="", final=True)
    heartbeat()
    assert told.stops == [("notice: the balance runs out", 300.0)]


def test_a_hint_that_comes_again_between_two_heartbeats_is_heard_again():
    store, now = open_store("memory://").at("digits"), [0.0]
    hints, told = Hints(store, 3, every_s=0.0, monotonic=lambda: now[0]), Told()
    lookout, balance = told.lookout(), {"kind": "the balance runs out", "detail": "1 CNY left"}
    for mark, times in (("1000.0", 3), ("1060.0", 2)):  # it was paid in, and spent, before the node looked again
        hint(store, **balance, told=mark)
        for _ in range(times):
            now[0] += 5.0
            lookout.ask(hints)
    assert told.lines == ["the controller gives notice: the balance runs out (1 CNY left); going on"] * 2


@pytest.mark.parametrize("text", ["", "[]", '{"kind": 3}', '{"kind": "x", "deadline": NaN}', '{"deadline": 5}'])
def test_a_hint_that_cannot_be_read_is_named_once_and_ends_nothing(text):
    store = open_store("memory://").at("digits")
    store.put(layout.hint(3), text.encode())
    now = [0.0]
    hints = Hints(store, 3, every_s=5.0, monotonic=lambda: now[0])
    told = Told()
    lookout = told.lookout()
    for _ in range(10):
        lookout.ask(hints)
        now[0] += 2.0
    assert len(told.lines) == 1
    assert "epochs/3/hint.json" in told.lines[0]
    assert told.stops == []


def test_a_store_that_is_away_is_no_hint():
    def get(_key):
        raise Unreachable("no answer")

    assert Hints(SimpleNamespace(get=get), 3, every_s=5.0).watch(0) is None


def played(nvml, own=(), **options):
    gpu = Gpu(own=lambda: set(own), nvml=lambda: nvml, **options)
    assert gpu.watch(0) is None
    return gpu


def test_a_lost_card_ends_the_placement_with_the_usual_grace():
    nvml = PlayedNvml()
    gpu = played(nvml)
    nvml.broken = nvml.NVML_ERROR_GPU_IS_LOST
    told = Told()
    told.lookout(grace_s=25.0).ask(gpu)
    assert told.stops == [("notice: lost GPU", 25.0)]
    assert told.lines == ["the NVIDIA driver gives notice: lost GPU (GPU 0: GPU is lost)"]


@pytest.mark.parametrize(
    ("xid", "kind", "final"),
    [(79, "lost GPU", True), (48, "GPU error Xid 48", True), (92, "GPU error Xid 92", False)],
)
def test_an_xid_event_is_final_where_the_card_needs_a_reset(xid, kind, final):
    nvml = PlayedNvml(ecc=None)
    gpu = played(nvml)
    nvml.xids = [13, 31, xid]
    for nvml.broken in (999, 0):  # it does not pass, whatever else the driver says
        notice = gpu.watch(0)
        assert (notice.kind, notice.final) == (kind, final)


def test_a_fault_of_the_program_is_no_notice():
    nvml = PlayedNvml()
    gpu = played(nvml)
    nvml.xids = [13, 31, 43, 45]
    assert gpu.watch(0) is None


def test_memory_errors_of_an_earlier_job_are_not_ours_but_new_ones_are_final():
    nvml = PlayedNvml(ecc=7)
    gpu = played(nvml)
    nvml.ecc = 9
    detail = "GPU 0: 2 uncorrectable ECC errors"
    assert gpu.watch(0) == Notice("GPU memory error", gpu.name, None, detail, cause=Cause.LOST_GPU)


GIB = 2**30


def test_foreign_memory_that_stays_is_told_the_jobs_own_growth_its_neighbours_of_the_start_and_a_peak_are_not():
    nvml, clock = PlayedNvml(), [0.0]
    gpu = played(nvml, own=(11, 12), monotonic=lambda: clock[0])

    def seen(memory, seconds=60.0):
        nvml.memory = memory
        gpu.watch(0)
        clock[0] += seconds
        return gpu.watch(0)

    for memory in (
        {99: 8 * GIB},  # the job does not use the card yet
        {11: 4 * GIB, 99: 1 * GIB},
        {11: 9 * GIB, 12: 9 * GIB, 99: 1 * GIB},
        {11: 4 * GIB, 99: 3 * GIB},
    ):
        assert seen(memory) is None, memory
    others = {11: 4 * GIB, 99: 1 * GIB, 100: 3 * GIB}
    assert seen(others, 9) is None
    assert seen({11: 4 * GIB, 99: 1 * GIB}, 2) is None, "it was a peak"
    assert seen(others, 9) is None
    notice = seen(others, 1)
    assert (notice.kind, notice.final) == ("foreign GPU memory", False)
    assert notice.detail == "GPU 0: other processes hold 4.0 GiB, the job 4.0 GiB"
    assert seen({11: 4 * GIB}) is None, "it has been given back"


def test_foreign_memory_is_final_where_the_operator_says_so():
    nvml, clock = PlayedNvml(), iter((0, 10))
    gpu = played(nvml, own=(11,), foreign_is_final=True, monotonic=lambda: next(clock))
    nvml.memory = {11: GIB}
    assert gpu.watch(0) is None
    nvml.memory[50] = GIB
    assert gpu.watch(0) is None
    assert gpu.watch(0).final is True


@pytest.mark.parametrize("missing", ["library", "card"])
def test_a_machine_without_a_card_has_no_such_source(missing):
    nvml = PlayedNvml()
    nvml.cards = 0

    def load():
        if missing == "library":
            raise ImportError
        return nvml

    with pytest.raises(SourceAbsent):
        Gpu(own=set, nvml=load).watch(0)


def test_the_jobs_processes_are_its_group_and_what_they_started():
    shell = "setsid sleep 30 & echo $!; wait"
    job = subprocess.Popen(["bash", "-c", shell], stdout=subprocess.PIPE, process_group=0, text=True)
    assert job.stdout is not None
    try:
        inner = int(job.stdout.readline())
        found = family(job.pid)
        assert {job.pid, inner} <= found
        assert os.getpid() not in found
    finally:
        os.kill(inner, Signals.SIGKILL)
        job.wait()
        job.stdout.close()
