"""How often a store is asked again, and how long it is left alone in between. Shared by all views of one store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_before_delay, wait_random_exponential

from provisioner.checkpoint.refusals import Refusal

T = TypeVar("T")

MOST_AT_ONCE = 64
"""Long writes under way at once, over a line that is fast enough."""
_SOON = wait_random_exponential(multiplier=0.2, min=0.05, max=10)
_LATER = wait_random_exponential(multiplier=1, min=0.5, max=10)
"""Pauses in seconds, with jitter: a connection that broke, and a store that asks for fewer requests."""


class Turns:
    """How many long writes are under way at once: fewer when they take too long, so that each has more of the line."""

    def __init__(self, patience_s: float) -> None:
        """Let all pass at first. Who has waited for ``patience_s`` seconds goes anyway."""
        self._patience_s = patience_s
        self._free = threading.Condition()
        self._limit: float = MOST_AT_ONCE
        self._under_way = self._peak = 0
        self._narrowed = 0.0

    def __enter__(self) -> float:
        """Wait for a turn, and return when it began."""
        with self._free:
            self._free.wait_for(lambda: self._under_way < int(self._limit), self._patience_s)
            self._under_way += 1
            self._peak = max(self._peak, self._under_way)
            return time.monotonic()

    def __exit__(self, *_: object) -> None:
        """Let the next one go."""
        with self._free:
            self._under_way -= 1
            self._free.notify_all()

    def took(self, began: float, *, too_long: bool) -> None:
        """Take note of how one has ended. What began before there were fewer says nothing about fewer."""
        with self._free:
            if not too_long:
                self._limit = min(self._limit + 1 / self._limit, MOST_AT_ONCE)  # one more each round
                self._free.notify_all()
            elif began >= self._narrowed:
                self._limit = max(1, min(self._limit, self._peak) // 2)
                self._peak = 0
                self._narrowed = time.monotonic()


class Line:
    """The requests to one store: counted, and repeated where that may help."""

    def __init__(self, retry_s: float, timeout_s: float, sleep: Callable[[float], None] = time.sleep) -> None:
        """Begin no try later than ``retry_s`` seconds after the first one; 0: one try.

        A long write may take up all of ``timeout_s`` and fail: it is tried once more all the same.
        """
        self.turns = Turns(timeout_s)
        self.requests = 0
        self.retries = 0
        self.create_refused = False
        """The store has refused a conditional write for good."""
        self.ranges = True
        """The store has not answered a ranged read with the whole object yet."""
        self._lock = threading.Lock()
        self._short, self._long = (
            Retrying(
                retry=retry_if_exception(lambda error: isinstance(error, Refusal) and error.again),
                stop=stop_before_delay(seconds),
                wait=_pause,
                sleep=sleep,
                before_sleep=lambda _: self.count(retries=1),
                reraise=True,
            )
            for seconds in (retry_s, retry_s + timeout_s if retry_s else 0)
        )

    def count(self, *, requests: int = 0, retries: int = 0) -> None:
        """Add to the counters."""
        with self._lock:
            self.requests += requests
            self.retries += retries

    def ask(self, attempt: Callable[[], T], *, long: bool = False) -> T:
        """Return what ``attempt`` returns, which raises Refusal. Raises the last one's error."""
        try:
            return (self._long if long else self._short)(attempt)
        except Refusal as refusal:
            error = refusal.error
        raise error  # outside: what the store said does not hang on it as its context


def _pause(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    return (_LATER if isinstance(error, Refusal) and error.busy else _SOON)(state)
