"""``failover plan``: where the job would run, at what cost, and why not elsewhere."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from provisioner.cli.catalog_table import tell_fault
from provisioner.cli.output import print_json
from provisioner.errors import ExitCode

if TYPE_CHECKING:
    from provisioner.config import Config

FILE = Path("failover.yaml")


@click.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("-f", "--file", "named", type=click.Path(path_type=Path), help="The same as FILE; default failover.yaml.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole plan as JSON.")
@click.option("--why", metavar="OFFER", help="Explain one offer with its numbers: CLOUD/ZONE/TYPE[/MARKET].")
@click.option("--all", "whole", is_flag=True, help="Print every row, not the first 20.")
@click.option(
    "--round-trips",
    is_flag=True,
    help="Time a connection from here to each region; of offers of equal cost the one that answers sooner comes first.",
)
@click.option(
    "--terraform",
    "target",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write a stack for the best AWS or GCP offer into this new directory, and stop.",
)
@click.pass_context
def plan(
    ctx: click.Context,
    file: Path | None,
    named: Path | None,
    *,
    as_json: bool,
    why: str | None,
    whole: bool,
    round_trips: bool,
    target: Path | None,
) -> None:
    """Show where the job of FILE would run, best first, and why not elsewhere.

    Costs are expected ones, from now to the end of the job (`job.estimate` says how long it is). With --terraform
    nothing is claimed: `terraform apply` in that directory starts the machine, which runs the job. Exit code 3: there
    is nothing to try.
    """
    from provisioner.config import load

    if file is not None and named is not None:
        raise click.UsageError("name the file once")
    if target is not None and (why is not None or whole or round_trips):
        raise click.UsageError("--terraform takes the best offer: leave out --why, --all and --round-trips")
    if why is not None and whole:
        raise click.UsageError("--why explains one offer: leave out --all")
    path = file or named or FILE
    config = load(path)
    tell_fault()
    if target is not None:
        _write(config, path, target, as_json=as_json)
    elif not _show(config, why=why, as_json=as_json, whole=whole, round_trips=round_trips):
        ctx.exit(int(ExitCode.NO_OFFER))


def _show(config: Config, *, why: str | None, as_json: bool, whole: bool, round_trips: bool) -> bool:
    """Print the plan, or what it says of one offer; say whether that answers the question."""
    from provisioner.cli import plan_text
    from provisioner.controller.copy_prices import copy_prices
    from provisioner.controller.stores import place, stores
    from provisioner.controller.survey import survey
    from provisioner.planner import terms

    measured = None
    if round_trips:
        from provisioner.controller.distances import measure, regions_of

        regions = regions_of(config)
        measured = measure(regions)
        if silent := ["/".join(region) for region in regions if region not in measured]:
            instead = "" if measured else "; the distance to the store counts instead"
            click.echo(f"no answer from {', '.join(silent)}{instead}", err=True)
    ranking = survey(config, os.environ, round_trips=measured)
    found = stores(config.checkpoint, os.environ)
    if why is not None:
        made = terms(config, stores=[place(store) for store in found], round_trips=measured)
        if as_json:
            print_json(plan_text.explained_json(ranking, why, made))
        else:
            click.echo(plan_text.explained(ranking, why, made))
        return True
    copies = copy_prices(found[1:], [one.offer for one in ranking.ranked])
    if as_json:
        print_json({**plan_text.plan_json(ranking), "replicas": [plan_text.copy_json(copy) for copy in copies]})
    else:
        plan_text.print_plan(ranking, copies, whole=whole)
    if not ranking.ranked:
        click.echo("nothing to try: see what was passed over, and why", err=True)
    return bool(ranking.ranked)


def _write(config: Config, path: Path, target: Path, *, as_json: bool) -> None:
    from provisioner.controller.written_stack import write_terraform

    written = write_terraform(config, path, os.environ, target)
    if as_json:
        print_json(asdict(written))
        return
    ends = time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(written.link_ends))
    click.echo(f"{written.directory}: {written.offer}, at most {written.price} an hour once it is applied")
    click.echo(f"apply before {ends}:", err=True)
    click.echo(f"  terraform -chdir={written.directory} init", err=True)
    click.echo(f"  terraform -chdir={written.directory} apply", err=True)
    click.echo("its end is yours: failover does not watch this machine; it ends itself after policy.ttl", err=True)
