"""The packaged tables, read once, with what ``failover catalog refresh`` found laid over them."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from provisioner.catalog import overlay
from provisioner.model import Market, Money

DATA = Path(__file__).parent / "data"
BOTH = (Market.SPOT, Market.ON_DEMAND)


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine type. ``gpu_memory_mib`` is MiB a card as the driver reports it; ``gpu_count`` 0 is a slice.

    ``accelerator`` is Google's name of the card. A Google n1 machine is named with its cards: ``n1-standard-8+1xT4``.
    """

    instance_type: str
    gpu: str
    gpu_count: int
    gpu_memory_mib: int
    vcpus: int
    architecture: str = "x86_64"
    cloud: str = "aws"
    memory_gb: float = 0.0
    accelerator: str = ""
    markets: tuple[Market, ...] = BOTH

    @property
    def host(self) -> str:
        """The machine type without its cards, as Google's API wants it: ``n1-standard-8``."""
        return self.instance_type.partition("+")[0]

    @property
    def series(self) -> str:
        """What is sold in the same zones: ``g2-standard``, or ``n1+T4``."""
        return f"n1+{self.gpu}" if "+" in self.instance_type else self.instance_type.rpartition("-")[0]


class SpotPrice(NamedTuple):
    """What an hour cost on the spot market when it was looked up, at ``seen_at`` (Unix seconds)."""

    price: Money
    seen_at: float


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU model. 0, empty and None mean: unknown. ``vram_gb`` is GiB as the card is sold.

    ``fp16_tflops`` is dense FP16 on tensor cores; of a card without them, the faster of its FP16 and FP32.
    ``bandwidth_gbs`` is GB/s of its memory. ``cuda_from`` and ``cuda_to`` bound the CUDA toolkits that build for it,
    ``driver_from`` and ``driver_to`` NVIDIA's driver branches (580). ``driver`` says which machine image it needs:
    ``open`` kernel modules, or ``proprietary`` ones (before Turing), or ``amd``. ``aws``, ``gcp`` and ``autodl`` are
    the clouds' names of it, ``pro_spec`` the id at AutoDL Pro.
    """

    name: str
    group: str
    architecture: str
    compute: str
    vram_gb: float
    fp16_tflops: float
    bandwidth_gbs: float
    cuda_from: tuple[int, int] | None
    cuda_to: tuple[int, int] | None
    driver_from: int | None
    driver_to: int | None
    driver: str
    aws: str
    gcp: tuple[str, ...]
    autodl: tuple[str, ...]
    pro_spec: str
    aliases: tuple[str, ...]


@cache
def sources() -> dict[str, dict[str, str]]:
    """Return of every packaged table its cloud, its month and where it is from."""
    found: dict[str, dict[str, str]] = json.loads((DATA / "sources.json").read_text(encoding="utf-8"))
    return found


def snapshot(cloud: str = "aws") -> str:
    """Return the month in which a cloud's offerings were read, e.g. ``2026-11``."""
    return sources()[f"{cloud}_zones"]["as_of"]


@cache
def found() -> overlay.Overlay:
    """Return what the last refresh found; nothing where there was none."""
    return overlay.read(overlay.path(os.environ))


def forget() -> None:
    """Read everything again at the next question: the tables, or the environment, have changed."""
    for name in (
        sources,
        found,
        machines,
        sizes,
        zones,
        regions,
        prices,
        _rates,
        spot_prices,
        autodl_prices,
        autodl_cells,
    ):
        name.cache_clear()


@cache
def machines(cloud: str = "aws") -> dict[str, Machine]:
    """Return every machine type of a cloud that its offerings or its price list name."""
    return dict(_aws_machines() if cloud == "aws" else _gcp_machines())


@cache
def sizes(cloud: str = "aws") -> dict[str, set[int]]:
    """Return how many cards of a kind the machine types of a cloud have, by the card's group, else its name."""
    counts: dict[str, set[int]] = {}
    for machine in machines(cloud).values():
        card = cards().get(machine.gpu)
        counts.setdefault((card.group if card else "") or machine.gpu, set()).add(machine.gpu_count)
    return counts


