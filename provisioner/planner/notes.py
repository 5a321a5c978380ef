"""What a ranking takes for granted or leaves out, and what else may be cheaper: a line each, for the operator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from provisioner.config import Config, PrepaidConfig
from provisioner.model import Money
from provisioner.planner.ranking import Ranked
from provisioner.planner.terms import Terms

WEEK_H = 7 * 24.0
MONTH_H = 30 * 24.0
LONG_H = 5 * 24.0
"""From here on a prepaid week may be worth a look."""
WORTH_SAYING = 0.95


def notes(config: Config, terms: Terms, ranked: Sequence[Ranked]) -> tuple[str, ...]:
    """Return the lines for a plan."""
    return (*_taken_for_granted(terms), *_cheaper_behind(terms, ranked), *_prepaid(config, terms, ranked))


def _taken_for_granted(terms: Terms) -> Iterator[str]:
    work = terms.work
    if not work.known:
        yield (
            f"costs are those of {work.hours:g} h on {work.on}, since job.estimate.time is not set; nothing is passed "
            "over for its cost or its time"
        )
    if work.checkpoint_gb is None and terms.stores:
        yield "what leaves a cloud is not counted, since job.estimate.checkpoint_gb is not set"


def _cheaper_behind(terms: Terms, ranked: Sequence[Ranked]) -> Iterator[str]:
    """Say when the order of the file puts a cheaper fallback behind a dearer one."""
    if terms.by_cost:
        return
    fallbacks = [
        one for one in ranked if not one.block.startswith("primary") and one.basis in {"price", "seen", "ceiling"}
    ]
    costs = [
        (one.expected.cost, one) for one in fallbacks if one.expected is not None and one.expected.cost is not None
    ]
    if not costs:
        return
    first_cost, first = costs[0]
    least, best = min(costs, key=lambda pair: pair[0])
    if best.block != first.block and float(least) < WORTH_SAYING * float(first_cost):
        yield (
            f"{best.offer.key} at {best.block} is expected to cost {least:.2f} USD to the end, {first.block} "
            f"{first_cost:.2f} USD or more; policy.order: cost tries the cheaper one first"
        )


def _prepaid(config: Config, terms: Terms, ranked: Sequence[Ranked]) -> Iterator[str]:
    """Compare AutoDL's pay-as-you-go with its prepaid plans, which only its console sells."""
    best = next((one for one in ranked if one.offer.cloud == "autodl" and one.offer.price_per_hour is not None), None)
    if config.primary is None or best is None or best.expected is None or not terms.work.known:
        return
    hours, price = best.expected.way.hours, best.offer.price_per_hour
    plans = dict(_plans(config.primary.autodl.prepaid, hours, terms, price.currency)) if price is not None else {}
    if price is None or (not plans and hours < LONG_H):
        return
    whole = float(price.amount) * hours
    usual = f"AutoDL {best.offer.gpu.name}: {hours:.0f} h pay as you go cost {whole:.0f} {price.currency}"
    if not plans:
        weeks, months = ceil(hours / WEEK_H), ceil(hours / MONTH_H)
        yield (
            f"{usual}; prepaid plans of AutoDL's console are cheaper where a week costs less than {whole / weeks:.0f} "
            f"or a month less than {whole / months:.0f} {price.currency} (primary.autodl.prepaid compares)"
        )
        return
    told = ", ".join(f"{name} {cost.amount:.0f} {cost.currency}" for name, cost in plans.items())
    name, least = min(plans.items(), key=lambda pair: pair[1].amount)
    saved = whole - float(least.amount)
    if saved > 0:
        yield f"{usual}, {told}: {name} saves {saved:.0f} {price.currency}; only AutoDL's console sells it"
    else:
        yield f"{usual}, {told}: pay as you go is cheapest"


def _plans(prepaid: PrepaidConfig, hours: float, terms: Terms, currency: str) -> Iterator[tuple[str, Money]]:
    """Yield what whole weeks and whole months cost that are long enough, in one currency."""
    for word, price, length in (("week", prepaid.week, WEEK_H), ("month", prepaid.month, MONTH_H)):
        if price is not None and hours != float("inf"):
            count = max(1, ceil(hours / length))
            amount = terms.usd(price) * terms.rate(currency) * count
            yield f"{count} prepaid {word}{'s' if count > 1 else ''}", Money(amount, currency)
