"""What a refresh brought, and what it could not bring and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from provisioner.catalog.overlay import Table

Done = Callable[[str, int], None]
"""Is told of each source as it ends, and how many rows it gave. May be called from several threads."""


def untold(_source: str, _rows: int) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class Missed:
    """What could not be refreshed. ``where`` is a region or empty; ``why`` is one line, the cloud's own code in it."""

    cloud: str
    what: str
    why: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """Tables by name, and what is missing."""

    tables: dict[str, Table] = field(default_factory=dict)
    missed: tuple[Missed, ...] = ()


def together(missed: Iterable[Missed]) -> Iterator[tuple[str, str, str, list[str]]]:
    """Yield cloud, what, why and every place for which it is so."""
    places: dict[tuple[str, str, str], list[str]] = {}
    for one in missed:
        found = places.setdefault((one.cloud, one.what, one.why), [])
        if one.where:
            found.append(one.where)
    for (cloud, what, why), where in places.items():
        yield cloud, what, why, sorted(where)


def one_line(text: object, most: int = 200) -> str:
    """Shorten an error to one line."""
    line = " ".join(str(text).split())
    return line if len(line) <= most else line[: most - 4] + " ..."
