"""What the flow does to the world to bring a job home. Every method can be repeated."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from provisioner import planner
from provisioner.controller import moving, survey
from provisioner.controller.daily import is_daily
from provisioner.controller.homeward import Homeward
from provisioner.controller.records import Asked, Begun, Choice, Claimed, Placement, Published, Stood, Watched
from provisioner.controller.spotward import Spotward
from provisioner.controller.view import PlacementView
from provisioner.errors import Unreachable
from provisioner.model import Ending, Failure, Node, Offer

if TYPE_CHECKING:
    from provisioner.controller.effects import World


class WayHome:
    """The way home of one job. ``homeward`` says when it is time."""

    def __init__(self, world: World) -> None:
        """Take the world that the job lives in."""
        self._world = world
        self.homeward = Homeward(world.config.policy.failback, now=world.now)
        self.spotward = Spotward(world)
        self._told_of_limit = False

    def ask_home(self, claimed: Claimed, begun: Begun, past: tuple[Placement, ...]) -> Asked:
        """List what the primary has now, for a job that trains elsewhere, and that no limit ends on the way.

        For one that wants to go back to spot, spot machines of other regions come after that.
        """
        choices, memory, at, problem = self._home(begun, past)
        offers = tuple(choice.offer for choice in choices if self.bears(choice.offer, claimed, begun, past))
        self._world.events.emit("asked", cloud="autodl", offers=len(offers), problems=[p.message for p in problem])
        offers += self.spotward.take()
        return Asked(offers, self._world.now(), tuple(problem), memory=memory, standing=at)

    def claim_home(self, choice: Choice, epoch: int, attempt: int, published: Published, before: int) -> Claimed:
        """Get a machine at home that stands by, beside the one of the epoch ``before``."""
        launcher = self._world.launcher
        launcher.stands_by[epoch] = before
        claimed = self._world.claim(choice, epoch, attempt, published)
        if claimed.node is None:  # the next machine of this epoch may be the only one: nobody would call it
            del launcher.stands_by[epoch]
        return claimed

    def stand_by(
        self, claimed: Claimed, here: Node, home: Claimed, there: Node, begun: Begun, past: tuple[Placement, ...]
    ) -> Stood:
        """Wait until the machine at home is ready; the one that trains is watched meanwhile."""
        world = self._world
        away = replace(claimed, beside=(*claimed.beside, home))
        home = replace(home, beside=(*claimed.beside, replace(claimed, beside=())))
        stood = moving.stand_by(
            world, (PlacementView(world, away, begun, past), here), (PlacementView(world, home, begun, past), there)
        )
        if not stood.ready:
            self.homeward.spoiled()
        world.events.emit("stood_by", epoch=there.epoch, node=there.id, ready=stood.ready, reason=stood.reason)
        return stood

    def hand_over(
        self, claimed: Claimed, here: Node, there: Node, begun: Begun, past: tuple[Placement, ...]
    ) -> Watched:
        """End the placement at the fallback with a last checkpoint; the machine at home goes on."""
        world = self._world
        world.events.emit("hand_over", epoch=here.epoch, node=here.id, to=there.id)
        home = Claimed(there.offer, there.claimed_at, there, None)
        view = PlacementView(world, replace(claimed, beside=(*claimed.beside, home)), begun, past)
        watched = moving.hand_over(world, view, here, there)
        if watched.ending is Ending.LIMIT and is_daily(watched.reason):  # the next look ends it, for a day
            watched = replace(watched, ending=Ending.HOMEWARD)
        if watched.ending is Ending.HOMEWARD:
            self.homeward.spoiled()
            world.events.emit("stood_by", epoch=there.epoch, node=there.id, ready=False, reason=watched.reason)
            return watched
        self.homeward.arrived()
        self.spotward.arrived()
        return world.concluded(here, watched, view)

    def bears(self, offer: Offer, claimed: Claimed, begun: Begun, past: tuple[Placement, ...]) -> bool:
        """Say whether the job has the money and the time for both machines; where it has not, that is told once."""
        why = moving.ended_by(self._world, offer, claimed, begun, past)
        if why and not self._told_of_limit:
            self._told_of_limit = True
            self._world.events.emit("stays_away", reason=why)
        return not why

    def free(self, begun: Begun, past: tuple[Placement, ...]) -> list[Choice]:
        """Rank what the primary has now, without what a refusal has ruled out for a while. Raises CloudError."""
        choices, _, _, problems = self._home(begun, past)
        if problems:
            raise Unreachable(problems[0].message)
        return choices

    def _home(
        self, begun: Begun, past: tuple[Placement, ...]
    ) -> tuple[list[Choice], planner.FailureMemory | None, planner.Standing, list[Failure]]:
        world = self._world
        names = ["autodl"] if world.config.primary is not None else []
        offers, problems = world.offers(names)
        free, now = survey.free(offers), world.now()
        memory, at = world.refusals.memory(names, begun.at), world.standing(begun, past)
        asked = Asked(free, now, tuple(problems), memory=memory, standing=at)
        return world.rank(asked, (), ()), memory, at, problems
