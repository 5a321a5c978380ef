"""Which AWS machines could run a job, by region, zone and market; and why the others could not."""

from __future__ import annotations

from collections.abc import Sequence

from provisioner.catalog import tables
from provisioner.catalog.fit import Absent, Wanted, absent_in, candidates, unfit, vram_gb
from provisioner.model import Gpu, Market, Offer


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
    named = bool(instance_types)
    fitting = [
        (machine, Gpu(machine.gpu, machine.gpu_count, vram_gb(machine)))
        for machine in candidates("aws", request, instance_types)
        if not unfit(machine, request, named=named)
    ]
    found = []
    for region in regions:
        offered = tables.zones("aws").get(region, {})
        for machine, gpu in fitting:
            name = machine.instance_type
            price = tables.price("aws", region, name)
            found += [
                Offer("aws", region, zone, name, gpu, market, None if market == Market.SPOT else price)
                for market in markets
                for zone in offered.get(name, ())
            ]
    return found


def aws_absent(regions: Sequence[str], request: Wanted, instance_types: Sequence[str] = ()) -> list[Absent]:
    """List what ``aws_offers`` leaves out although it was named, or has the right card, each with its reason."""
    found = []
    named = bool(instance_types)
    machines = [(one, unfit(one, request, named=named)) for one in candidates("aws", request, instance_types)]
    for region in regions:
        month = tables.snapshot("aws")
        offered = tables.zones("aws").get(region, {})
        if not tables.regions("aws").get(region, False):
            found.append(Absent(region, "", f"the catalog of {month} does not know what {region} offers"))
        elif not offered:
            found.append(Absent(region, "", f"no GPU machine is offered in {region} (catalog of {month})"))
        else:
            found += absent_in(region, machines, offered, request, named=named)
    return found
