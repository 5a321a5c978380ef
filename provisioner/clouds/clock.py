"""Time as a parameter, so that no test waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """Time. ``now`` is Unix time; ``tick`` only grows; both in seconds."""

    now: Callable[[], float] = time.time
    tick: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
