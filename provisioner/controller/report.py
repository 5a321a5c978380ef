"""The report of a run: what happened, what was lost, what it cost, what is left."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any

from provisioner import catalog
from provisioner.controller import traffic
from provisioner.controller.billing import charge
from provisioner.controller.records import Begun, Claimed, Finished, Placement
from provisioner.errors import ExitCode
from provisioner.model import Ending, Failure, FailureKind, JobRef, Money

RESULTS: dict[Ending, tuple[str, ExitCode]] = {
    Ending.COMPLETED: ("completed", ExitCode.DONE),
    Ending.FAILED: ("failed", ExitCode.JOB_FAILED),
    Ending.LIMIT: ("limit_reached", ExitCode.LIMIT_REACHED),
    Ending.TAKEN_DOWN: ("taken_down", ExitCode.INTERRUPTED),
    Ending.NEVER_STARTED: ("no_offer", ExitCode.NO_OFFER),
}


def placement_seconds(placement: Placement) -> float:
    """Return how long a machine was ours: from the claim's answer to the confirmed release, in seconds."""
    return max(0.0, placement.released.at - placement.node.claimed_at)


def cost(placements: Sequence[Placement]) -> dict[str, Decimal]:
    """Return what machines cost by currency; where only a bound of the price is known, the bound counts.

    Machines that a race gave back count, too.
    """
    total: dict[str, Decimal] = defaultdict(Decimal)
    for placement in placements:
        price = placement.claimed.price
        if price is not None:
            total[price.currency] += charge(placement.node.offer.cloud, price, placement_seconds(placement))
        for currency, amount in surplus_cost(placement.claims).items():
            total[currency] += amount
    return dict(total)


def surplus_cost(claims: Sequence[Claimed]) -> dict[str, Decimal]:
    """Return what machines have cost that were given back, by currency."""
    total: dict[str, Decimal] = defaultdict(Decimal)
    for claimed in claims:
        if claimed.surplus is not None and claimed.price is not None:
            total[claimed.price.currency] += charge(claimed.offer.cloud, claimed.price, claimed.surplus.seconds)
    return dict(total)


def build_report(
    job: JobRef,
    begun: Begun,
    placements: Sequence[Placement],
    claims: Sequence[Claimed],
    ending: Ending,
    reason: str,
    finished: Finished,
    *,
    passed: Mapping[str, Failure] | None = None,
) -> dict[str, object]:
    """Return the report as plain JSON values. Times are Unix seconds, durations seconds.

    ``passed``: the offers that a quota had no room for, by key.
    """
    result, code = RESULTS.get(ending, ("failed", ExitCode.JOB_FAILED))
    if reason == "refused":
        result, code = "refused", ExitCode.CLOUD_REFUSED
    restored = [p.watched.restored_step for p in placements if p.watched.restored_step is not None]
    steps = [placement.watched.last_step for placement in placements if placement.watched.last_step is not None]
    surplus = [claimed for claimed in claims if claimed.surplus is not None]
    ours = {p.node.id for p in placements} | {one.surplus.node.id for one in surplus if one.surplus is not None}
    return {
        "version": 1,
        "job": job.name,
        "uid": job.uid,
        "result": result,
        "exit_code": int(code),
        "reason": reason,
        "placements": [_placement(placement) for placement in placements],
        "refused": [_attempt(claimed) for claimed in _without_placement(placements, claims)],
        "unknown_codes": _unknown_codes(claims),
        "moves": [_move(before, after) for before, after in pairwise(placements) if _overlap(before, after)],
        "surplus": [_surplus(claimed) for claimed in surplus],
        "over_quota": _over_quota(passed or {}),
        "restored_step": restored[-1] if restored else None,
        "final_step": steps[-1] if steps else None,
        "steps_lost": _steps_lost(placements),
        "recovery_seconds": _recovery_seconds(placements),
        "unanswered": _unanswered(finished, ours),
        "cost_estimate": _estimate(placements, finished, ours),
        "replicas": [
            traffic.as_json(copy) for copy in traffic.summed(copy for p in placements for copy in p.watched.copies)
        ],
        "egress_prices_of": catalog.EGRESS_AS_OF,
        "started_at": begun.at,
        "ended_at": finished.at,
        "leaked": [*finished.leaked],
    }


def _machines(finished: Finished) -> list[dict[str, Any]]:
    """Return the run's machines as the ledger has them."""
    return list(finished.money["machines"]) if finished.money is not None else []


def _unanswered(finished: Finished, ours: set[str]) -> list[dict[str, object]]:
    """Return the machines whose claim was never answered: found by their tags and given back, or not found (``""``)."""
    names = ("epoch", "node", "cloud", "region", "begun", "ended", "seconds", "price_at_most", "cost", "problem")
    return [{name: one[name] for name in names} for one in _machines(finished) if one["node"] not in ours]


def _estimate(placements: Sequence[Placement], finished: Finished, ours: set[str]) -> dict[str, object]:
    """Return what the run has cost: by the ledger, as ``failover cost`` has it.

    A ledger that lacks a machine (a full disk did not take the line) would tell too little: then the records count.
    """
    if finished.money is not None and ours <= {one["node"] for one in _machines(finished)}:
        return {name: finished.money[name] for name in ("by_currency", "upper_bound", "unpriced")}
    return {
        "by_currency": {currency: round(float(amount), 6) for currency, amount in cost(placements).items()},
        "upper_bound": any(p.node.offer.price_per_hour is None and p.claimed.at_most for p in placements),
        "unpriced": [p.node.offer.key for p in placements if p.claimed.price is None],
    }


