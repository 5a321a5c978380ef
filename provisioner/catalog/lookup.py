"""Questions about one machine, one region or one price, of any cloud."""

from __future__ import annotations

from provisioner.catalog import tables
from provisioner.catalog.gpus import AUTODL_REGIONS
from provisioner.catalog.tables import Machine, SpotPrice
from provisioner.model import Money, Offer

REFERENCE_REGIONS = {"aws": "us-east-1", "gcp": "us-central1"}
"""The regions whose price is named, and never used as one, where a region's own is unknown."""
REFERENCE_REGION = REFERENCE_REGIONS["aws"]


def machine(cloud: str, instance_type: str) -> Machine | None:
    """Return a machine type of ``aws`` or ``gcp``; None where it is unknown, and for other clouds."""
    return tables.machines(cloud).get(instance_type) if cloud in REFERENCE_REGIONS else None


def instance_types(cloud: str = "aws") -> tuple[str, ...]:
    """List the machine types that a configuration may name; of Google's n1, with and without cards."""
    names = dict.fromkeys(tables.machines(cloud))
    if cloud == "gcp":
        names.update(dict.fromkeys(one.host for one in tables.machines("gcp").values()))
    return tuple(names)


def regions(cloud: str = "aws") -> tuple[str, ...]:
    """List every region of a cloud, also those without a GPU or whose offerings the catalog has not read."""
    return AUTODL_REGIONS if cloud == "autodl" else tuple(tables.regions(cloud))


def price_ceiling(offer: Offer) -> Money | None:
    """Return the most that an hour of an offer can cost: its price, or for spot the on-demand price. None: unknown."""
    if offer.price_per_hour is not None:
        return offer.price_per_hour
    if offer.cloud not in REFERENCE_REGIONS:
        return None
    return tables.price(offer.cloud, offer.region, offer.instance_type)


def spot_price(offer: Offer) -> SpotPrice | None:
    """Return what a machine of AWS cost on the spot market when it was last looked up. No bound; None: unknown.

    Google's spot price is a list price: its offers carry it.
    """
    return tables.spot_prices().get((offer.zone, offer.instance_type)) if offer.cloud == "aws" else None


def reference_price(instance_type: str, cloud: str = "aws") -> Money | None:
    """Return the on-demand price in the reference region, to be shown as what it is and not as another region's."""
    return tables.price(cloud, REFERENCE_REGIONS[cloud], instance_type) if cloud in REFERENCE_REGIONS else None
