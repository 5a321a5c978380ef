"""Rules by which a cloud in a box answers with faults: in order, the first that matches is taken."""

from __future__ import annotations

import fnmatch
import threading
import time
from collections.abc import Iterable
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field


class Asked(Protocol):
    """A request as the rules see it."""

    def row(self) -> dict[str, Any]:
        """Return what the log of launches says of it."""
        ...


class Rule(BaseModel):
    """One rule. A key that is not set matches anything. ``times`` counts down, -1 is for ever."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    EQUAL: ClassVar[tuple[str, ...]] = ()
    """Keys that must be as the call's attributes of the same name."""
    GLOBBED: ClassVar[tuple[str, ...]] = ()
    """Keys that may hold ``*``."""

    region: str | None = None
    market: Literal["spot", "on-demand"] | None = None
    code: str | None = None
    message: str | None = None
    status: int | None = Field(default=None, ge=400, le=599)
    times: int = -1
    lost: bool = False
    """Whether the connection is cut instead of an answer, after the work was done."""

    def matches(self, call: Any) -> bool:
        """Say whether the rule is for this call."""
        if self.times == 0:
            return False
        equal = all(getattr(self, key) in (None, getattr(call, key)) for key in self.EQUAL)
        return equal and all(
            fnmatch.fnmatchcase(getattr(call, key), "*" if getattr(self, key) is None else getattr(self, key))
            for key in self.GLOBBED
        )


R = TypeVar("R", bound=Rule)
C = TypeVar("C", bound=Asked)


class RuleBook(Generic[R, C]):
    """The rules in force and a log of launches. Thread-safe."""

    rule: ClassVar[type[Rule]]

    def __init__(self) -> None:
        """Start without rules."""
        self._rules: list[R] = []
        self._log: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def set(self, rules: Iterable[dict[str, Any] | R]) -> None:
        """Replace the rules. Raises pydantic.ValidationError."""
        fresh = self._read(rules)
        with self._lock:
            self._rules = fresh

    def add(self, rules: Iterable[dict[str, Any] | R]) -> None:
        """Put rules before those in force."""
        fresh = self._read(rules)
        with self._lock:
            self._rules[:0] = fresh

    def rules(self) -> list[dict[str, Any]]:
        """Return the rules in force, as JSON values."""
        with self._lock:
            return [rule.model_dump(mode="json", by_alias=True, exclude_defaults=True) for rule in self._rules]

    def hit(self, call: C) -> R | None:
        """Return the rule for this call, counted down."""
        with self._lock:
            for rule in self._rules:
                if rule.matches(call):
                    if rule.times > 0:
                        rule.times -= 1
                    return rule
        return None

    def note(self, call: C, outcome: str) -> None:
        """Add a launch to the log: what was asked, and the code or the machine it came to."""
        with self._lock:
            self._log.append({**call.row(), "time": time.time(), "outcome": outcome})

    def log(self) -> list[dict[str, Any]]:
        """Return every launch since the start or the last reset."""
        with self._lock:
            return list(self._log)

    def clear(self) -> None:
        """Forget rules and log."""
        with self._lock:
            self._rules, self._log = [], []

    def _read(self, rules: Iterable[dict[str, Any] | R]) -> list[R]:
        read: Any = self.rule.model_validate
        return [read(rule) if isinstance(rule, dict) else rule.model_copy() for rule in rules]
