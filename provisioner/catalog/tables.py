"""The packaged tables, read once: machine types, zones, regions and prices of AWS, and what is known of each GPU."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path

from provisioner.model import Money

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True)
class Machine:
    """An AWS machine type. ``gpu_memory_mib`` is MiB a card as the driver reports it; ``gpu_count`` 0 is a slice."""

    instance_type: str
    gpu: str
    gpu_count: int
    gpu_memory_mib: int
    vcpus: int
    architecture: str

    @property
    def quota_family(self) -> str:
        """Which vCPU quota of the account counts it: ``P``, or ``G`` (its quota is named "G and VT")."""
        return self.instance_type[0].upper()


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU model. ``vram_gb`` is GiB as the card is sold (0: unknown).

    ``cuda_from`` and ``cuda_to`` bound the CUDA toolkits that can build for it. ``driver`` says which machine image it
    needs: ``open`` kernel modules, or ``proprietary`` ones (before Turing), or ``amd``.
    """

    name: str
    group: str
    vram_gb: float
    cuda_from: tuple[int, int] | None
    cuda_to: tuple[int, int] | None
    driver: str
    autodl: tuple[str, ...]
    pro_spec: str
    aliases: tuple[str, ...]


@cache
def snapshot() -> str:
    """Return the month of AWS's offerings, e.g. ``2026-11``."""
    as_of: str = json.loads((DATA / "snapshot.json").read_text(encoding="utf-8"))["as_of"]
    return as_of


@cache
def machines() -> dict[str, Machine]:
    """Return every machine type that the offerings or the price list name."""
    return {
        name: Machine(name, gpu, int(count), int(memory), int(vcpus), architecture)
        for name, gpu, count, memory, vcpus, architecture in _rows("aws_types.csv")
    }


@cache
def zones() -> dict[str, dict[str, tuple[str, ...]]]:
    """Return region -> machine type -> zone names, as one account sees them (names differ between accounts)."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for region, instance_type, letters in _rows("aws_zones.csv"):
        found.setdefault(region, {})[instance_type] = tuple(region + letter for letter in letters)
    return found


@cache
def regions() -> dict[str, bool]:
    """Return every AWS region, and whether the snapshot holds its offerings."""
    return {region: read == "yes" for region, read in _rows("aws_regions.csv")}


@cache
def prices() -> dict[tuple[str, str], Money]:
    """Return (region, machine type) -> on-demand price an hour: Linux, shared tenancy. No spot prices are packaged."""
    return {
        (region, instance_type): Money(Decimal(amount), currency)
        for region, instance_type, amount, currency in _rows("aws_prices.csv")
    }


@cache
def egress_prices() -> dict[tuple[str, str], Money]:
    """Return (cloud, ``internet`` or another ``region`` of it) -> price of a GB that leaves, in its first tier."""
    return {(cloud, to): Money(Decimal(amount), currency) for cloud, to, amount, currency in _rows("egress.csv")}


@cache
def cards() -> dict[str, Card]:
    """Return every GPU model by its name."""
    found = {}
    for name, group, vram, _compute, cuda_from, cuda_to, driver, autodl, spec, aliases in _rows("gpus.csv"):
        found[name] = Card(
            name,
            group,
            float(vram),
            _version(cuda_from),
            _version(cuda_to),
            driver,
            _list(autodl),
            spec,
            _list(aliases),
        )
    return found


def _rows(name: str) -> Iterator[list[str]]:
    with (DATA / name).open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        next(rows)
        yield from rows


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.split("|")) if text else ()


def _version(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    major, minor = text.split(".")
    return int(major), int(minor)
