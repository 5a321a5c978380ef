"""One batch in as many pieces as the card's memory wants: gradients, learning rate and schedule stay the batch's.

A piece that does not fit is no end: what the batch has done so far is taken back, and it is done again in smaller
pieces, with the same data and the same randomness.
"""

from __future__ import annotations

import contextlib
import math
import time
from typing import Any, Callable, TypeVar

import torch
import torch.distributed as dist

from provisioner.node.torch import memory, pieces, randomness
from provisioner.node.torch.buffers import Buffers
from provisioner.node.torch.surroundings import Surroundings, say

B = TypeVar("B")
Loss = Callable[[B], torch.Tensor]
MOST_HALVINGS = 3
"""In one batch. What does not fit then is an end of the command, which the node answers (docs/node.md)."""
LOOK_EVERY = 100
"""Steps between two looks at the memory."""


class AutoBatch:
    """``loss = auto.backward(batch, loss_of)`` does the forward and backward passes of one batch, piece by piece.

    ``size`` is the number of samples of a piece now, None while the whole batch fits. It grows again when the card's
    peak over ``look_every`` steps would leave ``safety_margin`` of the memory free with twice the size, not before
    ``warmup`` steps, and never above ``max_batch``.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        max_batch: int | None = None,
        safety_margin: float = 0.2,
        warmup: int = 100,
        scaler: Any = None,
        look_every: int = LOOK_EVERY,
        card: memory.Card | None = None,
        surroundings: Surroundings | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the model whose gradients are added up. ``scaler`` is a GradScaler, for fp16."""
        self.size = max_batch
        self.waited = 0.0
        """Share of the time since the last look that this process waited for data, from 0 to 1."""
        self.noise: float | None = None
        """Samples in a batch from which on a larger one is hardly better (McCandlish 2018); None: not yet known."""
        self._model = model
        self._most = max_batch
        self._margin = safety_margin
        self._warmup = warmup
        self._scaler = scaler
        self._together = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self._every = look_every
        self._card = memory.card() if card is None else card
        self._scale = (surroundings or Surroundings()).batch_scale
        self._monotonic = monotonic
        self._steps = 0
        self._left_at: float | None = None
        self._looked_at = monotonic()
        self._waiting = 0.0
        self._tried: set[int] = set()
        self._noise = _Noise()

    def backward(self, batch: B, loss_of: Loss[B]) -> torch.Tensor:
        """Add the gradients of the batch's mean loss to the model's; return that loss, without its graph.

        ``loss_of(piece)`` returns the mean loss of a piece. Call ``optimizer.zero_grad()`` before it, as ever: whatever
        gradients are there are kept, also when a piece has to be done again. Raises what the card raises when three
        halvings do not help; with several processes at once, since the others would wait for this one in the middle.
        """
        began = self._monotonic()
        if self._left_at is not None:
            self._waiting += began - self._left_at
        whole = pieces.length(batch)
        if self.size is None and self._scale < 1.0:  # the node has started the command again: it did not fit
            self.size = max(1, int(whole * self._scale))
        before = _Before(self._model)
        halvings = 0
        while True:
            size = min(whole, self.size or whole)
            try:
                loss = self._pieces(batch, whole, size, loss_of)
                break
            except RuntimeError as error:
                if not memory.is_out_of_memory(error) or halvings == MOST_HALVINGS or size == 1 or self._together:
                    raise
            # out here the error is gone, and with it what its traceback kept alive
            halvings += 1
            before.take_back()
            if self._card is not None:
                self._card.free_unused()
            self._tried.add(size)
            self.size = max(1, size // 2)
            say(f"a piece of {size} samples does not fit into the card; doing the batch again with {self.size}")
        self._steps += 1
        if self._steps % self._every == 0:
            self._look(whole)
        self._left_at = self._monotonic()
        return loss

    def _pieces(self, batch: B, whole: int, size: int, loss_of: Loss[B]) -> torch.Tensor:
        total = torch.zeros(())
        measured = self._steps % self._every == 0 and size < whole
        for begin in range(0, whole, size):
            end = min(whole, begin + size)
            with self._alone(last=end == whole):
                loss = loss_of(pieces.cut(batch, begin, end)) * ((end - begin) / whole)
                (loss if self._scaler is None else self._scaler.scale(loss)).backward()
            total = loss.detach() + total.to(loss.device)
            if measured and begin == 0:
                self._noise.first(self._model, share=(end - begin) / whole, samples=end - begin)
        if measured:
            self.noise = self._noise.whole(self._model, samples=whole)
        return total

    def _alone(self, *, last: bool) -> Any:
        """Let the processes add their gradients up once a batch, in its last piece."""
        quiet = getattr(self._model, "no_sync", None)
        return contextlib.nullcontext() if last or quiet is None else quiet()

    def _look(self, whole: int) -> None:
        now = self._monotonic()
        self.waited = min(1.0, self._waiting / max(now - self._looked_at, 1e-9))
        self._looked_at, self._waiting = now, 0.0
        if self._card is None or self.size is None or self._steps < self._warmup:
            return
        size = min(whole, self.size)
        larger = min(2 * size, self._most or whole, whole)
        if larger <= size or larger in self._tried:
            return
        # what does not grow with the batch (weights, optimizer) is counted as if it did: rather too careful
        if self._card.peak() * (larger / size) <= (1.0 - self._margin) * self._card.total():
            self.size = larger
            say(f"the card has room: pieces of {larger} samples now")


class _Before:
    """The gradients, buffers and random generators before a batch."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._random = randomness.capture()
        self._buffers = Buffers(model)
        self._gradients = [
            (parameter, None if parameter.grad is None else parameter.grad.detach().clone())
            for parameter in model.parameters()
        ]

    def take_back(self) -> None:
        randomness.restore(self._random)
        self._buffers.put_back()
        for parameter, gradient in self._gradients:
            parameter.grad = None if gradient is None else gradient.clone()


class _Noise:
    """The simple gradient noise scale, from the gradients of a piece and of the whole batch, smoothed."""

    def __init__(self) -> None:
        self._small = (0.0, 1)
        self._trace = self._square = 0.0
        self._count = 0

    def first(self, model: torch.nn.Module, *, share: float, samples: int) -> None:
        self._small = (_square(model) / share**2, samples)

    def whole(self, model: torch.nn.Module, *, samples: int) -> float | None:
        small, few = self._small
        large = _square(model)
        if not math.isfinite(small + large):  # a scaler that has not found its scale yet
            return self._found()
        square = (samples * large - few * small) / (samples - few)
        trace = (small - large) / (1.0 / few - 1.0 / samples)
        keep = min(0.99, self._count / (self._count + 1.0))
        self._count += 1
        self._square = keep * self._square + (1.0 - keep) * square
        self._trace = keep * self._trace + (1.0 - keep) * trace
        return self._found()

    def _found(self) -> float | None:
        return self._trace / self._square if self._square > 0 and self._trace > 0 else None


def _square(model: torch.nn.Module) -> float:
    found = [
        parameter.grad.detach().float().pow(2).sum() for parameter in model.parameters() if parameter.grad is not None
    ]
    return float(torch.stack(found).sum()) if found else 0.0
