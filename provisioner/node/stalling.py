"""Does the command still get on? Heartbeats and a busy GPU prove nothing: only a new step does.

The time that a step may take is learned from the steps so far. While the command's processes or its GPU work, it is
given much more: an evaluation, a first compilation and a slow data set all look like that, and so does a collective
call that spins for ever. While nothing works at all, it is given less.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

IDLE_LEAST_S, IDLE_FACTOR = 600.0, 10.0
"""Without a step and without work: this long, or so many times the longest step so far."""
BUSY_LEAST_S, BUSY_FACTOR = 3600.0, 30.0
"""The same while something works."""
BUSY_CPU = 0.02
"""What share of one core counts as work."""
LOOK_S = 15.0
"""How often work is looked for, in seconds."""


class Stalling:
    """Counts from the first step of this start on: before it nothing is known of the command's pace.

    ``limit_s`` is a time that the user has set, for busy and idle commands alike; infinity never ends one.
    """

    def __init__(
        self,
        limit_s: float | None,
        *,
        cpu_s: Callable[[], float],
        gpu_busy: Callable[[], bool],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Look at nothing yet. ``cpu_s`` gives the seconds that the command's processes have worked so far."""
        self._limit_s = limit_s
        self._cpu_s = cpu_s
        self._gpu_busy = gpu_busy
        self._monotonic = monotonic
        self._step: int | None = None
        self._at = 0.0
        self._longest = 0.0
        self._looked_at = float("-inf")
        self._worked = 0.0
        self._busy_at = float("-inf")

    def step(self, step: int | None) -> None:
        """Take the newest step; called often. A step that is as it was is no step."""
        if step is None or step == self._step:
            return
        now = self._monotonic()
        if self._step is not None:
            self._longest = max(self._longest, now - self._at)
        self._step, self._at = step, now

    def hung(self) -> str:
        """Return one line when the command has made no step for too long, else nothing."""
        if self._step is None:
            return ""
        now = self._monotonic()
        self._look(now)
        silent = now - self._at
        busy = now - self._busy_at < 2 * LOOK_S
        if silent <= self._allowed(busy=busy):
            return ""
        work = "its processes or the GPU work" if busy else "neither its processes nor the GPU work"
        return f"no step after {self._step} for {silent:.0f} s, and {work}"

    def _allowed(self, *, busy: bool) -> float:
        if self._limit_s is not None:
            return self._limit_s
        least, factor = (BUSY_LEAST_S, BUSY_FACTOR) if busy else (IDLE_LEAST_S, IDLE_FACTOR)
        return max(least, factor * self._longest)

    def _look(self, now: float) -> None:
        if now - self._looked_at < LOOK_S:
            return
        worked = self._cpu_s()
        if self._gpu_busy() or worked - self._worked > BUSY_CPU * (now - self._looked_at):
            self._busy_at = now
        self._looked_at, self._worked = now, worked


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return how long processes have worked in sum, in seconds, as /proc says it."""
    ticks = 0
    for pid in pids:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            ticks += sum(int(word) for word in stat[stat.rfind(")") + 2 :].split()[11:13])
        except (OSError, ValueError):  # ended meanwhile
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


def waiting_for(pids: Iterable[int]) -> list[str]:
    """Return a line for each process: its id, name and state, and the kernel's word for what it waits in."""
    found = []
    for pid in sorted(pids):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            name, state = stat[stat.find("(") + 1 : stat.rfind(")")], stat[stat.rfind(")") + 2]
            waits = Path(f"/proc/{pid}/wchan").read_text(encoding="utf-8").strip("0")
        except OSError:
            continue
        found.append(f"process {pid} ({name}) is in state {state}" + (f", waiting in {waits}" if waits else ""))
    return found
