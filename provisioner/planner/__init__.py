"""From offers to a ranking with reasons. Pure: no clock, no cloud, no disk but the packaged catalog."""

from __future__ import annotations

from collections.abc import Sequence

from provisioner import catalog
from provisioner.config import Config
from provisioner.model import Offer
from provisioner.planner.blocks import Block, blocks
from provisioner.planner.memory import FailureMemory, Remembered, money_json, offer_json
from provisioner.planner.rank import PassedOver, Plan, Ranked, rank

__all__ = [
    "Block",
    "FailureMemory",
    "PassedOver",
    "Plan",
    "Ranked",
    "Remembered",
    "absent",
    "blocks",
    "catalog_offers",
    "money_json",
    "offer_json",
    "plan",
    "rank",
]


def plan(
    config: Config,
    offers: Sequence[Offer],
    *,
    memory: FailureMemory | None = None,
    now: float = 0.0,
    lost: Offer | None = None,
    passed_over: Sequence[PassedOver] = (),
) -> Plan:
    """Rank offers by a configuration. See ``rank`` for the order; ``passed_over`` is added to the plan's own."""
    ranked = rank(
        blocks(config),
        offers,
        memory=memory or FailureMemory(),
        now=now,
        lost=lost,
        usd_cny=config.policy.usd_cny,
        passed_over=passed_over,
    )
    return ranked if config.policy.budget is None else _within_budget(ranked)


def _within_budget(plan: Plan) -> Plan:
    """Pass over what no price and no limit bounds: a budget could not be kept. This machine costs nothing to rent."""
    reason = "nothing bounds its price, so policy.budget cannot be kept; set max_price"
    unbounded = [one for one in plan.ranked if one.at_most is None and one.offer.cloud != "local"]
    ranked = tuple(one for one in plan.ranked if one not in unbounded)
    passed = (PassedOver(one.offer.key, reason, one.offer) for one in unbounded)
    return Plan(ranked, (*plan.passed_over, *passed))


def catalog_offers(config: Config) -> list[Offer]:
    """List what the packaged catalog offers to the AWS entries of a configuration, without asking AWS."""
    found: dict[str, Offer] = {}
    for entry in config.fallback:
        if entry.aws is not None:
            aws = entry.aws
            offers = catalog.aws_offers(aws.regions, config.resources, aws.instance_types, aws.markets)
            found.update({offer.key: offer for offer in offers})
    return list(found.values())


def absent(config: Config) -> list[PassedOver]:
    """List what the configuration may have counted on and no cloud offers, each with its reason.

    These are machine types that were named, or have the right card, and clouds that are not in this version.
    """
    found: dict[tuple[str, str], PassedOver] = {}
    for index, entry in enumerate(config.fallback):
        if entry.gcp is not None:
            name = f"fallback[{index}].gcp"
            found[name, ""] = PassedOver(name, "Google Cloud is not in this version")
        if entry.aws is not None:
            for one in catalog.aws_absent(entry.aws.regions, config.resources, entry.aws.instance_types):
                subject = "/".join(part for part in ("aws", one.region, one.instance_type) if part)
                found[subject, one.reason] = PassedOver(subject, one.reason)
    return list(found.values())
