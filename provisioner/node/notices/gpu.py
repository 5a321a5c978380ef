"""What the NVIDIA driver knows of its cards: one that is lost, memory errors, Xid events, and foreign memory.

A card that is lost does not come back without a reset, so the placement ends at once; the machine itself stays, which
leaves the usual time for the last commit.

Source: NVML API reference; "Xid Errors" of NVIDIA's GPU deployment guide, for which codes need a reset or a repair.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from provisioner.node.card_memory import Neighbours, unable
from provisioner.node.notices.source import Notice, SourceAbsent, SourceAway
from provisioner.node.verdict import Cause

FATAL_XIDS = frozenset({48, 62, 64, 74, 79, 95, 119, 120})
"""The card needs a reset, or more."""
PROGRAM_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Usually a fault of the program, or its end: its own exit tells."""
_MOST_EVENTS = 16


class Gpu:
    """Asks NVML. ``nvml`` loads the library, by default ``pynvml``; ``own`` gives the job's process ids.

    ``foreign_is_final``: foreign memory ends the placement; by default it is advice. ``monotonic`` measures how long
    it is there.
    """

    name = "the NVIDIA driver"
    every_s = 2.0

    def __init__(
        self,
        *,
        own: Callable[[], set[int]],
        nvml: Callable[[], Any] = lambda: importlib.import_module("pynvml"),
        foreign_is_final: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask nothing yet: a sick driver can hang already when it is opened."""
        self._own = own
        self._load = nvml
        self._foreign_is_final = foreign_is_final
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._nvml: Any = None
        self._cards: list[_Card] = []
        self._events: Any = None
        self._lasting: dict[str, Notice] = {}

    def watch(self, wait_s: float) -> Notice | None:  # noqa: ARG002 - part of the contract
        """Return the worst that is known of any card. Raises SourceAbsent without library, driver or card."""
        with self._lock:
            if self._nvml is None:
                self._open()
            for notice in self._xids():  # each is told once by the driver, and does not pass
                self._lasting.setdefault(notice.kind, notice)
            try:
                found = [note for card in self._cards for note in card.look()]
            except self._nvml.NVMLError as error:
                if not self._lasting:
                    raise SourceAway(str(error)) from error
                found = []
            return min([*self._lasting.values(), *found], key=lambda notice: not notice.final, default=None)

    def _open(self) -> None:
        try:
            nvml = self._load()
        except ImportError:
            raise SourceAbsent("no NVML library") from None
        try:
            nvml.nvmlInit()
            self._cards = [
                _Card(nvml, index, self.name, self._neighbours, foreign_is_final=self._foreign_is_final)
                for index in range(nvml.nvmlDeviceGetCount())
            ]
            if not self._cards:
                raise SourceAbsent("no card")
            self._nvml = nvml
            self._events = nvml.nvmlEventSetCreate()
            for card in self._cards:
                card.register(self._events)
        except nvml.NVMLError as error:
            if self._nvml is None:
                raise SourceAbsent(str(error)) from error
            self._events = None  # cards without events are looked at all the same

    def _neighbours(self, nvml: Any, handle: Any) -> Neighbours:
        return Neighbours(nvml, handle, self._own, monotonic=self._monotonic)

    def _xids(self) -> list[Notice]:
        found = []
        for _ in range(_MOST_EVENTS if self._events is not None else 0):
            try:
                xid = int(self._nvml.nvmlEventSetWait_v2(self._events, 0).eventData)
            except self._nvml.NVMLError as error:
                if error.value == self._nvml.NVML_ERROR_TIMEOUT:
                    break
                if error.value == self._nvml.NVML_ERROR_GPU_IS_LOST:
                    found.append(Notice("lost GPU", self.name, detail=str(error), cause=Cause.LOST_GPU))
                break
            if xid == 79:
                detail = "Xid 79: it has fallen off the bus"
                found.append(Notice("lost GPU", self.name, detail=detail, cause=Cause.LOST_GPU))
            elif xid not in PROGRAM_XIDS:
                final = xid in FATAL_XIDS
                found.append(Notice(f"GPU error Xid {xid}", self.name, final=final, cause=Cause.LOST_GPU))
        return found


class _Card:
    """One card. ``neighbours`` looks for what other processes take of it."""

    def __init__(
        self,
        nvml: Any,
        index: int,
        source: str,
        neighbours: Callable[[Any, Any], Neighbours],
        *,
        foreign_is_final: bool,
    ) -> None:
        self._nvml = nvml
        self._index = index
        self._source = source
        self._foreign_is_final = foreign_is_final
        self._errors: int | None = None
        self._lost = ""
        try:
            self._handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            self._handle = None
            self._lost = str(error)
        self._neighbours = neighbours(nvml, self._handle)

    def register(self, events: Any) -> None:
        """Ask for Xid events. Raises NVMLError where the card has none."""
        if self._handle is not None:
            self._nvml.nvmlDeviceRegisterEvents(self._handle, self._nvml.nvmlEventTypeXidCriticalError, events)

    def look(self) -> list[Notice]:
        """Return what is wrong with it."""
        if self._handle is None:
            return [self._notice("lost GPU", self._lost)]
        try:
            return [*self._memory_errors(), *self._foreign_memory()]
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_GPU_IS_LOST:
                return [self._notice("lost GPU", str(error))]
            if error.value == self._nvml.NVML_ERROR_RESET_REQUIRED:
                return [self._notice("GPU needs a reset", str(error))]
            raise

    def _memory_errors(self) -> list[Notice]:
        nvml = self._nvml
        try:
            count = nvml.nvmlDeviceGetTotalEccErrors(
                self._handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            )
        except nvml.NVMLError as error:
            if error.value in unable(nvml):  # a card without ECC, or with ECC switched off
                return []
            raise
        if self._errors is None:
            self._errors = count
        new = count - self._errors
        return [self._notice("GPU memory error", f"{new} uncorrectable ECC errors")] if new > 0 else []

    def _foreign_memory(self) -> list[Notice]:
        detail = self._neighbours.look()
        if not detail:
            return []
        return [replace(self._notice("foreign GPU memory", detail), final=self._foreign_is_final, cause=Cause.NOTICE)]

    def _notice(self, kind: str, detail: str) -> Notice:
        return Notice(kind, self._source, None, f"GPU {self._index}: {detail}", cause=Cause.LOST_GPU)
