"""``failover plan``: where the job would run, and why."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provisioner.cli.output import print_json, print_table

if TYPE_CHECKING:
    from provisioner.controller.traffic import CopyPrice
    from provisioner.planner import PassedOver, Plan, Ranked


@click.command()
@click.argument("file", type=click.Path(path_type=Path), default=Path("failover.yaml"))
@click.option("--json", "as_json", is_flag=True, help="Print the whole plan as JSON.")
@click.option(
    "--terraform",
    "target",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write a stack for the best AWS offer into this new directory, and stop.",
)
def plan(file: Path, *, as_json: bool, target: Path | None) -> None:
    """Show where the job of FILE would run, best first, and why not elsewhere.

    With --terraform nothing is claimed: `terraform apply` in that directory starts the machine, which runs the job.
    """
    from provisioner.config import load
    from provisioner.controller.stores import stores
    from provisioner.controller.survey import survey, write_terraform
    from provisioner.controller.traffic import copy_prices

    config = load(file)
    if target is None:
        ranking = survey(config, os.environ)
        replicas = stores(config.checkpoint, os.environ)[1:]
        render_plan(ranking, copy_prices(replicas, [one.offer for one in ranking.ranked]), as_json=as_json)
        return
    written = write_terraform(config, file, os.environ, target)
    if as_json:
        print_json(asdict(written))
        return
    ends = time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(written.link_ends))
    click.echo(f"{written.directory}: {written.offer}, at most {written.price} an hour once it is applied")
    click.echo(f"apply before {ends}:", err=True)
    click.echo(f"  terraform -chdir={written.directory} init", err=True)
    click.echo(f"  terraform -chdir={written.directory} apply", err=True)
    click.echo("its end is yours: failover does not watch this machine; it ends itself after policy.ttl", err=True)


def render_plan(plan: Plan, copies: Sequence[CopyPrice], *, as_json: bool) -> None:
    """Print a plan on stdout: as a table with the zones of one machine type in one row, or as JSON in full."""
    if as_json:
        print_json({**plan_json(plan), "replicas": [copy_json(copy) for copy in copies]})
        return
    columns = ("try", "place", "machine", "GPU", "market", "region", "zones", "at most an hour", "why")
    print_table(columns, list(_rows(plan.ranked)))
    if not plan.ranked:
        click.echo("nothing to try: see what was passed over, and why", err=True)
    if plan.passed_over:
        click.echo()
        print_table(("passed over", "why"), list(_passed_rows(plan.passed_over)))
    if copies:
        click.echo()
        print_table(("copies to", "from", "egress a GB"), list(_copy_rows(copies)))


def copy_json(copy: CopyPrice) -> dict[str, Any]:
    """Return the price of copies to a replica as plain values."""
    from provisioner.planner import money_json

    return {"uri": copy.uri, "cloud": copy.cloud, "region": copy.region, "per_gb": money_json(copy.per_gb)}


def _copy_rows(copies: Sequence[CopyPrice]) -> Iterator[tuple[str, str, str]]:
    """Yield a row for each replica and place. How large a checkpoint is nobody knows yet, so only a GB has a price."""
    from provisioner.catalog import EGRESS_AS_OF

    for copy in copies:
        price = "unknown"
        if copy.per_gb is not None:
            price = f"{copy.per_gb}, list price of {EGRESS_AS_OF}" if copy.per_gb.amount else "free"
        yield copy.uri, "/".join(part for part in (copy.cloud, copy.region) if part), price


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain values."""
    from provisioner.planner import money_json, offer_json

    return {
        "ranked": [
            {
                "rank": number,
                "place": one.block,
                **offer_json(one.offer),
                "at_most": money_json(one.at_most),
                "reason": one.reason,
            }
            for number, one in enumerate(plan.ranked, 1)
        ],
        "passed_over": [
            {
                "subject": one.subject,
                "reason": one.reason,
                "offer": None if one.offer is None else offer_json(one.offer),
            }
            for one in plan.passed_over
        ],
    }


def _rows(ranked: Sequence[Ranked]) -> Iterator[tuple[object, ...]]:
    """Yield a row for each run of tries that differ in their zone only."""

    def same(numbered: tuple[int, Ranked]) -> tuple[object, ...]:
        one = numbered[1]
        return (one.block, one.offer.instance_type, one.offer.market, one.offer.region, one.reason)

    for _, group in groupby(enumerate(ranked, 1), key=same):
        run = list(group)
        (first, one), last = run[0], run[-1][0]
        offer = one.offer
        zones = " ".join(_zone(offer.region, numbered[1].offer.zone) for numbered in run)
        tries = str(first) if first == last else f"{first}-{last}"
        gpu = f"{offer.gpu.count} x {offer.gpu.name}"
        place = (tries, one.block, offer.instance_type, gpu, offer.market, offer.region)
        yield (*place, zones, one.at_most or "unknown", one.reason)


def _passed_rows(passed_over: Sequence[PassedOver]) -> Iterator[tuple[str, str]]:
    """Yield a row for each machine type, market and reason; the zones that share it are counted."""
    rows: dict[tuple[str, str], int] = {}
    for one in passed_over:
        subject = one.subject
        if one.offer is not None:
            offer = one.offer
            subject = "/".join(part for part in (offer.cloud, offer.region, offer.instance_type, offer.market) if part)
        rows[subject, one.reason] = rows.get((subject, one.reason), 0) + (1 if one.offer is not None else 0)
    for (subject, reason), zones in rows.items():
        yield (f"{subject} ({zones} zones)" if zones > 1 else subject, reason)


def _zone(region: str, zone: str) -> str:
    """Shorten ``us-east-1a`` to ``a`` beside its region."""
    return zone.removeprefix(region) or zone
