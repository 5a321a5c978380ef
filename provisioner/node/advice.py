"""What the node advises the command, in a file that it may read at every step: how often to save, and when to stop.

``{"save_every_s": 310.0, "stop": null}``; once the machine has to go ``{"stop": {"reason": .., "by": Unix seconds}}``.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

from provisioner.hazard import STEADY, Seen
from provisioner.node.interval import MOST_S, interval_s

FIRST_COST_S = 5.0
"""What a save is taken to cost before the first one, in seconds."""


class Advice:
    """Thread-safe, and never raises: without it the command trains on.

    ``every_s`` is the user's own interval in seconds, None: it is reckoned from what a save costs and from ``pool``,
    what was seen of the pool of this spot machine. A machine without a pool is lost rarely.
    """

    def __init__(
        self, path: Path, *, every_s: float | None, pool: Seen | None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Write the first advice. The machine's age counts from here."""
        self._path = path
        self._fixed = every_s is not None
        self._every_s = MOST_S if every_s is None else every_s
        self._pool = pool
        self._monotonic = monotonic
        self._born = monotonic()
        self._cost_s: float | None = None
        self._warned = False
        self._stop: dict[str, object] | None = None
        self._lock = threading.Lock()
        self._reckon()

    @property
    def every_s(self) -> float:
        """Return the interval in seconds."""
        return self._every_s

    def saved(self, cost_s: float) -> None:
        """Take what the last save cost, in seconds."""
        self._cost_s = cost_s
        self._reckon()

    def warned(self) -> None:
        """Take note that the cloud has recommended to leave this machine."""
        self._warned = True
        self._reckon()

    def stop(self, reason: str, by: float) -> None:
        """Tell the command that the machine has to go, by a Unix time."""
        self._stop = {"reason": reason, "by": round(by, 1)}
        self._reckon()

    def _reckon(self) -> None:
        with self._lock:
            if not self._fixed:
                age_h = (self._monotonic() - self._born) / 3600.0
                rate = STEADY if self._pool is None else self._pool.rate_at(age_h, warned=self._warned)
                self._every_s = interval_s(FIRST_COST_S if self._cost_s is None else self._cost_s, rate)
            draft = self._path.with_suffix(".new")
            with contextlib.suppress(OSError):
                draft.write_text(json.dumps({"save_every_s": round(self._every_s, 1), "stop": self._stop}), "ascii")
                draft.replace(self._path)
