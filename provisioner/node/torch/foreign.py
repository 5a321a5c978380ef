"""On a machine that is shared without a scheduler: save and leave when somebody else takes the card's memory."""

from __future__ import annotations

import os
import sys
import threading
import time
from functools import partial
from typing import Any, Callable

import torch

from provisioner.node.card_memory import FOREIGN_FACTOR, FOREIGN_WINDOW_S, Neighbours, family
from provisioner.node.torch import cards


class ForeignMemory:
    """``checkpointing(..., watch=ForeignMemory())``: the training saves, and leaves with 75, for others.

    Others have come when a card on which this training computes holds more than ``factor`` times what the training
    itself holds now, and what its neighbours held when it began, for ``window_s`` seconds at every look. What the
    training itself takes never counts. ``call`` is called instead with one line, in the training's thread at the end of
    a step, each time that others come.

    The driver is asked in a thread of its own, every ``every_s`` seconds: nothing that it does holds up or ends a
    training. ``nvml`` loads its library (``pynvml`` of nvidia-ml-py), ``own`` gives the training's process ids.
    """

    def __init__(
        self,
        call: Callable[[str], object] | None = None,
        *,
        factor: float = FOREIGN_FACTOR,
        window_s: float = FOREIGN_WINDOW_S,
        every_s: float = 2.0,
        nvml: Callable[[], Any] = cards.load,
        own: Callable[[], set[int]] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask nothing yet."""
        self._call = call
        self._factor = factor
        self._window_s = window_s
        self._every_s = every_s
        self._load = nvml
        self._own = own or _own
        self._monotonic = monotonic
        self._nvml: Any = None
        self._cards: list[tuple[int, Neighbours]] = []
        self._found = self._called = ""
        self._trouble = ""
        self._device: int | None = None
        self._closing: threading.Event | None = None

    def start(self) -> None:
        """Begin to look; a second time is none."""
        if self._closing is None:
            self._found = self._called = ""
            self._device = cards.device()  # each thread has its own
            closing = self._closing = threading.Event()
            threading.Thread(target=self._run, args=(closing,), name="foreign-memory", daemon=True).start()

    def close(self) -> None:
        """Look no more. A driver that hangs is not waited for."""
        if self._closing is not None:
            self._closing.set()
            self._closing = None

    def reason(self) -> str:
        """Say why to leave at this step, or nothing. Costs nothing: the last look counts."""
        found = self._found
        if self._call is None:
            return found
        if found and not self._called:
            self._call(found)
        self._called = found
        return ""

    def look(self) -> None:
        """Ask the driver once. What it refuses is told once, until it answers again."""
        try:
            if self._nvml is None:
                self._open()
            found = [f"GPU {index}: {words}" for index, card in self._cards if (words := card.look())]
        except Exception as error:  # noqa: BLE001 - a library of the user's environment: nothing of it ends a training
            self._tell(f"{type(error).__name__}: {error}")
            return
        self._trouble = ""
        self._found = f"foreign GPU memory ({found[0]})" if found else ""

    def _open(self) -> None:
        nvml = self._load()
        nvml.nvmlInit()
        here, found = cards.uuid_of(self._device), []
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            is_ours = bool(here) and cards.is_alone() and cards.name(nvml, handle) == here
            card = Neighbours(
                nvml,
                handle,
                self._own,
                factor=self._factor,
                window_s=self._window_s,
                own_bytes=partial(torch.cuda.memory_reserved, self._device) if is_ours else None,
                monotonic=self._monotonic,
            )
            found.append((index, card))
        self._nvml, self._cards = nvml, found

    def _run(self, closing: threading.Event) -> None:
        while not closing.is_set():
            self.look()
            closing.wait(self._every_s)

    def _tell(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            sys.stderr.write(f"failover: the card cannot be watched for foreign memory ({trouble}); training on\n")


def _own() -> set[int]:
    """Return what belongs to this training: its process group and, under torchrun, its launcher's."""
    leaders = {os.getpgrp()}
    if "TORCHELASTIC_RUN_ID" in os.environ and os.getppid() > 1:
        leaders.add(os.getpgid(os.getppid()))
    return family(*leaders)
