"""Which machines of Google Cloud could run a job, by region, zone and market; and why the others could not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from provisioner.catalog import tables
from provisioner.catalog.fit import Absent, Wanted, absent_in, candidates, right_size, unfit, vram_gb
from provisioner.catalog.tables import Machine
from provisioner.model import Gpu, Market, Offer

_VCPUS_A_CARD = range(4, 9)
"""What an n1 machine that nobody named has for each card; any other is taken when it is named."""


def gcp_offers(
    regions: Sequence[str],
    request: Wanted,
    machine_types: Sequence[str] = (),
    markets: Sequence[Market] = tuple(Market),
) -> list[Offer]:
    """List the machines that fit, in the order of ``regions``; no ``machine_types`` means any that fits.

    ``n1-standard-8`` among them stands for that type with every card that fits on it. Both markets carry the list
    price where the catalog has it; a spot price is that of the catalog's month, or of the last refresh.
    """
    named = bool(machine_types)
    fitting = [
        (machine, Gpu(machine.gpu, machine.gpu_count, vram_gb(machine)))
        for machine in _candidates(request, machine_types)
        if not unfit(machine, request, named=named)
    ]
    found = []
    for region in regions:
        for machine, gpu in fitting:
            zones = tables.offered_in(machine, region)
            if not zones:
                continue
            for market in markets:
                if market in machine.markets:
                    name = machine.instance_type
                    price = tables.price("gcp", region, name, market)
                    found += [Offer("gcp", region, zone, name, gpu, market, price) for zone in zones]
    return found


def gcp_absent(
    regions: Sequence[str],
    request: Wanted,
    machine_types: Sequence[str] = (),
    markets: Sequence[Market] = tuple(Market),
) -> list[Absent]:
    """List what ``gcp_offers`` leaves out although it was named, or has the right card, each with its reason."""
    found = []
    named = bool(machine_types)
    machines = list(_candidates(request, machine_types))
    judged = [(one, unfit(one, request, named=named)) for one in machines]
    bare = [name for name in machine_types if not any(name in {one.instance_type, one.host} for one in machines)]
    for region in regions:
        if not tables.zones("gcp").get(region):
            reason = f"no GPU machine is offered in {region} (catalog of {tables.snapshot('gcp')})"
            found.append(Absent(region, "", reason))
            continue
        found += [Absent(region, name, f"{name} can carry no card that the job asks for") for name in bare]
        offered = {machine.instance_type: tables.offered_in(machine, region) for machine in machines}
        found += absent_in(region, judged, offered, request, named=named)
        found += [
            Absent(region, one.instance_type, f"{one.instance_type} is sold on the spot market only")
            for one, problem in judged
            if offered[one.instance_type] and not problem and Market.SPOT not in markets
            and Market.ON_DEMAND not in one.markets
        ]  # fmt: skip
    return found


def gcp_machine_types(names: Sequence[str]) -> tuple[str, ...]:
    """Spell names of a configuration out: ``n1-standard-8`` becomes that type with each number of each card."""
    known = tables.machines("gcp")
    return tuple(
        dict.fromkeys(
            full for name in names for full in ([name] if name in known else [m for m in known if _host(m) == name])
        )
    )


def usual(machine: Machine) -> bool:
    """Say whether a machine is one to show and to offer unasked: of n1 with cards, a common size."""
    if "+" not in machine.instance_type:
        return True
    return machine.host.startswith("n1-standard") and machine.vcpus // machine.gpu_count in _VCPUS_A_CARD


def _candidates(request: Wanted, machine_types: Sequence[str]) -> Iterator[Machine]:
    if machine_types:
        for machine in candidates("gcp", request, gcp_machine_types(machine_types)):
            # Of a type that was named without cards, those with other cards were not asked for.
            if machine.instance_type in machine_types or not unfit(machine, request, named=False):
                yield machine
        return
    for machine in candidates("gcp", request, ()):
        cards = machine.gpu_count
        if "+" not in machine.instance_type or (usual(machine) and cards == right_size(machine, request.count)):
            yield machine


def _host(name: str) -> str:
    return name.partition("+")[0]
