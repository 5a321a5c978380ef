"""Order offers, and say of each why it stands where it stands or was passed over. Pure: same values, same plan.

The order, most important first:

1. the very zone that just lost the machine comes last of all, in whatever place it is;
2. what is not expected to make ``policy.deadline`` comes behind what is, if the operator said how long the job is;
3. places: the primary, then each fallback in the order of the file, or all fallbacks together (``policy.order: cost``);
4. zones that a cloud named as having room, when it refused the same machine type and market elsewhere;
5. inside a place, the region that just lost the machine comes last: what took one machine there takes the next;
6. offers whose price is known, or bounded by a known one, by what they are expected to cost until the job is done
   (``expected``); then those that only ``max_price`` bounds; then those whose price or speed nobody knows;
7. of equal ones, the region that is nearer to the store;
8. zones in turn over the regions (a of one, a of the next, b of one, ...), so that tries spread.

No offer stands over ``max_price``: what is dearer, or has a price that neither we nor the cloud can hold to it, is
passed over. So is what a budget cannot bear. A price that nobody knows is never shown as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal

from provisioner import catalog
from provisioner.model import Market, Money, Offer
from provisioner.planner.blocks import Block
from provisioner.planner.expected import Expected, Way, priced, spot_guess, way
from provisioner.planner.memory import FailureMemory
from provisioner.planner.pools import NOTHING, loss_rate
from provisioner.planner.ranking import (
    Basis,
    Candidate,
    PassedOver,
    Plan,
    Ranked,
    Refused,
    elsewhere,
    lost_region,
    lost_zone,
)
from provisioner.planner.reasons import reason
from provisioner.planner.terms import Terms

Price = Callable[[Offer], Money | None]
_UNLOST = (False, False)
_UNFIT, _OVER_BUDGET = 2, 3
"""How much these reasons weigh beside others: the nearer a place was to taking an offer, the more its reason says."""


def rank(
    blocks: Sequence[Block],
    offers: Sequence[Offer],
    *,
    memory: FailureMemory,
    now: float,
    lost: Offer | None = None,
    terms: Terms | None = None,
    ceiling: Price = catalog.price_ceiling,
    spot_price: Price = catalog.spot_price,
    passed_over: Sequence[PassedOver] = (),
) -> Plan:
    """Rank offers. ``now`` is Unix seconds; ``lost`` the offer whose machine just went away.

    ``ceiling`` tells the most that an hour can cost, ``spot_price`` what it cost when prices were last looked up. Every
    offer is either ranked or passed over; one that is given twice counts once.
    """
    desk = _Desk(blocks, memory.forget(now), now, terms or Terms(), ceiling, spot_price)
    found: list[tuple[str, Offer, Candidate]] = []
    passed = list(passed_over)
    for key, offer in {offer.key: offer for offer in offers}.items():
        place = desk.place(offer)
        if isinstance(place, Candidate):
            found.append((key, offer, place))
        else:
            passed.append(PassedOver(key, place.reason, offer, place.over_budget))
    return Plan(tuple(_ranked(found, desk, lost)), tuple(passed))


def _ranked(found: Sequence[tuple[str, Offer, Candidate]], desk: _Desk, lost: Offer | None) -> Iterator[Ranked]:
    """Yield what a place takes in its order. What zones of one machine type share is looked at once."""
    terms = desk.terms
    alike = {id(one): one for _, _, one in found}
    figures = {name: _figures(one, terms) for name, one in alike.items()}
    step = {value: number for number, value in enumerate(sorted(set(figures.values())))}
    places = {name: (one.late, _place(one, terms)) for name, one in alike.items()}
    steps = {name: step[value] for name, value in figures.items()}
    turns = _turns(found)

    def order(one: tuple[str, Offer, Candidate]) -> tuple[object, ...]:
        key, offer, candidate = one
        name = id(candidate)
        special = _UNLOST if lost is None else (lost_zone(offer, lost), lost_region(offer, lost))
        return (
            special[0],
            places[name],
            not desk.named(offer),
            special[1],
            steps[name],
            turns[key],
            candidate.turn,
            key,
        )

    told: dict[tuple[object, ...], str] = {}
    for _, offer, one in sorted(found, key=order):
        named = desk.named(offer)
        late = one.expected.hours if one.late and one.expected is not None else 0.0
        like = (one.kind, one.basis, late, one.at_most, named, lost is not None and lost_zone(offer, lost))
        words = told.get(like)
        if words is None:
            words = told[like] = reason(one, offer, lost, terms, named=named)
        yield Ranked(offer, words, one.block.name, one.at_most, one.expected, one.basis, one.distance_ms)


class _Desk:
    """Looks at one offer after the other; zones of one machine type share their figures."""

    def __init__(
        self,
        blocks: Sequence[Block],
        memory: FailureMemory,
        now: float,
        terms: Terms,
        ceiling: Price,
        spot_price: Price,
    ) -> None:
        self.blocks = blocks
        self.memory = memory
        self.now = now
        self.terms = terms
        self.ceiling = ceiling
        self.spot_price = spot_price
        self._rates = {market: NOTHING.rate if market is Market.SPOT else 0.0 for market in Market}
        self._regions = [{name: number for number, name in enumerate(block.regions)} for block in blocks]
        self._zoned = any(block.zones for block in blocks)
        self._named = {
            (entry.offer.cloud, entry.offer.instance_type, entry.offer.market, zone)
            for entry in memory.entries
            for zone in entry.failure.elsewhere
        }
        self._found: dict[tuple[object, ...], Candidate | Refused] = {}
        self._fits: dict[tuple[object, ...], tuple[list[tuple[int, str]], Money | None]] = {}
        self._ways: dict[tuple[object, ...], Way | None] = {}
        self._distances: dict[tuple[str, str], float | None] = {}

    def named(self, offer: Offer) -> bool:
        """Say whether a cloud named the zone as having room for this machine."""
        return bool(self._named) and (offer.cloud, offer.instance_type, offer.market, offer.zone) in self._named

    def place(self, offer: Offer) -> Candidate | Refused:
        """Find the first place that takes an offer, or say why none does."""
        if self.memory.entries:
            refusal = self.memory.blocking(offer, self.now)
            if refusal is not None:
                failure, left = refusal.failure, refusal.until - self.now
                return Refused(f"{failure.kind} ({failure.code}) for this {failure.scope}, tried again in {left:.0f} s")
        rate, seen = self._rates[offer.market] if not self.terms.seen else loss_rate(offer, self.terms.seen), None
        if offer.market is Market.SPOT and offer.price_per_hour is None:
            seen = self.spot_price(offer)
        zone = offer.zone if self._zoned else ""
        # Of GPUs and prices the very objects: to compare them whole would cost more than what is saved here.
        price = id(offer.price_per_hour)
        kind = (
            offer.cloud,
            offer.region,
            zone,
            offer.instance_type,
            offer.market,
            id(offer.gpu),
            offer.available,
            price,
        )
        key = (kind, rate, id(seen))
        found = self._found.get(key)
        if found is None:
            if kind not in self._fits:
                self._fits[kind] = [_fit(block, offer) for block in self.blocks], self.ceiling(offer)
            found = self._found[key] = self._judge(offer, kind, rate, seen)
        return found

    def _judge(self, offer: Offer, kind: tuple[object, ...], rate: float, seen: Money | None) -> Candidate | Refused:
        reasons: list[tuple[int, str]] = []
        fits, ceiling = self._fits[kind]
        for position, (block, (weight, unfit)) in enumerate(zip(self.blocks, fits, strict=True)):
            if unfit:
                reasons.append((weight, unfit))
            elif dear := self._too_dear(offer, block, ceiling):
                reasons.append((_UNFIT, dear))
            else:
                candidate = self._reckon(offer, kind, position, ceiling, rate, seen)
                if not (beyond := self._over_budget(candidate, rate)):
                    return candidate
                reasons.append((_OVER_BUDGET, beyond))
        weight, words = max(reasons, key=lambda reason: reason[0], default=(0, "the configuration names no place"))
        return Refused(words, over_budget=weight == _OVER_BUDGET)

    def _too_dear(self, offer: Offer, block: Block, ceiling: Money | None) -> str:
        cap = block.max_price
        if cap is None or offer.market in block.held_markets:
            return ""
        if ceiling is None:
            return f"the price is unknown{elsewhere(offer)}, so max_price {cap} cannot be kept"
        if self.terms.usd(ceiling) > self.terms.usd(cap):
            return f"{ceiling} an hour is over max_price {cap}"
        return ""

    def _reckon(
        self,
        offer: Offer,
        kind: tuple[object, ...],
        position: int,
        ceiling: Money | None,
        rate: float,
        seen: Money | None,
    ) -> Candidate:
        block = self.blocks[position]
        usd, cap = self.terms.usd, block.max_price if offer.market in block.held_markets else None
        at_most = ceiling
        if cap is not None and (ceiling is None or usd(ceiling) > usd(cap)):
            at_most = cap  # the cloud itself holds the price to it
        basis: Basis = ""
        price = offer.price_per_hour
        if price is not None:
            basis = "price" if at_most == price else "cap"
        elif seen is not None:
            price = seen
            basis = "seen" if cap is None or usd(price) <= usd(cap) else "cap"
        elif ceiling is not None:
            price = spot_guess(ceiling) if offer.market is Market.SPOT else ceiling
            basis = "ceiling" if cap is None or usd(price) <= usd(cap) else "cap"
        elif cap is not None:
            basis = "cap"
        terms = self.terms
        outlook = self._expected(offer, cap if basis == "cap" else price, rate)
        late = (
            terms.work.known
            and terms.seconds_left is not None
            and outlook is not None
            and outlook.hours * 3600.0 > terms.seconds_left
        )
        return Candidate(
            offer=offer,
            block=block,
            position=position,
            ceiling=ceiling,
            price=price,
            at_most=at_most,
            basis=basis,
            expected=outlook,
            late=late,
            distance_ms=self._distance(offer),
            turn=self._regions[position].get(offer.region, len(block.regions)),
            kind=kind,
        )

    def _expected(self, offer: Offer, price: Money | None, rate: float) -> Expected | None:
        if price is None:
            return None
        key = (offer.cloud, offer.region, offer.gpu.name, rate)
        if key not in self._ways:
            self._ways[key] = way(offer, self.terms.work, rate, self.terms.stores)
        found = self._ways[key]
        return None if found is None else priced(found, price, self.terms.rate(price.currency))

    def _distance(self, offer: Offer) -> float | None:
        key = (offer.cloud, offer.region)
        if key not in self._distances:
            self._distances[key] = self.terms.distance_ms(offer)
        return self._distances[key]

    def _over_budget(self, one: Candidate, rate: float) -> str:
        """Say why a budget cannot bear an offer, or nothing. This machine costs nothing to rent.

        ``max_price`` has no part in it: a lower one must not bring an offer back.
        """
        left = self.terms.budget_left
        if left is None or one.offer.cloud == "local":
            return ""
        if one.at_most is None:
            return "nothing bounds its price, so policy.budget cannot be kept; set max_price"
        if not self.terms.work.known or one.price is None:
            return ""
        found = self._expected(one.offer, one.price, rate)
        cost = found.cost if found is not None else None
        if cost is None or cost <= self.terms.usd(left):
            return ""
        return f"would cost about {cost:.2f} USD to the end, and policy.budget leaves {left}"


def _place(one: Candidate, terms: Terms) -> int:
    return (0 if one.block.home else 1) if terms.by_cost else one.position


def _fit(block: Block, offer: Offer) -> tuple[int, str]:
    """Say why a place does not take a machine, whatever it costs, and how much that says; or nothing."""
    if reason := block.mismatch(offer):
        return (0 if offer.cloud != block.cloud else 1), reason
    return _UNFIT, block.unfit(offer)


def _figures(one: Candidate, terms: Terms) -> tuple[object, ...]:
    """Return what the zones of one machine type are compared by with others."""
    offer = one.offer
    cost = one.expected.cost if one.expected is not None else None
    reference = one.ceiling or catalog.reference_price(offer.instance_type, offer.cloud)
    bound = one.at_most if cost is None else None
    return (
        2 if cost is None else 1 if one.basis == "cap" else 0,
        cost if cost is not None else terms.usd(bound) if bound is not None else Decimal("Infinity"),
        terms.usd(reference) if reference is not None else Decimal("Infinity"),
        one.distance_ms if one.distance_ms is not None else float("inf"),
        one.position,
        offer.instance_type,
        one.block.markets.index(offer.market),
    )


def _turns(found: Sequence[tuple[str, Offer, Candidate]]) -> dict[str, int]:
    """Number the zones of each region, for each type and market: zones with one number are tried before the next."""
    groups: dict[tuple[object, ...], list[tuple[str, str]]] = {}
    for key, offer, one in found:
        groups.setdefault((one.position, offer.region, offer.instance_type, offer.market), []).append((offer.zone, key))
    return {key: turn for group in groups.values() for turn, (_, key) in enumerate(sorted(group))}
