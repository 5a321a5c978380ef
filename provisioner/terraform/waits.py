"""How long locks of others are waited for: each of them once, and several at one end together no longer than one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Waits:
    """The waits of one job. ``timeout_s`` is ``terraform.lock_timeout``; ``met``: when each lock was first met."""

    timeout_s: float = 120.0
    clock: Callable[[], float] = time.monotonic
    met: dict[str, float] = field(default_factory=dict)
    _until: float | None = field(default=None, init=False)

    def left_s(self) -> float:
        """Return for how long a lock that is met now is waited for, in seconds."""
        return self.timeout_s if self._until is None else max(0.0, self._until - self.clock())

    @contextmanager
    def together(self) -> Iterator[None]:
        """Wait meanwhile for all locks together no longer than for one."""
        self._until = self.clock() + self.timeout_s
        try:
            yield
        finally:
            self._until = None
