"""What the events of a job's newest run tell of it now. They count in their order: a clock may have been put back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

_OVER = frozenset({"ended", "released", "release_failed", "surplus"})
"""After these a machine is the job's no more."""


@dataclass
class Story:
    """One run, event by event. A job may have two machines for a while: on the way home, and in a race."""

    warned: list[dict[str, Any]] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)
    beats: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The newest heartbeat of each epoch."""
    held_back: str | None = None
    rests: bool = False
    at: float = 0.0
    """When the newest event was, in Unix seconds."""
    _claims: dict[str, dict[str, Any]] = field(default_factory=dict)
    _held: dict[str, dict[str, Any]] = field(default_factory=dict)
    _last: dict[str, Any] = field(default_factory=dict)
    _suspected: dict[int | None, str] = field(default_factory=dict)

    @classmethod
    def of(cls, events: Iterable[dict[str, Any]]) -> Story:
        """Read the events, the oldest first. A ``begin`` ends the story before it."""
        story = cls()
        for event in events:
            if event["kind"] == "begin":
                story = cls()
            story._take(event)
        return story

    @property
    def claimed(self) -> Mapping[str, Any]:
        """Return the claim of the machine that trains, else of the last one that did; empty: there was none."""
        return next(iter(self._held.values()), self._last)

    @property
    def beat(self) -> Mapping[str, Any]:
        """Return the newest heartbeat of that machine, or nothing."""
        return self.beats.get(self.claimed.get("epoch", -1), {})

    @property
    def step(self) -> object:
        """Return the newest step that is known: that machine's, or before its first heartbeat the last one's."""
        known = [epoch for epoch in self.beats if epoch <= self.claimed.get("epoch", epoch)]
        return self.beats[max(known)].get("step") if known else None

    @property
    def suspected(self) -> str | None:
        """Return why that machine is suspected, None where it is not."""
        return self._suspected.get(self.claimed.get("epoch"))

    def _take(self, event: dict[str, Any]) -> None:
        kind, node, epoch = event["kind"], str(event.get("node")), event.get("epoch")
        self.at = event.get("time", self.at)
        if kind == "claimed":
            self._claims[node] = self._held[node] = event
            if len(self._held) == 1:
                self._last = event
        elif kind in _OVER:
            self._held.pop(node, None)
            if kind == "ended":
                self._last = self._claims.get(node, self._last)
        elif kind == "heartbeat" and isinstance(epoch, int):
            self.beats[epoch] = event
        elif kind == "warned":
            self.warned.append(event)
        elif kind == "refused" and event.get("failure") == "unknown":
            self.unknown[str(event.get("code"))] += 1
        self._worry(kind, epoch, event)

    def _worry(self, kind: str, epoch: int | None, event: Mapping[str, Any]) -> None:
        if kind == "suspected":
            self._suspected[epoch] = str(event["reason"])
        elif kind in {"heartbeat", "heard_again", "ended"}:
            self._suspected.pop(epoch, None)
        elif kind == "finished":
            self._suspected.clear()
        if kind == "held_back":
            self.held_back = str(event["reason"])
        elif kind in {"asked", "claim", "finished"}:
            self.held_back = None
        if kind in {"resting", "claimed"}:
            self.rests = kind == "resting"
