"""Activation checkpointing: blocks keep their inputs alone, and are computed again in the backward pass.

Only the blocks' ``forward`` is replaced, so names, ``state_dict`` and parameters stay what they are.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def blocks(model: nn.Module, names: Sequence[str] = ()) -> list[nn.Module]:
    """Return the modules to recompute: those named, else the children of the container that repeats most parameters.

    A container is an ``nn.Sequential`` or an ``nn.ModuleList``; its children count that have parameters and a class in
    common, and parts of their own. Raises KeyError for a name that the model does not have.
    """
    if names:
        known = dict(model.named_modules())
        return list(dict.fromkeys(known[name] for name in names))
    best: tuple[int, list[nn.Module]] = (0, [])
    for container in model.modules():
        if not isinstance(container, (nn.Sequential, nn.ModuleList)):
            continue
        children = [child for child in dict.fromkeys(container) if list(child.children())]
        for kind in {type(child) for child in children}:
            alike = [child for child in children if type(child) is kind]
            size = sum(parameter.numel() for child in alike for parameter in child.parameters())
            if len(alike) > 1 and size > best[0]:
                best = (size, alike)
    return best[1]


def apply(modules: Sequence[nn.Module]) -> None:
    """Let modules be recomputed from now on, wherever gradients are wanted."""
    for module in modules:
        module.forward = functools.partial(_recomputed, module, module.forward)


@contextlib.contextmanager
def applied(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Do the same for a while."""
    before = [(module, module.__dict__.get("forward")) for module in modules]
    apply(modules)
    try:
        yield
    finally:
        for module, forward in before:
            if forward is None:
                del module.forward
            else:
                module.forward = forward


def _recomputed(module: nn.Module, forward: Any, *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    calls = 0

    def once_more(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        with contextlib.nullcontext() if calls == 1 else _statistics_kept(module):
            return forward(*args, **kwargs)

    return checkpoint(once_more, *args, use_reentrant=False, **kwargs)


@contextlib.contextmanager
def _statistics_kept(module: nn.Module) -> Iterator[None]:
    """Let no BatchNorm count a batch twice."""
    found = [one for one in module.modules() if getattr(one, "track_running_stats", False)]
    kept = [(buffer, buffer.detach().clone()) for one in found for buffer in one.buffers(recurse=False)]
    try:
        yield
    finally:
        for buffer, before in kept:
            buffer.data.copy_(before)  # through `data`: the backward pass must not take it for a change
