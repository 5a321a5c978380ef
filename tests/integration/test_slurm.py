"""The node under Slurm: real preemption, real requeues, the batch script of `examples/slurm`."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provisioner.checkpoint import layout
from provisioner.model import JobRef
from tests import slurm_cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.slurm,
    pytest.mark.skipif(bool(slurm_cluster.missing()), reason=slurm_cluster.missing() or "it is here"),
]
BATCH = Path(__file__).parents[2] / "examples/slurm/train.sbatch"


class Job:
    """A training under Slurm, and what an operator can see of it."""

    def __init__(self, slurm: slurm_cluster.Cluster, node_job: Any, command: list[str], steps: int) -> None:
        node_job.ref = JobRef("digits", "slurm")
        self.slurm, self.node_job = slurm, node_job
        self.id = slurm.submit(
            "--job-name=digits",
            str(BATCH),
            *command,
            FAILOVER_STORE=node_job.uri,
            FAILOVER_PYTHON=sys.executable,
            FAILOVER_SLURM_DIR=str(BATCH.parent),
            FAILOVER_GRACE_S="8",
            FAILOVER_STEPS=str(steps),
        )

    def output(self) -> str:
        path = self.slurm.root / f"digits-{self.id}.log"
        return path.read_text() if path.exists() else ""

    def until(self, ready: Callable[[], Any], timeout_s: float = 60) -> Any:
        end = time.monotonic() + timeout_s
        while not (value := ready()):
            assert time.monotonic() < end, f"{self.slurm.job(self.id)}\n{self.output()}"
            time.sleep(0.05)
        return value

    def until_output(self, pattern: str) -> None:
        self.until(lambda: re.search(pattern, self.output(), re.MULTILINE))

    def heartbeat(self, epoch: int) -> dict[str, Any]:
        return json.loads(self.node_job.store.get(layout.heartbeat(epoch)) or b"{}")

    def until_step(self, epoch: int, step: int) -> None:
        self.until(lambda: (self.heartbeat(epoch).get("step") or 0) >= step)


def trainer_with_slow_saves(node_job: Any, *, steps: int, every: int) -> list[str]:
    """Return a trainer whose saves take three seconds: long enough to be hit by a preemption."""
    command = node_job.trainer(steps=steps, every=every, pause=0.05)
    script = node_job.root / "slow_saves.py"
    rename = "    draft.rename(final)"
    pause = '    print("in the middle of a save", flush=True)\n    time.sleep(3)\n'
    text = (node_job.root / "train.py").read_text()
    assert rename in text
    script.write_text(text.replace(rename, pause + rename))
    return [str(script) if word.endswith("train.py") else word for word in command]


def test_r31_a_job_that_is_preempted_three_times_ends_as_one_that_was_left_alone(tmp_path, node_job):
    with slurm_cluster.cluster(tmp_path / "slurm") as slurm:
        job = Job(slurm, node_job, trainer_with_slow_saves(node_job, steps=200, every=50), 200)
        slurm.until_state(job.id, "RUNNING")
        slurm.preempt(job.id)  # in its first second
        job.until_output("^step 50$")
        job.until_output("is committed")
        slurm.preempt(job.id)
        saves = job.output().count("in the middle of a save")
        job.until(lambda: job.output().count("in the middle of a save") > saves)
        slurm.preempt(job.id)
        assert slurm.until_state(job.id, *slurm_cluster.ENDED) == "COMPLETED", job.output()
        assert slurm.job(job.id)["Restarts"] == "3"
    assert node_job.restored_state()["step"] == 200
    assert node_job.done()["result"] == "completed"
    text = job.output()
    assert "starts from nothing" not in text[text.index("is committed") :], "never from scratch again"
    restored = [int(step) for step in re.findall(r"restored step (\d+) of epoch", text)]
    assert restored == sorted(restored)
    assert len(restored) >= 2
    last = node_job.done()["epoch"]
    trained = [epoch for epoch in range(1, last + 1) if "the command runs" in node_job.store_log(epoch)]
    assert trained[-3:] == [last - 2, last - 1, last], "each start has an epoch and a log of its own"
    assert {job.heartbeat(epoch)["end"]["reason"] for epoch in trained[:-1]} == {"signal SIGUSR1"}


@pytest.mark.long
def test_r31_a_preemption_that_sends_sigterm_is_requeued_by_slurm_and_goes_on(tmp_path, node_job):
    with slurm_cluster.cluster(tmp_path / "slurm", user_signal=False) as slurm:
        job = Job(slurm, node_job, node_job.trainer(steps=800, pause=0.05), 800)
        job.until_output("committed")
        slurm.preempt(job.id)
        assert slurm.until_state(job.id, *slurm_cluster.ENDED) == "COMPLETED", job.output()
    assert node_job.done()["epoch"] == 2
    assert job.heartbeat(1)["end"]["exit_code"] == 75
    assert job.heartbeat(2)["restored_step"] > 0
    assert node_job.restored_state()["step"] == 800


def test_r31_a_job_that_is_cancelled_saves_and_is_not_requeued(tmp_path, node_job):
    with slurm_cluster.cluster(tmp_path / "slurm") as slurm:
        job = Job(slurm, node_job, node_job.trainer(steps=2000, pause=0.05), 2000)
        job.until_output("committed")
        slurm.run("scancel", job.id)
        assert slurm.until_state(job.id, *slurm_cluster.ENDED) == "CANCELLED"
        time.sleep(3)
        assert slurm.job(job.id)["JobState"] == "CANCELLED"
    assert node_job.done() is None
    assert node_job.restored_state()["step"] >= 10


def test_a_job_that_fails_by_itself_is_slurms_failure_and_not_requeued(tmp_path, node_job):
    with slurm_cluster.cluster(tmp_path / "slurm") as slurm:
        job = Job(slurm, node_job, node_job.script("raise SystemExit(3)"), 100)
        assert slurm.until_state(job.id, *slurm_cluster.ENDED) == "FAILED"
        assert slurm.job(job.id)["Restarts"] == "0"
    assert node_job.done()["result"] == "failed"
