"""From offers to a ranking with reasons. Pure: no clock, no cloud, no disk but the packaged catalog."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from provisioner import catalog
from provisioner.config import Config, FallbackConfig
from provisioner.model import Offer
from provisioner.planner.blocks import Block, blocks
from provisioner.planner.deadline import Course, Markets
from provisioner.planner.expected import Expected, Place
from provisioner.planner.memory import FailureMemory, Remembered, money_json, offer_json
from provisioner.planner.moves import course, saving
from provisioner.planner.notes import notes
from provisioner.planner.pools import Pool, pool
from provisioner.planner.rank import rank
from provisioner.planner.ranking import PassedOver, Plan, Ranked
from provisioner.planner.reasons import account
from provisioner.planner.terms import Standing, Terms, terms
from provisioner.planner.work import Work, speed

__all__ = [
    "Block",
    "Course",
    "Expected",
    "FailureMemory",
    "Markets",
    "PassedOver",
    "Place",
    "Plan",
    "Pool",
    "Ranked",
    "Remembered",
    "Standing",
    "Terms",
    "Work",
    "absent",
    "account",
    "blocks",
    "catalog_offers",
    "course",
    "money_json",
    "offer_json",
    "plan",
    "pool",
    "rank",
    "saving",
    "speed",
    "terms",
]


def plan(
    config: Config,
    offers: Sequence[Offer],
    *,
    memory: FailureMemory | None = None,
    now: float = 0.0,
    lost: Sequence[Offer] = (),
    passed_over: Sequence[PassedOver] = (),
    standing: Standing | None = None,
    stores: Sequence[Place] = (),
    round_trips: Mapping[tuple[str, str], float] | None = None,
) -> Plan:
    """Rank offers by a configuration. See ``rank`` for the order; ``passed_over`` is added to the plan's own.

    ``standing``: where the job stands. ``stores``: where its checkpoints are, its own store first. ``round_trips``:
    measured milliseconds to regions, by (cloud, region).
    """
    made = terms(config, standing=standing, stores=stores, round_trips=round_trips)
    then = standing.spot if standing is not None else None
    ranked = rank(
        blocks(config),
        offers,
        memory=memory or FailureMemory(),
        now=now,
        lost=lost,
        terms=made,
        spot_price=catalog.spot_price if then is None else lambda one: then.get((one.zone, one.instance_type)),
        passed_over=passed_over,
    )
    return replace(ranked, notes=notes(config, made, ranked.ranked))


def catalog_offers(config: Config) -> list[Offer]:
    """List what the packaged catalog offers to the entries of a configuration, without asking a cloud."""
    wanted, found = config.resources, dict[str, Offer]()
    for entry in config.fallback:
        offers: Iterable[Offer] = ()
        if entry.aws is not None:
            aws = entry.aws
            offers = catalog.aws_offers(aws.regions, wanted, aws.instance_types, aws.markets)
        elif entry.gcp is not None:
            gcp = entry.gcp
            offers = catalog.gcp_offers(gcp.regions, wanted, gcp.machine_types, gcp.markets)
        found.update({offer.key: offer for offer in offers})
    return list(found.values())


def absent(config: Config) -> list[PassedOver]:
    """List what the configuration may have counted on and no cloud offers, each with its reason.

    These are machine types that were named, or have the right card.
    """
    wanted, found = config.resources, dict[tuple[str, str], PassedOver]()
    for entry in config.fallback:
        missing: Iterable[catalog.Absent] = ()
        if entry.aws is not None:
            missing = catalog.aws_absent(entry.aws.regions, wanted, entry.aws.instance_types)
        elif entry.gcp is not None:
            missing = catalog.gcp_absent(entry.gcp.regions, wanted, entry.gcp.machine_types)
        for one in missing:
            subject = "/".join(part for part in (entry.cloud, one.region, one.instance_type) if part)
            found[subject, one.reason] = PassedOver(subject, one.reason)
    return [*found.values(), *_unknown_zones(config)]


def _zones(entry: FallbackConfig) -> tuple[str, ...]:
    place = entry.aws or entry.gcp
    return place.zones if place else ()


def _unknown_zones(config: Config) -> Iterator[PassedOver]:
    """Yield the zones that entries name and the catalog has nothing in: a slip of the pen takes a whole entry away."""
    named = [(entry.cloud, zone) for entry in config.fallback for zone in _zones(entry)]
    offered = {(offer.cloud, offer.zone) for offer in catalog_offers(config)} if named else set()
    for cloud, zone in named:
        if (cloud, zone) not in offered:
            yield PassedOver(f"{cloud}/{zone}", "the catalog has no machine for this job in this zone")
