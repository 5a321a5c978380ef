"""Whether a training fits a card, how, and how long a step takes. Plain arithmetic on what was measured: no torch.

Measured is what PyTorch itself holds: weights, gradients, optimizer state, and what the passes of a micro-batch add to
them at their peak. What it cannot see has an allowance, stated here. The toolkit is copied to machines whose Python is
the training's, so this module is written for Python 3.9 and the standard library.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

GIB = float(1 << 30)
CONTEXT = 0.75 * GIB
"""For CUDA's context (about 0.5 GiB) and the workspaces of cuBLAS and cuDNN. Not measured: no card was there."""
FRAGMENTATION = 0.1
"""More that the passes take, since freed blocks do not fit what comes next. Not measured either."""
COMPUTE_SHARE = 0.5
"""Of a card's dense peak that matrix products reach. Published trainings reach 0.3 to 0.6."""
BANDWIDTH_SHARE = 0.7
"""Of a card's memory bandwidth that element-wise kernels reach."""
LAUNCH_S = 1e-5
"""What Python and PyTorch take to start one kernel, in seconds: a small model's step takes no less for each of them."""
FULL, HALF, CHECKPOINTING = "float32", "half", "+checkpointing"
"""Names of the ways to do the passes: ``half`` is autocast to bfloat16 or float16. Each also with checkpointing."""
WAYS = (FULL, HALF, FULL + CHECKPOINTING, HALF + CHECKPOINTING)


@dataclass(frozen=True)
class Passes:
    """Forward and backward of a micro-batch, done in one way.

    ``peak``: bytes beside weights, gradients and optimizer state, as lines of (fixed, a sample); the highest counts.
    ``moved``: bytes that kernels read and write, (fixed, a sample). ``kernels``: how many are started. ``flops`` of
    matrix products, a sample; None: this PyTorch counts none.
    """

    peak: tuple[tuple[float, float], ...]
    moved: tuple[float, float] = (0.0, 0.0)
    kernels: int = 0
    flops: float | None = None

    def peak_bytes(self, samples: int) -> float:
        """Return the peak with a micro-batch of so many samples."""
        return max((fixed + samples * each for fixed, each in self.peak), default=0.0)


@dataclass(frozen=True)
class Measured:
    """What a training needs wherever it runs. Bytes; ``inputs`` is a sample's, ``batch`` the samples of one step.

    ``ways``: by the names in ``WAYS``, those that could be measured.
    """

    batch: int
    weights: int
    gradients: int
    optimizer: int
    inputs: int
    ways: Mapping[str, Passes]

    @property
    def held(self) -> float:
        """Bytes that are there all the time: weights, gradients, optimizer state, and the batch itself."""
        return float(self.weights + self.gradients + self.optimizer + self.batch * self.inputs)

    def as_json(self) -> dict[str, Any]:
        """Return plain values, in whole bytes."""
        return {
            "batch": self.batch,
            "weights": self.weights,
            "gradients": self.gradients,
            "optimizer": self.optimizer,
            "inputs": self.inputs,
            "ways": {
                name: {
                    "peak": [_line(line) for line in one.peak],
                    "moved": _line(one.moved),
                    "kernels": one.kernels,
                    "flops": None if one.flops is None else round(one.flops),
                }
                for name, one in self.ways.items()
            },
        }


@dataclass(frozen=True)
class Card:
    """A card. ``memory``: bytes that PyTorch finds there, 0 where nobody knows or nothing bounds it.

    ``capability``: CUDA's, None where it is no CUDA card. ``tflops`` at half precision (before 7.0: at float32) and
    ``bandwidth_gbs``: 0 where nobody knows.
    """

    name: str
    memory: float = 0.0
    capability: tuple[int, int] | None = None
    tflops: float = 0.0
    bandwidth_gbs: float = 0.0


@dataclass(frozen=True)
class Choice:
    """How to train on a card. ``need`` is in bytes; ``seconds`` a step of the whole batch, None: nobody can tell."""

    card: Card
    dtype: str
    micro_batch: int
    accumulate: int
    checkpointing: bool
    need: float
    seconds: float | None
    fits: bool
    why: str


def dtype(card: Card) -> str:
    """Return what to cast to: bfloat16 from sm_80 on, float16 on the tensor cores before, else float32 (no cast)."""
    if card.capability is None or card.capability < (7, 0):
        return "float32"
    return "bfloat16" if card.capability >= (8, 0) else "float16"


