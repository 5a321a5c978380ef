"""What is to be had now, and whether the day's budget bears it: asked at home, at the fallbacks, and rested until."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from provisioner import planner
from provisioner.controller import survey
from provisioner.controller.billing import convert
from provisioner.controller.records import Asked, Begun, Placement
from provisioner.controller.standing import beyond_budget
from provisioner.model import FailureKind, Offer

if TYPE_CHECKING:
    from provisioner.controller.effects import World

REST_S = 900.0
"""How long a job rests before it looks at the day's budget anew, in seconds."""
PRIMARY_AGAIN_S = 20.0
"""Between two claims at the primary. A polite hunter asks every 20 to 30 s (docs/autodl.md)."""


class Asking:
    """The questions of one job."""

    def __init__(self, world: World) -> None:
        """Ask nothing yet."""
        self._world = world
        self._too_dear_until: float | None = None
        self._rests_until: float | None = None
        self._markets: planner.Markets | None = None

    def primary(self, begun: Begun, past: tuple[Placement, ...], since: float | None) -> Asked:
        """Ask AutoDL until it has a card or ``wait`` is over.

        Pro shows no stock: there only a claim can tell, so it is worth another one while ``wait`` lasts.
        """
        world = self._world
        settings = world.config.primary.autodl if world.config.primary else None
        rest = self._rest_until(past)
        if settings is None or rest is not None:
            return Asked((), world.now(), stop=world.why_stop(begun, past), until=rest)
        until = (world.now() if since is None else since) + settings.wait
        if since is not None:
            world.take_down.wait(max(0.0, min(PRIMARY_AGAIN_S, until - world.now())))
        while True:
            offers, problems = world.offers(["autodl"])
            free = survey.free(offers)
            stop = world.why_stop(begun, past)
            refused = any(problem.kind is FailureKind.UNAUTHORIZED for problem in problems)
            late = world.now() >= until
            if free or stop or refused or late:
                world.events.emit("asked", cloud="autodl", offers=len(free), problems=[p.message for p in problems])
                memory = world.refusals.memory(world.cloud_names(), begun.at)
                at = world.standing(begun, past)
                self._too_dear_until = self._rest_until(past, *free) if free else None
                if self._too_dear_until is not None:  # a fallback may be cheaper
                    free = ()
                again = bool(free) and not late
                return Asked(free, world.now(), tuple(problems), again, stop, memory, standing=at)
            world.take_down.wait(min(world.config.policy.poll, max(0.1, until - world.now())))

    def fallback(self, begun: Begun, past: tuple[Placement, ...]) -> Asked:
        """List the offers of every fallback, without those that a quota has no room for."""
        world = self._world
        offers, problems = world.offers(world.fallback_names())
        memory = world.refusals.memory(world.cloud_names(), begun.at)
        at = world.standing(begun, past)
        known = memory or planner.FailureMemory()
        plan = world.plan(tuple(offers), memory=known, now=world.now(), standing=at)
        self._tell_course(plan.course)
        over = world.refusals.over_quota([one.offer for one in plan.ranked])
        passed = tuple((offer, over[offer.key]) for offer in offers if offer.key in over)
        left = tuple(offer for offer in offers if offer.key not in over)
        world.events.emit("asked", cloud="fallback", offers=len(left), problems=[p.message for p in problems])
        stop = world.why_stop(begun, past) or beyond_budget(world.config, plan, known)
        rest = self._rest_until(past, *(one.offer for one in plan.ranked[:1]))
        rest = self._too_dear_until if rest is None and not plan.ranked else rest
        return Asked(left, world.now(), tuple(problems), False, stop, memory, passed, at, rest)  # noqa: FBT003 - not again

    def _rest_until(self, past: tuple[Placement, ...], *offers: Offer) -> float | None:
        """Return until when a day's budget bears no machine: neither the cheapest of these nor one like the last."""
        world = self._world
        prices = [offer.price_per_hour for offer in offers if offer.price_per_hour is not None]
        cheapest = min(prices, key=lambda price: convert(price, "USD", world.config.policy.usd_cny), default=None)
        found = world.daily.rest_until(cheapest, past[-1].claimed.price if past and cheapest is None else None)
        return None if found is None else found[0]

    def rest(self, begun: Begun, past: tuple[Placement, ...], until: float) -> float:
        """Wait without a machine until a day's budget is there again: the next day, or when somebody has changed it.

        After a while it is looked at anew in any case: it may have been changed while no controller ran.
        """
        world = self._world
        if until != self._rests_until:
            rest = world.daily.rest_until(past[-1].claimed.price if past else None)
            words = rest[1] if rest is not None else "what is left of the day's budget is too little for a machine"
            world.events.emit("resting", until=until, words=words, at=time.strftime("%H:%M", time.localtime(until)))
            self._rests_until = until
        budgets, until = world.daily.budgets(), min(until, world.now() + REST_S)
        while world.now() < until and not world.why_stop(begun, past) and world.daily.budgets() == budgets:
            world.take_down.wait(min(world.config.policy.poll, max(0.1, until - world.now())))
        return world.now()

    def _tell_course(self, course: planner.Course | None) -> None:
        """Tell when the deadline has the job look elsewhere than before."""
        world = self._world
        if course is not None and course.markets is not self._markets:
            self._markets = course.markets
            world.events.emit("course", markets=course.markets, words=str(course))
