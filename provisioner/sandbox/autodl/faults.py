"""Faults on purpose: what the next calls of a path meet."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

FaultKind = Literal[
    "status",  # answers an HTTP status and does nothing
    "slow",  # waits, then does it and answers
    "truncated",  # does it, and cuts the answer in the middle
    "not_json",  # does nothing and answers a page of HTML with HTTP 200
    "lost_answer",  # does it, and closes the connection without an answer
    "dropped",  # closes the connection and does nothing
    "no_stock",  # Pro's create and power_on: no card
    "power_off_lost",  # Pro's power_off: accepted and forgotten
    "snapshot_invalid",  # Pro's snapshot: no access data yet
]


@dataclass(slots=True)
class Fault:
    """One fault for the next ``count`` calls of ``path`` (``*`` allowed), after ``skip`` calls that go well.

    ``status`` is for kind ``status``; ``seconds`` for ``slow``; ``retry_after`` is sent with a status, in seconds.
    """

    kind: FaultKind
    path: str = "*"
    count: int = 1
    skip: int = 0
    method: str = ""
    status: int = 503
    seconds: float = 1.0
    retry_after: int | None = None

    @classmethod
    def read(cls, values: dict[str, Any]) -> Fault:
        """Make one from JSON. Raises ValueError for what it cannot be."""
        known = {name: value for name, value in values.items() if name in cls.__slots__}
        if known.get("kind") not in get_args(FaultKind):
            message = f"a fault's kind is one of {', '.join(get_args(FaultKind))}"
            raise ValueError(message)
        numbers = [known.get(name, 0) for name in ("count", "skip", "status", "seconds")]
        if not isinstance(known.get("path", ""), str) or not all(isinstance(value, int | float) for value in numbers):
            message = "a fault's path is text; its count, skip, status and seconds are numbers"
            raise ValueError(message)
        return cls(**known)

    def show(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


class Faults:
    """The faults that are still to come. Guarded by the emulator's lock."""

    def __init__(self) -> None:
        self.waiting: list[Fault] = []

    def add(self, fault: Fault) -> None:
        """Let it happen, after those that are there already."""
        self.waiting.append(fault)

    def clear(self) -> None:
        """Let nothing happen any more."""
        self.waiting.clear()

    def take(self, method: str, path: str) -> Fault | None:
        """Return the fault that this call meets, and count it."""
        for fault in self.waiting:
            if fault.method not in ("", method) or not fnmatchcase(path, fault.path):
                continue
            if fault.skip > 0:
                fault.skip -= 1
                continue
            fault.count -= 1
            if fault.count <= 0:
                self.waiting.remove(fault)
            return fault
        return None