@cache
def zones(cloud: str = "aws") -> dict[str, dict[str, tuple[str, ...]]]:
    """Return region -> machine type or series -> zone names. AWS's zone names differ between accounts."""
    table: dict[str, dict[str, tuple[str, ...]]] = {}
    dash = "-" if cloud == "gcp" else ""
    for region, name, letters in _rows(f"{cloud}_zones"):
        table.setdefault(region, {})[name] = tuple(f"{region}{dash}{letter}" for letter in letters)
    return table


@cache
def regions(cloud: str = "aws") -> dict[str, bool]:
    """Return every region of a cloud, and whether its offerings are known."""
    known = {region: read == "yes" for region, read in _rows(f"{cloud}_regions")}
    return known | dict.fromkeys(zones(cloud), True)


@cache
def prices() -> dict[tuple[str, str], Money]:
    """Return AWS's (region, machine type) -> on-demand price an hour: Linux, shared tenancy."""
    return {
        (region, instance_type): Money(Decimal(amount), currency)
        for region, instance_type, amount, currency in _rows("aws_prices")
    }


@cache
def spot_prices() -> dict[tuple[str, str], SpotPrice]:
    """Return AWS's (zone, machine type) -> spot price when it was last refreshed. None are packaged."""
    return {
        (zone, name): SpotPrice(Money(Decimal(amount), currency), float(at or 0))
        for zone, name, amount, currency, at in _laid_over("aws_spot")
    }


def price(cloud: str, region: str, instance_type: str, market: Market = Market.ON_DEMAND) -> Money | None:
    """Return the list price of a machine for an hour; None where no source gives one. AWS has none for spot."""
    if cloud == "aws":
        return prices().get((region, instance_type)) if market == Market.ON_DEMAND else None
    machine = machines("gcp").get(instance_type)
    return None if cloud != "gcp" or machine is None else _gcp_price(machine, region, market)


def offered_in(machine: Machine, region: str) -> tuple[str, ...]:
    """Return the zones of a region in which a machine type is sold."""
    table = zones(machine.cloud).get(region, {})
    return table.get(machine.instance_type) or (table.get(machine.series, ()) if machine.cloud == "gcp" else ())


@cache
def egress_prices() -> dict[tuple[str, str], Money]:
    """Return (cloud, ``internet`` or another ``region`` of it) -> price of a GB that leaves, in its first tier."""
    return {(cloud, to): Money(Decimal(amount), currency) for cloud, to, amount, currency in _rows("egress")}


@cache
def autodl_prices() -> dict[str, Money]:
    """Return AutoDL's name of a card -> price of one for an hour when it was last seen, in CNY."""
    return {gpu: Money(Decimal(amount), "CNY") for gpu, amount in _rows("autodl_prices")}


def autodl_prices_seen() -> str:
    """Return the month of the newest of them, e.g. ``2026-10``."""
    return sources()["autodl_prices"]["as_of"]


@cache
def autodl_cells() -> dict[tuple[str, str], tuple[int, int]]:
    """Return (region, card) -> idle and all cards at AutoDL when its stock was last refreshed. None are packaged."""
    return {(region, gpu): (int(idle), int(total)) for region, gpu, idle, total in _laid_over("autodl_stock")}


@cache
def cards() -> dict[str, Card]:
    """Return every GPU model by its name."""
    return {
        row["name"]: Card(
            row["name"], row["group"], row["architecture"], row["compute"],
            float(row["vram_gb"]), float(row["fp16_tflops"] or 0), float(row["bandwidth_gbs"] or 0),
            _version(row["cuda_from"]), _version(row["cuda_to"]),
            _branch(row["driver_from"]), _branch(row["driver_to"]),
            row["driver"], row["aws"], _list(row["gcp"]), _list(row["autodl"]), row["pro_spec"], _list(row["aliases"]),
        )
        for row in _dicts("gpus")
    }  # fmt: skip


def _aws_machines() -> Iterator[tuple[str, Machine]]:
    for name, gpu, count, memory, vcpus, architecture in _rows("aws_types"):
        yield name, Machine(name, gpu, int(count), int(memory), int(vcpus), architecture)


