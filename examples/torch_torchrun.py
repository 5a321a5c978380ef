"""Train on handwritten digits with several processes, so that the run survives the loss of its machine.

The next machine may have another number of cards: the global batch and the order of the samples stay. Try it, kill it,
and go on with another number of processes:

    export FAILOVER_CHECKPOINT_DIR=/tmp/digits
    torchrun --standalone --nproc-per-node=2 examples/torch_torchrun.py
    torchrun --standalone --nproc-per-node=1 examples/torch_torchrun.py

Under the node, `torchrun --nproc-per-node=gpu examples/torch_torchrun.py` is enough. ``--sharded`` uses FSDP2 for DDP.
``--compress`` halves the bytes of the gradients where the link between the processes is slow.
"""

from __future__ import annotations

import argparse
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torch_digits import load_digits, net

from provisioner.node.torch import checkpointing
from provisioner.node.torch.gradients import compress_gradients

GLOBAL_BATCH = 60
"""Samples of a step, over all processes: 1, 2, 3, 4, 5 or 6 of them share it evenly."""
PATIENCE = timedelta(minutes=5)
"""For a machine that is lost without a word: gloo waits half an hour by itself."""


def wrapped(model: nn.Module, *, sharded: bool, compress: bool) -> nn.Module:
    """Return a model that all processes train together."""
    if not sharded:
        parallel = DistributedDataParallel(model)
        if compress:
            compress_gradients(parallel)
        return parallel
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return model


def main() -> None:
    """Train, from the last checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--every", type=float, metavar="SECONDS", help="between two checkpoints")
    parser.add_argument("--sharded", action="store_true", help="each process holds a part of the model")
    parser.add_argument("--compress", action="store_true", help="send gradients in half the bytes, where that pays")
    arguments = parser.parse_args()

    dist.init_process_group("gloo", timeout=PATIENCE)
    torch.set_num_threads(1)
    torch.manual_seed(20240229)
    digits = load_digits()
    # drop_last: else the last batch is filled up to a multiple of processes
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(digits, drop_last=True)
    loader = DataLoader(digits, batch_size=GLOBAL_BATCH // dist.get_world_size(), sampler=sampler, drop_last=True)
    model = wrapped(net(dropout=0.0), sharded=arguments.sharded, compress=arguments.compress)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    with checkpointing(model, optimizer, dataloader=loader, every_s=arguments.every) as run:
        say(f"{dist.get_world_size()} processes from step {run.done + 1} on")
        for _ in run.epochs(arguments.epochs):
            for images, labels in run.batches:
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                mean = loss.detach() / dist.get_world_size()
                dist.all_reduce(mean)
                say(f"step {run.done + 1} loss {mean.item():.9g}")
                run.step(loss=mean)
    say(f"done at step {run.done}")
    dist.destroy_process_group()


def say(line: str) -> None:
    """Say a line once, in one piece: what ``print`` writes in two may be cut by another process's."""
    if dist.get_rank() == 0:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
