"""The pool of a spot machine: one machine type in one zone. How often machines are taken back is told for each."""

from __future__ import annotations

from collections.abc import Mapping

from provisioner.hazard import Seen
from provisioner.model import Market, Offer

Pool = tuple[str, str, str, str]
"""Cloud, region, zone and machine type."""
NOTHING = Seen()


def pool(offer: Offer) -> Pool:
    """Return the pool of an offer."""
    return (offer.cloud, offer.region, offer.zone, offer.instance_type)


def loss_rate(offer: Offer, seen: Mapping[Pool, Seen]) -> float:
    """Return the losses an hour to reckon with; on-demand machines are taken to stay."""
    return seen.get(pool(offer), NOTHING).rate if offer.market is Market.SPOT else 0.0
