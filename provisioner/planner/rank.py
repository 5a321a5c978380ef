"""Order offers, and say of each why it stands where it stands or was passed over. Pure: same values, same plan.

The order, most important first:

1. the very zone that just lost the machine comes last of all, in whatever place it is;
2. places in the order of the configuration: the primary, then each fallback;
3. inside a place, the region that just lost the machine comes last: what took one machine there takes the next;
4. machines whose hourly cost is bounded by a known price, cheapest bound first; then those that only ``max_price``
   bounds; then those whose price nobody knows;
5. of one machine type at one price, its spot market in every zone first and the same type on demand next. A spot price
   is not known beforehand, but it is at most the on-demand price, so this order never costs more than it says;
6. zones in turn over the regions (a of one, a of the next, b of one, ...), so that tries spread.

No offer stands over ``max_price``: what is dearer, or has a price that neither we nor the cloud can hold to it, is
passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from provisioner import catalog
from provisioner.model import Market, Money, Offer
from provisioner.planner.blocks import Block
from provisioner.planner.memory import FailureMemory

Ceiling = Callable[[Offer], Money | None]
"""The most that an hour of an offer can cost, where that is known."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """An offer in its place. ``at_most`` bounds the cost of an hour; None where nothing does."""

    offer: Offer
    reason: str
    block: str = ""
    at_most: Money | None = None


@dataclass(frozen=True, slots=True)
class PassedOver:
    """What is not tried, and why. ``offer`` is None for what is no offer at all, as a type that no zone has."""

    subject: str
    reason: str
    offer: Offer | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What to try, best first, and what not."""

    ranked: tuple[Ranked, ...]
    passed_over: tuple[PassedOver, ...]


@dataclass(frozen=True, slots=True)
class _Candidate:
    offer: Offer
    block: Block
    position: int
    ceiling: Money | None

    @property
    def held(self) -> bool:
        return self.block.max_price is not None and self.offer.market in self.block.held_markets


@dataclass(frozen=True, slots=True)
class _Rates:
    """Compares money of two currencies. ``usd_cny``: yuan for one dollar."""

    usd_cny: Decimal

    def usd(self, money: Money) -> Decimal:
        return money.amount / self.usd_cny if money.currency == "CNY" else money.amount


def rank(
    blocks: Sequence[Block],
    offers: Sequence[Offer],
    *,
    memory: FailureMemory,
    now: float,
    lost: Offer | None = None,
    usd_cny: Decimal = Decimal("7.1"),
    ceiling: Ceiling = catalog.price_ceiling,
    passed_over: Sequence[PassedOver] = (),
) -> Plan:
    """Rank offers. ``now`` is Unix seconds; ``lost`` the offer whose machine just went away.

    Every offer is either ranked or passed over; one that is given twice counts once.
    """
    rates = _Rates(usd_cny)
    candidates: list[_Candidate] = []
    passed = list(passed_over)
    for offer in {offer.key: offer for offer in offers}.values():
        found = _place(offer, blocks, memory, now, ceiling=ceiling(offer), rates=rates)
        if isinstance(found, _Candidate):
            candidates.append(found)
        else:
            passed.append(PassedOver(offer.key, found, offer))
    turns = _turns(candidates)
    candidates.sort(key=lambda candidate: _order(candidate, lost, turns[candidate.offer.key], rates))
    ranked = tuple(
        Ranked(one.offer, _reason(one, lost, rates), one.block.name, _at_most(one, rates)) for one in candidates
    )
    return Plan(ranked, tuple(passed))


def _place(
    offer: Offer, blocks: Sequence[Block], memory: FailureMemory, now: float, *, ceiling: Money | None, rates: _Rates
) -> _Candidate | str:
    """Find the first place that takes an offer, or say why none does."""
    refusal = memory.blocking(offer, now)
    if refusal is not None:
        failure, left = refusal.failure, refusal.until - now
        return f"{failure.kind} ({failure.code}) for this {failure.scope}, tried again in {left:.0f} s"
    reasons: list[tuple[int, str]] = []
    for position, block in enumerate(blocks):
        candidate = _Candidate(offer, block, position, ceiling)
        if reason := block.mismatch(offer):
            reasons.append((0 if offer.cloud != block.cloud else 1, reason))
        elif reason := block.unfit(offer) or _too_dear(candidate, rates):
            reasons.append((2, reason))
        else:
            return candidate
    return max(reasons, key=lambda reason: reason[0], default=(0, "the configuration names no place"))[1]


