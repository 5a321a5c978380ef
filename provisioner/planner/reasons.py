"""Why an offer stands where it stands, in words: one line for the table, and a whole account for ``--why``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from provisioner import catalog
from provisioner.model import Market, Offer
from provisioner.planner import fits
from provisioner.planner.expected import BOOT_S, SPOT_SHARE, Way
from provisioner.planner.ranking import Candidate, Ranked, elsewhere, lost_region, lost_zone
from provisioner.planner.terms import Terms


def reason(one: Candidate, offer: Offer, lost: Sequence[Offer], terms: Terms, *, named: bool) -> str:
    """Return what is special about an offer, beginning with its price. ``named``: a cloud told that it has room."""
    parts = [_price_words(one)]
    if offer.gpu.count > one.block.count:
        parts.append(f"{offer.gpu.count} GPUs, {one.block.count} asked for")
    known = catalog.card(offer.gpu.name)
    if offer.cloud == "aws" and known is not None and known.driver == "proprietary":
        parts.append(f"{known.name} needs a machine image with the proprietary driver")
    if named:
        parts.append("early, since the cloud named this zone as having room")
    if one.late and one.expected is not None and terms.seconds_left is not None:
        left = f"the deadline leaves {terms.seconds_left / 3600:.1f} h"
        parts.append(f"late, since it takes {_hours(one.expected.way.hours)} and {left}")
    if lost_zone(offer, lost):
        parts.append("last, since a machine was lost here lately")
    elif lost_region(offer, lost):
        parts.append(f"late, since a machine was lost in {offer.region} lately")
    return "; ".join(parts)


def account(one: Ranked, terms: Terms) -> Iterator[str]:
    """Yield the lines that show how the cost of an offer comes about, each with its numbers."""
    found, work, offer = one.expected, terms.work, one.offer
    if found is None:
        yield f"no cost to the end can be told: nobody knows how fast {offer.gpu.name} is beside {work.on}, or a price"
        return
    way = found.way
    given = "" if work.known else ", assumed"
    left = f", {1 - work.done:.0%} of them left" if work.done else ""
    yield f"job: {work.hours:g} h on {work.on}{given}{left}"
    yield f"speed: {way.speed:.2f} times {work.on}, {_speed_words(one, terms)}"
    yield f"training: {work.left:g} h / {way.speed:.2f} = {way.train:.2f} h"
    boot = BOOT_S.get(offer.cloud, 300.0) / 60
    yield f"start: {way.start * 60:.1f} min, of which {boot:.1f} to boot, the rest to restore"
    if offer.market is Market.SPOT:
        yield _loss_words(way, terms)
    yield f"time: {_hours(way.hours)}"
    yield f"price: {found.price} an hour{_basis_words(one)}"
    yield from _egress_words(way, terms)
    if found.cost is not None:
        yield f"cost: {way.hours:.2f} h x {found.price} + {way.egress:.2f} USD egress = {found.cost:.2f} USD"


def _loss_words(way: Way, terms: Terms) -> str:
    every = terms.work.every_s / 60
    return (
        f"losses: {way.rate:.3f} an hour, each costs {every / 2:.1f} min of training (half of {every:g} between "
        f"checkpoints) and a start; {way.losses:.2f} expected"
    )


def _speed_words(one: Ranked, terms: Terms) -> str:
    work, name = terms.work, one.offer.gpu.name
    card, reference = catalog.card(name), catalog.card(work.on)
    if card is None or reference is None or {card.name, card.group} & set(work.speeds):
        return "as measured (job.estimate.speeds)"
    if work.fit is not None and fits.speedup(work.fit, work.on, name):
        return "by the steps that job.fit makes of both cards"
    return (
        f"from {card.fp16_tflops:g} to {reference.fp16_tflops:g} FP16 TFLOPS and {card.bandwidth_gbs:g} to "
        f"{reference.bandwidth_gbs:g} GB/s"
    )


def _basis_words(one: Ranked) -> str:
    words = {
        "ceiling": f", reckoned: {SPOT_SHARE:.0%} of {one.at_most} on demand, since nobody knows the spot price",
        "seen": ", as it was when `failover catalog refresh` last looked",
        "cap": ", reckoned: only max_price bounds it",
    }
    if one.offer.market is not Market.SPOT and one.basis == "ceiling":
        return ", the on-demand price"
    return words.get(one.basis, "")


def _egress_words(way: Way, terms: Terms) -> Iterator[str]:
    size = terms.work.checkpoint_gb
    if size is None:
        yield "egress: not counted, since job.estimate.checkpoint_gb is not set"
    elif not way.egress_known:
        yield f"egress: {way.egress:.2f} USD, without what has no list price"
    else:
        saves = way.train * 3600 / terms.work.every_s
        ways = f"{saves:.0f} saves of {size:g} GB and {1 + way.losses:.2f} restores"
        yield f"egress: {way.egress:.2f} USD at most, for {ways}"


def _price_words(one: Candidate) -> str:
    offer, ceiling, bound = one.offer, one.ceiling, one.at_most
    if offer.price_per_hour is not None and bound == offer.price_per_hour:
        return f"{offer.price_per_hour} an hour"
    price = "the spot price is unknown" if offer.market == Market.SPOT else "the price is unknown"
    if bound is None:
        return price + elsewhere(offer)
    if bound == ceiling:
        return f"{price}, at most {bound} as on demand{_reckoned(one)}"
    usual = f" (on demand {ceiling})" if ceiling is not None else elsewhere(offer)
    return f"{price}{usual}, the cloud holds it to max_price {bound}{_reckoned(one)}"


def _reckoned(one: Candidate) -> str:
    if one.basis == "seen":
        return ", reckoned as last seen"
    if one.basis == "cap" and one.seen is not None:
        return f", which may be too low: {one.seen.price} an hour when last looked up, too long ago to count"
    if one.basis == "cap" and one.price is not None:
        return f", which may be too low: reckoned as {one.price}, {SPOT_SHARE:.0%} of the price on demand"
    return f", reckoned as {one.price}" if one.basis == "ceiling" and one.price != one.ceiling else ""


def _hours(hours: float) -> str:
    return f"{hours:.1f} h" if hours != float("inf") else "for ever"
