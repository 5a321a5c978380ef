"""Printing: tables for people, JSON for programs, both on stdout."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from decimal import Decimal

import click


def print_json(value: object) -> None:
    """Print one JSON document and nothing else. A name that is not UTF-8 is escaped, as Python keeps it."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=_plain)
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(value, indent=2, default=_plain)
    click.echo(text)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Print a table; on a pipe it keeps its width so that nothing is cut."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*[Text("-" if cell is None or cell == "" else str(cell)) for cell in row])
    console.print(table)


def _plain(value: object) -> object:
    if isinstance(value, Decimal):
        return float(value)
    return str(value)
