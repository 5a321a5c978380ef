"""What jobs have cost, from their ledgers: every machine, then the sums. A machine that runs counts until now."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from decimal import Decimal
from itertools import groupby, pairwise
from typing import Any

from provisioner.controller.billing import convert
from provisioner.controller.ledger import Bill
from provisioner.model import Money


def costs(bills: Sequence[Bill], now: float, since: float | None = None) -> dict[str, Any]:
    """Return the costs as plain JSON values: of each job, and of all of them. ``since``: count from then on only."""
    counted = [bill for bill in bills if since is None or bill.until(now) > since]
    jobs = [_job(name, list(group), now, since) for name, group in groupby(counted, key=lambda bill: bill.job)]
    return {"at": now, "since": since, "jobs": jobs, **_sums(counted, now, since)}


def of_run(bills: Sequence[Bill], run: int, now: float) -> dict[str, Any] | None:
    """Return the costs of one run of a job, as those of a job; None where no machine of it was entered."""
    ours = [bill for bill in bills if bill.run == run]
    return _job(ours[0].job, ours, now, None) if ours else None


def _job(name: str, bills: Sequence[Bill], now: float, since: float | None) -> dict[str, Any]:
    overlaps = _overlaps(bills, now)
    return {
        "job": name,
        "budget": _json(bills[-1].terms.budget),
        "machines": [_machine(bill, now, since, overlap) for bill, overlap in zip(bills, overlaps, strict=True)],
        "runs": [_run(run, list(group), now) for run, group in groupby(bills, key=lambda bill: bill.run)],
        **_sums(bills, now, since),
    }


def _machine(bill: Bill, now: float, since: float | None, overlap: float) -> dict[str, Any]:
    running = bill.runs(now)
    return {
        "run": bill.run,
        "epoch": bill.epoch,
        "node": bill.node,
        "cloud": bill.cloud,
        "region": bill.region,
        "zone": bill.zone,
        "instance_type": bill.instance_type,
        "market": bill.market,
        "role": _role(bill, now),
        "price_per_hour": _json(bill.price),
        "price_at_most": _json(bill.hourly),
        "begun": bill.begun,
        "ended": None if running else bill.until(now),
        "running": running,
        "seconds": round(bill.until(now) - bill.begun, 3),
        "cost": _cost(bill, now, since),
        "upper_bound": bill.bounded,
        "likely_cost": _likely(bill, now, since),
        "overlap_seconds": round(overlap, 3),
        "egress": _egress([bill]),
        "expected_cost": _json(bill.expected),
        "expected_hours": bill.expected_h,
        "problem": bill.problem,
    }


def _role(bill: Bill, now: float) -> str:
    if bill.in_doubt:
        return "unanswered"
    return "placement" if bill.watched else "claimed" if bill.runs(now) else "surplus"


def _cost(bill: Bill, now: float, since: float | None) -> dict[str, Any] | None:
    amount = _amount(bill, now, since)
    return None if amount is None or bill.hourly is None else _json(Money(amount, bill.hourly.currency))


def _amount(bill: Bill, now: float, since: float | None) -> Decimal | None:
    return bill.cost(now) if since is None else bill.cost_between(since, now)


def _likely(bill: Bill, now: float, since: float | None) -> dict[str, Any] | None:
    """Return what a machine without a known price has cost by the price that the plan reckoned with."""
    amount = _amount(bill, now, since)
    if bill.price is not None or bill.likely is None or bill.hourly is None or amount is None:
        return None
    reckoned = convert(bill.likely, bill.hourly.currency, bill.terms.usd_cny)
    return _json(Money(amount * reckoned / bill.hourly.amount, bill.hourly.currency))


def _run(run: int, bills: Sequence[Bill], now: float) -> dict[str, Any]:
    """Set what the plan expected of the run's first machine, to the end of the job, beside what it came to."""
    first = next((bill for bill in bills if bill.watched), bills[0])
    usd = sum((_in(bill, amount, "USD") for bill in bills if (amount := bill.cost(now)) is not None), Decimal(0))
    return {
        "run": run,
        "budget": _json(first.terms.budget),
        "expected_cost": _json(first.expected),
        "expected_hours": first.expected_h,
        "came_to": _json(Money(usd, "USD")),
        "hours": round((max(bill.until(now) for bill in bills) - first.begun) / 3600, 4),
        "running": any(bill.runs(now) for bill in bills),
        "unpriced": any(bill.hourly is None for bill in bills),
    }


def _sums(bills: Sequence[Bill], now: float, since: float | None) -> dict[str, Any]:
    """Add up by currency, and in the currency of the budgets; in dollars where those are not all in one."""
    total: dict[str, Decimal] = defaultdict(Decimal)
    currencies = {bill.terms.currency for bill in bills}
    currency, whole = (currencies.pop() if len(currencies) == 1 else "USD"), Decimal(0)
    for bill in bills:
        amount = _amount(bill, now, since)
        if amount is not None and bill.hourly is not None:
            total[bill.hourly.currency] += amount
            whole += _in(bill, amount, currency)
    return {
        "by_currency": {name: round(float(amount), 6) for name, amount in total.items()},
        "total": _json(Money(whole, currency)),
        "upper_bound": any(bill.bounded for bill in bills),
        "unpriced": [_name(bill) for bill in bills if bill.hourly is None],
        "egress": _egress(bills),
    }


def _in(bill: Bill, amount: Decimal, currency: str) -> Decimal:
    return Decimal(0) if bill.hourly is None else convert(
        Money(amount, bill.hourly.currency), currency, bill.terms.usd_cny
    )  # fmt: skip


def _egress(bills: Iterable[Bill]) -> dict[str, Any]:
    """Return what machines sent and fetched: bytes, dollars as far as list prices are known, and what has none."""
    moved = [one for bill in bills for one in bill.transfers]
    known = [one["egress"] for one in moved if one.get("egress") is not None]
    return {
        "bytes": sum(int(one.get("bytes") or 0) for one in moved),
        "usd": round(sum(float(one["amount"]) for one in known), 6),
        "unpriced": [str(one.get("uri")) for one in moved if one.get("egress") is None],
    }


def _overlaps(bills: Sequence[Bill], now: float) -> list[float]:
    """Return for each machine how long the job had the one before it, too, in seconds."""
    found = [0.0]
    for one, two in pairwise(bills):
        overlap = min(one.until(now), two.until(now)) - two.begun
        found.append(0.0 if one.in_doubt or two.in_doubt else max(0.0, overlap))
    return found


def _name(bill: Bill) -> str:
    return "/".join((bill.cloud, bill.region or "-", bill.zone or "-", bill.instance_type, bill.market))


def _json(money: Money | None) -> dict[str, Any] | None:
    return None if money is None else {"amount": round(float(money.amount), 6), "currency": money.currency}