def _gcp_machines() -> Iterator[tuple[str, Machine]]:
    """Yield machine types with cards built in, and each n1 type with each number of cards that it may carry."""
    hosts = []
    for name, gpu, count, accelerator, vcpus, memory, markets in _rows("gcp_hosts"):
        sold = (Market(markets),) if markets else BOTH
        one = Machine(name, gpu, int(count), _mib(gpu), int(vcpus), "x86_64", "gcp", float(memory), accelerator, sold)
        if gpu:
            yield name, one
        else:
            hosts.append(one)
    for gpu, accelerator, count, most in _rows("gcp_n1_cards"):
        for host in hosts:
            if host.vcpus <= int(most):
                name = f"{host.instance_type}+{count}x{gpu}"
                memory_gb = host.memory_gb
                yield (
                    name,
                    Machine(name, gpu, int(count), _mib(gpu), host.vcpus, "x86_64", "gcp", memory_gb, accelerator),
                )


def _mib(gpu: str) -> int:
    known = cards().get(gpu)
    return int(known.vram_gb * 1024) if known else 0


@cache
def _rates() -> dict[tuple[str, str], tuple[Decimal | None, Decimal | None]]:
    """Return Google's (region, item) -> on-demand and spot price an hour in USD. What an item is: SOURCES.md."""
    rates: dict[tuple[str, str], tuple[Decimal | None, Decimal | None]] = {}
    for region, item, on_demand, spot in _rows("gcp_rates"):
        older = rates.get((region, item), (None, None))  # a newer row may know one market only
        rates[region, item] = (
            Decimal(on_demand) if on_demand else older[0],
            Decimal(spot) if spot else older[1],
        )
    return rates


_RATED = {
    "n1-standard": ("n1-standard-96", 96), "n1-highmem": ("n1-highmem-96", 96), "g2-standard": ("g2-standard-16", 16),
    "a2-highgpu": ("a2-highgpu-8g", 96), "a2-megagpu": ("a2-megagpu-16g", 96), "a2-ultragpu": ("a2-ultragpu-8g", 96),
    "a3-highgpu": ("a3-highgpu-8g", 208), "a3-megagpu": ("a3-megagpu-8g", 208),
}  # fmt: skip
"""Of each series the one machine whose price without cards stands in the rates, and its vCPUs: others go by vCPU."""
_LOCAL_SSDS = {"a2-ultragpu": 1, "a3-highgpu": 2, "a3-megagpu": 2}
"""Local disks of 375 GB for each card that come with a machine and are charged for."""


def _gcp_price(machine: Machine, region: str, market: Market) -> Money | None:
    """Add up a machine's vCPUs with their memory, its cards and its local disks; None if a part has no price."""
    if market not in machine.markets:
        return None
    series = machine.host.rpartition("-")[0]
    if series not in _RATED:
        return None
    (item, vcpus), column = _RATED[series], 0 if market == Market.ON_DEMAND else 1
    parts = [
        (item, Decimal(machine.vcpus) / vcpus),
        ("H100-MEGA" if series == "a3-megagpu" else machine.gpu, Decimal(machine.gpu_count)),
    ]
    if disks := _LOCAL_SSDS.get(series, 0) * machine.gpu_count:
        parts.append(("local-ssd", Decimal(disks)))
    total = Decimal(0)
    for part, amount in parts:
        rate = _rates().get((region, part), (None, None))[column]
        if rate is None:
            return None
        total += rate * amount
    return Money(round(total, 5), "USD")


def _rows(name: str) -> Iterator[Sequence[str]]:
    """Yield a table's packaged rows, and then those of the overlay: of two with one key the later counts."""
    with (DATA / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        next(rows)
        yield from rows
    yield from _laid_over(name)


def _laid_over(name: str) -> Sequence[Sequence[Any]]:
    return found().rows(name)


def _dicts(name: str) -> Iterator[dict[str, str]]:
    with (DATA / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.split("|")) if text else ()


def _branch(text: str) -> int | None:
    return int(text) if text else None


def _version(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    major, minor = text.split(".")
    return int(major), int(minor)
