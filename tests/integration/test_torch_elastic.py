"""torchrun as the node and the example run it: what its workers are told, and how they go on with fewer or more."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

import pytest

from provisioner.node.rendezvous import free_port
from tests.integration.conftest import NodeJob
from tests.torch_scripts import FORKS, PYTHON, ROOT, TORCHRUN, needs_torch, start

pytestmark = needs_torch

LAST = 29
"""Steps of an epoch of the example."""
PATIENCE_S = 200
SHARDED, DDP = "--sharded", ""
PROCESSES_MD = ROOT / "docs" / "torch" / "processes.md"
ROUNDING = 1e-5
"""How far a loss may be off, relatively: with another number of processes gradients are added in another order."""

TOLD = """
import os, sys, torch.distributed as dist
dist.init_process_group("gloo")
ours = ("FAILOVER_NODES", "FAILOVER_NODE_RANK", "FAILOVER_RENDEZVOUS")
names = (*ours, "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "WORLD_SIZE")
sys.stdout.write(" ".join(["told", *(os.environ[name] for name in names)]) + "\\n")
sys.stdout.flush()
dist.barrier()
open(os.environ["FAILOVER_DONE_FILE"], "w").close()
"""

# A process dies once, when a checkpoint is there.
DYING = """
import os, pathlib, time, torch, torch.distributed as dist
from datetime import timedelta
from provisioner.node.torch import checkpointing
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
dies = os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
with checkpointing(model, every_s=0) as run:
    while run.done < 20:
        model(torch.ones(1, 2)).sum().backward()
        run.step()
        while dies and run.done == 10:
            time.sleep(0.05)
            if list(pathlib.Path(os.environ["FAILOVER_CHECKPOINT_DIR"]).glob("step-*")):
                os._exit(1)
"""

# The example; a process stands still where HALT says so, until it is killed or told to go: 2:9 is with two processes
# after step 9 and later, 1:0-4 is alone up to step 4.
HALTING = """
import os, pathlib, time
import torch_torchrun
from provisioner.node.torch.saving import Checkpointing

step = Checkpointing.step
world = os.environ["WORLD_SIZE"]
halts = dict(one.split(":") for one in os.environ["HALT"].split())
first, _, last = halts.get(world, "999").partition("-")

def halting(self, **metrics):
    step(self, **metrics)
    while int(first) <= self.done <= int(last or 999) and not self._moments.stopping:
        pathlib.Path(os.environ["HALTED"] + world).touch()
        time.sleep(0.05)

Checkpointing.step = halting
torch_torchrun.main()
"""


class Machines:
    """Launchers, each as if on a machine of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.checkpoints = root / "digits"
        self.outputs: list[Path] = []
        self.running: list[subprocess.Popen[str]] = []
        self.rendezvous = f"127.0.0.1:{free_port()}"
        (root / "halting.py").write_text(HALTING)

    def start(self, command: list[str], **more: str) -> subprocess.Popen[str]:
        self.outputs.append(self.root / f"said-{len(self.outputs)}.txt")
        with self.outputs[-1].open("w") as file:
            process = start(command, self.checkpoints, stdout=file.fileno(), **more)
        self.running.append(process)
        return process

    def launch(
        self, processes: int, *options: str, halt: str = "", kind: str = SHARDED, **more: str
    ) -> subprocess.Popen[str]:
        torchrun = [str(PYTHON), "-m", "torch.distributed.run", f"--nproc-per-node={processes}", *options]
        example = [str(self.root / "halting.py"), "--epochs", "1", "--every", "0", *kind.split()]
        return self.start([*torchrun, *example], **FORKS, **more, HALT=halt, HALTED=f"{self.root}/halted-")

    def join(self, processes: int, *, halt: str = "", hosts: bool = False) -> subprocess.Popen[str]:
        """Start one of several launchers, as docs/torch/processes.md says, but for quicker timeouts."""
        quick = "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=5"
        meet = ["--rdzv-backend=c10d", "--rdzv-id=digits", f"--rdzv-endpoint={self.rendezvous}"]
        conf = f"--rdzv-conf=is_host={int(hosts)},{quick}"
        options = ["--nnodes=1:2", "--max-restarts=10", "--local-addr=127.0.0.1", *meet, conf]
        return self.launch(processes, *options, halt=halt, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")

    def host(self) -> None:
        """Hold the rendezvous by a process of its own, by the line that the docs give."""
        line = re.search(r"^python -c '(import time, .+)'$", PROCESSES_MD.read_text("utf-8"), re.MULTILINE)
        assert line is not None
        self.start([str(PYTHON), "-c", line[1].replace("29400", self.rendezvous.rpartition(":")[2])])

    def said(self) -> str:
        return "\n".join(path.read_text() for path in self.outputs)

    def until(self, ready: Callable[[], object], what: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while not ready():
            failed = any(process.poll() for process in self.running)
            assert not failed, f"one has failed: {what}\n{self.said()}"
            assert time.monotonic() < end, f"not in time: {what}\n{self.said()}"
            time.sleep(0.05)

    def until_halted(self, world: int) -> None:
        self.until((self.root / f"halted-{world}").exists, f"{world} processes stand still")

    def until_saved(self, least: int) -> None:
        steps = lambda: [int(path.name[5:]) for path in self.checkpoints.glob("step-*")]  # noqa: E731
        self.until(lambda: max(steps(), default=0) >= least, f"a checkpoint of step {least} or later")

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Kill a launcher, and its workers, which are in sessions of their own."""
        for pid in (process.pid, *_children(process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        self.running.remove(process)
        for path in self.root.glob("halted-*"):
            path.unlink()

    def worlds(self) -> list[int]:
        """Return how many processes there were, one after the other."""
        found = re.findall(r"^(\d) processes from step (\d+) on$", self.said(), re.MULTILINE)
        return [int(world) for world, _ in groupby(sorted(found, key=lambda one: int(one[1])), key=lambda one: one[0])]

    def losses(self) -> list[tuple[int, float]]:
        """Return each loss that was printed, with its step: some steps are trained again."""
        found = re.findall(r"^step (\d+) loss (\S+)$", self.said(), re.MULTILINE)
        return [(int(step), float(loss)) for step, loss in found]

    def check(self, whole: dict[int, float]) -> None:
        """Compare every loss with that of the run that nothing interrupted."""
        losses = self.losses()
        assert {step for step, _ in losses} == set(range(1, LAST + 1)), self.said()
        off = max(abs(loss / whole[step] - 1) for step, loss in losses)
        assert off < ROUNDING, losses


@pytest.fixture
def machines(tmp_path) -> Iterator[Machines]:
    found = Machines(tmp_path)
    yield found
    for process in list(found.running):
        found.kill(process)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[int, float]:
    """Return the losses of one process that nothing interrupts."""
    alone = Machines(tmp_path_factory.mktemp("whole"))
    assert alone.launch(1, "--standalone", kind=DDP).wait(PATIENCE_S) == 0, alone.said()
    return dict(alone.losses())


def _children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


@pytest.mark.slow
def test_torchrun_without_arguments_meets_where_the_node_says_and_its_id_holds_the_epoch(node_job: NodeJob, tmp_path):
    script = tmp_path / "told.py"
    script.write_text(TOLD)
    node = node_job.start(3, [str(TORCHRUN), "--nproc-per-node=2", str(script)])
    assert node.wait(timeout=120) == 0, node.log()
    told = re.findall(r"told 1 0 127\.0\.0\.1:\d+ (\S+) 127\.0\.0\.1 2$", node.log(), re.MULTILINE)
    assert told == [f"{node_job.ref.name}-3"] * 2


@pytest.mark.slow
def test_where_a_worker_dies_torchrun_starts_all_of_the_machine_again_and_they_go_on(node_job: NodeJob, tmp_path):
    script = tmp_path / "dying.py"
    script.write_text(DYING)
    node = node_job.start(1, [str(TORCHRUN), "--nproc-per-node=2", "--max-restarts=1", str(script)], steps=20)
    assert node.wait(timeout=PATIENCE_S) == 0, node.log()
    assert re.search(r"going on after step \d+ ", node.log())
    assert max(node_job.steps_committed()) == 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SHARDED, pytest.param(DDP, marks=pytest.mark.long)])
def test_killed_with_two_processes_and_with_one_it_goes_on_with_three_and_the_same_losses(kind, machines, whole):
    for processes, halt, least in ((2, 6, 2), (1, 13, 8)):
        process = machines.launch(processes, "--standalone", halt=f"{processes}:{halt}", kind=kind)
        machines.until_halted(processes)
        machines.until_saved(least)
        machines.kill(process)
    assert machines.launch(3, "--standalone", kind=kind).wait(PATIENCE_S) == 0, machines.said()
    assert machines.worlds() == [2, 1, 3]
    machines.check(whole)


@pytest.mark.slow
def test_of_two_launchers_one_is_killed_the_other_goes_on_alone_and_then_with_a_new_one(machines, whole):
    machines.host()
    first = machines.join(1, halt="1:5 2:9")
    second = machines.join(1, halt="1:14")
    machines.until_halted(2)
    machines.until_saved(2)
    machines.kill(first)
    machines.until_halted(1)
    third = machines.join(2, halt="2:0")
    assert [second.wait(PATIENCE_S), third.wait(PATIENCE_S)] == [0, 0], machines.said()
    assert machines.worlds()[-3:] == [2, 1, 3]
    machines.check(whole)


@pytest.mark.slow
@pytest.mark.long
def test_of_two_launchers_one_is_told_to_go_and_the_other_goes_on_without_losing_a_step(machines, whole):
    machines.host()
    first = machines.join(1, halt="1:5 2:9")
    second = machines.join(1, halt="1:0-4")
    machines.until_halted(2)
    first.terminate()
    assert second.wait(PATIENCE_S) == 0, machines.said()
    assert machines.worlds()[-2:] == [2, 1]
    assert sorted(step for step, _ in machines.losses()) == list(range(1, LAST + 1))
    machines.check(whole)


@pytest.mark.slow
@pytest.mark.long
def test_launchers_whose_rendezvous_is_lost_end_and_say_so_and_the_same_command_goes_on(machines, whole):
    first = machines.join(1, halt="1:5 2:9", hosts=True)
    second = machines.join(1, halt="1:0-4")
    machines.until_halted(2)
    machines.until_saved(2)
    machines.kill(first)
    assert second.wait(PATIENCE_S) == 1, machines.said()
    assert "The connection to the C10d store has failed" in machines.said()
    assert machines.join(1, hosts=True).wait(PATIENCE_S) == 0, machines.said()
    assert machines.worlds()[-2:] == [2, 1]
    machines.check(whole)
