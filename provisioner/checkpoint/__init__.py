"""Checkpoints in an object store: content-addressed packs, a manifest as the commit, an epoch as the fence.

``CheckpointStore`` and ``AsyncCheckpointStore`` are for everybody's code; the rest is for the node and the controller.

Imported on bare machines: the standard library, obstore and blake3 (zstandard for the packed workdir), nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from provisioner.checkpoint.api import CheckpointStore
    from provisioner.checkpoint.asynchronous import AsyncCheckpointStore

__all__ = ["AsyncCheckpointStore", "CheckpointStore"]

_HOMES = {"CheckpointStore": "api", "AsyncCheckpointStore": "asynchronous"}


def __getattr__(name: str) -> object:
    """Import the two classes when they are asked for: most of this package does without them."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