def _too_dear(candidate: _Candidate, rates: _Rates) -> str:
    cap, ceiling, offer = candidate.block.max_price, candidate.ceiling, candidate.offer
    if cap is None or candidate.held:
        return ""
    if ceiling is None:
        known = _elsewhere(offer)
        return f"the price is unknown{known}, so max_price {cap} cannot be kept"
    if rates.usd(ceiling) > rates.usd(cap):
        return f"{ceiling} an hour is over max_price {cap}"
    return ""


def _at_most(candidate: _Candidate, rates: _Rates) -> Money | None:
    """Return the bound of an hour's cost: the known price, or what the cloud holds the price to."""
    cap, ceiling = candidate.block.max_price, candidate.ceiling
    if not candidate.held or cap is None:
        return ceiling
    return cap if ceiling is None or rates.usd(ceiling) > rates.usd(cap) else ceiling


def _order(candidate: _Candidate, lost: Offer | None, turn: int, rates: _Rates) -> tuple[object, ...]:
    offer, bound = candidate.offer, _at_most(candidate, rates)
    known = 0 if bound is not None and bound == candidate.ceiling else 1 if bound is not None else 2
    reference = candidate.ceiling or (catalog.reference_price(offer.instance_type) if offer.cloud == "aws" else None)
    regions = candidate.block.regions
    return (
        _lost_zone(offer, lost),
        candidate.position,
        _lost_region(offer, lost),
        known,
        rates.usd(bound) if bound is not None else Decimal(0),
        rates.usd(reference) if reference is not None else Decimal("Infinity"),
        offer.instance_type,
        candidate.block.markets.index(offer.market),
        turn,
        regions.index(offer.region) if offer.region in regions else len(regions),
        offer.key,
    )


def _turns(candidates: Sequence[_Candidate]) -> dict[str, int]:
    """Number the zones of each region, for each type and market: zones with one number are tried before the next."""
    groups: dict[tuple[object, ...], list[Offer]] = {}
    for one in candidates:
        offer = one.offer
        groups.setdefault((one.position, offer.region, offer.instance_type, offer.market), []).append(offer)
    return {
        offer.key: turn
        for group in groups.values()
        for turn, offer in enumerate(sorted(group, key=lambda offer: offer.zone))
    }


def _lost_region(offer: Offer, lost: Offer | None) -> bool:
    return lost is not None and (offer.cloud, offer.region) == (lost.cloud, lost.region)


def _lost_zone(offer: Offer, lost: Offer | None) -> bool:
    return lost is not None and _lost_region(offer, lost) and offer.zone == lost.zone


def _reason(candidate: _Candidate, lost: Offer | None, rates: _Rates) -> str:
    offer = candidate.offer
    parts = [_price_words(candidate, rates)]
    if offer.gpu.count > candidate.block.count:
        parts.append(f"{offer.gpu.count} GPUs, {candidate.block.count} asked for")
    known = catalog.card(offer.gpu.name)
    if offer.cloud == "aws" and known is not None and known.driver == "proprietary":
        parts.append(f"{known.name} needs a machine image with the proprietary driver")
    if _lost_zone(offer, lost):
        parts.append("last, since the machine was lost here")
    elif _lost_region(offer, lost):
        parts.append(f"late, since the machine was lost in {offer.region}")
    return "; ".join(parts)


def _price_words(candidate: _Candidate, rates: _Rates) -> str:
    offer, ceiling, bound = candidate.offer, candidate.ceiling, _at_most(candidate, rates)
    if offer.price_per_hour is not None and bound == offer.price_per_hour:
        return f"{offer.price_per_hour} an hour"
    price = "the spot price is unknown" if offer.market == Market.SPOT else "the price is unknown"
    if bound is None:
        return price + _elsewhere(offer)
    if bound == ceiling:
        return f"{price}, at most {bound} as on demand"
    usual = f" (on demand {ceiling})" if ceiling is not None else _elsewhere(offer)
    return f"{price}{usual}, the cloud holds it to max_price {bound}"


def _elsewhere(offer: Offer) -> str:
    """Name the one region whose price is known, as what it is."""
    price = catalog.reference_price(offer.instance_type) if offer.cloud == "aws" else None
    return f" in {offer.region} ({catalog.REFERENCE_REGION} on demand: {price})" if price else ""
