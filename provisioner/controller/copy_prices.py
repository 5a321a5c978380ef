"""What it costs to send a GB to a replica from each place where the job may run: for ``failover plan``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from provisioner import catalog
from provisioner.controller.stores import place
from provisioner.model import Money, Offer

if TYPE_CHECKING:
    from provisioner.config import StoreConfig


@dataclass(frozen=True, slots=True)
class CopyPrice:
    """What a GB costs that a machine at one place sends to a replica; None: the list has no price."""

    uri: str
    cloud: str
    region: str
    per_gb: Money | None


def copy_prices(replicas: Sequence[StoreConfig], offers: Iterable[Offer]) -> list[CopyPrice]:
    """Return the price for each replica from every place where the job may run, in the order of the offers."""
    places = dict.fromkeys((offer.cloud, offer.region) for offer in offers)
    return [
        CopyPrice(replica.uri, cloud, region, catalog.egress(cloud, region, at.cloud, at.region))
        for replica in replicas
        for at in (place(replica),)
        for cloud, region in places
    ]
