"""How often spot machines of a pool are taken back: what was seen there, mixed with what is usual elsewhere.

A pool is one machine type in one zone. The rate is that of a Gamma-Poisson mix: (losses seen + 1) / (hours seen + 6).
With nothing seen it is one loss in six hours, between the zones of the traces of "Can't Be Late" (NSDI 2024), whose
p3.2xlarge machines lived 0.7 to 10.4 h on average. What is seen outweighs that after six hours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from provisioner.model import Market, Offer

PRIOR_LOSSES = 1.0
PRIOR_HOURS = 6.0

Pool = tuple[str, str, str, str]
"""Cloud, region, zone and machine type."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen in one pool: hours that spot machines ran, and how many of them were taken back."""

    hours: float = 0.0
    losses: int = 0

    def __add__(self, other: Seen) -> Seen:
        return Seen(self.hours + other.hours, self.losses + other.losses)

    @property
    def rate(self) -> float:
        """Losses an hour to reckon with."""
        return (PRIOR_LOSSES + self.losses) / (PRIOR_HOURS + self.hours)


NOTHING = Seen()


def pool(offer: Offer) -> Pool:
    """Return the pool of an offer."""
    return (offer.cloud, offer.region, offer.zone, offer.instance_type)


def loss_rate(offer: Offer, seen: Mapping[Pool, Seen]) -> float:
    """Return the losses an hour to reckon with; on-demand machines are taken to stay."""
    return seen.get(pool(offer), NOTHING).rate if offer.market is Market.SPOT else 0.0
