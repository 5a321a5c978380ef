"""Which place takes an offer, and with which figures; or why none does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal

from provisioner import catalog
from provisioner.model import LEAST_BILLED_S, Market, Money, Offer
from provisioner.planner.blocks import Block
from provisioner.planner.expected import Expected, Way, priced, spot_guess, way
from provisioner.planner.memory import FailureMemory
from provisioner.planner.pools import NOTHING, loss_rate
from provisioner.planner.ranking import Basis, Candidate, Refused, elsewhere
from provisioner.planner.terms import Terms

Ceiling = Callable[[Offer], Money | None]
"""The most that an hour of an offer can cost; None: unknown."""
SpotPrices = Callable[[Offer], catalog.SpotPrice | None]
"""What an offer cost on the spot market when it was last looked up; None: unknown."""
FRESH_S = 6 * 3600.0
"""A spot price that was looked up within this time, in seconds, is taken for the price of now."""
_UNFIT, _OVER_BUDGET = 2, 3
"""How much these reasons weigh beside others: the nearer a place was to taking an offer, the more its reason says."""


class Matcher:
    """Looks at one offer after the other; zones of one machine type share their figures."""

    def __init__(
        self,
        blocks: Sequence[Block],
        memory: FailureMemory,
        now: float,
        terms: Terms,
        ceiling: Ceiling,
        spot_price: SpotPrices,
    ) -> None:
        """Take the places in their order. ``now`` is Unix seconds; the memory holds nothing that is over."""
        self.terms = terms
        self._blocks = blocks
        self._memory = memory
        self._now = now
        self._ceiling = ceiling
        self._spot_price = spot_price
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

    def match(self, offer: Offer) -> Candidate | Refused:
        """Find the first place that takes an offer, or say why none does."""
        if self._memory.entries:
            refusal = self._memory.blocking(offer, self._now)
            if refusal is not None:
                failure, left = refusal.failure, refusal.until - self._now
                return Refused(f"{failure.kind} ({failure.code}) for this {failure.scope}, tried again in {left:.0f} s")
        return self.despite(offer)

    def despite(self, offer: Offer) -> Candidate | Refused:
        """Find the first place that takes an offer, whatever was refused lately."""
        rate, seen = self._rates[offer.market] if not self.terms.seen else loss_rate(offer, self.terms.seen), None
        if offer.market is Market.SPOT and offer.price_per_hour is None:
            seen = self._spot_price(offer)
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
                self._fits[kind] = [_fit(block, offer) for block in self._blocks], self._ceiling(offer)
            found = self._found[key] = self._judge(offer, kind, rate, seen)
        return found

    def _judge(
        self, offer: Offer, kind: tuple[object, ...], rate: float, seen: catalog.SpotPrice | None
    ) -> Candidate | Refused:
        reasons: list[tuple[int, str]] = []
        fits, ceiling = self._fits[kind]
        for position, (block, (weight, unfit)) in enumerate(zip(self._blocks, fits, strict=True)):
            if unfit:
                reasons.append((weight, unfit))
            elif dear := self._too_dear(offer, block, ceiling, seen):
                reasons.append((_UNFIT, dear))
            else:
                candidate = self._reckon(offer, kind, position, ceiling, rate, seen)
                if not (beyond := self._over_budget(candidate, rate)):
                    return candidate
                reasons.append((_OVER_BUDGET, beyond))
        weight, words = max(reasons, key=lambda reason: reason[0], default=(0, "the configuration names no place"))
        return Refused(words, over_budget=weight == _OVER_BUDGET)

    def _too_dear(self, offer: Offer, block: Block, ceiling: Money | None, seen: catalog.SpotPrice | None) -> str:
        """Say why ``max_price`` rules an offer out, or nothing.

        Where the cloud holds a machine to it, only a fresh price says that the cloud would refuse: one that is old or
        reckoned may be wrong, and to ask costs one call.
        """
        cap, usd = block.max_price, self.terms.usd
        if cap is None:
            return ""
        if offer.market in block.held_markets:
            if seen is not None and self._fresh(seen) and usd(seen.price) > usd(cap):
                return f"the spot price is about {seen.price} an hour, above max_price {cap}"
            return ""
        if ceiling is None:
            return f"the price is unknown{elsewhere(offer)}, so max_price {cap} cannot be kept"
        if usd(ceiling) > usd(cap):
            return f"{ceiling} an hour is over max_price {cap}"
        return ""

    def _fresh(self, seen: catalog.SpotPrice) -> bool:
        return abs(self._now - seen.seen_at) <= FRESH_S

    def _reckon(
        self,
        offer: Offer,
        kind: tuple[object, ...],
        position: int,
        ceiling: Money | None,
        rate: float,
        seen: catalog.SpotPrice | None,
    ) -> Candidate:
        block, terms = self._blocks[position], self.terms
        usd, cap = terms.usd, block.max_price if offer.market in block.held_markets else None
        at_most = ceiling
        if cap is not None and (ceiling is None or usd(ceiling) > usd(cap)):
            at_most = cap  # the cloud itself holds the price to it
        price, basis = _price(offer, ceiling, seen)
        if cap is not None and (price is None or usd(price) > usd(cap)):
            basis = "cap"
        outlook = self._expected(offer, cap if basis == "cap" else price, rate)
        late = (
            terms.work.known
            and terms.seconds_left is not None
            and outlook is not None
            and outlook.way.hours * 3600.0 > terms.seconds_left
        )
        return Candidate(
            offer=offer,
            block=block,
            position=position,
            ceiling=ceiling,
            price=price,
            seen=seen,
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

        ``max_price`` has no part in it: a lower one must not bring an offer back. What has no price here is reckoned
        at its price in the region whose prices are known; what has none there either is left to the run's own budget.
        """
        left = self.terms.budget_left
        if (left is None and not self.terms.by_day) or one.offer.cloud == "local":
            return ""
        if one.at_most is None:
            key = "policy.budget" if left is not None else "policy.budget_per_day"
            return f"nothing bounds its price, so {key} cannot be kept; set max_price"
        least_s = LEAST_BILLED_S.get(one.offer.cloud, 0.0)
        least = self.terms.usd(one.at_most) * Decimal(str(least_s)) / 3600
        if left is not None and least > self.terms.usd(left):
            bills = f"{one.offer.cloud} bills {least_s:.0f} s at least, {least:.4f} USD at {one.at_most} an hour"
            return f"{bills}, and policy.budget leaves {left}"
        if left is None or not self.terms.work.known:
            return ""
        price, place = one.price, ""
        if price is None:
            price, _ = _price(one.offer, catalog.reference_price(one.offer.instance_type, one.offer.cloud), None)
            place = f", at the price of {catalog.REFERENCE_REGIONS.get(one.offer.cloud)}"
        found = self._expected(one.offer, price, rate)
        if found is None or found.cost is None or found.cost <= self.terms.usd(left):
            return ""
        return f"would cost about {found.cost:.2f} USD to the end{place}, and policy.budget leaves {left}"


def _fit(block: Block, offer: Offer) -> tuple[int, str]:
    """Say why a place does not take a machine, whatever it costs, and how much that says; or nothing."""
    if reason := block.mismatch(offer):
        return (0 if offer.cloud != block.cloud else 1), reason
    return _UNFIT, block.unfit(offer)


def _price(offer: Offer, ceiling: Money | None, seen: catalog.SpotPrice | None) -> tuple[Money | None, Basis]:
    """Return what an hour is reckoned to cost, and from what."""
    if offer.price_per_hour is not None:
        return offer.price_per_hour, "price"
    if seen is not None:
        return seen.price, "seen"
    if ceiling is not None:
        return spot_guess(ceiling) if offer.market is Market.SPOT else ceiling, "ceiling"
    return None, ""
