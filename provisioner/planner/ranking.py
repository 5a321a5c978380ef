"""The values of a ranking: candidates, ranked offers, what was passed over, and the plan of them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from provisioner import catalog
from provisioner.model import Money, Offer
from provisioner.planner.blocks import Block
from provisioner.planner.deadline import Course
from provisioner.planner.expected import Expected

Basis = Literal["price", "seen", "ceiling", "cap", ""]
"""Where the price comes from that a cost is reckoned with: the offer itself, the last refresh of spot prices, the most
that it can be (of a spot machine a share of that), or ``max_price`` alone."""


class Ranked(NamedTuple):
    """An offer in its place. ``at_most`` bounds the cost of an hour; None where nothing does.

    ``expected`` says what it costs to the end of the job, at a price of the given ``basis``; None where that cannot be
    told. ``distance_ms`` is the round trip to the store's region, in milliseconds.
    """

    offer: Offer
    reason: str
    block: str = ""
    at_most: Money | None = None
    expected: Expected | None = None
    basis: Basis = ""
    distance_ms: float | None = None

    @property
    def cost(self) -> Money | None:
        """What the job is expected to cost on it, in USD. None where only ``max_price`` bounds the price."""
        return self._dollars if self.basis != "cap" else None

    @property
    def cost_at_most(self) -> Money | None:
        """What the job costs at ``max_price``, in USD, where nothing else is known of the price."""
        return self._dollars if self.basis == "cap" else None

    @property
    def _dollars(self) -> Money | None:
        cost = self.expected.cost if self.expected is not None else None
        return None if cost is None else Money(cost, "USD")


@dataclass(frozen=True, slots=True)
class PassedOver:
    """What is not tried, and why. ``offer`` is None for what is no offer at all, as a type that no zone has."""

    subject: str
    reason: str
    offer: Offer | None = None
    over_budget: bool = False
    """It fits, but the job would cost more to its end than the budget leaves."""
    held: bool = False
    """It fits, but the deadline leaves time to wait for a spot machine."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to try, best first, and what not. ``notes`` say what the ranking takes for granted or leaves out."""

    ranked: tuple[Ranked, ...]
    passed_over: tuple[PassedOver, ...]
    notes: tuple[str, ...] = ()
    course: Course | None = None
    """Where the job stands against its deadline; None without one, without a length, or with one market alone."""

    @property
    def holds(self) -> bool:
        """Say whether something is held back for a spot machine that may come."""
        return any(one.held for one in self.passed_over)


@dataclass(frozen=True, slots=True)
class Refused:
    """Why no place takes an offer."""

    reason: str
    over_budget: bool = False


class Candidate(NamedTuple):
    """A place that takes an offer, and the offer's figures there. ``offer`` stands for all zones of its kind."""

    offer: Offer
    block: Block
    position: int
    ceiling: Money | None
    price: Money | None
    """What an hour is reckoned to cost, whatever ``max_price`` says."""
    seen: catalog.SpotPrice | None
    at_most: Money | None
    basis: Basis
    expected: Expected | None
    late: bool
    distance_ms: float | None
    turn: int
    """Where its region stands in the place's list."""
    kind: tuple[object, ...]
    """What it has in common with other zones of the region."""


def lost_region(offer: Offer, lost: Sequence[Offer]) -> int:
    """Return 0 for an offer in a region that lost no machine lately, else more the later. ``lost``: newest first."""
    return _lateness((offer.cloud, offer.region), [(one.cloud, one.region) for one in lost])


def lost_zone(offer: Offer, lost: Sequence[Offer]) -> int:
    """Return the same for the very zone."""
    return _lateness((offer.cloud, offer.region, offer.zone), [(one.cloud, one.region, one.zone) for one in lost])


def _lateness(place: tuple[str, ...], lost: Sequence[tuple[str, ...]]) -> int:
    return len(lost) - lost.index(place) if place in lost else 0


def elsewhere(offer: Offer) -> str:
    """Name the one region whose price is known, as what it is."""
    price = catalog.reference_price(offer.instance_type, offer.cloud)
    return f" in {offer.region} ({catalog.REFERENCE_REGIONS[offer.cloud]} on demand: {price})" if price else ""
