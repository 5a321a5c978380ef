"""Several controllers on one PostgreSQL: killed, stopped and cut off, they run each job to its end, one at a time.

The witness is a file to which every effect of every controller is written (scripted_controller.py). It says who did
what, in the kernel's order; the locks that keep controllers apart have no part in it.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
import yaml

from provisioner.controller.serving.database import Database
from provisioner.controller.serving.jobs import JobStore, State
from tests import postgres

CONTROLLER = Path(__file__).with_name("scripted_controller.py")
LONGEST_S = 240.0

pytestmark = pytest.mark.skipif(bool(postgres.why_not()), reason=postgres.why_not())


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with postgres.cluster() as found:
        yield found


class Fleet:
    """Controllers of one queue, and what they did."""

    def __init__(self, folder: Path, url: str, watch_s: float) -> None:
        self.folder, self.url, self.watch_s = folder, url, watch_s
        self.witness = folder / "witness"
        self.environ = {**os.environ, "FAILOVER_STATE_DIR": str(folder / "state"), "FAILOVER_DATABASE_URL": url}
        self.store = JobStore(Database(self.environ))
        self.running: list[subprocess.Popen[bytes]] = []
        self.started = 0
        self.stopped: set[int] = set()
        """Controllers that may have had a call under way when they were stopped."""

    def submit(self, count: int) -> None:
        for number in range(count):
            name = f"job{number}"
            config = {
                "job": {"name": name, "command": ["true"]},
                "checkpoint": {"store": f"file://{self.folder}/store"},
                "fallback": [{"local": {}}],
            }
            assert self.store.submit(name, str(self.folder / "job.yaml"), yaml.safe_dump(config).encode())

    def start(self) -> subprocess.Popen[bytes]:
        self.started += 1
        with (self.folder / f"controller.{self.started}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, str(CONTROLLER), str(self.witness), str(self.watch_s)],
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.running.append(process)
        return process

    def states(self) -> dict[str, int]:
        count: dict[str, int] = defaultdict(int)
        for job in self.store.jobs():
            count[job.state] += 1
        return dict(count)

    def open(self) -> int:
        return sum(count for state, count in self.states().items() if state in {State.QUEUED, State.RUNNING})

    def ran_by(self) -> dict[str, int]:
        """Return who did the last effect of each job."""
        return {job: effects[-1][0] for job, effects in self.story().items()}

    def story(self) -> dict[str, list[tuple[int, str, str]]]:
        found: dict[str, list[tuple[int, str, str]]] = defaultdict(list)
        for line in self.witness.read_text().splitlines() if self.witness.exists() else []:
            job, pid, effect, token = line.split()
            found[job].append((int(pid), effect, token))
        return found

    def wait(self, seconds: float = LONGEST_S) -> None:
        until = time.monotonic() + seconds
        while self.open():
            assert time.monotonic() < until, f"{self.states()}\n{self.logs()}"
            time.sleep(0.3)

    def logs(self) -> str:
        texts = [path.read_text("utf-8", "replace")[-1500:] for path in sorted(self.folder.glob("controller.*.log"))]
        return "\n---\n".join(texts)

    def end(self) -> None:
        for process in self.running:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        self.store.close()

    def assert_one_at_a_time(self, jobs: int) -> None:
        """No controller does anything for a job after another one has begun with it, but a call that was under way."""
        story = self.story()
        assert len(story) == jobs
        for job, effects in story.items():
            owners = list(dict.fromkeys(pid for pid, _, _ in effects))
            for place, owner in enumerate(owners[1:], start=1):
                begun = next(index for index, effect in enumerate(effects) if effect[0] == owner)
                late = [effect for effect in effects[begun:] if effect[0] in owners[:place]]
                allowed = sum(pid in self.stopped for pid in owners[:place])
                assert len(late) <= allowed, (job, effects)
            claims = {token for _, effect, token in effects if effect == "claim"}
            assert len(claims) == 1, (job, "a second machine", claims)
        assert postgres.PASSWORD not in self.logs()


@pytest.fixture
def fleet(tmp_path: Path, url: str) -> Iterator[Fleet]:
    made = Fleet(tmp_path, url, watch_s=3.0)
    try:
        yield made
    finally:
        made.end()


@pytest.mark.slow
def test_200_jobs_end_once_while_a_controller_is_killed_every_few_seconds(fleet: Fleet) -> None:
    fleet.submit(200)
    for _ in range(3):
        fleet.start()
    draw, kills, until = random.Random(7), 0, time.monotonic() + LONGEST_S
    while fleet.open():
        assert time.monotonic() < until, f"{fleet.states()}\n{fleet.logs()}"
        time.sleep(4.0)
        busy = [process for process in fleet.running if process.pid in set(fleet.ran_by().values())]
        alive = [process for process in busy if process.poll() is None]
        if alive and fleet.open():
            victim = draw.choice(alive)
            victim.kill()
            victim.wait()
            fleet.start()
            kills += 1
    assert fleet.states() == {"DONE": 200}, fleet.logs()
    assert kills >= 3
    fleet.assert_one_at_a_time(200)
    taken_over = [job for job, effects in fleet.story().items() if len({pid for pid, _, _ in effects}) > 1]
    assert len(taken_over) >= 10, "the kills met nobody"


@pytest.mark.slow
def test_a_controller_that_is_stopped_and_continued_does_nothing_more(fleet: Fleet) -> None:
    fleet.watch_s = 40.0
    fleet.submit(6)
    first = fleet.start()
    _until(
        lambda: all("look" in {effect for _, effect, _ in fleet.story()[f"job{number}"]} for number in range(6)),
        "all to be watched",
    )
    fleet.stopped.add(first.pid)
    first.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    second = fleet.start()
    _until(lambda: set(fleet.ran_by().values()) == {second.pid}, "the second controller to have all")
    seconds = time.monotonic() - began
    first.send_signal(signal.SIGCONT)
    assert first.wait(timeout=60) == 75, fleet.logs()
    fleet.wait()
    assert fleet.states() == {"DONE": 6}
    fleet.assert_one_at_a_time(6)
    print(f"taken over {seconds:.1f} s after the stop, start of the second controller included")


@pytest.mark.slow
def test_a_controller_whose_connection_is_cut_does_nothing_more(fleet: Fleet) -> None:
    fleet.watch_s = 15.0
    fleet.submit(6)
    first = fleet.start()
    _until(lambda: len(fleet.story()) == 6, "all to be begun")
    second = fleet.start()
    _until(lambda: "serving" in (fleet.folder / "controller.2.log").read_text(), "the second controller")
    fleet.stopped.add(first.pid)
    with psycopg.connect(fleet.url, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE %s",
            (f"gpu-failover %:{first.pid}:%",),
        )
    assert first.wait(timeout=60) == 75, fleet.logs()
    fleet.wait()
    assert fleet.states() == {"DONE": 6}
    fleet.assert_one_at_a_time(6)
    assert set(fleet.ran_by().values()) == {second.pid}


@pytest.mark.slow
def test_a_database_that_goes_away_and_comes_back_costs_no_job(tmp_path: Path) -> None:
    with postgres.cluster() as url:
        fleet = Fleet(tmp_path, url, watch_s=6.0)
        try:
            fleet.submit(5)
            first = fleet.start()
            _until(lambda: len(fleet.story()) == 5, "all to be begun")
            with psycopg.connect(url, autocommit=True) as admin:
                admin.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                    " AND backend_type = 'client backend'"
                )
            assert first.wait(timeout=60) == 75, fleet.logs()
            fleet.stopped.add(first.pid)
            fleet.start()
            fleet.wait()
            assert fleet.states() == {"DONE": 5}
            fleet.assert_one_at_a_time(5)
        finally:
            fleet.end()


def _until(condition, what: str, seconds: float = 90.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"waited {seconds} s for {what}"
        time.sleep(0.1)
