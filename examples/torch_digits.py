"""Train a small convolutional net on handwritten digits with PyTorch, so that it survives the loss of its machine.

``checkpointing`` is all that gpu-failover adds: three lines of this script. Run it alone, kill it, and run it again:

    FAILOVER_CHECKPOINT_DIR=/tmp/digits python examples/torch_digits.py
"""

from __future__ import annotations

import argparse
import csv
import gzip
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from provisioner.node.torch import ForeignMemory, checkpointing

DATA = Path(__file__).resolve().parent / "data" / "digits.csv.gz"


def load_digits() -> TensorDataset:
    """Return 1797 images of 1 x 8 x 8 from 0 to 1, and their digits."""
    with gzip.open(DATA, "rt", encoding="ascii") as file:
        table = torch.tensor([[float(number) for number in row] for row in csv.reader(file)])
    return TensorDataset(table[:, :64].reshape(-1, 1, 8, 8) / 16.0, table[:, 64].long())


def net(dropout: float = 0.2) -> nn.Module:
    """Return a convolution and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(256, 10),
    )


@torch.no_grad()
def judged(model: nn.Module, digits: TensorDataset) -> str:
    """Say how well a model tells the digits."""
    model.eval()
    device = next(model.parameters()).device
    images, labels = (tensor.to(device) for tensor in digits.tensors)
    found = model(images)
    right = (found.argmax(1) == labels).float().mean().item()
    return f"loss {nn.functional.cross_entropy(found, labels).item()!r}, accuracy {right:.4f}"


def main() -> None:
    """Train, from the last checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--workers", type=int, default=0, help="processes that load data")
    parser.add_argument("--every", type=float, metavar="SECONDS", help="between two checkpoints")
    parser.add_argument("--shared", action="store_true", help="leave the card when others take its memory")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="make a step last this long, for a rehearsal")
    arguments = parser.parse_args()

    torch.manual_seed(20240229)
    torch.set_num_threads(1)  # several threads may add in another order, and change last bits
    digits = load_digits()
    loader = DataLoader(digits, batch_size=64, shuffle=True, num_workers=arguments.workers)
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=arguments.epochs * len(loader))
    loss = torch.zeros(())
    watch = ForeignMemory() if arguments.shared else None
    with checkpointing(model, optimizer, scheduler, dataloader=loader, every_s=arguments.every, watch=watch) as run:
        for _ in run.epochs(arguments.epochs):
            for images, labels in run.batches:
                began = time.monotonic()
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
                time.sleep(max(0.0, arguments.step_seconds - (time.monotonic() - began)))
                print(f"step {run.done + 1} loss {loss.item():.9g}", flush=True)
                run.step(loss=loss)
    print(f"done at step {run.done}: {judged(model, digits)}", flush=True)


if __name__ == "__main__":
    main()
