"""``failover cost``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from provisioner.cli.output import print_json, print_table


def _moment(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    """Read ``--since``: a day, as 2026-11-30, begins at midnight here; a duration counts back from now."""
    if value is None:
        return None
    from datetime import datetime

    try:
        return datetime.fromisoformat(value).timestamp()
    except ValueError:
        pass
    from pydantic_core import PydanticCustomError

    from provisioner.config.values import parse_duration

    try:
        return time.time() - parse_duration(value)
    except PydanticCustomError:
        message = f"{value!r} is no time: write a duration (12h, 7d) or a day (2026-11-30)"
        raise click.BadParameter(message) from None


@click.command()
@click.argument("names", nargs=-1, metavar="[JOB...]")
@click.option("--since", callback=_moment, metavar="7d", help="Count from then on only: 12h, 7d, or 2026-11-30.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def cost(names: tuple[str, ...], *, since: float | None, as_json: bool) -> int:
    """Show what each machine of JOB, or of all jobs of this state directory, has cost; a running one until now.

    It reads the state directory and asks no cloud. What nobody knows the price of is named as unknown.
    """
    from provisioner.cli.status import known
    from provisioner.controller.costs import costs
    from provisioner.controller.directory import state_root
    from provisioner.controller.ledger import all_bills, bills

    root = state_root(os.environ)
    found = [bill for name in dict.fromkeys(names) for bill in bills(known(name)[0].path)] if names else all_bills(root)
    document = costs(found, time.time(), since)
    if as_json:
        print_json(document)
        return 0
    if not document["jobs"]:
        click.echo(f"no machine in the ledgers of {root}" + (" since then" if since is not None else ""), err=True)
        return 0
    columns = ["job", "epoch", "from", "where", "market", "price/h", "machine for", "cost", "expected to the end", ""]
    rows = [_row(job["job"], machine) for job in document["jobs"] for machine in job["machines"]]
    print_table(columns, rows)
    click.echo("")
    for line in _lines(document):
        click.echo(line)
    return 0


def _row(job: str, machine: Mapping[str, Any]) -> Sequence[object]:
    where = (machine["cloud"], machine["zone"] or machine["region"], machine["instance_type"])
    bound = "at most " if machine["upper_bound"] else ""
    return [
        job,
        machine["epoch"],
        time.strftime("%m-%d %H:%M:%S", time.localtime(machine["begun"])),
        " ".join(part for part in where if part),
        machine["market"],
        "unknown" if machine["price_at_most"] is None else bound + _price(machine["price_at_most"]),
        f"{machine['seconds']:.0f} s",
        ("" if machine["cost"] is None else bound) + _words(machine["cost"]),
        _expected(machine),
        "; ".join(_notes(machine)),
    ]


def _notes(machine: Mapping[str, Any]) -> Iterator[str]:
    if machine["role"] == "unanswered":
        yield "its claim had no answer: it may be there"
    elif machine["running"]:
        yield "runs"
    if machine["role"] == "surplus":
        yield "surplus"
    if machine["likely_cost"] is not None:
        yield f"about {_words(machine['likely_cost'])} by the plan's price"
    if machine["overlap_seconds"] >= 1:
        yield f"{machine['overlap_seconds']:.0f} s beside the one before"
    if machine["egress"]["bytes"]:
        yield f"egress {_dollars(machine['egress'])}"
    if machine["problem"]:
        yield f"release not confirmed: {machine['problem']}"


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    for job in document["jobs"]:
        several = len(job["runs"]) > 1  # each had its own budget: after a pause, what was left of it
        budget = f" of the budget of {_price(job['budget'])}" if job["budget"] and not several else ""
        yield f"{job['job']}: {_sum(job)}{budget}"
        for run in job["runs"]:
            if run["expected_cost"] is not None or (several and run["budget"]):
                yield f"  run {run['run']}: {_came_to(run, with_budget=several)}"
    if len(document["jobs"]) > 1:
        yield f"all: {_sum(document)}"


def _came_to(run: Mapping[str, Any], *, with_budget: bool) -> str:
    so_far = " so far" if run["running"] else ""
    more = " and machines of unknown price" if run["unpriced"] else ""
    words = f"came to {_words(run['came_to'])}{more} in {run['hours']:.2f} h{so_far}"
    if run["expected_cost"] is not None:
        words = f"planned {_words(run['expected_cost'])} in {run['expected_hours']:.2f} h, {words}"
    return words + (f", of a budget of {_price(run['budget'])}" if with_budget and run["budget"] else "")


def _sum(sums: Mapping[str, Any]) -> str:
    bound = "at most " if sums["upper_bound"] else ""
    parts = ", ".join(f"{amount:.4f} {name}" for name, amount in sums["by_currency"].items())
    whole = f" = {_words(sums['total'])}" if set(sums["by_currency"]) - {sums["total"]["currency"]} else ""
    text = f"{bound}{parts}{whole}" if parts else "no known cost"
    if sums["unpriced"]:
        text += f" + unknown: {', '.join(dict.fromkeys(sums['unpriced']))}"
    if sums["egress"]["bytes"]:
        text += f" + egress {_dollars(sums['egress'])}"
    return text


def _dollars(egress: Mapping[str, Any]) -> str:
    unknown = " and what has no list price" if egress["unpriced"] else ""
    return f"about {egress['usd']:.2f} USD{unknown}"


def _expected(machine: Mapping[str, Any]) -> str:
    if machine["expected_cost"] is None:
        return ""
    return f"{machine['expected_cost']['amount']:.2f} USD, {machine['expected_hours']:.1f} h"


def _price(money: Mapping[str, Any]) -> str:
    return f"{money['amount']:g} {money['currency']}"


def _words(money: Mapping[str, Any] | None) -> str:
    return "unknown" if money is None else f"{money['amount']:.4f} {money['currency']}"
