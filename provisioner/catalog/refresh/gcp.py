"""Google Cloud: machine types and cards by zone from Compute Engine, list prices of both markets from Cloud Billing.

Permissions: compute.machineTypes.list and compute.acceleratorTypes.list in the project; the price list asks for none,
but the project must have the Cloud Billing API enabled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import httpx

from provisioner.catalog import tables
from provisioner.catalog.overlay import Table
from provisioner.catalog.refresh.found import Done, Found, Missed, one_line, untold
from provisioner.errors import FailoverError

Get = Callable[[str, Mapping[str, str]], Mapping[str, Any]]
"""GET of a path (``compute/v1/...`` or ``billing/v1/...``) with a query: the JSON of the answer, or an error."""

_FAILURES = (FailoverError, httpx.HTTPError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""A refusal, no answer, or an answer that is not of the form that Google documents."""
COMPUTE_ENGINE = "6F81-5844-456A"
"""Id of the service in the price list."""
_WITH_CARDS = 'name eq "(a2|a3|a4|g2|g4)-.*"'
_MONTH_H = 730
_NANO = Decimal(10) ** 9

_HOSTS = {
    "n1-standard-96": ("N1 PREDEFINED", 96, 360), "n1-highmem-96": ("N1 PREDEFINED", 96, 624),
    "g2-standard-16": ("G2", 16, 64), "a2-highgpu-8g": ("A2", 96, 680), "a2-megagpu-16g": ("A2", 96, 1360),
    "a2-ultragpu-8g": ("A2", 96, 1360), "a3-highgpu-8g": ("A3", 208, 1872), "a3-megagpu-8g": ("A3PLUS", 208, 1872),
}  # fmt: skip
"""Item of the rates -> the name of its vCPUs and memory in the price list, how many vCPUs, GiB of memory."""
_CARDS = {
    "TESLA T4": "T4", "TESLA V100": "V100", "TESLA P100": "P100", "TESLA P4": "P4", "L4": "L4",
    "TESLA A100": "A100-40GB", "TESLA A100 80GB": "A100-80GB", "A100 80GB": "A100-80GB", "H100 80GB": "H100",
    "H100 80GB MEGA": "H100-MEGA", "H100 80GB PLUS": "H100-MEGA",
}  # fmt: skip
_CORE = re.compile(r"(?:spot preemptible )?(n1 predefined|g2|a2|a3plus|a3) (?:instance )?(core|ram)\b", re.IGNORECASE)
_CARD = re.compile(r"(?:spot preemptible )?nvidia (.+?) gpu\b", re.IGNORECASE)
_DISK = re.compile(r"ssd backed local storage\b", re.IGNORECASE)
_OTHER = re.compile(r"calendar|commitment|custom|dws|flex|premium|reserved|sole tenancy|suspended", re.IGNORECASE)
"""Other ways to buy the same thing: what is left is on demand, or spot."""


def refresh(get: Get, project: str, *, now: float, done: Done = untold) -> Found:
    """Ask both services. What one refuses is missed, the other is read all the same."""
    made: dict[str, Table] = {}
    missed: list[Missed] = []

    def ask(what: str, source: str, call: Callable[[], dict[str, set[tuple[str, ...]]]]) -> None:
        try:
            rows = call()
        except _FAILURES as error:
            missed.append(Missed("gcp", what, one_line(error)))
            rows = {}
        else:
            if not any(rows.values()):
                missed.append(Missed("gcp", what, "the answer holds nothing that the catalog knows"))
        made.update({name: Table(tuple(sorted(some)), now, source) for name, some in rows.items() if some})
        done(f"gcp {what}", sum(map(len, rows.values())))

    ask("zones and machine types", "GCE machineTypes and acceleratorTypes", lambda: _offered(get, project))
    ask("prices", "Cloud Billing SKUs", lambda: {"gcp_rates": set(_rates(_skus(get)))})
    return Found(made, tuple(missed))


def _offered(get: Get, project: str) -> dict[str, set[tuple[str, ...]]]:
    card_of = {name: card.name for card in tables.cards().values() for name in card.gcp}
    on_n1 = {machine.gpu for machine in tables.machines("gcp").values() if "+" in machine.instance_type}
    letters: dict[tuple[str, str], set[str]] = {}
    hosts: set[tuple[str, ...]] = set()

    def sold(zone: str, name: str) -> None:
        region, _, letter = zone.rpartition("-")
        if len(letter) == 1:  # us-south1-ai1b is a zone for reserved capacity
            letters.setdefault((region, name), set()).add(letter)

    path = f"compute/v1/projects/{project}/aggregated"
    for zone, item in _aggregated(get, f"{path}/machineTypes", "machineTypes", {"filter": _WITH_CARDS}):
        accelerators: Sequence[Mapping[str, Any]] = item.get("accelerators") or ()
        accelerator = str(accelerators[0]["guestAcceleratorType"]) if accelerators else ""
        if accelerator not in card_of:
            continue
        name = str(item["name"])
        known = tables.machines("gcp").get(name)
        markets = str(known.markets[0]) if known and len(known.markets) == 1 else ""
        count, vcpus = str(accelerators[0]["guestAcceleratorCount"]), str(item["guestCpus"])
        memory = f"{Decimal(str(item['memoryMb'])) / 1024:f}"
        hosts.add((name, card_of[accelerator], count, accelerator, vcpus, memory, markets))
        sold(zone, name)
    for zone, item in _aggregated(get, f"{path}/acceleratorTypes", "acceleratorTypes", {}):
        if (gpu := card_of.get(str(item["name"]))) in on_n1:
            sold(zone, f"n1+{gpu}")
    zones: set[tuple[str, ...]] = {(region, name, "".join(sorted(some))) for (region, name), some in letters.items()}
    return {"gcp_hosts": hosts, "gcp_zones": zones}


