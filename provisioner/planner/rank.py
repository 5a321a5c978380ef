"""Order offers, and say of each why it stands where it stands or was passed over. Pure: same values, same plan.

The order, most important first:

1. the very zone that lost the newest machine comes last of all, in whatever place it is;
2. what is not expected to make ``policy.deadline`` comes behind what is, if it is known how long the job is; so do spot
   machines whose loss would make it late (``deadline``), while what is on demand is passed over as long as it is early
   enough to wait for spot;
3. zones that lost a machine within the last hour come behind the others, in whatever place, the later the farther;
4. places: the primary, then each fallback in the order of the file, or all fallbacks together (``policy.order: cost``);
5. zones that a cloud named as having room, when it refused the same machine type and market elsewhere;
6. inside a place, the regions that lost a machine come last, too: what took one machine there takes the next;
7. offers whose price is known, or bounded by a known one, by what they are expected to cost until the job is done
   (``expected``); then those that only ``max_price`` bounds; then those whose price or speed nobody knows;
8. of equal ones, the region that is nearer to the store;
9. zones in turn over the regions (a of one, a of the next, b of one, ...), so that tries spread.

No offer stands over ``max_price``: what is dearer, or has a price that neither we nor the cloud can hold to it, is
passed over; so is a spot machine that a fresh spot price puts above it, and what a budget cannot bear. A price that
nobody knows is never shown as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal

from provisioner import catalog
from provisioner.model import Market, Offer
from provisioner.planner.blocks import Block
from provisioner.planner.deadline import Course, Markets
from provisioner.planner.match import Ceiling, Matcher, SpotPrices
from provisioner.planner.memory import FailureMemory
from provisioner.planner.ranking import Candidate, PassedOver, Plan, Ranked, lost_region, lost_zone
from provisioner.planner.reasons import reason
from provisioner.planner.terms import Terms


def rank(
    blocks: Sequence[Block],
    offers: Sequence[Offer],
    *,
    memory: FailureMemory,
    now: float,
    lost: Sequence[Offer] = (),
    terms: Terms | None = None,
    ceiling: Ceiling = catalog.price_ceiling,
    spot_price: SpotPrices = catalog.spot_price,
    passed_over: Sequence[PassedOver] = (),
) -> Plan:
    """Rank offers. ``now`` is Unix seconds; ``lost`` the offers whose machines went away lately, the newest first.

    ``ceiling`` tells the most that an hour can cost, ``spot_price`` what it cost when prices were last looked up. Every
    offer is either ranked or passed over; one that is given twice counts once.
    """
    matcher = Matcher(blocks, memory.forget(now), now, terms or Terms(), ceiling, spot_price)
    found: list[tuple[str, Offer, Candidate]] = []
    passed = list(passed_over)
    refused: list[Offer] = []
    for key, offer in {offer.key: offer for offer in offers}.items():
        place = matcher.match(offer)
        if isinstance(place, Candidate):
            found.append((key, offer, place))
        else:
            refused.append(offer)
            passed.append(PassedOver(key, place.reason, offer, place.over_budget))
    course = _course(found, refused, matcher)
    if course is not None and course.markets is Markets.SPOT and matcher.terms.waits:
        spot = min(map(_cost, _spot(found, refused, matcher)))
        held = {key for key, _, one in found if _on_demand(one) and _cost(one) > spot}
        passed += [PassedOver(key, str(course), offer, held=True) for key, offer, _ in found if key in held]
        found = [one for one in found if one[0] not in held]
    return Plan(tuple(_ranked(found, matcher, lost, course)), tuple(passed), course=course)


def _course(found: Sequence[tuple[str, Offer, Candidate]], refused: Sequence[Offer], matcher: Matcher) -> Course | None:
    """Return where the job stands against its deadline, by the machine on demand that would be done first.

    None where the job has no choice between spot and on demand.
    """
    terms = matcher.terms
    if terms.seconds_left is None or not terms.work.known or not terms.netted:
        return None
    ways = [(one.expected.way, one.offer) for _, _, one in found if _on_demand(one) and one.expected is not None]
    spot = _spot(found, refused, matcher)
    if not ways or not spot:
        return None
    best, there = min(ways, key=lambda one: one[0].train + one[0].start)
    elsewhere = any((one.offer.cloud, one.offer.region) != (there.cloud, there.region) for one in spot)
    left, margin = terms.seconds_left / 3600.0, terms.margin_s / 3600.0
    return Course(left, best.train, best.start, margin, way_back=elsewhere and terms.returns)


def _on_demand(one: Candidate) -> bool:
    """Say whether a machine is the net of a job with a deadline. The primary is where it lives, at its own price."""
    return one.offer.market is Market.ON_DEMAND and not one.block.home and one.offer.cloud != "local"


def _cost(one: Candidate) -> Decimal:
    cost = one.expected.cost if one.expected is not None else None
    return Decimal("Infinity") if cost is None else cost


def _spot(found: Sequence[tuple[str, Offer, Candidate]], refused: Sequence[Offer], matcher: Matcher) -> list[Candidate]:
    """Return the spot machines that places take, also those that were refused lately."""
    taken = [one for _, _, one in found if one.offer.market is Market.SPOT]
    again = (matcher.despite(offer) for offer in refused if offer.market is Market.SPOT)
    return [*taken, *(one for one in again if isinstance(one, Candidate))]


def _ranked(
    found: Sequence[tuple[str, Offer, Candidate]], matcher: Matcher, lost: Sequence[Offer], course: Course | None
) -> Iterator[Ranked]:
    """Yield what a place takes in its order. What zones of one machine type share is looked at once."""
    terms = matcher.terms
    alike = {id(one): one for _, _, one in found}
    figures = {name: _figures(one, terms) for name, one in alike.items()}
    step = {value: number for number, value in enumerate(sorted(set(figures.values())))}
    net = course is not None and course.markets is Markets.ON_DEMAND
    risky = {name for name, one in alike.items() if net and one.offer.market is Market.SPOT}
    places = {name: (one.late or name in risky, _place(one, terms)) for name, one in alike.items()}
    steps = {name: step[value] for name, value in figures.items()}
    turns = _turns(found)

    def order(one: tuple[str, Offer, Candidate]) -> tuple[object, ...]:
        key, offer, candidate = one
        name = id(candidate)
        late, place = places[name]
        return (
            lost_zone(offer, lost[:1]),
            late,
            lost_zone(offer, lost),
            place,
            not matcher.named(offer),
            lost_region(offer, lost),
            steps[name],
            turns[key],
            candidate.turn,
            key,
        )

    told: dict[tuple[object, ...], str] = {}
    for _, offer, one in sorted(found, key=order):
        named = matcher.named(offer)
        late = one.expected.way.hours if one.late and one.expected is not None else 0.0
        like = (one.kind, one.basis, id(one.seen), late, one.at_most, named, lost_zone(offer, lost))
        words = told.get(like)
        if words is None:
            words = told[like] = reason(one, offer, lost, terms, named=named)
            if id(one) in risky and not one.late:
                words = told[like] = f"{words}; late, since {course}"
        yield Ranked(offer, words, one.block.name, one.at_most, one.expected, one.basis, one.distance_ms)


def _place(one: Candidate, terms: Terms) -> int:
    return (0 if one.block.home else 1) if terms.by_cost else one.position


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
