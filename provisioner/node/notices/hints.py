"""What the controller knows and the machine cannot: AutoDL's status, a balance that runs out, a stock that shrinks.

``epochs/<n>/hint.json`` holds ``{"kind": .., "deadline": Unix seconds or null, "detail": .., "final": true or false}``.
``"cause": "home"`` tells that another machine stands by and takes over. A hint with another ``"told"`` is a new one.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable
from typing import Any

from provisioner.checkpoint import layout
from provisioner.checkpoint.store import Store
from provisioner.errors import CloudError
from provisioner.node.notices.source import Notice, SourceAway
from provisioner.node.verdict import Cause

EARLY_S = 0.5
"""A heartbeat that comes so much early still reads, in seconds: none is quite on time."""
_LONGEST = 200


class Hints:
    """Read along with the fence, by the thread of the heartbeat, no more often than every ``every_s`` seconds."""

    name = "the controller"

    def __init__(
        self, store: Store, epoch: int, *, every_s: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Read nothing yet."""
        self._store = store
        self._key = layout.hint(epoch)
        self.every_s = every_s
        self._monotonic = monotonic
        self._next = float("-inf")
        self._last: Notice | None = None
        self._unreadable = False

    def watch(self, wait_s: float) -> Notice | None:  # noqa: ARG002 - part of the contract
        """Return the hint that stands in the store. Raises SourceAway for one that cannot be read."""
        now = self._monotonic()
        if now >= self._next:
            self._next = now + self.every_s - EARLY_S
            with contextlib.suppress(CloudError):  # the heartbeat itself tells that the store is away
                data = self._store.get(self._key)
                self._last = None if data is None else self._read(data)
                self._unreadable = data is not None and self._last is None
        if self._unreadable:
            raise SourceAway(f"{self._key} is not in the form that this release reads")
        return self._last

    def _read(self, data: bytes) -> Notice | None:
        try:
            raw: Any = json.loads(data)
            kind, deadline = raw["kind"], raw.get("deadline")
            final = raw.get("final", False)
            if not isinstance(kind, str) or not kind or not isinstance(final, bool):
                raise ValueError
            when = None if deadline is None else float(deadline)
            if when is not None and not math.isfinite(when):
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        cause = Cause.HOME if raw.get("cause") == Cause.HOME else Cause.NOTICE
        detail, mark = _line(raw.get("detail") or ""), _line(raw.get("told") or "")
        return Notice(_line(kind), self.name, when, detail, final, cause, mark)


def _line(text: object) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in str(text))[:_LONGEST]
