"""Warnings at 80 % of a limit: each is an event, once, also where the controller is started again in between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from provisioner.clock import now as unix_now
from provisioner.telemetry import events

SHARE: Final = 0.8


@dataclass(frozen=True, slots=True)
class Share:
    """How much of a limit is used. ``key`` names the limit and, for one that begins anew, the day; ``ends``: when."""

    key: str
    used: float
    words: str
    ends: float | None = None


class Warnings:
    """Warns of one run's limits. What was told already stands in the event log itself."""

    def __init__(self, log: events.EventLog) -> None:
        """Take the log."""
        self._log = log
        self._told: set[str] | None = None

    def look(self, shares: Iterable[Share]) -> None:
        """Tell of each limit that has passed 80 %, once."""
        for share in shares:
            if share.used < SHARE:
                continue
            if self._told is None:
                self._told = {str(event.get("limit")) for event in of_run(self._log.path)}
            if share.key not in self._told:
                self._told.add(share.key)
                self._log.emit("warned", limit=share.key, words=share.words, ends=share.ends)


def of_run(path: Path) -> Iterator[dict[str, object]]:
    """Yield the warnings of the newest run, oldest first."""
    found: list[dict[str, object]] = []
    for event in events.read(path):
        if event["kind"] == "begin":
            found.clear()
        elif event["kind"] == "warned":
            found.append(event)
    yield from found


def standing_words(warned: Iterable[dict[str, object]], now: float | None = None) -> list[str]:
    """Return the words of the warnings that still hold: those of a day that is over do not."""
    at = unix_now() if now is None else now
    return [str(one["words"]) for one in warned if not isinstance(ends := one.get("ends"), int | float) or at < ends]
