"""What clouds refused lately, for ``failover status --failures`` and ``--forget``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from provisioner.cli.output import print_json, print_table

if TYPE_CHECKING:
    from provisioner.controller.failures import Entry, KnownFailures, UnknownCode

_HINT = "wait for other processes that use it; the file may be removed, and costs a few repeated calls"


def show(names: Sequence[str], environ: Mapping[str, str], *, as_json: bool) -> None:
    """Print the refusals that are in force; those of ``names`` only, where there are some. Raises ConfigError."""
    entries, unknown = _read(_known(environ), names)
    now = time.time()
    if as_json:
        print_json(
            {"failures": [one.as_json(now) for one in entries], "unknown_codes": [asdict(one) for one in unknown]}
        )
        return
    if entries:
        head = ("what", "refused", "times", "left alone until", "for", "what to do")
        print_table(head, [_row(one, now) for one in entries])
    else:
        click.echo("nothing is left alone", err=True)
    if unknown:
        click.echo()
        columns = ("unknown code, please report it", "cloud", "times", "last", "words")
        print_table(columns, [(u.code, u.cloud, u.count, _clock(u.last, now), u.message) for u in unknown])


def forget(names: Sequence[str], environ: Mapping[str, str], *, as_json: bool) -> None:
    """Forget refusals: all, or those of ``names``. A claim may meet the same refusal again. Raises ConfigError."""
    from provisioner.controller.failures import PROBLEMS
    from provisioner.errors import ConfigError

    known = _known(environ)
    try:
        gone = known.forget(names)
    except PROBLEMS as error:
        raise ConfigError(f"{known.path}: {error}", hint=_HINT) from error
    now = time.time()
    if as_json:
        print_json({"forgotten": [one.as_json(now) for one in gone]})
        return
    for one in gone:
        click.echo(f"forgotten: {one.remembered.name}: {_refused(one)}")
    if not gone:
        click.echo("nothing to forget: failover status --failures shows the names", err=True)


def _known(environ: Mapping[str, str]) -> KnownFailures:
    from provisioner.controller.directory import state_root
    from provisioner.controller.failures import KnownFailures

    return KnownFailures(state_root(environ))


def _read(known: KnownFailures, names: Sequence[str]) -> tuple[list[Entry], list[UnknownCode]]:
    from provisioner.controller.failures import PROBLEMS, named
    from provisioner.errors import ConfigError

    try:
        return [one for one in known.entries() if named(one, names)], known.unknown_codes()
    except PROBLEMS as error:
        raise ConfigError(f"{known.path}: {error}", hint=_HINT) from error


def _row(one: Entry, now: float) -> tuple[object, ...]:
    until = f"{_clock(one.remembered.until, now)} ({_span(one.remembered.until - now)})"
    failure = one.remembered.failure
    who = f"job {one.job}" if one.job else one.account or "all jobs"
    return one.remembered.name, _refused(one), one.count, until, who, failure.advice or failure.message


def _refused(one: Entry) -> str:
    failure = one.remembered.failure
    return f"{failure.kind} ({failure.code}) for this {failure.scope}"


def _clock(at: float, now: float) -> str:
    """Return a time of today as a time, of another day with its date."""
    local = time.localtime(at)
    today = local[:3] == time.localtime(now)[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", local)


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
