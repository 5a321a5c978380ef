"""When a newer epoch is seen, everything here ends within five seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable

from provisioner.errors import Fenced

LEAVE_S = 4.0
"""How long the ordinary way out may take, in seconds; then comes the short one. A second is left for that."""


class Eviction:
    """Tells all parts, once, and sees to it that the node is gone in time even if one of them hangs."""

    def __init__(self, tell: Callable[[Fenced], None], leave: Callable[[], None], *, after_s: float = LEAVE_S) -> None:
        """Take who is told, and the short way out."""
        self._tell = tell
        self._timer = threading.Timer(after_s, leave)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._begun = False

    def __call__(self, fenced: Fenced) -> None:
        """Take note that another node owns the job. Safe from several threads."""
        with self._lock:
            if self._begun:
                return
            self._begun = True
        self._timer.start()
        self._tell(fenced)

    def over(self) -> None:
        """Take note that the node has come to its end by itself."""
        self._timer.cancel()
