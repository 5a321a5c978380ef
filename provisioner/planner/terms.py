"""What the planner is told besides offers: the job's length and stores, its limits, what was seen of spot pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from provisioner.catalog import SpotPrice, geography
from provisioner.config import Config
from provisioner.hazard import Seen
from provisioner.model import Money, Offer, unpickle
from provisioner.planner.expected import Place
from provisioner.planner.pools import Pool
from provisioner.planner.work import ASSUMED_EVERY_S, ASSUMED_HOURS, Work

UNSEEN_S = 600.0
"""How long a loss may go unseen at most, in seconds, where ``policy.lost_after`` is learned."""
ROUND_S = 360.0
"""Between the beginnings of two rounds of claims, in seconds: the longest pause, and a minute for the claims."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a job stands: money spent, seconds since its start, the share that is trained, and what spot pools did.

    ``done`` None: something is trained, and nobody knows how much of the whole. Then costs compare offers, and no limit
    goes by them.
    """

    spent: Money | None = None
    elapsed_s: float = 0.0
    done: float | None = 0.0
    seen: Mapping[Pool, Seen] = field(default_factory=dict)
    spot: Mapping[tuple[str, str], SpotPrice] | None = None
    """Spot prices of AWS by zone and machine type, as they were known then; None: as they are known now."""
    hours: float | None = None
    """Hours of the whole job on the card of its estimate, by the pace that was measured; None: nothing was."""
    netted: bool = False
    """Whether ``deadline`` has a say. A run that an earlier release recorded is ranked as it was then."""

    def __setstate__(self, state: Sequence[object]) -> None:
        """Read a pickle, also one of an earlier version."""
        unpickle(self, state)


@dataclass(frozen=True, slots=True)
class Terms:
    """What a ranking goes by.

    ``stores``: the job's own, then its replicas. ``by_cost``: fallbacks in one order of cost, not one after the other.
    ``seconds_left`` to the deadline and ``budget_left`` are None without limit. ``round_trips``: measured milliseconds
    by (cloud, region); they stand for the distance to the store.
    """

    work: Work = field(default_factory=Work)
    stores: tuple[Place, ...] = ()
    seen: Mapping[Pool, Seen] = field(default_factory=dict)
    usd_cny: Decimal = Decimal("7.1")
    by_cost: bool = False
    seconds_left: float | None = None
    budget_left: Money | None = None
    round_trips: Mapping[tuple[str, str], float] = field(default_factory=dict)
    margin_s: float = 0.0
    """What a loss may cost beside another start: see ``deadline.Course``."""
    netted: bool = False
    """Whether ``deadline`` has a say."""
    by_day: bool = False
    """Whether the job has a budget for each day."""
    returns: bool = False
    """Whether the job can go back to spot from on demand: its progress is known."""
    waits: bool = False
    """Whether the job may wait for a spot machine at all."""

    def rate(self, currency: str) -> Decimal:
        """Return the units of a currency for one dollar."""
        return self.usd_cny if currency == "CNY" else Decimal(1)

    def usd(self, money: Money) -> Decimal:
        """Return an amount in dollars."""
        return money.amount if money.currency == "USD" else money.amount / self.rate(money.currency)

    def distance_ms(self, offer: Offer) -> float | None:
        """Return the measured round trip to a region, else that of light between it and the job's own store."""
        if self.round_trips:
            return self.round_trips.get((offer.cloud, offer.region))
        if not self.stores:
            return None
        store = self.stores[0]
        km = geography.distance_km(offer.cloud, offer.region, store.cloud, store.region)
        return None if km is None else km / geography.KM_A_MS


def terms(
    config: Config,
    *,
    standing: Standing | None = None,
    stores: Sequence[Place] = (),
    round_trips: Mapping[tuple[str, str], float] | None = None,
) -> Terms:
    """Return the terms of a configuration for a job that stands where it stands."""
    at, policy, estimate = standing or Standing(), config.policy, config.job.estimate
    made = Terms(usd_cny=policy.usd_cny)
    budget = policy.budget
    if budget is not None and at.spent is not None:
        spent = made.usd(at.spent) * made.rate(budget.currency)
        budget = Money(max(Decimal(0), budget.amount - spent), budget.currency)
    hours = at.hours if at.hours is not None or estimate.time is None else estimate.time / 3600.0
    every_s = config.checkpoint.every or ASSUMED_EVERY_S
    return Terms(
        work=Work(
            hours=ASSUMED_HOURS if hours is None else hours,
            known=hours is not None and at.done is not None,
            on=estimate.on,
            speeds=estimate.speeds,
            compute_share=estimate.compute_share,
            checkpoint_gb=estimate.checkpoint_gb,
            every_s=every_s,
            done=min(1.0, max(0.0, at.done or 0.0)),
            fit=config.job.measured,
        ),
        stores=tuple(stores),
        seen=at.seen,
        usd_cny=policy.usd_cny,
        by_cost=policy.order == "cost",
        seconds_left=None if policy.deadline is None else max(0.0, policy.deadline - at.elapsed_s),
        budget_left=budget,
        round_trips=round_trips or {},
        margin_s=every_s + (policy.lost_after or UNSEEN_S) + policy.poll + ROUND_S,
        netted=standing is None or at.netted,
        by_day=policy.budget_per_day is not None,
        returns=config.job.steps is not None,
        waits=policy.retry_for > 0,
    )
