"""Sharded models that are killed in the middle of a save, and go on with other numbers of processes."""

from __future__ import annotations

import pytest

from tests.torch_scripts import ROOT, needs_torch, run

pytestmark = needs_torch

# Dropout, averages of BatchNorm, a schedule, weights that are no multiple of any number of processes.
SHARDED = """
import os, signal, time
from pathlib import Path
import torch
import torch._dynamo, torch._inductor  # else each fork would, for seconds
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from provisioner.node.torch import checkpointing
from tests import torch_forks

write_data = FileSystemWriter.write_data

def sharded(net):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    if os.environ.get("KIND") == "fsdp1":
        return FullyShardedDataParallel(net, device_mesh=mesh, device_id=torch.device("cpu"), use_orig_params=True)
    for layer in (net[0], net[4]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)

def work():
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1"), os.environ.setdefault("MASTER_PORT", "0")
    os.environ.setdefault("RANK", "0"), os.environ.setdefault("WORLD_SIZE", "1")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    inputs = torch.randn(96, 8)
    data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
    dropped = 0.0 if "EVEN" in os.environ else 0.3
    norm = nn.LayerNorm(17) if "EVEN" in os.environ else nn.BatchNorm1d(17)
    net = nn.Sequential(nn.Linear(8, 17), norm, nn.Tanh(), nn.Dropout(dropped), nn.Linear(17, 2))
    net[4].bias.requires_grad_(False)
    model = sharded(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    loader = DataLoader(data, batch_size=12 // world, sampler=DistributedSampler(data, seed=1))
    torch.manual_seed(3 + rank)
    die = int(os.environ.get("DIE", 0))
    with checkpointing(model, optimizer, scheduler, dataloader=loader, every_s=0) as run:
        def write(self, *args):
            if "SLOW" in os.environ:
                time.sleep(0.1)
            if run.done >= die > 0 and rank == world - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return write_data(self, *args)
        FileSystemWriter.write_data = write
        for _ in run.epochs(2):
            for x, y in run.batches:
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
                run.step(loss=loss)
                if run.done == int(os.environ.get("TOLD", 0)) and rank == world - 1:
                    torch_forks.notice()
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.state_dict().values()]
    of_all = [None] * world  # buffers are each process's own
    dist.all_gather_object(of_all, [tensor.double().sum().item().hex() for tensor in whole])
    if rank == 0:
        Path(os.environ["RESULT"]).write_text(" ".join([str(run.done), *sum(of_all, [])]))
    dist.barrier()
    dist.destroy_process_group()

"""


def sharded(text: str, tmp_path, **environ: str) -> str:
    return run(SHARDED + text, tmp_path, {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environ})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fsdp2", pytest.param("fsdp1", marks=pytest.mark.long)])
def test_killed_in_a_save_or_told_to_go_sharded_runs_end_bit_for_bit_as_one_that_was_not(kind, tmp_path):
    said = sharded("torch_forks.interrupted(work, Path('.'), 2, last=14, processes=2)", tmp_path, KIND=kind)
    assert "all equal 16 " in said


@pytest.mark.slow
@pytest.mark.long
def test_without_shards_nothing_is_saved_and_without_its_own_buffers_a_process_goes_on_with_anothers(tmp_path):
    sharded(
        """
from provisioner.node.torch import saving
from provisioner.node.torch.sharded import Shards

def without():
    if os.environ["AWAY"] == "shards":
        saving._shards = lambda parts: None
    else:
        Shards.take_own = lambda *_: None
    work()

assert 1 in torch_forks.train(without, "shards", processes=2, RESULT="shards.txt", AWAY="shards")
assert torch_forks.steps("shards") == []
torch_forks.differ(without, "buffers", processes=2)
        """,
        tmp_path,
    )


@pytest.mark.slow
def test_two_processes_one_and_three_cut_the_shards_anew(tmp_path):
    said = sharded(
        """
def go(folder, processes, **environ):
    codes = torch_forks.train(work, folder, processes=processes, RESULT=folder + ".txt", EVEN="1", **environ)
    if environ:  # the other one is killed with it, or finds that it is alone before that
        assert {-9} <= set(codes) <= {-9, 1}, codes
    else:
        assert set(codes) == {0}, codes
    return [float.fromhex(one) for one in Path(folder + ".txt").read_text().split()] if not environ else []

whole = go("whole", 2)
go("pieces", 2, DIE="5")
go("pieces", 1, DIE="11")
moved = go("pieces", 3)
off = max(abs(one - other) for one, other in zip(whole, moved))
print("most that a sum is off", off, sorted(os.listdir("pieces/step-16/shards")))
        """,
        tmp_path,
    )
    off = float(said.split()[6])
    assert off < 1e-5  # sums over another number of processes differ in last bits
    assert "'__2_0.distcp'" in said


@pytest.mark.slow
def test_a_slow_disk_holds_no_step_and_a_damaged_shard_costs_one_save(tmp_path):
    sharded(
        """
def held():
    FileSystemWriter.write_data = lambda self, *args: (time.sleep(2), write_data(self, *args))[1]
    dist.init_process_group("gloo")
    model = sharded(nn.Sequential(*(nn.Linear(8, 8) for _ in range(5))))
    for parameter in model.parameters():
        parameter.to_local().detach().zero_()
    def everywhere():
        return {one.full_tensor().double().sum().item() for one in model.parameters()}
    with checkpointing(model, every_s=9999, keep=9) as run:
        for number in (1, 2):
            for parameter in model.parameters():
                parameter.to_local().detach().fill_(number)
            run.step()
            began = time.monotonic()
            run.save()
            if number == 1:
                assert time.monotonic() - began < 1, "the disk held the step"
                assert not os.path.exists(os.environ["FAILOVER_CHECKPOINT_DIR"] + "/step-1")
            for parameter in model.parameters():
                parameter.to_local().detach().fill_(99)
    shard = Path(os.environ["FAILOVER_CHECKPOINT_DIR"], "step-2", "shards", "__1_0.distcp")
    if dist.get_rank() == 0:
        shard.write_bytes(shard.read_bytes()[:100])
    dist.barrier()
    with checkpointing(model, every_s=9999, keep=9) as run:
        assert run.done == 1
        assert everywhere() == {64.0, 8.0}, everywhere()
    dist.barrier()
    if dist.get_rank() == 0:
        for path in Path(os.environ["FAILOVER_CHECKPOINT_DIR"]).glob("step-*/shards/__0_0.distcp"):
            path.unlink()
    dist.barrier()
    try:
        checkpointing(model).__enter__()
    except ValueError as error:
        assert "process 0" in str(error), error
    else:
        raise AssertionError("it began with half of a state")

assert torch_forks.train(held, "held", processes=2) == [0, 0]
        """,
        tmp_path,
    )
