"""Printing: tables for people, JSON for programs, both on stdout."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

_GAP = 2
"""Between two columns."""


def print_json(value: object) -> None:
    """Print one JSON document and nothing else. A name that is not UTF-8 is escaped, as Python keeps it."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=_plain)
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(value, indent=2, default=_plain)
    click.echo(text)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "", *, width: int = 200) -> None:
    """Print a table, no wider than the terminal; where stdout is none, than ``width``. Cells wrap between words."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [["-" if cell is None or cell == "" else str(cell) for cell in row] for row in rows]
    console = Console()
    widths = _widths([list(column) for column in zip(columns, *cells, strict=True)], console, width)
    if not console.is_terminal:  # a word that is longer than all room is not cut
        console = Console(width=max(width, sum(widths) + _GAP * (len(widths) - 1)))
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column, own in zip(columns, widths, strict=True):
        table.add_column(column, width=own, overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    console.print(table)


def _widths(columns: Sequence[Sequence[str]], console: Console, width: int) -> list[int]:
    """Return how wide each column is: as its cells; less where there is no room, down to its longest word."""
    from rich.cells import cell_len

    room = (console.width if console.is_terminal else width) - _GAP * (len(columns) - 1)
    widths = [max(map(cell_len, cells)) for cells in columns]
    least = [max(cell_len(word) for cell in cells for word in (cell.split() or [""])) for cells in columns]
    spare = [own - word for own, word in zip(widths, least, strict=True)]
    for _ in range(sum(widths) - room):
        most = spare.index(max(spare))
        if not spare[most]:
            break
        widths[most] -= 1
        spare[most] -= 1
    return widths


def _plain(value: object) -> object:
    if isinstance(value, Decimal):
        return float(value)
    return str(value)
