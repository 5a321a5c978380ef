"""Batches as nested tensors: how many samples one has, and a slice of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import torch

B = TypeVar("B")


def length(batch: Any) -> int:
    """Return the number of samples: the first dimension of the first tensor. Raises ValueError where there is none."""
    for tensor in tensors(batch):
        if tensor.dim():
            return int(tensor.shape[0])
    raise ValueError("the batch holds no tensor with a first dimension to split it by")


def nbytes(batch: Any) -> int:
    """Return the bytes of a batch's tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors(batch))


def cut(batch: B, begin: int, end: int) -> B:
    """Return the samples from ``begin`` to ``end``. What has another first dimension is left whole."""
    found: B = _chosen(batch, length(batch), slice(begin, end))
    return found


def repeated(batch: Any, samples: int) -> Any:
    """Return a batch of so many samples: those of ``batch``, from the first on again where they do not suffice."""
    whole = length(batch)
    return _chosen(batch, whole, [number % whole for number in range(samples)])


def _chosen(batch: Any, whole: int, which: slice | list[int]) -> Any:
    def of(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value[which] if value.dim() and value.shape[0] == whole else value
        if isinstance(value, dict) or hasattr(value, "items"):  # a BatchEncoding of transformers is a UserDict
            found = {key: of(item) for key, item in value.items()}
            return found if isinstance(value, dict) else type(value)(found)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(of(item) for item in value))
        if isinstance(value, (list, tuple)):
            if len(value) == whole and not any(isinstance(item, torch.Tensor) for item in value):
                # texts, names
                return value[which] if isinstance(which, slice) else type(value)(value[number] for number in which)
            items = [of(item) for item in value]
            return items if isinstance(value, list) else tuple(items)
        return value

    return of(batch)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a nested value."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict) or hasattr(value, "items"):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)
