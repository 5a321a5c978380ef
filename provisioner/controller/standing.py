"""Where a job stands, for the planner: what it has cost, how long it has run, what is trained, what spot pools did.

A run that is taken up again ranks anew by what was recorded, so all that a ranking goes by is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from provisioner.catalog import SpotPrice, spot_price
from provisioner.config import Config
from provisioner.controller.records import Begun, Placement, Watched
from provisioner.controller.recovery import given_back
from provisioner.controller.report import cost, placement_seconds
from provisioner.hazard import Seen, life
from provisioner.model import Ending, Market, Money, Offer
from provisioner.planner import FailureMemory, Plan, Pool, Standing, Work, catalog_offers, pool, speed

PACE_S = 600.0
"""A machine that trained for less shows no pace, in seconds."""
TAKEN = frozenset({Ending.LOST, Ending.STOPPED})
"""How a spot machine ends that its cloud takes back, as far as an earlier release recorded it."""


def standing(
    config: Config, begun: Begun, past: Sequence[Placement], now: float, elsewhere: Decimal = Decimal(0)
) -> Standing:
    """Return where a run stands at ``now`` (Unix seconds). Spent is in USD, as is ``elsewhere``: by no placement."""
    rate = config.policy.usd_cny
    spent = sum((amount / rate if name == "CNY" else amount for name, amount in cost(past).items()), elsewhere)
    elapsed, done = max(0.0, now - begun.at), _done(config.job.steps, past)
    hours = measured_hours(config, past)
    return Standing(Money(spent, "USD"), elapsed, done, _seen(past), _spot(config), hours, netted=True)


def measured_hours(config: Config, past: Sequence[Placement]) -> float | None:
    """Return how long the whole job takes on the card of its estimate, by the pace of its last machine that showed one.

    Hours; None where no machine trained for long enough, or nobody knows how its card compares.
    """
    for one in reversed(past):
        seen = one.watched
        if seen.first_step_at is None or seen.last_seen is None or seen.last_step is None:
            continue
        seconds, trained = seen.last_seen - seen.first_step_at, seen.last_step - (seen.restored_step or 0)
        if (hours := paced_hours(config, one.node.offer, seconds, trained)) is not None:
            return hours
    return None


def paced_hours(config: Config, offer: Offer, seconds: float, trained: int) -> float | None:
    """Return the same by the pace of one machine, which trained so many steps in so many seconds."""
    steps, estimate = config.job.steps, config.job.estimate
    work = Work(on=estimate.on, speeds=estimate.speeds, compute_share=estimate.compute_share, fit=config.job.measured)
    fast = speed(work, offer.gpu.name)
    if steps is None or fast is None or seconds < PACE_S or trained <= 0:
        return None
    return steps * seconds / trained / 3600.0 * fast


def beyond_budget(config: Config, plan: Plan, memory: FailureMemory) -> str:
    """Say that no offer brings the job to its end within the budget, or nothing while one may.

    A primary may have a cheaper card later, and what was refused lately may be had again.
    """
    if plan.ranked or plan.holds or memory.entries or config.primary is not None:
        return ""
    dear = [one for one in plan.passed_over if one.over_budget]
    return f"budget of {config.policy.budget}: {dear[0].offer.key} {dear[0].reason}" if dear and dear[0].offer else ""


def _done(steps: int | None, past: Sequence[Placement]) -> float | None:
    """Return the share that is trained, None where nobody knows. A little of it may be behind the last checkpoint."""
    last = next((one.watched.last_step for one in reversed(past) if one.watched.last_step is not None), None)
    if last is None:
        return 0.0
    return None if steps is None else min(1.0, last / steps)


def _spot(config: Config) -> dict[tuple[str, str], SpotPrice]:
    """Return the spot prices that are known of what the job may take: a refresh may change them at any time."""
    found = {(one.zone, one.instance_type): spot_price(one) for one in catalog_offers(config)}
    return {key: price for key, price in found.items() if price is not None}


def _was_taken(watched: Watched) -> bool:
    """Say whether its cloud took the machine back: one that hung, or that we gave back, was not."""
    taken = watched.taken if watched.rules >= 1 else watched.ending in TAKEN
    return taken and not given_back(watched)


def _seen(past: Sequence[Placement]) -> dict[Pool, Seen]:
    found: dict[Pool, Seen] = {}
    for one in past:
        if one.node.offer.market is Market.SPOT:
            name = pool(one.node.offer)
            found[name] = found.get(name, Seen()) + life(placement_seconds(one) / 3600.0, lost=_was_taken(one.watched))
    return found
