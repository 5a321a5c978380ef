"""How old each table of the catalog is: the month in which it was packaged, or when it was last refreshed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from provisioner.catalog import tables

DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class Age:
    """One table. ``packaged`` is a month such as ``2026-11``, empty where none is packaged; ``read_at`` Unix seconds.

    ``cloud`` is empty for what is no cloud's: the GPU models.
    """

    table: str
    cloud: str
    what: str
    packaged: str
    source: str
    read_at: float | None

    def days(self, now: float) -> float | None:
        """Return the age in days: since the refresh, or since the month began. None where there is nothing."""
        if self.read_at is not None:
            return max(0.0, now - self.read_at) / DAY_S
        if not self.packaged:
            return None
        year, month = (int(part) for part in self.packaged.split("-"))
        return max(0.0, now - datetime(year, month, 1, tzinfo=UTC).timestamp()) / DAY_S

    def words(self, now: float) -> str:
        """Say it in words: ``zones 3 h ago``, ``prices of 2026-10``, ``no spot prices yet``."""
        if self.read_at is None:
            return f"{self.what} of {self.packaged}" if self.packaged else f"no {self.what} yet"
        return f"{self.what} {_ago(max(0.0, now - self.read_at))} ago"


def _ago(seconds: float) -> str:
    hours = seconds / 3600
    if hours >= 48:
        return f"{hours / 24:.0f} d"
    return f"{hours:.0f} h" if hours >= 1 else f"{seconds / 60:.0f} min"


def ages() -> list[Age]:
    """Return the age of every table, in the order in which they are packaged."""
    found = tables.found().tables
    return [
        Age(
            name,
            one["cloud"],
            one["what"],
            one["as_of"],
            found[name].source if name in found else one["source"],
            found[name].read_at if name in found else None,
        )
        for name, one in tables.sources().items()
    ]


def fault() -> str:
    """Say why the file of the last refresh could not be used, or nothing."""
    return tables.found().fault
