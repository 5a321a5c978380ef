"""Teach a transformer that can add to subtract, by low-rank adapters beside its frozen layers (LoRA, Hu et al. 2021).

``checkpointing`` keeps what is frozen in a file of its own, ``model.frozen.safetensors``, whose bytes do not change: so
each checkpoint after the first uploads the adapters and what the optimizer knows of them, not the base.

    FAILOVER_CHECKPOINT_DIR=/tmp/sums python examples/torch_sums.py
    FAILOVER_CHECKPOINT_DIR=/tmp/adapter python examples/torch_adapter.py --base /tmp/sums/step-1200/model.safetensors
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader
from torch_sums import Sums, Transformer, loss_of, right

from provisioner.node.torch import checkpointing, tensors


class Adapted(nn.Module):
    """A frozen linear layer, and beside it a product of two thin matrices that is trained; at first that is zero."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        """Freeze the layer."""
        super().__init__()
        self.base = base.requires_grad_(requires_grad=False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take ... x in_features, return ... x out_features."""
        found: torch.Tensor = self.base(x) + x @ self.down.T @ self.up.T
        return found


def adapt(model: nn.Module, rank: int) -> None:
    """Freeze a model, and put an adapter beside each of its linear layers."""
    model.requires_grad_(requires_grad=False)
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.Linear):
                setattr(parent, name, Adapted(layer, rank))


def main() -> None:
    """Train, from the last checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base", type=Path, help="model.safetensors of examples/torch_sums.py; without it noise")
    parser.add_argument("--width", type=int, default=64, help="of the base")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--sums", type=int, default=6400, help="of an epoch")
    parser.add_argument("--every", type=float, metavar="SECONDS", help="between two checkpoints")
    arguments = parser.parse_args()

    torch.manual_seed(20240229)
    torch.set_num_threads(1)  # several threads may add in another order, and change last bits
    loader = DataLoader(Sums(arguments.sums, "-"), batch_size=64, shuffle=True)
    model = Transformer(arguments.width)
    if arguments.base:
        model.load_state_dict(tensors.read(arguments.base))
    adapt(model, arguments.rank)
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=3e-3)
    loss = torch.zeros(())
    with checkpointing(model, optimizer, dataloader=loader, every_s=arguments.every) as run:
        for _ in run.epochs(arguments.epochs):
            for text in run.batches:
                loss = loss_of(model, text)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if (run.done + 1) % 50 == 0:
                    print(f"step {run.done + 1} loss {loss.item():.9g}", flush=True)
                run.step(loss=loss)
    print(f"done at step {run.done}: loss {loss.item()!r}, right {right(model, '-'):.3f}", flush=True)


if __name__ == "__main__":
    main()
