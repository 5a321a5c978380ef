"""Is it time to go home? Asked at every look at a job that trains at a fallback; answers at once, and rarely yes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from provisioner.clock import now as unix_now
from provisioner.config import FailbackConfig
from provisioner.errors import CloudError
from provisioner.model import Offer

DAY_S = 86400.0
MOST_DOUBLINGS = 4
JITTER = 0.2
"""By what share the pauses between two questions are longer or shorter: many controllers must not ask in step."""


class House(Protocol):
    """What is asked of the world."""

    def wished(self) -> bool:
        """Say whether the operator wants the job home now."""
        ...

    def home_offers(self) -> Sequence[Offer]:
        """List the primary's offers that are free, or may be. Raises CloudError."""
        ...

    def pays(self, offer: Offer) -> str:
        """Say, in a few words, that the move is worth its price; nothing if it is not."""
        ...

    def tell(self, kind: str, **fields: object) -> None:
        """Take one event."""
        ...


class Homeward:
    """One for a run of a job: pauses and hysteresis outlast a placement."""

    def __init__(
        self,
        policy: FailbackConfig,
        *,
        now: Callable[[], float] = unix_now,
        minute: Callable[[], int] = lambda: time.localtime().tm_hour * 60 + time.localtime().tm_min,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Take the policy. ``now`` gives Unix seconds, ``minute`` the minute of the local day."""
        self._policy = policy
        self._now = now
        self._minute = minute
        self._jitter = jitter
        self._asked_at = float("-inf")
        self._pause = 0.0
        self._tried_at = float("-inf")
        self._since: float | None = None
        self._told = False
        self._spoiled = 0

    def spoiled(self) -> None:
        """Take note that a machine at home was paid for and of no use: each time the next try waits twice as long."""
        self._spoiled += 1

    def arrived(self) -> None:
        """Take note that a machine at home took over."""
        self._spoiled = 0

    def why(self, house: House, moves: Sequence[float]) -> str:
        """Return why to go home now, or nothing. ``moves``: when the job went home before, Unix seconds.

        What is returned counts as a try: the next one comes after the pause that the policy gives.
        """
        if house.wished():
            return self._try("the operator wants it home")
        policy, now = self._policy, self._now()
        if policy.mode == "never" or now - self._asked_at < self._pause:
            return ""
        self._asked_at = now
        self._pause = policy.every * (1.0 - JITTER + 2.0 * JITTER * self._jitter())
        words = self._calls(house, now)
        if not words or now - self._tried_at < policy.again * 2.0 ** min(self._spoiled, MOST_DOUBLINGS):
            return ""
        if policy.mode == "ask":
            if not self._told:
                self._told = True
                house.tell("home_calls", words=words)
            return ""
        today = sum(1 for at in moves if now - at < DAY_S)
        if policy.is_quiet(self._minute()) or today >= policy.per_day:
            return ""
        return self._try(words)

    def _try(self, words: str) -> str:
        self._tried_at = self._now()
        self._since = None
        return words

    def _calls(self, house: House, now: float) -> str:
        """Return what speaks for home: a card that has been there for long enough, and the price."""
        try:
            offers = house.home_offers()
        except CloudError as error:
            house.tell("blind", what="the primary", problem=str(error))
            offers = []
        if not offers:
            self._since, self._told = None, False
            return ""
        known = [offer for offer in offers if offer.available is not None]
        self._since = now if self._since is None else self._since
        if now - self._since < self._policy.after:
            return ""
        best = (known or offers)[0]
        pays = house.pays(best)
        if not pays:
            return ""
        stock = f"{best.available} free for {now - self._since:.0f} s" if known else "stock unknown"
        return f"{best.key} ({stock}): {pays}"