def choose(measured: Measured, card: Card) -> Choice:
    """Choose the largest micro-batch that fits and divides the batch; activation checkpointing where none does else.

    Where nothing fits, the leanest way is returned, with ``fits`` False. Raises ValueError if nothing was measured.
    """
    cast = dtype(card)
    names = [HALF, HALF + CHECKPOINTING] if cast != "float32" else []
    names = [name for name in names if name in measured.ways]
    if not names:
        cast, names = "float32", [name for name in (FULL, FULL + CHECKPOINTING) if name in measured.ways]
    if not names:
        raise ValueError("no way to do the passes was measured")
    small = [size for size in range(1, math.isqrt(measured.batch) + 1) if measured.batch % size == 0]
    sizes = sorted({*small, *(measured.batch // size for size in small)}, reverse=True)
    for name in names:
        for larger, size in zip([0, *sizes], sizes):
            if not card.memory or need(measured, measured.ways[name], size, card) <= card.memory:
                return _choice(measured, card, cast, name, size, _fits(measured, card, name, larger))
    name = min(names, key=lambda one: need(measured, measured.ways[one], 1, card))
    return _choice(measured, card, cast, name, 1, "")


def need(measured: Measured, passes: Passes, samples: int, card: Card) -> float:
    """Return the bytes that a micro-batch needs on a card, allowances and all.

    The optimizer's step, which works on all parameters at once, holds another copy of the gradients.
    """
    most = max(passes.peak_bytes(samples), float(measured.gradients))
    return measured.held + most * (1.0 + FRAGMENTATION) + (0.0 if card.capability is None else CONTEXT)


def seconds(measured: Measured, passes: Passes, card: Card, samples: int) -> float | None:
    """Return the seconds of a step: matrix products and memory one after the other, but no less than the launches."""
    if passes.flops is None or not card.tflops or not card.bandwidth_gbs:
        return None
    times = math.ceil(measured.batch / samples)
    fixed, each = passes.moved
    update = 3.0 * measured.gradients + 2.0 * measured.optimizer
    arithmetic = measured.batch * passes.flops / (card.tflops * 1e12 * COMPUTE_SHARE)
    memory = (times * fixed + measured.batch * each + update) / (card.bandwidth_gbs * 1e9 * BANDWIDTH_SHARE)
    return max(arithmetic + memory, times * passes.kernels * LAUNCH_S)


def amount(size: float) -> str:
    """Return bytes as ``14.6 GiB``, below one as ``35 MiB``."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size * 1024 / GIB:.3g} MiB"


def envelope(lines: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Return those of the lines (fixed, a sample) that are the highest at some number of samples from 1 on."""
    found: list[tuple[float, float]] = []
    ahead = list(lines)
    best = max(ahead, key=lambda one: (one[0] + one[1], one[1]), default=None)
    while best is not None:
        found.append(best)
        fixed, each = best
        ahead = [one for one in ahead if one[1] > each]
        # the next is the one that overtakes first; of several there, the steepest
        best = min(ahead, key=lambda one: ((fixed - one[0]) / (one[1] - each), -one[1]), default=None)
    return tuple(found)


def _line(line: tuple[float, float]) -> dict[str, int]:
    return {"fixed": round(line[0]), "each": round(line[1])}


def _choice(measured: Measured, card: Card, cast: str, name: str, size: int, why: str) -> Choice:
    passes = measured.ways[name]
    return Choice(
        card=card,
        dtype=cast,
        micro_batch=size,
        accumulate=measured.batch // size,
        checkpointing=name.endswith(CHECKPOINTING),
        need=need(measured, passes, size, card),
        seconds=seconds(measured, passes, card, size),
        fits=bool(why),
        why=why or _lacks(measured, card, name),
    )


def _lacks(measured: Measured, card: Card, name: str) -> str:
    how = " with activation checkpointing" if name.endswith(CHECKPOINTING) else ""
    needed = amount(need(measured, measured.ways[name], 1, card))
    return f"needs {needed} at micro-batch 1{how}, has {amount(card.memory)}"


def _fits(measured: Measured, card: Card, name: str, larger: int) -> str:
    """Say why this way and size were taken; ``larger`` is the next size, which does not fit, 0 where there is none."""
    if larger:
        more = amount(need(measured, measured.ways[name], larger, card))
        words = f"micro-batch {larger} would need {more} of {amount(card.memory)}"
    else:
        words = "the whole batch fits" if card.memory else "nothing bounds the memory"
    plain = measured.ways.get(name.replace(CHECKPOINTING, ""))
    if name.endswith(CHECKPOINTING) and plain is not None:
        words += f"; without activation checkpointing one sample needs {amount(need(measured, plain, 1, card))}"
    return words
