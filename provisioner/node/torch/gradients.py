"""Gradients in half the bytes, where the link between the processes is what a step waits for.

Asked for by the script, since it rounds gradients: ``compress_gradients(model)`` behind ``DistributedDataParallel``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

WORTH = 0.05
"""The part of a step that has to be saved: less would be lost in what the measurement does not see."""
SIZES = (1 << 18, 1 << 21, 1 << 24)
"""Bytes of the reductions that are measured."""
ENOUGH_S = 1.0
"""A reduction that takes longer says enough: no larger one is tried."""


@dataclass(frozen=True)
class Link:
    """What a reduction of n bytes over all processes takes: ``latency_s + n / bandwidth`` (bytes a second)."""

    latency_s: float
    bandwidth: float

    def seconds(self, size: float) -> float:
        """Return how long a reduction of so many bytes takes."""
        return self.latency_s + size / self.bandwidth


def link_of(samples: Sequence[tuple[int, float]]) -> Link:
    """Return the link that (bytes, seconds) of at least one reduction show: the line by its ends."""
    (small, quick), (large, slow) = samples[0], samples[-1]
    if large == small or slow <= quick:
        return Link(0.0, large / slow)
    bandwidth = (large - small) / (slow - quick)
    return Link(max(0.0, quick - small / bandwidth), bandwidth)


def saved(link: Link, size: int, *, cast_s: float, backward_s: float) -> float:
    """Return which part of a step half the bytes would save; below 0: what they would cost.

    ``size`` are the bytes of all gradients, ``cast_s`` what it takes to round them and back, ``backward_s`` what a
    backward pass takes: reductions run beside it, so only what is longer is waited for.
    """
    whole = max(backward_s, link.seconds(size))
    half = max(backward_s, link.seconds(size / 2)) + cast_s
    return (whole - half) / whole


def compress_gradients(
    model: Any,
    *,
    backward_s: float = 0.0,
    bandwidth: float | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> str | None:
    """Send gradients as bf16 (fp16 where that is not to be had) if that pays; return which, None: as they are.

    Every process calls it before the first step, with a model in DistributedDataParallel; all decide the same. It takes
    about as long as ten reductions of 16 MB, and says in one line what it found. ``backward_s`` is how long a backward
    pass takes, in seconds: what is sent meanwhile is not waited for. ``bandwidth``, in bytes a second, is taken instead
    of what is measured. Raises TypeError for another model.
    """
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise TypeError("compress_gradients wants a model in DistributedDataParallel")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    size = sum(one.numel() * one.element_size() for one in trained)
    group = model.process_group
    if any(one.dtype is not torch.float32 for one in trained) or dist.get_world_size(group) == 1:
        return None
    device = trained[0].device
    link = Link(0.0, bandwidth) if bandwidth else link_of(_measured(device, group, monotonic))
    kind = _kind(device, group)
    cast_s, backward_s = _slowest([_cast_s(size, device, kind, monotonic), backward_s], device, group)
    part = saved(link, size, cast_s=cast_s, backward_s=backward_s)
    name = "bf16" if kind is torch.bfloat16 else "fp16"
    if pays := part >= WORTH:
        hook = default_hooks.bf16_compress_hook if kind is torch.bfloat16 else default_hooks.fp16_compress_hook
        model.register_comm_hook(group, hook)
    if dist.get_rank(group) == 0:
        found = f"{size / 1e6:.3g} MB of gradients at {link.bandwidth / 1e6:.3g} MB/s, backward {backward_s:.3g} s"
        verdict = f"sent as {name}, which saves" if pays else f"sent as they are; {name} would save"
        sys.stderr.write(f"failover: {found}: {verdict} {part:.0%} of a step\n")
        sys.stderr.flush()
    return name if pays else None


def _measured(device: torch.device, group: Any, monotonic: Callable[[], float]) -> list[tuple[int, float]]:
    samples = []
    for size in SIZES:
        tensor = torch.zeros(size // 4, device=device)
        least = float("inf")
        for _ in range(3):  # the first one also connects
            dist.barrier(group)
            began = monotonic()
            dist.all_reduce(tensor, group=group)
            _wait(device)
            least = min(least, monotonic() - began)
        samples.append((size, _slowest([least], device, group)[0]))
        if samples[-1][1] > ENOUGH_S:
            break
    return samples


def _kind(device: torch.device, group: Any) -> torch.dtype:
    """Return bf16 if every process can: it has the range of fp32, so nothing overflows. DDP wants NCCL for it."""
    able = device.type == "cuda" and dist.get_backend(group) == "nccl" and torch.cuda.is_bf16_supported()
    return torch.bfloat16 if _slowest([0.0 if able else 1.0], device, group)[0] == 0.0 else torch.float16


def _cast_s(size: int, device: torch.device, kind: torch.dtype, monotonic: Callable[[], float]) -> float:
    tensor = torch.zeros(min(size, SIZES[-1]) // 4, device=device)
    least = float("inf")
    for _ in range(3):
        _wait(device)
        began = monotonic()
        tensor.copy_(tensor.to(kind))
        _wait(device)
        least = min(least, monotonic() - began)
    return float(least * size / (tensor.numel() * 4))


def _slowest(seconds: Sequence[float], device: torch.device, group: Any) -> list[float]:
    """Return the largest values of all processes: what they all reckon with."""
    tensor = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=group)
    return [float(one) for one in tensor]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
