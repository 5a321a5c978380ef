"""Which AWS machines could run a job, by region, zone and market; and why the others could not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from provisioner.catalog import tables
from provisioner.catalog.gpus import cuda_problem, matches
from provisioner.catalog.tables import Machine
from provisioner.model import Gpu, Market, Money, Offer

REFERENCE_REGION = "us-east-1"
"""The region whose price is named, and never used as one, where a region's own is unknown."""


class Wanted(Protocol):
    """What a job asks of a machine: ``provisioner.clouds.base.Request`` and the ``resources`` section both are one."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """Names of cards; empty means any."""
        ...

    @property
    def count(self) -> int:
        """Cards in one machine."""
        ...

    @property
    def min_vram_gb(self) -> float:
        """GiB a card, as it is sold."""
        ...

    @property
    def cuda(self) -> tuple[int, int] | None:
        """CUDA toolkit of the job."""
        ...


@dataclass(frozen=True, slots=True)
class Absent:
    """A machine type that is no offer in a region, and why. ``instance_type`` is empty for a whole region."""

    region: str
    instance_type: str
    reason: str


def aws_offers(
    regions: Sequence[str],
    request: Wanted,
    instance_types: Sequence[str] = (),
    markets: Sequence[Market] = tuple(Market),
) -> list[Offer]:
    """List the machines that fit, in the order of ``regions``; no ``instance_types`` means any that fits.

    On-demand offers carry their price where it is known. Spot offers carry none: it changes by the hour, and
    ``price_ceiling`` is the most that it can be.
    """
    found = []
    for region in regions:
        offered = tables.zones().get(region, {})
        for machine in _candidates(request, instance_types):
            if machine.instance_type not in offered or _unfit(machine, request, named=bool(instance_types)):
                continue
            gpu = Gpu(machine.gpu, machine.gpu_count, vram_gb(machine))
            price = tables.prices().get((region, machine.instance_type))
            found += [
                Offer("aws", region, zone, machine.instance_type, gpu, market, None if market == Market.SPOT else price)
                for market in markets
                for zone in offered[machine.instance_type]
            ]
    return found


def aws_absent(regions: Sequence[str], request: Wanted, instance_types: Sequence[str] = ()) -> list[Absent]:
    """List what ``aws_offers`` leaves out although it was named, or has the right card, each with its reason."""
    found = []
    for region in regions:
        if not tables.regions().get(region, False):
            found.append(Absent(region, "", f"the catalog of {tables.snapshot()} does not know what {region} offers"))
            continue
        offered = tables.zones().get(region, {})
        if not offered:
            reason = f"no GPU machine is offered in {region} (catalog of {tables.snapshot()})"
            found.append(Absent(region, "", reason))
            continue
        found += list(_absent_in(region, offered, request, instance_types))
    return found


def price_ceiling(offer: Offer) -> Money | None:
    """Return the most that an hour of an offer can cost: its price, or for spot the on-demand price. None: unknown."""
    if offer.price_per_hour is not None:
        return offer.price_per_hour
    return tables.prices().get((offer.region, offer.instance_type)) if offer.cloud == "aws" else None


def reference_price(instance_type: str) -> Money | None:
    """Return the on-demand price in ``REFERENCE_REGION``, to be shown as what it is and not as another region's."""
    return tables.prices().get((REFERENCE_REGION, instance_type))


def vram_gb(machine: Machine) -> float:
    """Return GiB a card as it is sold: 24 for an L4, of which the driver reports 22.4. A slice has what it reports."""
    known = tables.cards().get(machine.gpu)
    if machine.gpu_count and known and known.vram_gb:
        return known.vram_gb
    return round(machine.gpu_memory_mib / 1024, 1)


def instance_types() -> tuple[str, ...]:
    """List the machine types that a configuration may name."""
    return tuple(tables.machines())


def regions() -> tuple[str, ...]:
    """List every AWS region, also those without a GPU or whose offerings the catalog has not read."""
    return tuple(tables.regions())


def _candidates(request: Wanted, instance_types: Sequence[str]) -> Iterator[Machine]:
    names: Iterable[str] = dict.fromkeys(instance_types) if instance_types else tables.machines()
    for name in names:
        machine = tables.machines().get(name)
        if machine is not None and (instance_types or matches(request.gpus, machine.gpu)):
            yield machine


def _absent_in(
    region: str, offered: dict[str, tuple[str, ...]], request: Wanted, instance_types: Sequence[str]
) -> Iterator[Absent]:
    named = bool(instance_types)
    for machine in _candidates(request, instance_types):
        name = machine.instance_type
        reason = _unfit(machine, request, named=named)
        if not named and not request.gpus and (reason or name not in offered):
            continue  # any card will do: a list of all that AWS once had tells nobody anything
        if name not in offered and (named or not reason):
            reason = f"{name} is not offered in any zone of {region} (catalog of {tables.snapshot()})"
        if reason:
            yield Absent(region, name, reason)


def _unusable(machine: Machine) -> str:
    """Say why a machine type can run no job of ours, or nothing."""
    name, card = machine.instance_type, tables.cards().get(machine.gpu)
    if card is not None and card.driver == "amd":
        return f"{name} has a {machine.gpu}, which runs no CUDA"
    if machine.architecture != "x86_64":
        return f"{name} is {machine.architecture}, and the machine image is x86_64"
    if machine.gpu_count == 0:
        return f"{name} holds a slice of one {machine.gpu} ({vram_gb(machine):g} GB), not a whole one"
    return ""


def _unfit(machine: Machine, request: Wanted, *, named: bool) -> str:
    """Say why a machine type cannot run this job, or nothing."""
    name = machine.instance_type
    if reason := _unusable(machine):
        return reason
    if not matches(request.gpus, machine.gpu):
        return f"{name} has {machine.gpu}, the job asks for {' or '.join(request.gpus)}"
    if machine.gpu_count < request.count:
        return f"{name} has {machine.gpu_count} GPU, the job asks for {request.count}"
    if vram_gb(machine) < request.min_vram_gb:
        return f"{name} has {vram_gb(machine):g} GB a card, the job asks for {request.min_vram_gb:g}"
    if problem := cuda_problem(machine.gpu, request.cuda):
        return f"{name}: {problem}"
    if not named and machine.gpu_count > _right_size(machine.gpu, request.count):
        more = f"{name} has {machine.gpu_count} GPUs, the job asks for {request.count}"
        return f"{more}; name it under instance_types to take it all the same"
    return ""


def _right_size(gpu: str, count: int) -> int:
    """Return the smallest number of these cards, at least ``count``, that any machine type has.

    A job that asks for one V100 must not end up with eight at 31 USD an hour because the small type is sold no more.
    """
    sizes = [m.gpu_count for m in tables.machines().values() if m.gpu == gpu and m.gpu_count >= count]
    group = tables.cards()[gpu].group if gpu in tables.cards() else ""
    if group:
        sizes += [m.gpu_count for m in tables.machines().values() if _group(m.gpu) == group and m.gpu_count >= count]
    return min(sizes, default=count)


def _group(gpu: str) -> str:
    known = tables.cards().get(gpu)
    return known.group if known else ""
