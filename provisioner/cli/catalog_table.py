"""How the catalog is printed: as a table of 80 columns, and as plain values for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from provisioner.cli.output import print_table

if TYPE_CHECKING:
    from provisioner.catalog.ages import Age
    from provisioner.catalog.listing import Row
    from provisioner.model import Money

_SIGNS = {"USD": "$", "CNY": "\u00a5"}


def row_json(row: Row) -> dict[str, Any]:
    """Return a row as plain values. Prices are texts, so that nothing is rounded."""
    from provisioner import catalog

    known = catalog.card(row.gpu)
    return {
        "cloud": row.cloud,
        "region": row.region or None,
        "zones": list(row.zones),
        "instance_type": row.instance_type,
        "gpu": row.gpu,
        "count": row.count,
        "vram_gb": row.vram_gb,
        "vcpus": row.vcpus or None,
        "market": str(row.market),
        "price_per_hour": None
        if row.price is None
        else {"amount": str(row.price.amount), "currency": row.price.currency},
        "idle": row.idle,
        "architecture": known.architecture or None if known else None,
        "compute_capability": known.compute or None if known else None,
        "fp16_tflops": known.fp16_tflops or None if known else None,
        "bandwidth_gbs": known.bandwidth_gbs or None if known else None,
        "cuda": [_version(known.cuda_from), _version(known.cuda_to)] if known else [None, None],
        "driver_branches": [known.driver_from, known.driver_to] if known else [None, None],
    }


def ages_json(age: Age, now: float) -> dict[str, Any]:
    """Return the age of a table as plain values; ``age_days`` is None where there is nothing yet."""
    days = age.days(now)
    read_at = None if age.read_at is None else datetime.fromtimestamp(age.read_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "table": age.table,
        "cloud": age.cloud or None,
        "what": age.what,
        "packaged": age.packaged or None,
        "refreshed": read_at,
        "source": age.source,
        "age_days": None if days is None else round(days, 2),
    }


def print_types(rows: Sequence[Row]) -> None:
    """Print a row for each machine type: its lowest price on each market, and in how many regions it is."""
    types: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        types.setdefault((row.cloud, row.instance_type), []).append(row)
    table = []
    for (cloud, name), group in types.items():
        regions = sorted({row.region for row in group})
        where = regions[0] or "any region" if len(regions) == 1 else f"{len(regions)} regions"
        table.append((cloud, name, _cards(group[0]), f"{group[0].vram_gb:g}", *_markets(group), where))
    print_table(("cloud", "machine", "GPU", "GB", "demand", "spot", "where"), table)


def print_regions(rows: Sequence[Row]) -> None:
    """Print a row for each machine type and region, with its zones."""
    places: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        places.setdefault((row.cloud, row.instance_type, row.region), []).append(row)
    table = []
    for (cloud, name, region), group in places.items():
        zones = " ".join(zone.removeprefix(region).removeprefix("-") for zone in group[0].zones)
        idle = "" if group[0].idle is None else f"{group[0].idle} free"
        table.append((cloud, name, _cards(group[0]), *_markets(group), region or "any region", zones or idle))
    print_table(("cloud", "machine", "GPU", "demand", "spot", "region", "zones"), table)


def print_ages(ages: Sequence[Age], now: float) -> None:
    """Say on stderr, in a line for each cloud, how old its tables are."""
    clouds: dict[str, list[str]] = {}
    for age in ages:
        if age.cloud:
            clouds.setdefault(age.cloud, []).append(age.words(now))
    for cloud, words in clouds.items():
        click.echo(f"{cloud}: {', '.join(words)}", err=True)


def tell_fault() -> None:
    """Say on stderr where the file of the last refresh cannot be used, and why."""
    from provisioner.catalog import ages

    if fault := ages.fault():
        click.echo(f"the last refresh is not used: {fault}", err=True)


def _cards(row: Row) -> str:
    return row.gpu if row.count == 1 else f"{row.count} x {row.gpu}"


def _markets(rows: Sequence[Row]) -> tuple[str, str]:
    """Return the lowest price of each market, on demand first."""
    lowest = []
    for market in ("on-demand", "spot"):
        prices = [row.price for row in rows if row.market == market and row.price is not None]
        lowest.append(_short(min(prices, key=lambda price: price.amount)) if prices else "")
    return lowest[0], lowest[1]


def _short(price: Money) -> str:
    amount = f"{price.amount:.4f}".rstrip("0").rstrip(".") if price.amount < 10 else f"{price.amount:.2f}"
    return f"{_SIGNS.get(price.currency, price.currency + ' ')}{amount}"


def _version(version: tuple[int, int] | None) -> str | None:
    return None if version is None else f"{version[0]}.{version[1]}"
