"""Look at AutoDL again and again until a card is free: slower each time, never in step with other watchers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from provisioner.clouds.autodl.stock import Look
from provisioner.errors import CloudError, Unauthorized

_GROWTH = 1.5
_SLOWEST = 9.0
"""The wait grows to so many times the first: from 20 s to 180 s, which is what hunters of cards found reasonable."""


class Watched(Protocol):
    """Who is told of each look."""

    def looked(self, look: Look) -> None:
        """A look got its answer."""
        ...

    def failed(self, error: CloudError, wait_s: float) -> None:
        """A look got none; the next one comes after ``wait_s`` seconds."""
        ...

    def nothing(self, look: Look, wait_s: float) -> None:
        """No card fits; the next look comes after ``wait_s`` seconds."""
        ...

    def came_free(self, look: Look) -> None:
        """A card fits that did not at the look before."""
        ...


@dataclass(slots=True)
class Pace:
    """Waits between looks: ``first_s``, then half as long again each time, with a quarter of jitter."""

    first_s: float = 20.0
    draw: Callable[[float, float], float] = random.uniform
    _looks: int = field(default=0, init=False)

    def next(self) -> float:
        """Return the next wait in seconds."""
        wait_s = self.first_s * min(_SLOWEST, _GROWTH ** min(self._looks, 30))  # a power that grows for days overflows
        self._looks += 1
        return wait_s * self.draw(0.75, 1.25)

    def reset(self) -> None:
        """Be quick again."""
        self._looks = 0


def watch(
    take_look: Callable[[], Look],
    watched: Watched,
    *,
    pace: Pace,
    forever: bool = False,
    timeout_s: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Look | None:
    """Look until a card fits and return that look; None when ``timeout_s`` pass first. ``forever`` goes on after it.

    A look that AutoDL does not answer is no reason to stop; a refused token is. Raises Unauthorized.
    """
    end = None if timeout_s is None else clock() + timeout_s
    was_free = False
    while True:
        found: Look | None = None
        error: CloudError | None = None
        try:
            found = take_look()
        except Unauthorized:
            raise
        except CloudError as problem:
            error = problem
        if found is not None:
            watched.looked(found)
            if found.fits and not was_free:
                watched.came_free(found)
                pace.reset()
            if found.fits and not forever:
                return found
            was_free = found.fits
        wait_s = pace.next()
        if end is not None and clock() + wait_s > end:
            return None
        if error is not None:
            watched.failed(error, wait_s)
        elif found is not None and not found.fits:
            watched.nothing(found, wait_s)
        sleep(wait_s)
