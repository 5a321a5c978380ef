"""Real node processes on a directory store, for the tests of the node."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import zstandard

from provisioner.checkpoint import layout
from provisioner.checkpoint.restore import committed, restore
from provisioner.checkpoint.store import open_store
from provisioner.model import JobRef

TRAINER = """
import json, os, pathlib, signal, sys, time
out = pathlib.Path(os.environ["FAILOVER_CHECKPOINT_DIR"])
where = os.environ["FAILOVER_RESTORE_PATH"]
steps, every, pause, on_term = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
state, step, stop = 1, 0, False

def term(*_):
    global stop
    stop = True
    if on_term == "ignore":
        stop = False

if on_term != "die":
    signal.signal(signal.SIGTERM, term)
if where:
    (found,) = pathlib.Path(where).iterdir()
    saved = json.loads((found / "state.json").read_text())
    step, state = saved["step"], saved["state"]

def save():
    final, draft = out / f"step-{step}", out / f".step-{step}"
    if final.exists():
        return
    draft.mkdir()
    (draft / "state.json").write_text(json.dumps({"step": step, "state": state}))
    (draft / "bulk.bin").write_bytes(state.to_bytes(8, "big") * 4096)
    draft.rename(final)

while step < steps and not stop:
    step += 1
    state = (state * 6364136223846793005 + step) % 2**64
    time.sleep(pause)
    print(f"step {step}", flush=True)
    if step % every == 0:
        save()
save()
print("ended at", step, state, flush=True)
"""


def state_after(steps: int) -> int:
    """Return what the trainer's state is after so many steps without interruption."""
    state = 1
    for step in range(1, steps + 1):
        state = (state * 6364136223846793005 + step) % 2**64
    return state


class NodeProcess:
    """One run of ``python -m provisioner.node``."""

    def __init__(self, process: subprocess.Popen[str], job: NodeJob, epoch: int, directory: Path) -> None:
        self.process = process
        self.job = job
        self.epoch = epoch
        self.directory = directory

    def wait(self, timeout: float = 60) -> int:
        return self.process.wait(timeout)

    def until(self, ready: Callable[[], Any], timeout: float = 30) -> Any:
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if value := ready():
                return value
            if self.process.poll() is not None:
                break
            time.sleep(0.01)
        raise AssertionError(f"it did not come to that; the node's code is {self.process.poll()}:\n{self.text()}")

    def text(self) -> str:
        return (self.directory / "node-output.txt").read_text()

    def log(self) -> str:
        path = self.directory / "node" / "log.txt"
        return path.read_text() if path.exists() else ""

    def until_step(self, step: int) -> None:
        self.until_line(rf"step {step}\b")

    def until_line(self, pattern: str) -> None:
        """Wait for a line of the command that begins like this."""
        self.until(lambda: re.search(f"^{pattern}", self.log(), re.MULTILINE))

    def until_committed(self, step: int) -> None:
        """Wait for the commit of a step, or of a later one: on a busy machine newer ones supersede it."""
        steps = re.compile(r"step (\d+) is committed")
        self.until(lambda: any(int(found) >= step for found in steps.findall(self.log())))

    def heartbeat(self) -> dict[str, Any]:
        data = self.job.store.get(layout.heartbeat(self.epoch))
        return json.loads(data) if data else {}

    def child_pid(self) -> int:
        path = self.directory / "node" / "child.json"
        self.until(path.exists)
        return json.loads(path.read_text())["pid"]

    def kill_machine(self) -> None:
        """Kill the node and its child at once, as a power cut does."""
        for pid in (self.process.pid, self._child_pid_now()):
            if pid:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        self.process.wait()

    def _child_pid_now(self) -> int | None:
        try:
            return json.loads((self.directory / "node" / "child.json").read_text())["pid"]
        except (OSError, ValueError):
            return None


class NodeJob:
    """A job in a directory store, and machines for its placements."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ref = JobRef("digits", "1a2b3c4d")
        self.uri = f"file://{root / 'store'}"
        self.store = open_store(self.uri).at("digits")
        self.running: list[NodeProcess] = []
        (root / "train.py").write_text(TRAINER)

    def trainer(self, steps: int = 100, every: int = 10, pause: float = 0.02, on_term: str = "save") -> list[str]:
        return [sys.executable, "-S", str(self.root / "train.py"), str(steps), str(every), str(pause), on_term]

    def script(self, text: str) -> list[str]:
        path = self.root / f"script-{len(list(self.root.iterdir()))}.py"
        path.write_text(textwrap.dedent(text))
        return [sys.executable, "-S", str(path)]

    def start(
        self,
        epoch: int,
        command: list[str] | str,
        *,
        machine: str = "",
        environ: dict[str, str] | None = None,
        inside: Sequence[str] = (),
        **boot: Any,
    ) -> NodeProcess:
        """Start a node. ``inside`` are words before its command that put it somewhere."""
        directory = self.root / (machine or f"machine-{epoch}")
        directory.mkdir(exist_ok=True)
        content: dict[str, Any] = {
            "version": 1,
            "job": {"name": self.ref.name, "uid": self.ref.uid},
            "epoch": epoch,
            "token": f"token-of-{epoch}",
            "store": {"uri": self.uri},
            "command": command,
            "steps": 100,
            "ttl_s": 600,
            "heartbeat_s": 1,
            "cloud": "local",
        }
        (directory / "bootstrap.json").write_text(json.dumps(content | boot))
        with (directory / "node-output.txt").open("a") as output:
            process = subprocess.Popen(
                [*inside, sys.executable, "-m", "provisioner.node", "--bootstrap", str(directory / "bootstrap.json")],
                stdout=output,
                stderr=output,
                text=True,
                env={**os.environ, **(environ or {})},
                cwd=self.root,
            )
        node = NodeProcess(process, self, epoch, directory)
        self.running.append(node)
        return node

    def done(self) -> dict[str, Any] | None:
        data = self.store.get(layout.DONE)
        return json.loads(data) if data else None

    def store_log(self, epoch: int) -> str:
        """Return what the store has of an epoch's log."""
        parts = [self.store.get(part.key) for part in self.store.objects(layout.logs(epoch))]
        return b"".join(zstandard.decompress(part) for part in parts if part).decode()

    def steps_committed(self) -> list[int]:
        return [position.step for position in committed(self.store)]

    def restored_state(self) -> dict[str, int] | None:
        """Restore what the next machine would, checked against a run without interruption."""
        found = restore(self.store, self.ref, self.root / "inspect")
        if found is None:
            return None
        entry = found.directory / found.entry
        saved = json.loads((entry / "state.json").read_text())
        assert saved["state"] == state_after(saved["step"])
        assert (entry / "bulk.bin").read_bytes() == saved["state"].to_bytes(8, "big") * 4096
        return saved


@pytest.fixture
def node_job(tmp_path: Path) -> Iterator[NodeJob]:
    job = NodeJob(tmp_path)
    yield job
    for node in job.running:
        if node.process.poll() is None:
            node.kill_machine()
