"""The states of all random generators: Python's, numpy's, torch's and that of every CUDA device in use."""

from __future__ import annotations

import importlib
import random
import sys
from typing import Any

import torch

States = dict[str, Any]


def capture(*, cuda: bool = True) -> States:
    """Return the states, to be put back in this process."""
    states: States = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states["numpy"] = numpy.random.get_state()
    if cuda and torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call, unused-ignore]
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def portable(states: States) -> States:
    """Return the same states as values that ``torch.load(weights_only=True)`` reads."""
    if "numpy" not in states:
        return states
    kind, keys, position, has_gauss, cached = states["numpy"]
    return {**states, "numpy": (kind, [int(key) for key in keys], int(position), int(has_gauss), float(cached))}


def restore(states: States) -> None:
    """Put the states back. A card that is not there keeps its numbers to itself."""
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"].cpu())
    if "numpy" in states and (numpy := _numpy()) is not None:
        kind, keys, position, has_gauss, cached = states["numpy"]
        numpy.random.set_state((kind, numpy.asarray(keys, dtype="uint32"), position, has_gauss, cached))
    if "cuda" in states and torch.cuda.is_available():
        for device, state in enumerate(states["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state.cpu(), device)


def seed(number: int) -> None:
    """Seed Python's, numpy's and torch's generators on the CPU."""
    random.seed(number)
    torch.random.default_generator.manual_seed(number % 2**63)  # type: ignore[attr-defined, unused-ignore]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(number % 2**32)


class Stream:
    """Randomness of its own: inside ``with stream:`` the global generators are the stream's, outside untouched."""

    def __init__(self, number: int) -> None:
        """Begin with a seed."""
        self._seed = number
        self._own: States = {}
        self._others: States = {}
        self._depth = 0

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth > 1:
            return
        self._others = capture(cuda=False)
        if self._own:
            restore(self._own)
        else:
            seed(self._seed)

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._own = capture(cuda=False)
            restore(self._others)


def _numpy() -> Any:
    """Return numpy where the script may use it: it must be there before its state is put back."""
    try:
        return importlib.import_module("numpy")
    except ImportError:
        return None