def _placement(placement: Placement) -> dict[str, object]:
    offer, watched, price = placement.node.offer, placement.watched, placement.claimed.price
    seconds = placement_seconds(placement)
    return {
        "epoch": placement.epoch,
        **_where(placement.claimed),
        "gpu": offer.gpu.name,
        "gpu_count": offer.gpu.count,
        "node": placement.node.id,
        "attempts": [_attempt(claimed) for claimed in placement.claims],
        "ended": str(watched.ending),
        "reason": watched.reason,
        "cause": watched.cause,
        "restored_step": watched.restored_step,
        "restored_from": traffic.as_json(watched.restored_from) if watched.restored_from else None,
        "last_step": watched.last_step,
        "exit_code": watched.exit_code,
        "claimed_at": placement.node.claimed_at,
        "first_step_at": watched.first_step_at,
        "clock_ahead": watched.clock_ahead,
        "ended_at": watched.at,
        "released_at": placement.released.at,
        "seconds": round(seconds, 3),
        "cost": _money(None if price is None else Money(charge(offer.cloud, price, seconds), price.currency)),
    }


def _where(claimed: Claimed) -> dict[str, object]:
    offer = claimed.offer
    return {
        "cloud": offer.cloud,
        "region": offer.region,
        "zone": offer.zone,
        "instance_type": offer.instance_type,
        "market": str(offer.market),
        "price_per_hour": _money(offer.price_per_hour),
        "price_at_most": _money(claimed.price),
    }


def _money(money: Money | None) -> dict[str, object] | None:
    return None if money is None else {"amount": float(money.amount), "currency": money.currency}


def _attempt(claimed: Claimed) -> dict[str, object]:
    failure = claimed.failure
    return {
        **_where(claimed),
        "failure": str(failure.kind) if failure else None,
        "scope": str(failure.scope) if failure else None,
        "code": failure.code if failure else None,
        "message": failure.message if failure else claimed.stop or _surplus_words(claimed),
        "advice": failure.advice if failure else "",
        "at": claimed.at,
    }


def _surplus(claimed: Claimed) -> dict[str, object]:
    surplus = claimed.surplus
    if surplus is None:
        return {}
    return {
        **_where(claimed),
        "node": surplus.node.id,
        "seconds": round(surplus.seconds, 3),
        "problem": surplus.problem,
    }


def _surplus_words(claimed: Claimed) -> str:
    return "" if claimed.surplus is None else f"surplus: given back after {claimed.surplus.seconds:.0f} s"


def _unknown_codes(claims: Sequence[Claimed]) -> list[dict[str, object]]:
    """Count the codes that no table knows: each is worth a report to us."""
    unknown = [one for one in claims if one.failure is not None and one.failure.kind is FailureKind.UNKNOWN]
    messages = {(one.offer.cloud, one.failure.code): one.failure.message for one in unknown if one.failure}
    counted = Counter((one.offer.cloud, one.failure.code) for one in unknown if one.failure)
    return [
        {"cloud": cloud, "code": code, "count": count, "message": messages[cloud, code]}
        for (cloud, code), count in counted.items()
    ]


def _over_quota(passed: Mapping[str, Failure]) -> list[dict[str, object]]:
    """Return each quota that had no room, with the offers that were passed over for it."""
    found: dict[str, dict[str, object]] = {}
    for key, failure in passed.items():
        row = found.setdefault(
            failure.message,
            {"quota": failure.code, "message": failure.message, "advice": failure.advice, "offers": []},
        )
        offers = row["offers"]
        if isinstance(offers, list):
            offers.append(key)
    return list(found.values())


def _without_placement(placements: Sequence[Placement], claims: Sequence[Claimed]) -> Sequence[Claimed]:
    """Return the claims of the last search, the one that led to no placement."""
    return claims[sum(len(placement.claims) + 1 for placement in placements) :]


def _overlap(before: Placement, after: Placement) -> float:
    """Return for how long the job had both machines, in seconds."""
    return max(0.0, before.released.at - after.node.claimed_at)


def _move(before: Placement, after: Placement) -> dict[str, object]:
    """Tell of a placement that took over from one that still trained, and what it cost to have both machines."""
    seconds = _overlap(before, after)
    price = after.claimed.price
    cost = None if price is None else Money(price.amount * Decimal(str(seconds)) / 3600, price.currency)
    return {
        "from": before.node.offer.key,
        "to": after.node.offer.key,
        "at": before.watched.at,
        "steps_lost": _steps_lost([before, after]),
        "overlap_seconds": round(seconds, 3),
        "overlap_cost": _money(cost),
    }


def _steps_lost(placements: Sequence[Placement]) -> int:
    """Return the steps that had to be trained again, over all changes of machine."""
    lost = 0
    for before, after in pairwise(placements):
        if before.watched.last_step is not None and after.watched.restored_step is not None:
            lost += max(0, before.watched.last_step - after.watched.restored_step)
    return lost


def _recovery_seconds(placements: Sequence[Placement]) -> float | None:
    """Return the longest time from the last sign of a lost machine to the first step trained after the restore."""
    spans = [
        after.watched.first_step_at - before.watched.last_seen
        for before, after in pairwise(placements)
        if after.watched.first_step_at is not None and before.watched.last_seen is not None
    ]
    return round(max(spans), 3) if spans else None
