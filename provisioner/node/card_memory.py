"""Who holds a card's memory: the job, and others. Python 3.9 and no library: training scripts use it, too.

Source: NVML API reference.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOREIGN_FACTOR = 1.5
"""Foreign memory is told when a card holds more than this, times what the job and the neighbours at its start hold."""
FOREIGN_WINDOW_S = 10.0
"""For so many seconds, at every look: what has gone again sooner, as a peak of one step, is nobody who has come."""


class Neighbours:
    """What other processes take of one card, beside what the job takes: its own growth counts for nothing.

    ``own`` gives the job's process ids. Where the driver lists none of them (those of another process namespace), it
    says nothing, unless ``own_bytes`` tells what the job holds: then everything else in use is others'.
    """

    def __init__(
        self,
        nvml: Any,
        handle: Any,
        own: Callable[[], set[int]],
        *,
        factor: float = FOREIGN_FACTOR,
        window_s: float = FOREIGN_WINDOW_S,
        own_bytes: Callable[[], int] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take a card's handle. What passes within ``window_s`` seconds is not told."""
        self._nvml = nvml
        self._handle = handle
        self._own = own
        self._factor = factor
        self._window_s = window_s
        self._own_bytes = own_bytes
        self._monotonic = monotonic
        self._listed: set[int] = set()
        self._mine: set[int] = set()
        self._before: dict[bool, int] = {}
        self._since: float | None = None

    def look(self) -> str:
        """Say what others hold where it is too much, else nothing. Raises NVMLError."""
        listed = self._by_process()
        mine, foreign = listed if listed[0] else self._by_difference()
        before = self._before.setdefault(listed[0] > 0, foreign) if mine else 0
        if not mine or mine + foreign <= self._factor * (mine + before):
            self._since = None
            return ""
        now = self._monotonic()
        if self._since is None:
            self._since = now
        if now - self._since < self._window_s:
            return ""
        return f"other processes hold {foreign / 2**30:.1f} GiB, the job {mine / 2**30:.1f} GiB"

    def _by_process(self) -> tuple[int, int]:
        try:
            found = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except self._nvml.NVMLError as error:
            if error.value in unable(self._nvml):
                return 0, 0
            raise
        used = {process.pid: process.usedGpuMemory or 0 for process in found}
        if set(used) != self._listed:  # to ask for the processes costs milliseconds where there are many
            self._listed, self._mine = set(used), self._own()
        mine = sum(size for pid, size in used.items() if pid in self._mine)
        return mine, sum(used.values()) - mine

    def _by_difference(self) -> tuple[int, int]:
        mine = 0 if self._own_bytes is None else self._own_bytes()
        return mine, max(0, self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used - mine) if mine else 0


def unable(nvml: Any) -> set[int]:
    """Return the errors of a card, or of a driver, that cannot tell."""
    return {nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_NO_PERMISSION, nvml.NVML_ERROR_FUNCTION_NOT_FOUND}


def family(*leaders: int) -> set[int]:
    """Return the living processes of process groups, and everything below them."""
    parents: dict[int, tuple[int, int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
                parent, group = stat[stat.rfind(")") + 2 :].split()[1:3]
            except (OSError, ValueError):  # ended meanwhile
                continue
            parents[int(entry.name)] = int(parent), int(group)
    found = {pid for pid, (_, group) in parents.items() if group in leaders}
    while more := {pid for pid, (parent, _) in parents.items() if parent in found} - found:
        found |= more
    return found
