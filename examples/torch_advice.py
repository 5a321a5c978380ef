"""Train on a loader that is too slow, hear what to change, and train again with the change.

    python examples/torch_advice.py

A sample takes 20 ms to come, as from a disk in the network. `advising` is all that gpu-failover adds.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from provisioner.node.torch import advising


class Distant(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples of 64 numbers and their class, each of which takes a while to come."""

    def __init__(self, samples: int, seconds: float) -> None:
        """Take how many there are, and how long one takes."""
        self.samples = samples
        self.seconds = seconds

    def __len__(self) -> int:
        """Return how many there are."""
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return one."""
        time.sleep(self.seconds)
        return torch.sin(torch.arange(64.0) * index), torch.tensor(index % 10)


def train(samples: int, seconds: float, **ways: Any) -> tuple[float, dict[str, Any]]:
    """Train for one epoch. Return the share of the time that was waited for the loader, and what to change."""
    loader = DataLoader(Distant(samples, seconds), batch_size=2, **ways)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    advice = advising(loader, every_s=1.0)
    with advice as batches:
        for inputs, labels in batches:
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.05)  # a larger model
    if advice.seen is None or advice.last is None:
        raise SystemExit("too few batches to say anything: give more --samples")
    return advice.seen.wait, advice.last.change


def main() -> None:
    """Train, change, train."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=160)
    parser.add_argument("--sample-seconds", type=float, default=0.02, help="how long a sample takes to come")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    before, change = train(arguments.samples, arguments.sample_seconds)
    print(f"waited {before:.0%} of the time; changing {change}", flush=True)
    after, _ = train(arguments.samples, arguments.sample_seconds, **change)
    print(f"waited {after:.0%} of the time", flush=True)


if __name__ == "__main__":
    main()
