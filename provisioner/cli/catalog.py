"""``failover catalog``: which machines there are, with which GPUs, where and at what price."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

import click

from provisioner.cli import streams
from provisioner.cli.catalog_table import ages_json, print_ages, print_regions, print_types, row_json, tell_fault
from provisioner.cli.output import print_json
from provisioner.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from provisioner.catalog.refresh import Found
    from provisioner.model import Money

_CLOUDS = ("autodl", "aws", "gcp")
_MARKETS = ("spot", "on-demand")
_SORTS = ("price", "value", "speed", "vram", "name")


def _finite(_ctx: click.Context, _param: click.Parameter, value: float) -> float:
    """Refuse NaN, which every range lets through, and infinity."""
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a finite number.")
    return value


@click.group("catalog")
def catalog_group() -> None:
    """List GPU machines, their zones and prices; bring the list up to date."""


@catalog_group.command("ls")
@click.option("--gpu", "gpus", multiple=True, help="This card, as people write it: T4, 4090, a100-80g (repeatable).")
@click.option("--min-vram", type=click.FloatRange(min=0), default=0.0, callback=_finite,
              help="Least memory of one card in GB, as it is sold: 24 for an L4.")  # fmt: skip
@click.option("--count", type=click.IntRange(min=1), help="Cards in one machine.")
@click.option("--cloud", "clouds", multiple=True, type=click.Choice(_CLOUDS), help="This cloud only (repeatable).")
@click.option("--region", "regions", multiple=True, help="This region only (repeatable).")
@click.option("--market", "markets", multiple=True, type=click.Choice(_MARKETS), help="This market only.")
@click.option("--max-price", help='Most that an hour may cost: 1.5, "10 CNY". Unknown prices are left out.')
@click.option("--sort", type=click.Choice(_SORTS), default="price", show_default=True, help="value: price a TFLOPS.")
@click.option("--by-region", is_flag=True, help="A row for each region, not only for each machine type.")
@click.option("--usd-cny", type=click.FloatRange(min=0, min_open=True), default=7.1, show_default=True,
              callback=_finite, help="Yuan for one dollar, to compare prices.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print every region and market as one JSON document.")
@click.pass_context
def ls_command(  # noqa: PLR0917 - click's signature
    ctx: click.Context,
    gpus: tuple[str, ...],
    min_vram: float,
    count: int | None,
    clouds: tuple[str, ...],
    regions: tuple[str, ...],
    markets: tuple[str, ...],
    max_price: str | None,
    sort: str,
    by_region: bool,  # noqa: FBT001
    usd_cny: float,
    as_json: bool,  # noqa: FBT001
) -> None:
    """List machines with whole GPUs. Asks nobody: it needs no network and no account.

    Prices are list prices of the month that is shown, or of the last `failover catalog refresh`. Exit code 3: nothing
    matches.
    """
    from provisioner.catalog import ages
    from provisioner.catalog.listing import Filter, listing
    from provisioner.model import Market

    wanted = Filter(
        tuple(_card(name) for name in gpus),
        min_vram,
        clouds,
        tuple(_region(name, clouds) for name in regions),
        tuple(Market(name) for name in markets),
        count,
        None if max_price is None else _price(max_price),
    )
    rows = listing(wanted, sort=sort, usd_cny=Decimal(str(usd_cny)))
    known = [one for one in ages.ages() if one.cloud in {*clouds, ""} or not clouds]
    now = time.time()
    if as_json:
        print_json({"machines": [row_json(row) for row in rows], "tables": [ages_json(one, now) for one in known]})
    else:
        if rows:
            (print_regions if by_region or regions else print_types)(rows)
        print_ages(known, now)
    tell_fault()
    if not rows:
        click.echo("no machine matches", err=True)
        ctx.exit(int(ExitCode.NO_OFFER))


@catalog_group.command("refresh", short_help="Ask the clouds what they sell now.")
@click.option("--cloud", "clouds", multiple=True, type=click.Choice(_CLOUDS), help="This cloud only (repeatable).")
@click.option("--region", "regions", multiple=True, help="Ask AWS for this region only (repeatable).")
@click.option("--project", envvar="GOOGLE_CLOUD_PROJECT", help="Project that asks Google Cloud.")
@click.option("--offline", is_flag=True, help="Ask nobody; say how old each table is.")
@click.option("--json", "as_json", is_flag=True, help="Print what was read, and what not and why, as JSON.")
@click.pass_context
def refresh_command(
    ctx: click.Context,
    clouds: tuple[str, ...],
    regions: tuple[str, ...],
    project: str | None,
    offline: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
) -> None:
    """Ask the clouds what they sell now, and keep it beside the packaged tables.

    Reading calls only, with the credentials of each cloud's own tools and AUTODL_TOKEN. A cloud without credentials is
    left out unless it is named. Nothing that is known is lost: rows are added or renewed. Exit code 5: a cloud that was
    named, or every cloud, could not be read, wholly or in part.
    """
    from provisioner.catalog.refresh import Found

    asked = clouds or _CLOUDS
    _refuse_idle(ctx, asked, regions, offline=offline)
    aws_regions = tuple(_region(name, ("aws",)) for name in regions)
    found = Found()
    if not offline:
        from provisioner.cli.catalog_refresh import Question, ask, keep

        found = ask(asked, Question(os.environ, aws_regions, project, time.time(), _done))
        if found.tables:
            keep(found.tables, os.environ)
    _print_refreshed(found, asked, as_json=as_json)
    tell_fault()
    if found.missed and (clouds or not found.tables):
        ctx.exit(int(ExitCode.CLOUD_REFUSED))


def _refuse_idle(ctx: click.Context, clouds: Sequence[str], regions: Sequence[str], *, offline: bool) -> None:
    """Refuse options that would have no effect. A project in the environment is no option."""
    from click.core import ParameterSource

    project = ctx.get_parameter_source("project") is ParameterSource.COMMANDLINE
    if offline and (regions or project):
        raise click.UsageError("--offline asks nobody: leave out --region and --project")
    for option, given, cloud in (("--region", bool(regions), "aws"), ("--project", project, "gcp")):
        if given and cloud not in clouds:
            raise click.UsageError(f"{option} is for {cloud}, and --cloud leaves that out")


def _done(source: str, rows: int) -> None:
    """Tell of a source that has been read, as it ends."""
    streams.tell(f"{source}: {rows} row{'' if rows == 1 else 's'}")


def _print_refreshed(found: Found, clouds: Sequence[str], *, as_json: bool) -> None:
    from provisioner.catalog import ages
    from provisioner.catalog.refresh.found import together

    now = time.time()
    known = [one for one in ages.ages() if one.cloud in clouds]
    lacking = list(together(found.missed))
    if as_json:
        print_json(
            {
                "refreshed": {name: len(table.rows) for name, table in sorted(found.tables.items())},
                "missed": [
                    {"cloud": cloud, "what": what, "why": why, "regions": where} for cloud, what, why, where in lacking
                ],
                "tables": [ages_json(one, now) for one in known],
            }
        )
        return
    for name, table in sorted(found.tables.items()):
        click.echo(f"{name}: {len(table.rows)} rows from {table.source}")
    for cloud, what, why, where in lacking:
        click.echo(f"{cloud}: {what} not refreshed{_in(where)}: {why}", err=True)
    print_ages(known, now)


def _in(places: Sequence[str]) -> str:
    if not places:
        return ""
    shown = ", ".join(places[:4])
    return f" in {shown}" if len(places) <= 4 else f" in {shown} and {len(places) - 4} more"


def _card(name: str) -> str:
    from provisioner import catalog

    ours = catalog.canonical(name)
    if ours is None:
        raise ConfigError(f"--gpu: no GPU is called {name!r}", hint=_meant(name, catalog.gpu_names))
    return ours


def _region(name: str, clouds: tuple[str, ...]) -> str:
    from provisioner import catalog

    known = [region for cloud in clouds or _CLOUDS for region in catalog.regions(cloud)]
    if name not in known:
        where = " or ".join(clouds) if clouds else "any cloud"
        raise ConfigError(f"--region: there is no region {name!r} at {where}", hint=_meant(name, lambda: known))
    return name


def _meant(name: str, known: Callable[[], Iterable[str]]) -> str:
    from provisioner.config.names import did_you_mean

    return did_you_mean(name, known()) or "failover catalog ls lists them all"


def _price(text: str) -> Money:
    from provisioner.model import Money

    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(USD|CNY)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ConfigError(f"--max-price: {text!r} is not a price", hint='write 1.5, "1.5 USD" or "10 CNY"')
    return Money(Decimal(match[1]), (match[2] or "USD").upper())
