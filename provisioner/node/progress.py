"""How far the training is: its status file, else the last ``step N`` on its output, else the newest commit."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path

from provisioner.clock import now as unix_now

STEP = re.compile(rb"(?<![^\W\d])step[ =:]+(\d{1,12})(?:\b|(?=[a-z]{4}))", re.IGNORECASE)
"""A number may touch the word beside it: two processes that write to one pipe make ``step 17rank 1: step 17``."""


class Progress:
    """Thread-safe. ``restored_step`` is None when the training starts from nothing."""

    def __init__(self, status_file: Path, *, clock: Callable[[], float] = unix_now) -> None:
        """Look at nothing yet. ``clock`` gives Unix seconds."""
        self.restored_step: int | None = None
        self.first_step_at: float | None = None
        """Unix time of the first step that was trained after this start."""
        self._status_file = status_file
        self._clock = clock
        self._lock = threading.Lock()
        self._printed: int | None = None
        self._status: int | None = None
        self._committed: int | None = None
        self._save_s: float | None = None

    def on_line(self, line: bytes) -> bool:
        """Take one line of output; True when it holds the first step since the start."""
        matches = STEP.findall(line)
        if not matches:
            return False
        with self._lock:
            self._printed = int(matches[-1])
            return self._first(self._printed)

    def on_commit(self, step: int) -> None:
        """Take note of a commit."""
        with self._lock:
            self._committed = step
            self._first(step)  # a script that prints no steps has trained all the same

    def poll(self) -> bool:
        """Read the status file; True when it holds the first step since the start. Never raises."""
        try:
            status = json.loads(self._status_file.read_bytes())
            step, save_s = int(status["step"]), _seconds(status.get("save_s"))
        except (OSError, ValueError, KeyError, TypeError, OverflowError):  # not there, half written, or no number
            return False
        with self._lock:
            self._status = step
            self._save_s = save_s
            return self._first(step)

    def save_s(self) -> float | None:
        """Return what the command says that its last save cost it, in seconds, if it says so."""
        with self._lock:
            return self._save_s

    def step(self) -> int | None:
        """Return the current step by the best source there is."""
        with self._lock:
            sources = (self._status, self._printed, self._committed, self.restored_step)
            return next((step for step in sources if step is not None), None)

    def furthest(self) -> int | None:
        """Return the highest step that any source has last named: what decides whether the job is done."""
        with self._lock:
            sources = (self._status, self._printed, self._committed)
            return max((step for step in sources if step is not None), default=self.restored_step)

    def _first(self, step: int) -> bool:
        if self.first_step_at is not None or (self.restored_step is not None and step <= self.restored_step):
            return False
        self.first_step_at = self._clock()
        return True


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0.0 < value < float("inf") else None
