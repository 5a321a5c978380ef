"""torchrun as the node and several machines run it: what its workers are told, and who goes on when one is lost."""

from __future__ import annotations

import re

import pytest

from tests.integration.conftest import NodeJob
from tests.torch_scripts import TORCHRUN, needs_torch

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
