"""How often a store is asked again, and how long it is left alone in between. Shared by all views of one store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_before_delay, wait_random_exponential

from provisioner.checkpoint.refusals import Refusal

T = TypeVar("T")

_SOON = wait_random_exponential(multiplier=0.2, min=0.05, max=10)
_LATER = wait_random_exponential(multiplier=1, min=0.5, max=10)
"""Pauses in seconds, with jitter: a connection that broke, and a store that asks for fewer requests."""


class Line:
    """The requests to one store: counted, and repeated where that may help."""

    def __init__(self, retry_s: float, sleep: Callable[[float], None] = time.sleep) -> None:
        """Repeat for ``retry_s`` seconds after the first try; 0: one try."""
        self.requests = 0
        self.retries = 0
        self.create_refused = False
        """The store has refused a conditional write for good."""
        self.ranges = True
        """The store has not answered a ranged read with the whole object yet."""
        self._lock = threading.Lock()
        self._retrying = Retrying(
            retry=retry_if_exception(lambda error: isinstance(error, Refusal) and error.again),
            stop=stop_before_delay(retry_s),
            wait=_pause,
            sleep=sleep,
            before_sleep=lambda _: self.count(retries=1),
            reraise=True,
        )

    def count(self, *, requests: int = 0, retries: int = 0) -> None:
        """Add to the counters."""
        with self._lock:
            self.requests += requests
            self.retries += retries

    def ask(self, attempt: Callable[[], T]) -> T:
        """Return what ``attempt`` returns, which raises Refusal. Raises the last one's error."""
        try:
            return self._retrying(attempt)
        except Refusal as refusal:
            error = refusal.error
        raise error  # outside: what the store said does not hang on it as its context


def _pause(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    return (_LATER if isinstance(error, Refusal) and error.busy else _SOON)(state)
