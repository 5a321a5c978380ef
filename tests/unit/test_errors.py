"""The error tree, its drawing and the documented exit codes say the same thing."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from provisioner import errors
from provisioner.errors import ExitCode, FailoverError

DOCS = Path(__file__).parents[2] / "docs" / "exit-codes.md"


def family(root: type[FailoverError]) -> Iterator[type[FailoverError]]:
    yield root
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from family(child)


ALL = list(family(FailoverError))


def drawn() -> dict[str, tuple[str | None, int]]:
    """Read the drawing at the top of errors.py: class name -> (parent's name, exit code)."""
    found: dict[str, tuple[str | None, int]] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^(?P<branch>[ │├└─]*)(?P<name>[A-Z]\w+) +(?P<code>\d+)  \S", line)
        if match:
            depth = len(match["branch"]) // 4
            path[depth:] = [match["name"]]
            found[match["name"]] = (path[depth - 1] if depth else None, int(match["code"]))
    return found


def test_the_drawing_shows_the_tree_as_it_is() -> None:
    assert drawn() == {
        error.__name__: (None if error is FailoverError else error.__mro__[1].__name__, int(error.exit_code))
        for error in ALL
    }


def test_every_exit_code_is_documented_and_nothing_else_is() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| (.+?) \|", DOCS.read_text(encoding="utf-8"), flags=re.MULTILINE)

    assert [(int(code), name) for code, name, _ in rows] == [(int(code), code.name) for code in sorted(ExitCode)]
    assert all(meaning for _, _, meaning in rows)


def test_every_code_but_done_and_job_failed_by_itself_has_an_error_that_leads_to_it() -> None:
    assert {error.exit_code for error in ALL} == set(ExitCode) - {ExitCode.DONE}


def test_the_numbers_agree_with_the_conventions_of_the_system() -> None:
    assert click.UsageError.exit_code == ExitCode.BAD_INPUT
    assert os.EX_SOFTWARE == ExitCode.OUR_FAULT
    assert os.EX_TEMPFAIL == ExitCode.COME_AGAIN
    assert ExitCode.INTERRUPTED == 128 + signal.SIGINT


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_an_error_is_its_sentence_and_its_advice(error: type[FailoverError]) -> None:
    raised = error("store: bucket b: access denied", hint="grant s3:PutObject")

    assert str(raised) == "store: bucket b: access denied"
    assert raised.hint == "grant s3:PutObject"
    assert error("x").hint == ""
    assert error.__doc__


def test_the_hint_is_not_repeated_by_a_traceback_of_the_message() -> None:
    assert "grant" not in repr(FailoverError("denied", hint="grant it"))
