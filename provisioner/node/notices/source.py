"""What every source of notices is, and what it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from provisioner.node.verdict import Cause


@dataclass(frozen=True, slots=True)
class Notice:
    """What a source says now. ``deadline`` is Unix time; None: it does not say when.

    A final notice ends the placement. Any other is advice, which goes into the log and ends nothing.
    """

    kind: str
    source: str
    deadline: float | None = None
    detail: str = ""
    final: bool = True
    cause: Cause = Cause.NOTICE
    """What a final notice makes the cause of the end."""
    mark: str = ""
    """What tells it from an earlier one of its kind; empty where a source shows in between that none holds."""


class SourceAway(Exception):
    """The source gave no usable answer this time. It is asked again."""


class SourceSilent(SourceAway):
    """It took the connection, and no answer came in time."""


class SourceAbsent(Exception):
    """This machine has no such source. It is not asked again."""


class Source(Protocol):
    """One place that notices come from. It is asked in a thread of its own, so it may block."""

    @property
    def name(self) -> str:
        """Return its name, as the log calls it."""
        ...

    @property
    def every_s(self) -> float:
        """Return the least time between the begins of two questions, in seconds."""
        ...

    def watch(self, wait_s: float) -> Notice | None:
        """Return the strongest notice that holds, None where none does.

        A source that can be waited for waits up to ``wait_s`` seconds for a change; at 0 it answers at once. Raises
        SourceAway, SourceAbsent.
        """
        ...
