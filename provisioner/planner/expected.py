"""What an offer is expected to cost until the job is done, and how long that takes. Plain arithmetic on given values.

With the job's hours on this card (``train``), the time from a claim to the first step (``start``), losses an hour
(``rate``) and the time that one loss costs (half a checkpoint interval and another start):

    hours = (train + start) / (1 - rate * (interval / 2 + start))
    cost  = hours * price + checkpoints fetched and saved * size * price of a GB that leaves a cloud
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Final, NamedTuple, Protocol

from provisioner import catalog
from provisioner.model import Money, Offer
from provisioner.planner.work import Work, speed

BOOT_S: Final = {"aws": 300.0, "gcp": 300.0, "autodl": 90.0, "local": 5.0}
"""From a claim to the running command, without the checkpoint. About 5 min are usual for a machine with a driver."""
NEAR_GB_S: Final = 0.2
FAR_GB_S: Final = 0.04
"""How fast a checkpoint arrives from a store in the machine's own region, and from elsewhere."""
SPOT_SHARE: Final = Decimal("0.4")
"""What an unknown spot price is reckoned as: this share of the on-demand price. Published: a third to a tenth."""
LEAST_PROGRESS: Final = 0.05
"""Where less of each hour than this is progress, a spot machine is taken to bring the job to no end."""


class Place(Protocol):
    """Where a store is."""

    @property
    def cloud(self) -> str:
        """``aws``, ``gcp``, ``autodl``, ``local`` or the name of another."""

    @property
    def region(self) -> str:
        """Its region; empty where nobody knows."""


class Way(NamedTuple):
    """The way of a job to its end on one machine, whatever it costs an hour. Hours; ``egress`` in USD.

    ``egress`` leaves out what has no list price (``egress_known`` False). ``hours`` is infinite where losses eat all
    progress.
    """

    speed: float
    train: float
    start: float
    rate: float
    losses: float
    hours: float
    egress: Decimal
    egress_known: bool


class Expected(NamedTuple):
    """A way and what it costs in USD at a price of an hour. ``cost`` is None where there is no end."""

    way: Way
    price: Money
    cost: Decimal | None


def way(offer: Offer, work: Work, rate: float, stores: Sequence[Place]) -> Way | None:
    """Return how long the job takes and what leaves a cloud, or None where nobody knows how fast the card is.

    ``rate``: losses an hour. ``stores``: the job's own, then its replicas.
    """
    fast = speed(work, offer.gpu.name)
    if fast is None:
        return None
    train = work.left / fast
    start = (BOOT_S.get(offer.cloud, 300.0) + _fetch_s(offer, work, stores)) / 3600.0
    a_loss = work.every_s / 7200.0 + start
    progress = 1.0 - rate * a_loss
    hours = (train + start) / progress if progress > LEAST_PROGRESS else float("inf")
    losses = rate * hours
    egress, known = _egress(offer, work, stores, starts=1.0 + losses, saves=train * 3600.0 / work.every_s)
    return Way(fast, train, start, rate, losses, hours, egress, known)


def priced(found: Way, price: Money, rate_usd: Decimal) -> Expected:
    """Return what a way costs. ``rate_usd``: units of the price's currency for one dollar."""
    if found.hours == float("inf"):
        return Expected(found, price, None)
    return Expected(found, price, _cents(float(price.amount) * found.hours / float(rate_usd)) + found.egress)


def spot_guess(ceiling: Money) -> Money:
    """Return what a spot machine is reckoned to cost whose price nobody knows, from the most that it can cost."""
    return Money((ceiling.amount * SPOT_SHARE).quantize(Decimal("0.0001")), ceiling.currency)


def _fetch_s(offer: Offer, work: Work, stores: Sequence[Place]) -> float:
    size = work.checkpoint_gb or 0.0
    near = any(store.cloud == offer.cloud and store.region and store.region == offer.region for store in stores)
    return size / (NEAR_GB_S if near else FAR_GB_S)


def _egress(offer: Offer, work: Work, stores: Sequence[Place], *, starts: float, saves: float) -> tuple[Decimal, bool]:
    """Return the dollars for what leaves a cloud, and whether all of it has a list price.

    Each start fetches a checkpoint from the cheapest store; each save sends a whole one to every store, which is the
    most that it can be: what has not changed is not sent again.
    """
    size = work.checkpoint_gb
    if not size or not stores or starts == float("inf"):
        return Decimal(0), True
    incoming = [catalog.egress(store.cloud, store.region, offer.cloud, offer.region) for store in stores]
    outgoing = [catalog.egress(offer.cloud, offer.region, store.cloud, store.region) for store in stores]
    priced = [float(one.amount) for one in incoming if one is not None]
    dollars = min(priced, default=0.0) * size * starts
    dollars += sum(float(one.amount) for one in outgoing if one is not None) * size * saves
    return _cents(dollars), bool(priced) and all(one is not None for one in outgoing)


def _cents(dollars: float) -> Decimal:
    """Round to a hundredth of a cent, so that a sum does not show how floats add up."""
    return Decimal(f"{dollars:.4f}")
