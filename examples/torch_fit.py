"""Train a small transformer that is cut to the card by ``fit``: micro-batch, dtype, activation checkpointing.

python examples/torch_fit.py                     # this machine's card; without one, all that there is
python examples/torch_fit.py --budget "40 MiB"   # as if there were no more
failover fit examples/torch_fit.py --gpu T4 --gpu L4
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from provisioner.node.torch import AutoBatch, fit

WORDS, LENGTH, BATCH = 64, 32, 64


class Model(nn.Module):
    """Tells the next letter: (samples, LENGTH) numbers below WORDS to (samples, LENGTH, WORDS) scores."""

    def __init__(self, width: int = 64, depth: int = 4) -> None:
        """Make it ``depth`` blocks deep."""
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, norm_first=True) for _ in range(depth)
        )
        self.head = nn.Linear(width, WORDS)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        mask = nn.Transformer.generate_square_subsequent_mask(letters.shape[1], device=letters.device)
        hidden = self.embedding(letters)
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask)
        scores: torch.Tensor = self.head(hidden)
        return scores


def main() -> None:
    """Fit, then train."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--budget", help="memory that may be used, as '40 MiB'")
    arguments = parser.parse_args()

    torch.manual_seed(20240229)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    start = torch.randint(0, WORDS, (arguments.steps, BATCH, 1), device=device)
    letters = (start + torch.arange(LENGTH + 1, device=device)) % WORDS  # an alphabet that goes round

    def loss_of(piece: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(model(piece[:, :-1]).flatten(0, 1), piece[:, 1:].flatten())

    plan = fit(model, letters[0], loss=loss_of, optimizer=optimizer, batch=BATCH, budget=arguments.budget)
    print(plan, flush=True)
    plan.apply(model)
    scaler = plan.scaler()
    auto = AutoBatch(model, max_batch=plan.micro_batch, scaler=scaler)
    for step, batch in enumerate(letters, 1):
        optimizer.zero_grad()
        loss = auto.backward(batch, plan.autocast()(loss_of))
        scaler.step(optimizer)
        scaler.update()
        print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