def _aggregated(get: Get, path: str, kind: str, query: Mapping[str, str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield zone and item of an aggregated list. What is deprecated can still be had and is kept; obsolete is not."""
    token = ""
    while True:
        page = get(path, {**query, "maxResults": "500", **({"pageToken": token} if token else {})})
        for scope, group in page.get("items", {}).items():
            for item in group.get(kind, ()):
                if item.get("deprecated", {}).get("state") not in {"OBSOLETE", "DELETED"}:
                    yield scope.removeprefix("zones/"), item
        token = str(page.get("nextPageToken") or "")
        if not token:
            return


def _skus(get: Get) -> Iterator[Mapping[str, Any]]:
    token = ""
    while True:
        page = get(
            f"billing/v1/services/{COMPUTE_ENGINE}/skus",
            {"pageSize": "5000", "currencyCode": "USD", **({"pageToken": token} if token else {})},
        )
        yield from page.get("skus", ())
        token = str(page.get("nextPageToken") or "")
        if not token:
            return


def _rates(skus: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Yield region, item, on-demand and spot price. Reservations and commitments have descriptions of other forms."""
    unit: dict[tuple[str, str, bool], Decimal] = {}
    for sku in skus:
        name, price = _named(str(sku.get("description", ""))), _price(sku)
        usage = sku.get("category", {}).get("usageType")
        if not name or price is None or usage not in {"OnDemand", "Preemptible"}:
            continue
        for region in sku.get("serviceRegions", ()):
            key = region, name, usage == "Preemptible"
            unit[key] = max(price, unit.get(key, price))  # should two lines be alike, the bound is the dearer
    yield from _items(unit)


def _items(unit: Mapping[tuple[str, str, bool], Decimal]) -> Iterator[tuple[str, ...]]:
    for region in sorted({region for region, _, _ in unit}):
        for item, parts in _parts().items():
            on_demand, spot = (_sum(unit, region, parts, spot=spot) for spot in (False, True))
            if on_demand or spot:
                yield region, item, on_demand, spot


def _parts() -> dict[str, list[tuple[str, Decimal]]]:
    """Return of each item of the rates what it is made of, and how much of it."""
    parts = {
        item: [(f"{family} Core", Decimal(vcpus)), (f"{family} Ram", Decimal(memory))]
        for item, (family, vcpus, memory) in _HOSTS.items()
    }
    parts |= {card: [(card, Decimal(1))] for card in _CARDS.values()}
    return parts | {"local-ssd": [("local-ssd", Decimal(375) / _MONTH_H)]}


def _sum(
    unit: Mapping[tuple[str, str, bool], Decimal], region: str, parts: Iterable[tuple[str, Decimal]], *, spot: bool
) -> str:
    """Add an item up; empty where a part of it has no price."""
    total = Decimal(0)
    for name, amount in parts:
        price = unit.get((region, name, spot))
        if price is None:
            return ""
        total += price * amount
    return f"{round(total, 6).normalize():f}"


def _named(description: str) -> str:
    """Return what a line of the price list is for; nothing where it is no business of ours."""
    if _OTHER.search(description):
        return ""
    if match := _CORE.match(description):
        return f"{match[1].upper()} {match[2].capitalize()}"
    if match := _CARD.match(description):
        return _CARDS.get(match[1].upper(), "")
    return "local-ssd" if _DISK.match(description) else ""


def _price(sku: Mapping[str, Any]) -> Decimal | None:
    """Return the price of the last tier in USD for an hour (a month, for disks); None for nothing and for zero."""
    infos = sku.get("pricingInfo") or ()
    rates = infos[-1].get("pricingExpression", {}).get("tieredRates") if infos else None
    if not rates:
        return None
    money = rates[-1].get("unitPrice", {})
    amount = Decimal(str(money.get("units") or 0)) + Decimal(str(money.get("nanos") or 0)) / _NANO
    return amount if amount > 0 and money.get("currencyCode", "USD") == "USD" else None
