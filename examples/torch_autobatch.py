"""Train on handwritten digits with a batch that does not fit into the card: ``AutoBatch`` does it in pieces that do.

    python examples/torch_autobatch.py              # all of a batch at once, where the card takes it
    python examples/torch_autobatch.py --room 100   # as if the card had no room for more than 100 images

Both train the same steps on the same batches, and end alike. ``checkpointing`` is beside it as in torch_digits.py.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader
from torch_digits import judged, load_digits, net

from provisioner.node.torch import AutoBatch, checkpointing


def main() -> None:
    """Train, from the last checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=256, help="images of a step")
    parser.add_argument("--room", type=int, help="images that fit, for a rehearsal")
    parser.add_argument("--every", type=float, metavar="SECONDS", help="between two checkpoints")
    arguments = parser.parse_args()

    torch.manual_seed(20240229)
    torch.set_num_threads(1)  # several threads may add in another order, and change last bits
    device = "cuda" if torch.cuda.is_available() else "cpu"
    digits = load_digits()
    loader = DataLoader(digits, batch_size=arguments.batch, shuffle=True)
    model = net(dropout=0.0).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    auto = AutoBatch(model)

    def loss_of(piece: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        images, labels = piece
        if arguments.room and len(images) > arguments.room:
            raise torch.cuda.OutOfMemoryError(f"no room for {len(images)} images")
        return nn.functional.cross_entropy(model(images.to(device)), labels.to(device))

    with checkpointing(model, optimizer, dataloader=loader, every_s=arguments.every) as run:
        for _ in run.epochs(arguments.epochs):
            for batch in run.batches:
                optimizer.zero_grad()
                loss = auto.backward(batch, loss_of)
                optimizer.step()
                print(f"step {run.done + 1} loss {loss.item():.9g}", flush=True)
                run.step(loss=loss)
    pieces = f"in pieces of {auto.size or arguments.batch}"
    print(f"done at step {run.done}: {judged(model, digits)}, {pieces}", flush=True)


if __name__ == "__main__":
    main()
