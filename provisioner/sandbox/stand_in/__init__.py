"""A stand-in for Terraform's providers of AWS and Google where the official ones cannot be had: sandbox and tests only.

Each cloud's folder holds the official schema of what our modules use (``schema.json``) and does the work at the
emulator. Terraform, modules, plans, state and imports are real; what the official provider does beyond that is not
shown by it. It refuses to talk to anything but an endpoint on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

State = dict[str, Any]


class Refused(Exception):
    """The cloud refused a call. The text is one sentence for the operator."""


class Cloud(Protocol):
    """What makes and finds resources, by their type. All raise Refused."""

    def create(self, kind: str, plan: State) -> State:
        """Make a thing; return its state."""
        ...

    def read(self, kind: str, state: State) -> State | None:
        """Return the state as the cloud has it; None when the thing is gone. After an import only ``id`` is known."""
        ...

    def update(self, kind: str, plan: State) -> State:
        """Change a thing in place."""
        ...

    def delete(self, kind: str, state: State) -> None:
        """Delete a thing; gone already is fine."""
        ...

    def data(self, kind: str, config: State) -> State:
        """Answer a data source."""
        ...


@dataclass(frozen=True, slots=True)
class Provider:
    """One provider. ``schema`` has the form of ``terraform providers schema -json``; ``open`` connects to the cloud.

    ``endpoints`` are the variables of the environment that must name this machine. ``in_place`` maps a resource to what
    a change does not replace it for, ``free`` are such attributes of any resource, and ``counters`` those that every
    change moves.
    """

    schema: Path
    open: Callable[[State], Cloud]
    endpoints: tuple[str, ...] = ()
    in_place: Mapping[str, frozenset[str]] = field(default_factory=dict)
    free: frozenset[str] = frozenset()
    counters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def schema_alone(path: Path) -> Provider:
    """Return a provider that knows a schema and no cloud: enough for ``terraform validate``."""

    def refuse(_config: State) -> Cloud:
        message = f"{path.name} is a schema to validate with; there is no cloud behind it"
        raise Refused(message)

    return Provider(path, refuse)
