"""Writes checkpoints beside the training. The step is held for the copy into host memory, not for the disk."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from typing import Any, Callable

import torch

from provisioner.node.torch import tensors
from provisioner.node.torch.surroundings import say

TRIES = 2
"""Saves in a row that may fail before the training is told by an exception."""

Write = Callable[[Mapping[str, "tuple[Any, Mapping[str, torch.Tensor]]"]], object]


class Writer:
    """Two copies at most: one is being written, the newest waits. A newer one takes the place of one that waits.

    What could not be written is told, and the next save is another try: a disk may be full for a while.
    """

    def __init__(self) -> None:
        """Start no thread before the first save."""
        self._changed = threading.Condition()
        self._free = [tensors.Buffers(), tensors.Buffers()]
        self._waiting: tuple[tensors.Buffers, Mapping[str, Any], Write] | None = None
        self._busy = False
        self._problem: BaseException | None = None
        self._failed = 0
        self._thread: threading.Thread | None = None

    def save(self, states: Mapping[str, Any], write: Write) -> None:
        """Copy states and have them written by ``write(parts)``. Raises what the two saves before have met."""
        if self._failed == TRIES:
            self._raise()
        with self._changed:
            if self._waiting is not None:  # merged: nobody needs the older one
                self._free.append(self._waiting[0])
                self._waiting = None
            buffers = self._free.pop()
        buffers.begin()
        parts = {name: tensors.take_apart(name, state, partial(_copy, buffers, name)) for name, state in states.items()}
        buffers.wait()
        with self._changed:
            self._waiting = (buffers, parts, write)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="failover-writer", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def finish(self) -> None:
        """Wait until everything is written. Raises what the last save has met."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is None and not self._busy)
        self._raise()

    def _raise(self) -> None:
        with self._changed:
            problem, self._problem, self._failed = self._problem, None, 0
        if problem is not None:
            raise problem

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None)
                assert self._waiting is not None  # noqa: S101 - what was waited for
                buffers, parts, write = self._waiting
                self._waiting, self._busy = None, True
            problem: BaseException | None = None
            try:
                write(parts)
            except BaseException as error:  # noqa: BLE001 - it is raised in the training's thread
                problem = error
                say(f"a checkpoint was not written ({type(error).__name__}: {error}); the next save is another try")
            with self._changed:
                self._problem, self._failed = problem, self._failed + 1 if problem else 0
                self._free.append(buffers)
                self._busy = False
                self._changed.notify_all()


def _copy(buffers: tensors.Buffers, part: str, path: str, tensor: torch.Tensor) -> torch.Tensor:
    return buffers.copy(f"{part}/{path}", tensor)
