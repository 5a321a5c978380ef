"""Which of NVML's cards is the one that this process computes on."""

from __future__ import annotations

import importlib
import os
from typing import Any

import torch


def load() -> Any:
    """Load NVML's library: ``pynvml``, of nvidia-ml-py. Raises ImportError."""
    return importlib.import_module("pynvml")


def device() -> int | None:
    """Return this thread's current card by torch's number; None: torch has none."""
    return torch.cuda.current_device() if torch.cuda.is_available() else None


def uuid_of(number: int | None) -> str:
    """Return the name by which NVML knows a card; empty where torch does not tell (before 2.5)."""
    uuid = None if number is None else getattr(torch.cuda.get_device_properties(number), "uuid", None)
    return "" if uuid is None else f"GPU-{uuid}"


def is_alone() -> bool:
    """Say whether each process of this machine's launcher has a card for itself."""
    return bool(int(os.environ.get("LOCAL_WORLD_SIZE") or 1) <= max(1, torch.cuda.device_count()))


def name(nvml: Any, handle: Any) -> str:
    """Return a card's UUID as NVML knows it. Raises NVMLError."""
    found = nvml.nvmlDeviceGetUUID(handle)
    return found.decode() if isinstance(found, bytes) else str(found)
