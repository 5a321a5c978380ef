"""``failover serve`` on this machine alone: a queue in a file, the local cloud, real processes."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from provisioner.controller.directory import JobDirectory
from provisioner.controller.engine import WORKFLOW_VERSION
from provisioner.controller.serving.database import Database
from provisioner.controller.serving.jobs import JobStore, State
from tests.e2e.test_run_local import Place, wait


class Queue(Place):
    """A folder with many jobs."""

    def job(self, name: str, **settings: Any) -> Path:
        path = self.config(job={"name": name, **settings.pop("job", {})}, **settings)
        return path.rename(self.folder / f"{name}.yaml")

    def submit(self, *paths: Path) -> None:
        code, _, err = self.call("submit", *map(str, paths))
        assert code == 0, err

    def list(self) -> dict[str, dict[str, Any]]:
        code, out, err = self.call("list", "--json")
        assert code == 0, err
        return {row["job"]: row for row in json.loads(out)}

    def states(self) -> dict[str, str]:
        return {name: row["state"] for name, row in self.list().items()}

    def report(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "state/jobs" / name / "report.json").read_text())
        return found

    def wait_for(self, name: str, state: str) -> None:
        wait(lambda: self.states()[name] == state, f"{name} to be {state}")

    def wait_for_step_of(self, name: str, step: int) -> None:
        wait(lambda: (self.list()[name]["step"] or 0) >= step, f"step {step} of {name}")

    @contextmanager
    def served(self, *options: str) -> Iterator[subprocess.Popen[str]]:
        with self.start("serve", *options) as server:
            try:
                yield server
            finally:
                server.kill()
                server.communicate()


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Queue(tmp_path)


@pytest.mark.slow
def test_what_is_submitted_without_a_server_is_served_until_the_queue_is_empty(queue: Queue) -> None:
    good, bad = queue.job("good"), queue.job("bad", job={"env": {"FAIL_AT_END": "1"}})
    other = queue.job("other")
    queue.submit(good, bad, other)
    code, _, err = queue.call("submit", str(queue.job("later")), str(good))
    assert code == 2
    assert "job good is in the queue already" in err
    assert queue.call("cancel", "other")[0] == 0
    code, _, err = queue.call("run", str(good))
    assert code == 2, "a run by hand would be a second one"
    assert "failover cancel good" in err
    assert queue.states() == {"good": "QUEUED", "bad": "QUEUED", "other": "CANCELLED"}
    code, _, err = queue.call("serve", "--once", "--jobs", "1")
    assert code == 1, err
    rows = queue.list()
    assert {name: row["state"] for name, row in rows.items()} == {
        "good": "DONE",
        "bad": "FAILED",
        "other": "CANCELLED",
    }
    assert rows["good"]["step"] == 20
    assert "9" in rows["bad"]["reason"], "the reason has the exit code"
    assert queue.nodes() == []
    queue.submit(bad)
    assert queue.states()["bad"] == "QUEUED", "what has ended may be submitted again"


@pytest.mark.slow
def test_a_paused_job_saves_lets_its_machine_go_and_goes_on_where_it_was(queue: Queue) -> None:
    queue.submit(queue.job("long", steps=150, pace=0.1))
    with queue.served():
        queue.wait_for_step_of("long", 12)
        row = queue.list()["long"]
        assert (row["state"], row["where"]) == ("RUNNING", "local/local")
        assert queue.call("pause", "long")[0] == 0
        queue.wait_for("long", "PAUSED")
        assert queue.nodes() == []
        assert queue.call("pause", "long")[0] == 0, "it is paused"
        assert queue.call("resume", "long")[0] == 0
        queue.wait_for("long", "DONE")
    report = queue.report("long")
    assert report["restored_step"] >= 10
    assert report["final_step"] == 150
    assert queue.call("resume", "long")[0] == 2


def test_a_running_job_is_cancelled_and_leaves_nothing(queue: Queue) -> None:
    queue.submit(queue.job("long", steps=900, pace=0.1))
    with queue.served():
        queue.wait_for_step_of("long", 3)
        assert queue.call("cancel", "long", "--now")[0] == 0
        queue.wait_for("long", "CANCELLED")
        assert queue.nodes() == []


@pytest.mark.slow
def test_a_server_that_ends_leaves_its_jobs_to_the_next_one_with_their_machines(queue: Queue) -> None:
    path = queue.job("long", steps=200, pace=0.1)
    queue.submit(path)
    with queue.served() as first:
        queue.wait_for_step_of("long", 3)
        code, _, err = queue.call("serve")
        assert code == 2, "one controller on a file"
        assert f"process {first.pid} serves" in err
        first.send_signal(signal.SIGTERM)
        _, err = first.communicate(timeout=30)
    assert first.returncode == 0
    assert "the jobs go on" in err
    code, _, err = queue.call("run", str(path))
    assert code == 2, "it waits for a server"
    assert queue.nodes() != []
    with queue.served("--once") as second, queue.start("run", str(path), "--json") as follower:
        out, err = follower.communicate(timeout=100)
        second.communicate(timeout=60)
    assert second.returncode == 0
    assert len(queue.report("long")["placements"]) == 1
    if follower.returncode != 2:  # it came before the server had taken the job up
        assert json.loads(out)["result"] == "completed", err


@pytest.mark.slow
def test_down_ends_a_job_whose_server_was_killed(queue: Queue) -> None:
    queue.submit(queue.job("long", steps=900, pace=0.1), queue.job("later"))
    with queue.served("--jobs", "1") as server:
        queue.wait_for_step_of("long", 3)
        server.kill()
        server.wait()
        for name in ("long", "later"):
            code, out, err = queue.call("down", name, "--json")
            assert code == 0, err
            assert json.loads(out)["leaked"] == []
    assert queue.states() == {"long": "CANCELLED", "later": "CANCELLED"}
    assert queue.nodes() == []


@pytest.mark.slow
def test_the_server_removes_what_an_ended_run_has_left_and_nothing_that_a_job_has(queue: Queue) -> None:
    queue.submit(queue.job("long", steps=900, pace=0.1), queue.job("ended", steps=900, pace=0.1))
    with queue.served("--sweep-every", "0s") as server:
        queue.wait_for_step_of("long", 1)
        queue.wait_for_step_of("ended", 1)
        server.kill()
        server.wait()
    assert {row["left"] for row in queue.list().values()} == {True}
    JobDirectory(queue.folder / "state", "ended").close()
    store = JobStore(Database(queue.environ))
    ended = store.get("ended")
    assert ended is not None
    store.end("ended", ended.controller, State.FAILED, "as if its end had been told")
    store.close()
    with queue.served("--sweep-every", "1s", "--sweep-older", "0s") as server:
        assert server.stderr is not None
        told = next(line for line in server.stderr if "sweep: removed" in line)
        assert "machine" in told
        step = queue.list()["long"]["step"]
        queue.wait_for_step_of("long", step + 10)
        queue.call("cancel", "long", "--now")
        queue.wait_for("long", "CANCELLED")
    assert queue.nodes() == []
    assert len(queue.report("long")["placements"]) == 1


@pytest.mark.slow
def test_a_controller_that_cannot_take_a_job_up_leaves_it_and_its_machine_as_they_are(queue: Queue) -> None:
    queue.environ["MY_TOKEN"] = "canary-token"
    queue.submit(queue.job("long", steps=200, pace=0.1, job={"secrets": ["MY_TOKEN"]}))
    with queue.served():
        queue.wait_for_step_of("long", 3)
    del queue.environ["MY_TOKEN"]
    with queue.served() as poor:
        assert poor.stderr is not None
        told = next(line for line in poor.stderr if "cannot be taken up here" in line)
        assert "MY_TOKEN" in told
        assert queue.nodes() != []
        assert queue.states() == {"long": "RUNNING"}
    queue.environ["MY_TOKEN"] = "canary-token"
    code, _, err = queue.call("serve", "--once")
    assert code == 0, err
    assert queue.states() == {"long": "DONE"}
    assert len(queue.report("long")["placements"]) == 1


def test_a_job_whose_controller_was_gone_before_its_run_began_ends_as_it_would_have(queue: Queue) -> None:
    queue.environ["MY_TOKEN"] = "canary-token"
    queue.submit(queue.job("poor", job={"secrets": ["MY_TOKEN"]}))
    del queue.environ["MY_TOKEN"]
    store = JobStore(Database(queue.environ))
    row = store.get("poor")
    assert row is not None
    assert store.take(row, "gone:1:abc", WORKFLOW_VERSION)
    store.close()
    code, _, err = queue.call("serve", "--once")
    assert code == 1, err
    assert queue.states() == {"poor": "FAILED"}
    assert "MY_TOKEN" in queue.list()["poor"]["reason"]


@pytest.mark.slow
def test_a_job_whose_steps_cannot_be_recorded_keeps_its_machine_until_they_can(queue: Queue) -> None:
    queue.submit(queue.job("long", steps=40, pace=0.1))
    tables = ("operation_outputs", "workflow_status")

    def rename(before: str, after: str) -> None:
        with closing(sqlite3.connect(queue.folder / "state/flows.sqlite", timeout=30)) as flows:
            flows.execute("PRAGMA legacy_alter_table = ON")
            for table in tables:
                flows.execute(f"ALTER TABLE {before}{table} RENAME TO {after}{table}")
            flows.commit()

    with queue.served() as server:
        queue.wait_for_step_of("long", 3)
        rename("", "hidden_")
        assert server.stderr is not None
        told = next(line for line in server.stderr if "its steps cannot be recorded" in line)
        assert "no such table" in told
        assert queue.states() == {"long": "RUNNING"}
        rename("hidden_", "")
        queue.wait_for("long", "DONE")
    assert len(queue.report("long")["placements"]) == 1


def test_a_limit_for_a_cloud_that_there_is_not_is_refused(queue: Queue) -> None:
    code, _, err = queue.call("serve", "--once", "--machines", "asw/mine=8")
    assert code == 2
    assert "aws" in err


def test_a_disk_that_is_full_is_no_fault_of_ours(queue: Queue) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "provisioner.cli", "list", "--json"],
            env=queue.environ,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.startswith("failover: No space left on device")


@pytest.mark.slow
def test_no_more_machines_than_the_limit_and_who_waits_for_one_is_served_later(queue: Queue) -> None:
    queue.submit(queue.job("one", steps=40), queue.job("two", steps=40))
    with queue.served("--machines", "local=1", "--once") as server:
        most = 0
        while server.poll() is None:
            rows = queue.list().values()
            most = max(most, sum(row["where"] != "" for row in rows))
        assert server.returncode == 0
    assert most == 1
    assert queue.states() == {"one": "DONE", "two": "DONE"}


def test_the_queue_of_another_database_is_named_without_its_password(queue: Queue) -> None:
    path = queue.job("good")
    queue.submit(path)
    for url in (
        "postgresql://me:canary-pass@127.0.0.1:9/jobs",
        "postgresql://127.0.0.1:9/jobs?user=me&password=canary-pass",
        "postgresql://me:a@canary-pass@127.0.0.1:9/jobs",
    ):
        queue.environ["FAILOVER_DATABASE_URL"] = url
        for arguments in (["list"], ["serve", "--once"], ["run", str(path)], ["submit", str(path)]):
            code, out, err = queue.call(*arguments)
            assert code in {2, 5}, err
            assert "canary-pass" not in out + err
            assert len(err.strip().splitlines()) <= 2, err
    queue.environ["FAILOVER_DATABASE_URL"] = "mysql://me:canary-pass@127.0.0.1/jobs"
    code, _, err = queue.call("list")
    assert code == 2
    assert "PostgreSQL" in err
    assert "canary-pass" not in err
