"""The time of day as a process reckons with it: right when the process starts, and set by nobody from then on.

Durations, limits, silences and bills are differences of such times. A clock that is set while a controller or a node
runs makes none of them longer or shorter. What is compared with another's time at once (a signature, a certificate)
goes by the machine's own clock.
"""

from __future__ import annotations

import time
from typing import Final

MOST_S: Final = 86400.0
"""A record from further ahead than this is not taken for the present, in seconds."""


def steady() -> float:
    """Return seconds of a clock that nobody sets. On Linux it goes on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


_began = time.time() - steady()  # noqa: TID251 - here alone


def now() -> float:
    """Return Unix seconds."""
    return _began + steady()


def not_before(at: float) -> None:
    """Let no time come that is before ``at``, Unix seconds: what was seen before a restart has happened."""
    global _began  # noqa: PLW0603 - one process has one time
    if 0.0 < at - now() < MOST_S:
        _began = at - steady()
