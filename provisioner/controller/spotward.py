"""Back to spot: a job that trains on demand for its deadline's sake has a spot machine get ready beside it.

The way is the way home (``moving``): the job trains on until the other machine has proved that it runs there. So
it costs no time, only both machines for a while; it is taken where ``planner.deadline`` says that the slack bears the
loss of that spot machine, too. A region holds one machine of a job, so it goes to another region.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from provisioner import planner
from provisioner.config import Config
from provisioner.controller import moving, survey
from provisioner.controller.records import Asked, Begun, Choice, Claimed, Placement
from provisioner.controller.standing import paced_hours
from provisioner.model import Market, Offer

if TYPE_CHECKING:
    from provisioner.controller.effects import World

MOST_REGIONS: Final = 3
"""Each try asks the best offers of so many regions: every refusal is a call, and is recorded."""
MOST_DOUBLINGS: Final = 2


class Spotward:
    """Says when a job that trains on demand should try spot again."""

    def __init__(self, world: World) -> None:
        """Take the world that the job lives in."""
        self._world = world
        self._tried_at = float("-inf")
        self._in_vain = 0
        self._wanted: tuple[Offer, ...] = ()

    def why(self, claimed: Claimed, begun: Begun, past: tuple[Placement, ...], heartbeat: Mapping[str, object]) -> str:
        """Return why to try spot now, or nothing. What is returned counts as a try."""
        config, now = self._world.config, self._world.now()
        steps, step = config.job.steps, heartbeat.get("step")
        if config.policy.deadline is None or steps is None or not isinstance(step, int):
            return ""
        if claimed.offer.market is Market.SPOT or claimed.offer.cloud in {"autodl", "local"}:
            return ""
        if now - self._tried_at < config.policy.failback.again * 2.0 ** min(self._in_vain, MOST_DOUBLINGS):
            return ""
        at = replace(self._world.standing(begun, past), done=min(1.0, step / steps))
        if (hours := _hours(config, claimed.offer, heartbeat, step)) is not None:
            at = replace(at, hours=hours)
        terms = planner.terms(config, standing=at, stores=self._world.places())
        course = planner.course(claimed.offer, terms)
        if course is None or not course.back_to_spot:
            return ""
        self._tried_at = now
        found = [one.offer for one in self._ranked(begun, at) if self._pays(claimed, one, terms)]
        self._wanted = tuple(one for one in _of_regions(found, claimed.offer) if self._bears(one, claimed, begun, past))
        if not self._wanted:
            return ""
        self._in_vain += 1
        return f"back to spot ({self._wanted[0].key}): the deadline leaves {course.slack:.1f} h to lose"

    def take(self) -> tuple[Offer, ...]:
        """Return what is wanted, once. A controller that was started in between wants nothing, and looks again."""
        wanted, self._wanted = self._wanted, ()
        return wanted

    def arrived(self) -> None:
        """Take note that a move came to its end."""
        self._in_vain = 0

    def _ranked(self, begun: Begun, at: planner.Standing) -> list[Choice]:
        world, names = self._world, survey.fallback_names(self._world.config)
        offers, _ = world.offers(names)
        spot = tuple(offer for offer in survey.free(offers) if offer.market is Market.SPOT)
        memory = world.refusals.memory(names, begun.at)
        return world.rank(Asked(spot, world.now(), memory=memory, standing=at), (), ())

    def _pays(self, claimed: Claimed, choice: Choice, terms: planner.Terms) -> bool:
        here, there = claimed.price, choice.offer.price_per_hour or choice.likely or choice.at_most
        if here is None or there is None:
            return False
        found = planner.saving(claimed.offer, here, choice.offer, there, terms)
        return found is not None and found[0] > found[1] * moving.WORTH

    def _bears(self, offer: Offer, claimed: Claimed, begun: Begun, past: tuple[Placement, ...]) -> bool:
        return not moving.ended_by(self._world, offer, claimed, begun, past)


def _hours(config: Config, offer: Offer, heartbeat: Mapping[str, object], step: int) -> float | None:
    """Return the length of the whole job by the pace of the machine that trains; both times are of its own clock."""
    begun, seen, restored = (heartbeat.get(name) for name in ("first_step_at", "time", "restored_step"))
    if not isinstance(begun, int | float) or not isinstance(seen, int | float):
        return None
    return paced_hours(config, offer, seen - begun, step - (restored if isinstance(restored, int) else 0))


def _of_regions(offers: Sequence[Offer], here: Offer) -> list[Offer]:
    """Return the best offer of each other region, of a few."""
    best: dict[tuple[str, str], Offer] = {}
    for offer in offers:
        if (offer.cloud, offer.region) != (here.cloud, here.region):
            best.setdefault((offer.cloud, offer.region), offer)
    return list(best.values())[:MOST_REGIONS]
