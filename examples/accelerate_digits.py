"""Train a small net on handwritten digits in a loop with Accelerate, so that it survives the loss of its machine.

``checkpointing`` is all that gpu-failover adds: three lines of this script, by one process or by several. Run it alone,
kill it, and run it again:

    FAILOVER_CHECKPOINT_DIR=/tmp/digits python examples/accelerate_digits.py
    FAILOVER_CHECKPOINT_DIR=/tmp/two accelerate launch --cpu --num_processes 2 examples/accelerate_digits.py
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader
from torch_digits import judged, load_digits, net

from provisioner.node.torch.accelerate import checkpointing


def main() -> None:
    """Train, from the last checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--every", type=float, metavar="SECONDS", help="between two checkpoints")
    arguments = parser.parse_args()

    set_seed(20240229)
    torch.set_num_threads(1)  # several threads may add in another order, and change last bits
    accelerator = Accelerator(gradient_accumulation_steps=2)
    digits = load_digits()
    loader = DataLoader(digits, batch_size=32 // accelerator.num_processes, shuffle=True)
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    with checkpointing(accelerator, loader, every_s=arguments.every) as run:
        for _ in run.epochs(arguments.epochs):
            for images, labels in run.batches:
                with accelerator.accumulate(model):
                    loss = nn.functional.cross_entropy(model(images), labels)
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                if accelerator.sync_gradients:
                    accelerator.print(f"step {run.done + 1} loss {loss.item():.9g}", flush=True)
                run.step(loss=loss)

    told = judged(accelerator.unwrap_model(model), digits)
    accelerator.print(f"done at step {run.done}: {told}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
