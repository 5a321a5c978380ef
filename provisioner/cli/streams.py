"""stdout and stderr, where they may be closed or full: neither may change what a command does, or its exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

import click


def ready() -> None:
    """Put something open where Python found stdout or stderr closed."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - open until the process ends
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - as above


def tell(line: str = "") -> None:
    """Write a line to stderr; where that cannot be written it is lost."""
    with contextlib.suppress(OSError):
        click.echo(line, err=True)


@contextlib.contextmanager
def unread() -> Iterator[None]:
    """Go on where nobody reads stdout any more: what was done, and the exit code, do not depend on it."""
    with contextlib.suppress(BrokenPipeError, SystemExit):  # rich turns the one into the other
        yield


def settle() -> None:
    """Write out what is left, or drop it: else Python ends with an exit code of its own."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # it is full, or closed
            with contextlib.suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)
