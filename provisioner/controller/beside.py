"""What need not wait for one another goes side by side; and what takes long is told while it does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, TypeVar

A = TypeVar("A")
B = TypeVar("B")

SLOW_S: Final = 5.0
"""What takes longer is told, in seconds."""


def both(one: Callable[[], A], other: Callable[[], B]) -> tuple[A, B]:
    """Make two calls at once and wait for both. Raises what the first one raises, else what the other does."""
    with ThreadPoolExecutor(1, thread_name_prefix="beside") as pool:
        second = pool.submit(other)
        return one(), second.result()


def each(call: Callable[[A], B], values: Sequence[A]) -> list[B]:
    """Call with all values at once, and wait for all of them."""
    if not values:
        return []
    with ThreadPoolExecutor(len(values), thread_name_prefix="beside") as pool:
        return list(pool.map(call, values))


@contextmanager
def told_if_slow(tell: Callable[[], object]) -> Iterator[None]:
    """Call ``tell`` once if what is done within takes longer than ``SLOW_S``."""
    timer = threading.Timer(SLOW_S, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
