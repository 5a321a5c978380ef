"""Stacks without a provider, whose states are in a real bucket, for the tests of states and locks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioner.clouds.states import States
from provisioner.config import Config, parse
from provisioner.controller.directory import JobDirectory, JobRecord
from provisioner.controller.state_moves import StateMoves
from provisioner.model import JobRef
from provisioner.terraform.plan import Allow
from provisioner.terraform.provider import Toolchain
from provisioner.terraform.runner import Deadlines, Runner
from tests.servers import Server

JOB = JobRef("digits", "1a2b3c4d")
STACK = "aws-us-east-1"
TERRAFORM = shutil.which("terraform") or ""
FAST = """
terraform {
  backend "local" {
    path = "terraform.tfstate"
  }
}
resource "terraform_data" "one" {
  input = 1
}
resource "terraform_data" "many" {
  count = 2
  input = count.index
}
output "one" {
  value = terraform_data.one.output
}
"""
SLOW = """
resource "terraform_data" "slow" {
  provisioner "local-exec" {
    command = "touch started; while [ ! -e go ]; do sleep 0.05; done; touch done"
  }
}
"""
# A controller that dies with its process: it applies the stack of a state root, in a bucket.
CONTROLLER = """
import sys
from tests.integration.states import Bench
bench = Bench.again(sys.argv[1], sys.argv[2])
runner = bench.runner(sys.argv[3])
with runner.hold("apply"):
    runner.init()
    runner.apply(runner.plan(), __import__("provisioner.terraform.plan", fromlist=["Allow"]).Allow.PREPARE)
"""


@dataclass
class Bench:
    """A job in one bucket and any number of state roots (``root``), each as a controller of its own has it."""

    directory: Path
    uri: str
    environ: dict[str, str]
    lock_timeout: str = "1s"
    state: str = "store"

    @classmethod
    def on(cls, server: Server, directory: Path, prefix: str, **more: str) -> Bench:
        environ = {"PATH": os.environ["PATH"], "HOME": str(directory), **server.environ()}
        bench = cls(directory, server.uri(prefix), environ, **more)
        (directory / "bench.json").write_text(json.dumps([bench.uri, environ]))
        return bench

    @classmethod
    def again(cls, directory: str, lock_timeout: str) -> Bench:
        """Return the same bench in another process."""
        uri, environ = json.loads((Path(directory) / "bench.json").read_text())
        return cls(Path(directory), uri, environ, lock_timeout)

    def config(self, state: str | None = None, **terraform: str) -> Config:
        keys = {"state": state or self.state, "lock_timeout": self.lock_timeout, **terraform}
        text = {
            "job": {"name": JOB.name, "command": "python train.py"},
            "checkpoint": {"store": self.uri},
            "fallback": [{"aws": {"regions": ["us-east-1"]}}],
            "terraform": keys,
        }
        return parse(json.dumps(text).encode(), "failover.yaml", self.directory, self.environ, for_start=False)

    def states(self, root: str = "a", **terraform: str) -> States:
        return States(self.config(**terraform), JOB, self.job(root).path, self.environ)

    def job(self, root: str = "a") -> JobDirectory:
        """Return the job's directory in a state root."""
        return JobDirectory(self.directory / root, JOB.name)

    def moves(self, root: str = "a", *, terraform: str = TERRAFORM, after_step: Any = lambda _: None) -> StateMoves:
        """Return the states of the job, as the command has them. The job has run before."""
        job = self.job(root)
        job.create()
        if job.record() is None:
            job.remember(JobRecord(JOB.name, JOB.uid, 1, open=False, config_path="failover.yaml", started_at=0.0))
        toolchain = Toolchain((terraform,), {"TF_CLI_CONFIG_FILE": os.devnull})
        environ = {**self.environ, "FAILOVER_STATE_DIR": str(self.directory / root)}
        return StateMoves(self.config(), environ, toolchain=lambda _: toolchain, after_step=after_step)

    def resources(self, root: str = "a") -> set[str]:
        """Return what a controller that starts now finds in the stack's state."""
        return set(self.runner(root).state())

    def runner(self, root: str = "a", text: str = "", *, states: States | None = None) -> Runner:
        """Return a Runner of the stack in a state root; ``text`` is written as its main.tf where there is one."""
        states = states or self.states(root)
        stack = states.stack_directory(STACK)
        stack.mkdir(mode=0o700, parents=True, exist_ok=True)
        if text:
            (stack / "main.tf").write_text(text)
        toolchain = Toolchain((TERRAFORM,), {"TF_CLI_CONFIG_FILE": os.devnull})
        remote = states.remote(STACK)
        return Runner(toolchain, stack, environ=self.environ, remote=remote, deadlines=Deadlines(grace_s=5.0))

    def controller(self, root: str, lock_timeout: str = "1s") -> subprocess.Popen[str]:
        """Start a controller that applies the stack."""
        argv = [sys.executable, "-c", CONTROLLER, str(self.directory), lock_timeout, root]
        return subprocess.Popen(argv, cwd=Path.cwd(), stderr=subprocess.PIPE, text=True)

    def stack(self, root: str = "a") -> Path:
        return self.job(root).path / "terraform" / STACK

    def objects(self) -> list[str]:
        remote = self.states().at(STACK, "store" if self.state == "local" else self.state)
        assert remote is not None
        store: Any = remote.objects
        return [stored.key for stored in store.objects("")]


def make(runner: Runner) -> None:
    """Apply what the stack says."""
    with runner.hold("apply"):
        runner.init()
        runner.apply(runner.plan(), Allow.PREPARE)


def wait_for(path: Path, within_s: float = 60.0) -> None:
    end = time.monotonic() + within_s
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.02)
