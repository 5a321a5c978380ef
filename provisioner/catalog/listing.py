"""The catalog as a list: every machine with whole GPUs that could run a job, by cloud, region and market."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal

from provisioner.catalog import tables
from provisioner.catalog.fit import unusable, vram_gb
from provisioner.catalog.gcp import usual
from provisioner.catalog.gpus import AUTODL_REGIONS, card, matches
from provisioner.catalog.tables import Machine
from provisioner.model import Market, Money

USD_CNY = Decimal("7.1")
"""Yuan for one dollar where nobody says otherwise: the default of ``policy.usd_cny``."""


@dataclass(frozen=True, slots=True)
class Row:
    """A machine in one region and market. ``price`` is for an hour of the machine; None: unknown.

    ``vcpus`` 0 is unknown, an empty ``region`` is any. ``idle`` are free cards when the stock was last refreshed.
    """

    cloud: str
    region: str
    zones: tuple[str, ...]
    instance_type: str
    gpu: str
    count: int
    vram_gb: float
    vcpus: int
    market: Market
    price: Money | None
    idle: int | None = None

    @property
    def tflops(self) -> float:
        """FP16 TFLOPS of all cards together; 0 is unknown."""
        known = card(self.gpu)
        return known.fp16_tflops * self.count if known else 0.0


@dataclass(frozen=True, slots=True)
class Filter:
    """What to list. Empty takes all; ``gpus`` are names of ours. ``max_price`` drops what has no known price."""

    gpus: tuple[str, ...] = ()
    min_vram_gb: float = 0.0
    clouds: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    markets: tuple[Market, ...] = ()
    count: int | None = None
    max_price: Money | None = None

    def takes(self, row: Row, usd_cny: Decimal) -> bool:
        """Say whether a row is asked for."""
        return (
            matches(self.gpus, row.gpu)
            and row.vram_gb >= self.min_vram_gb
            and (not self.regions or row.region in self.regions)
            and (not self.markets or row.market in self.markets)
            and (self.count is None or row.count == self.count)
            and self._affords(row, usd_cny)
        )

    def _affords(self, row: Row, usd_cny: Decimal) -> bool:
        if self.max_price is None:
            return True
        return row.price is not None and usd(row.price, usd_cny) <= usd(self.max_price, usd_cny)


def usd(money: Money, usd_cny: Decimal) -> Decimal:
    """Return an amount in dollars."""
    return money.amount / usd_cny if money.currency == "CNY" else money.amount


def listing(wanted: Filter, *, sort: str = "price", usd_cny: Decimal = USD_CNY) -> list[Row]:
    """List the machines that are asked for, in an order that depends on nothing but them."""
    sources: dict[str, Callable[[Filter], Iterable[Row]]] = {
        "autodl": lambda _wanted: _autodl(),
        "aws": lambda wanted: _machines("aws", wanted),
        "gcp": lambda wanted: _machines("gcp", wanted),
    }
    rows = [
        row
        for cloud, rows_of in sources.items()
        if not wanted.clouds or cloud in wanted.clouds
        for row in rows_of(wanted)
        if wanted.takes(row, usd_cny)
    ]
    return sorted(
        rows, key=lambda row: (*_order(row, sort, usd_cny), row.cloud, row.instance_type, row.region, row.market)
    )


def _order(row: Row, sort: str, usd_cny: Decimal) -> tuple[object, ...]:
    price = usd(row.price, usd_cny) if row.price else Decimal("Infinity")
    match sort:
        case "value":
            return (float(price) / row.tflops if row.tflops else float("inf"), price)
        case "speed":
            return (-row.tflops, price)
        case "vram":
            return (-row.vram_gb * row.count, price)
        case "name":
            return ()
        case _:
            return (price,)


def _machines(cloud: str, wanted: Filter) -> Iterator[Row]:
    for machine in tables.machines(cloud).values():
        if not matches(wanted.gpus, machine.gpu) or unusable(machine) or not usual(machine):
            continue
        for region in wanted.regions or tables.zones(cloud):
            zones = tables.offered_in(machine, region)
            for market in machine.markets if zones else ():
                yield _row(machine, region, zones, market)


def _row(machine: Machine, region: str, zones: tuple[str, ...], market: Market) -> Row:
    name = machine.instance_type
    price = tables.price(machine.cloud, region, name, market)
    if machine.cloud == "aws" and market == Market.SPOT:
        known = [found.price for zone in zones if (found := tables.spot_prices().get((zone, name)))]
        price = min(known, key=lambda money: money.amount, default=None)
    vram = vram_gb(machine)
    return Row(machine.cloud, region, zones, name, machine.gpu, machine.gpu_count, vram, machine.vcpus, market, price)


def _autodl() -> Iterator[Row]:
    """Yield AutoDL's cards one by one: by region where the stock was refreshed, else once for any region."""
    cells = tables.autodl_cells()
    for one in tables.cards().values():
        for name in one.autodl:
            price = tables.autodl_prices().get(name)
            regions = [region for region in AUTODL_REGIONS if (region, name) in cells]
            for region in regions or [""]:
                idle = cells[region, name][0] if region else None
                yield Row("autodl", region, (), name, one.name, 1, one.vram_gb, 0, Market.ON_DEMAND, price, idle)
