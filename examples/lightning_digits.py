"""Train a small net on handwritten digits with Lightning, by one process or several, so that it survives its machine.

``FailoverCallback`` and ``resumable`` are all that gpu-failover adds. Run it alone, kill it, and run it again:

    FAILOVER_CHECKPOINT_DIR=/tmp/digits python examples/lightning_digits.py --devices 2
"""

from __future__ import annotations

import argparse
import csv
import gzip
import sys
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from provisioner.node.torch import Stopped, resumable
from provisioner.node.torch.lightning import FailoverCallback

DATA = Path(__file__).resolve().parent / "data" / "digits.csv.gz"


def load_digits() -> TensorDataset:
    """Return 1797 images of 1 x 8 x 8 from 0 to 1, and their digits."""
    with gzip.open(DATA, "rt", encoding="ascii") as file:
        table = torch.tensor([[float(number) for number in row] for row in csv.reader(file)])
    return TensorDataset(table[:, :64].reshape(-1, 1, 8, 8) / 16.0, table[:, 64].long())


def say(line: str) -> None:
    """Print a line in one write: `print` makes two where output is not buffered, and the processes' lines mix."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Digits(pl.LightningModule):
    """A convolution and a linear layer."""

    def __init__(self, step_seconds: float) -> None:
        """Take how long a step lasts at least, in seconds."""
        super().__init__()
        self.step_seconds = step_seconds
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(256, 10),
        )

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:  # noqa: ARG002 - Lightning's signature
        """Return the loss of a batch."""
        began = time.monotonic()
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        time.sleep(max(0.0, self.step_seconds - (time.monotonic() - began)))
        if self.global_rank == 0:
            say(f"step {self.global_step + 1} loss {loss.item():.9g}")
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


def main() -> None:
    """Train, from the last checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--devices", type=int, default=1, help="processes")
    parser.add_argument("--every", type=float, metavar="SECONDS", help="between two checkpoints")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="make a step last this long, for a rehearsal")
    arguments = parser.parse_args()

    pl.seed_everything(20240229, verbose=False)
    torch.set_num_threads(1)  # several threads may add in another order, and change last bits
    digits = load_digits()
    model = Digits(arguments.step_seconds)
    failover = FailoverCallback(every_s=arguments.every)
    trainer = pl.Trainer(
        max_epochs=arguments.epochs,
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        devices=arguments.devices,
        callbacks=[failover],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(digits, batch_size=72 // arguments.devices, shuffle=True)
    try:
        trainer.fit(model, resumable(loader), ckpt_path=failover.restored)
    except Stopped:
        say(f"rank {trainer.global_rank} leaves at step {trainer.global_step}")
        raise
    if trainer.is_global_zero:
        images, labels = digits.tensors
        model.eval()
        with torch.no_grad():
            right = (model.net(images).argmax(1) == labels).float().mean().item()
            final = nn.functional.cross_entropy(model.net(images), labels).item()
        say(f"done at step {trainer.global_step}: loss {final!r}, accuracy {right:.4f}")


if __name__ == "__main__":
    main()
