"""Train a small transformer to add: character by character, on sums that are drawn as it goes.

``checkpointing`` is all that gpu-failover adds: three lines of this script. The sums are drawn at random in the
dataset, and are the same ones however often the run was interrupted. Run it alone, kill it, and run it again:

    FAILOVER_CHECKPOINT_DIR=/tmp/sums python examples/torch_sums.py
"""

from __future__ import annotations

import argparse
import random

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from provisioner.node.torch import checkpointing

CHARACTERS = "0123456789+-=. "
LENGTH = 12
"""Characters of a sum: 57+068=125. and blanks."""


def encoded(text: str) -> torch.Tensor:
    """Return the numbers of a sum's characters, filled up with blanks."""
    return torch.tensor([CHARACTERS.index(character) for character in text.ljust(LENGTH)])


class Sums(Dataset[torch.Tensor]):
    """``count`` sums of two numbers below 100, other ones each time they are asked for. ``sign`` is + or -."""

    def __init__(self, count: int, sign: str = "+") -> None:
        """Take how many make an epoch."""
        self.count = count
        self.sign = sign

    def __len__(self) -> int:
        """Return the sums of an epoch."""
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return a sum as LENGTH numbers of characters. The answer begins with its last digit: so it is reckoned."""
        if not 0 <= index < self.count:
            raise IndexError(index)
        one, other = random.randrange(100), random.randrange(100)
        answer = one + other if self.sign == "+" else abs(one - other)
        return encoded(f"{one:02}{self.sign}{other:02}={f'{answer:03}'[::-1]}.")


class Block(nn.Module):
    """Attention to what came before, and two linear layers."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        """Take the width of a character, split among the heads."""
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.before_attention = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.rest = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take and return batch x LENGTH x width."""
        parts = self.attention(self.before_attention(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        dropout = self.dropout if self.training else 0.0
        seen = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(-2))
        rest: torch.Tensor = self.rest(x)
        return x + rest


class Transformer(nn.Module):
    """Says of each place which character comes next."""

    def __init__(self, width: int = 64, layers: int = 2, heads: int = 4, dropout: float = 0.1) -> None:
        """Take the size."""
        super().__init__()
        self.characters = nn.Embedding(len(CHARACTERS), width)
        self.places = nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, len(CHARACTERS)))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Take batch x places (numbers of characters), return batch x places x characters."""
        x = self.characters(text) + self.places.weight[: text.shape[1]]
        found: torch.Tensor = self.last(self.blocks(x))
        return found


def loss_of(model: nn.Module, text: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of the answers' characters, from behind the = on."""
    return functional.cross_entropy(model(text)[:, 5:-1].flatten(0, 1), text[:, 6:].flatten())


@torch.no_grad()
def right(model: nn.Module, sign: str = "+") -> float:
    """Return the share of sums, of 200 that were drawn for it, whose answer is right to the last character."""
    model.eval()
    state = random.getstate()
    random.seed(7)
    text = torch.stack([Sums(200, sign)[number] for number in range(200)])
    random.setstate(state)
    found = text[:, :6]
    while found.shape[1] < LENGTH:
        found = torch.cat([found, model(found)[:, -1:].argmax(-1)], dim=1)
    model.train()
    return (found == text).all(1).float().mean().item()


def main() -> None:
    """Train, from the last checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--sums", type=int, default=6400, help="of an epoch")
    parser.add_argument("--every", type=float, metavar="SECONDS", help="between two checkpoints")
    arguments = parser.parse_args()

    torch.manual_seed(20240229)
    torch.set_num_threads(1)  # several threads may add in another order, and change last bits
    loader = DataLoader(Sums(arguments.sums), batch_size=64, shuffle=True)
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs * len(loader), 1e-4)
    loss = torch.zeros(())
    with checkpointing(model, optimizer, scheduler, dataloader=loader, every_s=arguments.every) as run:
        for _ in run.epochs(arguments.epochs):
            for text in run.batches:
                loss = loss_of(model, text)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                if (run.done + 1) % 50 == 0:
                    print(f"step {run.done + 1} loss {loss.item():.9g}", flush=True)
                run.step(loss=loss)
    print(f"done at step {run.done}: loss {loss.item()!r}, right {right(model):.3f}", flush=True)


if __name__ == "__main__":
    main()
