"""The memory of the card that a process trains on, in bytes. A parameter everywhere, so that tests hand in a card."""

from __future__ import annotations

import gc
from typing import Protocol

import torch


class Card(Protocol):
    """What is asked of a card."""

    def total(self) -> int:
        """Return what this process may use at most."""
        ...

    def peak(self) -> int:
        """Return the most that was in use since the last question."""
        ...

    def free_unused(self) -> None:
        """Give back what is cached and not used."""
        ...


class Cuda:
    """The current CUDA device."""

    def total(self) -> int:
        """Return what the device has free, and what this process holds of it."""
        free, _ = torch.cuda.mem_get_info()
        return int(free + torch.cuda.memory_reserved())

    def peak(self) -> int:
        """Return the peak of what was allocated, and begin anew."""
        peak = int(torch.cuda.max_memory_allocated())
        torch.cuda.reset_peak_memory_stats()
        return peak

    def free_unused(self) -> None:
        """Collect garbage, then empty the allocator's cache."""
        gc.collect()
        torch.cuda.empty_cache()


def card() -> Card | None:
    """Return the card that there is."""
    return Cuda() if torch.cuda.is_available() else None


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an error means that the card's memory did not suffice."""
    kind = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError  # its name before PyTorch 2.5
    if isinstance(error, kind):
        return True
    words = str(error)
    return isinstance(error, RuntimeError) and (
        "CUDA out of memory" in words or "CUBLAS_STATUS_ALLOC_FAILED" in words or "CUDNN_STATUS_ALLOC_FAILED" in words
    )
