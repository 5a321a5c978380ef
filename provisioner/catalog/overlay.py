"""What ``failover catalog refresh`` found: a file in the cache directory that is laid over the packaged tables.

Of each table it keeps rows, when they were read and from where. Rows are added or take the place of rows with the same
key; nothing that is packaged is lost, and a file that cannot be read counts as none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAME = "catalog.json"
_FORMAT = 2

KEYS = {
    "aws_types": 1, "aws_zones": 2, "aws_prices": 2, "aws_spot": 2,
    "gcp_hosts": 1, "gcp_zones": 2, "gcp_rates": 2,
    "autodl_stock": 2, "autodl_prices": 1,
}  # fmt: skip
"""The tables that may be refreshed, and how many columns of each are its key."""
_WIDTHS = {
    "aws_types": 6, "aws_zones": 3, "aws_prices": 4, "aws_spot": 5,
    "gcp_hosts": 7, "gcp_zones": 3, "gcp_rates": 4,
    "autodl_stock": 4, "autodl_prices": 2,
}  # fmt: skip
_NUMBERS = {
    "aws_types": (2, 3, 4), "aws_zones": (), "aws_prices": (2,), "aws_spot": (2, 4),
    "gcp_hosts": (2, 4, 5), "gcp_zones": (), "gcp_rates": (2, 3),
    "autodl_stock": (2, 3), "autodl_prices": (1,),
}  # fmt: skip
"""Columns that hold a number, or nothing."""
_FRACTIONS = {
    ("aws_prices", 2), ("aws_spot", 2), ("aws_spot", 4), ("gcp_rates", 2), ("gcp_rates", 3), ("autodl_prices", 1),
    ("gcp_hosts", 5),
}  # fmt: skip
"""Those of them that need not be whole: prices, times, and memory in GB."""
_TIMES = {("aws_spot", 4)}
"""Those of them that are Unix seconds: rows that one refresh did not ask for keep the time of an earlier one."""
_LATEST = 1e10
"""Unix seconds that every calendar here can still show."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one table. ``read_at`` is Unix seconds."""

    rows: tuple[tuple[str, ...], ...]
    read_at: float
    source: str

    def merged(self, older: Table | None, key: int) -> Table:
        """Lay these rows over older ones of the same table. An empty cell takes nothing away."""
        kept = {row[:key]: row for row in (older.rows if older else ())}
        for row in self.rows:
            old = kept.get(row[:key], row)
            kept[row[:key]] = tuple(new or was for new, was in zip(row, old, strict=True))
        return Table(tuple(sorted(kept.values())), self.read_at, self.source)


@dataclass(frozen=True, slots=True)
class Overlay:
    """All that was found, by table. ``fault`` says why a file that is there could not be used."""

    tables: Mapping[str, Table] = field(default_factory=dict)
    fault: str = ""

    def rows(self, name: str) -> Sequence[tuple[str, ...]]:
        """Return the rows of one table."""
        table = self.tables.get(name)
        return table.rows if table else ()

    def merged(self, newer: Mapping[str, Table]) -> Overlay:
        """Return this overlay with newer tables laid over it."""
        tables = dict(self.tables)
        for name, table in newer.items():
            tables[name] = table.merged(tables.get(name), KEYS[name])
        return Overlay(tables)


def path(environ: Mapping[str, str]) -> Path:
    """Return where the file is: in the cache directory of docs/operations.md."""
    if environ.get("FAILOVER_CACHE_DIR"):
        return Path(environ["FAILOVER_CACHE_DIR"]).expanduser() / NAME
    home = environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(home) / "gpu-failover" / NAME


def read(file: Path) -> Overlay:
    """Read the file. Never raises: no file is an empty overlay, a broken one is empty too and says so."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Overlay()
    except (OSError, UnicodeDecodeError) as error:
        return Overlay(fault=f"{file} cannot be read: {type(error).__name__}")
    try:
        document = json.loads(text)
        if document["format"] != _FORMAT:
            return Overlay(fault=f"{file} is of another version: refresh it")
        tables = {name: _table(name, value) for name, value in document["tables"].items() if name in KEYS}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Overlay(fault=f"{file} is damaged: refresh it, or remove it")
    return Overlay(tables)


def write(file: Path, overlay: Overlay) -> None:
    """Write the file in one step: a reader sees the old one or the new one. Raises OSError."""
    import tempfile

    tables = {
        name: {"read_at": table.read_at, "source": table.source, "rows": table.rows}
        for name, table in sorted(overlay.tables.items())
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=file.parent, prefix=".catalog-", suffix=".json")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump({"format": _FORMAT, "tables": tables}, out, ensure_ascii=False, separators=(",", ":"))
            out.flush()
            os.fsync(out.fileno())
        Path(draft).replace(file)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def _table(name: str, value: Any) -> Table:
    rows = tuple(tuple(str(cell) for cell in row) for row in value["rows"])
    if any(len(row) != _WIDTHS[name] for row in rows):
        message = f"a row of {name} has another number of columns"
        raise ValueError(message)
    for row in rows:
        for column in _NUMBERS[name]:
            below = _LATEST if (name, column) in _TIMES else 1e9
            _check(row[column], whole=(name, column) not in _FRACTIONS, below=below)
    _check(value["read_at"], whole=False, below=_LATEST)
    return Table(rows, float(value["read_at"]), str(value["source"]))


def _check(cell: Any, *, whole: bool, below: float) -> None:
    """Raise ValueError where a cell is neither empty nor a number that there may be. NaN is none."""
    number = (int if whole else float)(cell or 0)
    if not 0 <= number < below:
        message = f"{cell} is out of range"
        raise ValueError(message)
