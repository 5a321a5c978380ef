"""``failover sweep``."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provisioner.cli import streams
from provisioner.cli.output import print_json, print_table
from provisioner.errors import ExitCode

if TYPE_CHECKING:
    from provisioner.controller.sweep import Outcome, Swept

DEFAULT_FILE = Path("failover.yaml")
_NAMED = 3
"""Most places that one line names that could not be asked for the same reason."""


def duration(_context: click.Context, _parameter: click.Parameter, value: str) -> float:
    """Read a duration, in seconds."""
    from pydantic_core import PydanticCustomError

    from provisioner.config.values import parse_duration

    try:
        return parse_duration(value)
    except PydanticCustomError as error:
        hint = (error.context or {}).get("hint", "")
        raise click.BadParameter(f"{error.message()}: {hint}") from None


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), required=False)
@click.option("--job", "job", default="", metavar="NAME", help="Only what belongs to this job.")
@click.option(
    "--older",
    metavar="DURATION",
    callback=duration,
    default="10m",
    show_default=True,
    help="Leave alone what is younger than this.",
)
@click.option("--foreign", is_flag=True, help="Take what belongs to other controllers for an orphan, too.")
@click.option("--yes", is_flag=True, help="Remove the orphans. Without it nothing is changed.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON on stdout.")
def sweep(file: Path | None, *, job: str, older: float, foreign: bool, yes: bool, as_json: bool) -> int:
    """List what carries our tags at the clouds and is held by no run: machines, disks, networks, roles, start objects.

    It asks every region that FILE (default: failover.yaml, if it is there) names, and every one that a job of this
    state directory has ever used. What an open run holds is not listed; what other controllers have is not touched.
    """
    from provisioner.controller.sweep import Options, Sweep

    if file is None and DEFAULT_FILE.is_file():
        file = DEFAULT_FILE
    work = Sweep(file, Options(job, older, foreign), os.environ)
    swept = work.look()
    if yes:
        work.remove(swept, say=streams.tell)
    now = time.time()
    with streams.unread():
        print_json(_report(swept, now)) if as_json else _show(swept, now, removed=yes)
    return exit_code(swept, removed=yes)


def exit_code(swept: Swept, *, removed: bool) -> int:
    """Return 1 where something is to be removed; 5 where something is left, or could not be asked; else 0."""
    orphans = swept.orphans()
    if orphans and not removed:
        return 1
    return int(ExitCode.CLOUD_REFUSED) if swept.silent or any(not one.removed for one in orphans) else 0


def _report(swept: Swept, now: float) -> dict[str, Any]:
    return {
        "things": [_row(one, now) for one in swept.outcomes],
        "per_hour": _per_hour(swept),
        "unasked": [{"where": where, "why": why} for where, why in swept.silent.items()],
    }


def _row(one: Outcome, now: float) -> dict[str, Any]:
    tagged, cost, seconds = one.verdict.tagged, one.cost(now), one.seconds(now)
    thing = tagged.thing
    return {
        "cloud": thing.cloud,
        "region": thing.region,
        "kind": thing.kind,
        "id": thing.id,
        "state": thing.state,
        "job": thing.job,
        "uid": tagged.uid,
        "epoch": thing.epoch,
        "seconds": None if seconds is None else round(seconds, 1),
        "price_per_hour": None if thing.price_per_hour is None else str(thing.price_per_hour),
        "cost": None if cost is None else str(cost),
        "standing": one.verdict.standing.value,
        "why": one.verdict.why,
        "removed": one.removed,
        "problem": one.problem,
    }


def _per_hour(swept: Swept) -> dict[str, Any]:
    """Add up what the orphans that are left cost an hour, by currency."""
    total: dict[str, Any] = {}
    for one in swept.orphans():
        price = one.verdict.tagged.thing.price_per_hour
        if price is not None and not one.removed:
            total[price.currency] = total.get(price.currency, 0) + price.amount
    return total


def _show(swept: Swept, now: float, *, removed: bool) -> None:
    if swept.outcomes:
        head = ("cloud", "region", "kind", "id", "job", "epoch", "age", "per hour", "what")
        print_table(head, [_cells(one, now) for one in swept.outcomes])
    places: dict[str, list[str]] = {}
    for where, why in swept.silent.items():
        places.setdefault(why, []).append(where)
    for why, where_all in places.items():
        more = f" and {len(where_all) - _NAMED} more (--json names them)" if len(where_all) > _NAMED else ""
        click.echo(f"not asked: {', '.join(where_all[:_NAMED])}{more}: {why}", err=True)
    left = [one for one in swept.orphans() if not one.removed]
    if not left:
        where = " in the places that could be asked" if swept.silent else ""
        click.echo(f"nothing is left to remove{where}", err=True)
        return
    costs = ", ".join(f"{amount:f} {currency}" for currency, amount in _per_hour(swept).items()) or "nothing known"
    words, tail = ("still there", "") if removed else ("to be removed", "; remove them with --yes")
    click.echo(f"{words}: {len(left)}, which cost {costs} an hour{tail}", err=True)


def _cells(one: Outcome, now: float) -> list[object]:
    thing, seconds = one.verdict.tagged.thing, one.seconds(now)
    orphan = one.verdict.standing.value == "orphan"
    what = one.verdict.why if orphan else f"left alone: {one.verdict.why}"
    if one.removed:
        what = f"removed: {one.verdict.why}"
    elif one.problem:
        what = f"still there: {one.problem}"
    age = None if seconds is None else _age(seconds)
    return [thing.cloud, thing.region, thing.kind, thing.id, thing.job, thing.epoch, age, thing.price_per_hour, what]


def _age(seconds: float) -> str:
    for size, letter in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{letter}"
    return f"{seconds:.0f}s"
