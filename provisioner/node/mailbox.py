"""What reaches the node from outside while it works: requests to stop, a newer epoch, the command's end."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass

from provisioner.errors import Fenced
from provisioner.node.verdict import Cause


@dataclass(frozen=True, slots=True)
class Stop:
    """A request to stop. ``deadline`` is on the monotonic clock."""

    reason: str
    deadline: float
    cause: Cause = Cause.STOPPED

    def left(self) -> float:
        """Return the seconds until the deadline."""
        return self.deadline - time.monotonic()


class Mailbox:
    """Filled by threads and signal handlers, emptied by the main thread."""

    def __init__(self) -> None:
        """Begin empty."""
        self.cancel = threading.Event()
        """Set by the first request to stop: what has not begun need not begin."""
        self._messages: queue.SimpleQueue[Stop | Fenced | None] = queue.SimpleQueue()  # safe in a signal handler

    def stop(self, reason: str, seconds: float, cause: Cause = Cause.STOPPED) -> None:
        """Ask for the end within ``seconds``."""
        self.cancel.set()
        self._messages.put(Stop(reason, time.monotonic() + seconds, cause))

    def fenced(self, fenced: Fenced) -> None:
        """Tell that another node owns the job now."""
        self.cancel.set()
        self._messages.put(fenced)

    def wake(self) -> None:
        """Let the main thread look around."""
        self._messages.put(None)

    def next(self, timeout_s: float) -> Stop | None:
        """Wait for a message; return it if it is a request to stop. Raises Fenced."""
        try:
            message = self._messages.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(message, Fenced):
            raise message
        return message

    def check(self) -> None:
        """Raise Fenced when a newer epoch has been told of. Requests to stop stay for whoever asks next."""
        stops = []
        while (stop := self.first_stop()) is not None:
            stops.append(stop)
        for stop in stops:
            self._messages.put(stop)

    def first_stop(self) -> Stop | None:
        """Return the first request to stop that has come in, without waiting. Raises Fenced."""
        while not self._messages.empty():
            if (message := self.next(0.01)) is not None:
                return message
        return None
