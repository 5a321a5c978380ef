"""Time as a parameter, so that no test waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from provisioner.clock import now as unix_now


@dataclass(frozen=True, slots=True)
class Clock:
    """Time. ``now`` is Unix time; ``tick`` only grows; both in seconds."""

    now: Callable[[], float] = unix_now
    tick: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
