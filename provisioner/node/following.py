"""Follow the running command to its end, and see to it that it ends in time when it has to."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from signal import Signals

from provisioner.node.child import Child
from provisioner.node.mailbox import Mailbox, Stop

TICK_S = 0.5
LEAST_RESERVE_S = 5.0
SETTLE_S = 1.0
"""How long a signal that ended the command may take to reach the node too, in seconds."""


@dataclass(frozen=True, slots=True)
class Follower:
    """Watches one child. ``tick`` is called about twice a second, ``on_stop`` once, before ``stop_signal`` is sent.

    ``own_stop`` asks for the node's own reason to stop (its time is up, or nothing moves); ``upload_s`` tells how long
    the last upload took, in seconds.
    """

    child: Child
    mail: Mailbox
    tick: Callable[[], None]
    own_stop: Callable[[], Stop | None]
    upload_s: Callable[[], float]
    on_stop: Callable[[Stop], None]
    on_kill: Callable[[], None]
    stop_signal: Signals | None = Signals.SIGTERM

    def until_end(self) -> Stop | None:
        """Wait for the command's end; return the request that led to it, if one did. Raises Fenced."""
        stop: Stop | None = None
        kill_at = float("inf")
        while self.child.poll() is None:
            message = self.mail.next(TICK_S)
            self.tick()
            if stop is None and (message := message or self.own_stop()) is not None:
                stop = message
                self.on_stop(stop)
                if self.stop_signal is not None:
                    self.child.ask(self.stop_signal)
            if message is not None:  # a second notice can only shorten the time
                kill_at = min(kill_at, message.deadline - self._reserve(message.left()))
            if time.monotonic() >= kill_at:
                self.on_kill()
                self.child.kill()
        return stop

    def late_stop(self) -> Stop | None:
        """Give a request to stop that the command may have heard of earlier than we a moment to come in."""
        end = time.monotonic() + SETTLE_S
        while (left := end - time.monotonic()) > 0:
            if (message := self.mail.next(left)) is not None:
                return message
        return None

    def _reserve(self, seconds: float) -> float:
        """Return how much of the time that is left to keep for the last upload: what the last one took, and more."""
        return min(max(LEAST_RESERVE_S, 1.5 * self.upload_s()), seconds / 2)
