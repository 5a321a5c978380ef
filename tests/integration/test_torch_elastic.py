"""torchrun as the node and the example run it: what its workers are told, and how they go on."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.integration.conftest import NodeJob
from tests.torch_scripts import ROOT, TORCHRUN, needs_torch, start

pytestmark = needs_torch

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


@pytest.mark.slow
def test_torchrun_without_arguments_meets_where_the_node_says_and_its_id_holds_the_epoch(node_job: NodeJob, tmp_path):
    script = tmp_path / "told.py"
    script.write_text(TOLD)
    node = node_job.start(3, [str(TORCHRUN), "--nproc-per-node=2", str(script)])
    assert node.wait(timeout=120) == 0, node.log()
    told = re.findall(r"told 1 0 127\.0\.0\.1:\d+ (\S+) 127\.0\.0\.1 2$", node.log(), re.MULTILINE)
    assert told == [f"{node_job.ref.name}-3"] * 2


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
def test_the_example_goes_on_sharded_with_one_process_where_two_were_killed(tmp_path):
    example = [str(ROOT / "examples" / "torch_torchrun.py"), "--sharded", "--epochs", "1", "--every", "0"]
    two = start([str(TORCHRUN), "--standalone", "--nproc-per-node=2", *example], tmp_path / "digits")
    while two.poll() is None and not list((tmp_path / "digits").glob("step-?")):
        time.sleep(0.02)
    children = _children(two.pid)
    for pid in [two.pid, *children]:
        os.kill(pid, signal.SIGKILL)
    two.communicate()
    one = start([str(TORCHRUN), "--standalone", "--nproc-per-node=1", *example], tmp_path / "digits")
    said = one.communicate(timeout=200)[0]
    assert one.returncode == 0, said
    assert re.search(r"going on after step [1-9]", said), said
    assert "done at step 30" in said
