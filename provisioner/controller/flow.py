"""The job's life as one straight function: ask AutoDL, plan, claim, watch, release, and again until it is done.

Every outside effect is a step. ``step`` records a step's answer before the next one begins, so a controller that is
killed takes the job up after the last recorded step. Between steps only recorded values decide.

A run outlives an upgrade, and the engine refuses a step where another one was recorded. So a new step, or a new
decision, stands behind a condition that no older recording meets: ``Watched.rules`` and the like.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from provisioner.controller import recovery
from provisioner.controller.last_word import settled
from provisioner.controller.records import (
    Asked,
    Begun,
    Choice,
    Claimed,
    Finished,
    Placement,
    Published,
    Recovered,
    Released,
    Stood,
    Surplus,
    Watched,
)
from provisioner.controller.report import build_report
from provisioner.errors import FailoverError
from provisioner.model import Ending, Failure, FailureKind, JobRef, Node, Offer

T = TypeVar("T")

FINAL = frozenset({Ending.COMPLETED, Ending.FAILED, Ending.LIMIT, Ending.TAKEN_DOWN})
TAKEN_DOWN = "taken down"
HOPELESS = frozenset({FailureKind.UNAUTHORIZED, FailureKind.INVALID})
"""Refusals that waiting does not change: when there are no others, the job ends."""


class Step(Protocol):
    """Run a call and record its answer; when the same run is taken up again, return the recorded answer."""

    def __call__(self, name: str, call: Callable[..., T], *args: object) -> T:
        """Run ``call(*args)``, once."""
        ...


class WayHome(Protocol):
    """What the flow can do to bring a job home."""

    def ask_home(self, claimed: Claimed, begun: Begun, past: tuple[Placement, ...]) -> Asked:
        """List what the primary has now, for a job that trains elsewhere."""
        ...

    def claim_home(self, choice: Choice, epoch: int, attempt: int, published: Published, before: int) -> Claimed:
        """Get a machine at home that stands by, beside the one of the epoch ``before``."""
        ...

    def stand_by(
        self, claimed: Claimed, here: Node, home: Claimed, there: Node, begun: Begun, past: tuple[Placement, ...]
    ) -> Stood:
        """Wait until the machine at home is ready, or of no use; the one that trains is watched meanwhile."""
        ...

    def hand_over(
        self, claimed: Claimed, here: Node, there: Node, begun: Begun, past: tuple[Placement, ...]
    ) -> Watched:
        """End the placement at the fallback with a last checkpoint; the machine at home goes on.

        HOMEWARD when nothing was done, because the machine at home is of no use any more.
        """
        ...


class Effects(Protocol):
    """What the flow can do to the world. Each may be repeated after a crash without doing it twice."""

    job: JobRef
    abreast: int
    """How many claims are made at the same time, at most."""

    @property
    def way_home(self) -> WayHome:
        """What brings the job home."""
        ...

    def begin(self) -> Begun:
        """Find the first free epoch and release what an earlier run left."""
        ...

    def publish(self) -> Published:
        """Put the runtime and the workdir into the store."""
        ...

    def ask_primary(self, begun: Begun, past: tuple[Placement, ...], since: float | None) -> Asked:
        """Ask the primary what it has. ``since`` is when it was asked first; ``wait`` counts from there."""
        ...

    def ask_fallback(self, begun: Begun, past: tuple[Placement, ...]) -> Asked:
        """List the offers of every fallback."""
        ...

    def rank(self, asked: Asked, claims: tuple[Claimed, ...], lost: Sequence[Offer]) -> list[Choice]:
        """Order the offers, best first, without those that an earlier answer rules out. No outside effect.

        ``lost``: the offers whose machines went away lately, the newest first.
        """
        ...

    def claim(self, choice: Choice, epoch: int, attempt: int, published: Published) -> Claimed:
        """Prepare the region, get the machine, or say why not."""
        ...

    def race(self, choices: tuple[Choice, ...], epoch: int, attempt: int, published: Published) -> tuple[Claimed, ...]:
        """Claim all of them at once and keep the best machine: its answer is the last. The others are released."""
        ...

    def watch(self, claimed: Claimed, node: Node, begun: Begun, past: tuple[Placement, ...]) -> Watched:
        """Follow a node until its placement ends."""
        ...

    def release(self, node: Node) -> Released:
        """Make the machine go away."""
        ...

    def recover(self, begun: Begun, past: tuple[Placement, ...]) -> Recovered:
        """Wait until the next machine may be asked for."""
        ...

    def pause(self, since: float, round_number: int) -> bool:
        """Wait before the next round of claims; False when there is no point in another."""
        ...

    def rest(self, begun: Begun, past: tuple[Placement, ...], until: float) -> float:
        """Wait without a machine until a day's budget is there again. Return when that was."""
        ...

    def finish(self, claimed: frozenset[str]) -> Finished:
        """Remove the substrate and list what is left. ``claimed`` names the clouds that were asked for a machine."""
        ...


@dataclass
class Held:
    """A machine that the job has, and the claims that failed for the sake of its placement."""

    claimed: Claimed
    node: Node
    tries: list[Claimed]

    @property
    def claims(self) -> Claimed:
        """Return the machine's claim with what was paid for beside it."""
        return replace(self.claimed, beside=tuple(one for one in self.tries if one.surplus is not None))


class Stopped(Exception):
    """The job ends without a further placement."""

    def __init__(self, ending: Ending, reason: str) -> None:
        """Keep how and why."""
        super().__init__(reason)
        self.ending = ending
        self.reason = reason


class Flow:
    """One run of one job."""

    def __init__(self, effects: Effects, step: Step) -> None:
        """Take the world, and the recorder."""
        self.effects = effects
        self.step = step
        self.placements: list[Placement] = []
        self.claims: list[Claimed] = []
        self.epoch = 0
        """The next one that is free."""
        self.passed: dict[str, Failure] = {}
        """Offers that a quota had no room for, by key."""

    def run(self) -> dict[str, object]:
        """Run the job to its end and return the report."""
        begun = self.step("begin", self.effects.begin)
        try:
            published = self.step("publish", self.effects.publish)
            ending, reason = self._place_until_done(begun, published)
        except Stopped as stop:
            ending, reason = stop.ending, stop.reason
        except FailoverError:
            self._finish()
            raise
        finished = self._finish()
        job, passed = self.effects.job, self.passed
        return build_report(job, begun, self.placements, self.claims, ending, reason, finished, passed=passed)

    def _finish(self) -> Finished:
        clouds = frozenset(claimed.offer.cloud for claimed in self.claims)
        return self.step("finish", self.effects.finish, clouds)

    def _place_until_done(self, begun: Begun, published: Published) -> tuple[Ending, str]:
        self.epoch = begun.first_epoch
        held = self._acquire(begun, published)
        while True:
            watched, home = self._follow(held, begun, published)
            released = self.step("release", self.effects.release, held.node)
            watched = settled(watched, released.done)
            self.placements.append(
                Placement(held.node.epoch, tuple(held.tries), held.claimed, held.node, watched, released)
            )
            if watched.ending in FINAL:
                if home is not None:
                    self._give_back(held, home)
                return watched.ending, watched.reason
            if home is None:
                if why := recovery.hopeless(self.placements):
                    return Ending.FAILED, why
                self._recover(begun, watched)
            held = home or self._acquire(begun, published)

    def _recover(self, begun: Begun, watched: Watched) -> None:
        """Wait where machines come to their end too fast. Raises Stopped. An earlier release knew no such step."""
        if watched.rules >= 1:
            recovered = self.step("recover", self.effects.recover, begun, tuple(self.placements))
            _stop_if_told(recovered.stop)

    def _follow(self, held: Held, begun: Begun, published: Published) -> tuple[Watched, Held | None]:
        """Watch a placement to its end. When it is time to go home, the next machine is there before this one ends."""
        past = tuple(self.placements)
        while True:
            watched = self.step("watch", self.effects.watch, held.claims, held.node, begun, past)
            if watched.ending is not Ending.HOMEWARD:
                return watched, None
            home = self._ready_at_home(held, begun, published)
            if home is None:
                continue
            watched = self.step(
                "hand_over", self.effects.way_home.hand_over, held.claims, held.node, home.node, begun, past
            )
            if watched.ending not in {*FINAL, Ending.HOMEWARD}:
                self.claims.append(home.claimed)
                return watched, home
            self._give_back(held, home)
            if watched.ending in FINAL:
                return watched, None

    def _ready_at_home(self, held: Held, begun: Begun, published: Published) -> Held | None:
        """Get a machine at home and wait until it is ready to take over; None when it comes to nothing."""
        past = tuple(self.placements)
        asked = self.step("ask_home", self.effects.way_home.ask_home, held.claims, begun, past)
        tried: set[str] = set()
        attempt = begun.first_attempt + len(self.claims)
        while True:
            ranked = self.effects.rank(asked, tuple(self.claims), ())
            choice = next((one for one in ranked if one.offer.key not in tried), None)
            if choice is None:
                return None
            tried.add(choice.offer.key)
            claimed = self.step(
                "claim_home", self.effects.way_home.claim_home, choice, self.epoch, attempt, published, held.node.epoch
            )
            if claimed.node is None:
                self._add(held, claimed)
                if claimed.stop:  # the watch sees it too, and ends the placement as it should
                    return None
                continue
            self.epoch += 1
            home = Held(claimed, claimed.node, [])
            stood = self.step(
                "stand_by", self.effects.way_home.stand_by, held.claims, held.node, claimed, home.node, begun, past
            )
            if stood.ready:
                return home
            self._give_back(held, home)
            return None

    def _give_back(self, held: Held, home: Held) -> None:
        """Release a machine at home that is not needed after all. It belongs to the placement that it was meant for."""
        released = self.step("release", self.effects.release, home.node)
        surplus = Surplus(home.node, released.at, released.problem)
        self._add(held, replace(home.claimed, node=None, surplus=surplus))

    def _add(self, held: Held, claimed: Claimed) -> None:
        self.claims.append(claimed)
        held.tries.append(claimed)

    def _acquire(self, begun: Begun, published: Published) -> Held:
        """Try the primary, then the fallbacks, round after round. Raises Stopped when nothing is to be had."""
        first = len(self.claims)
        since: float | None = None
        round_number = 0
        while True:
            refusals: list[FailureKind] = []
            until: float | None = None
            for asked in self._ask_around(begun):
                since = asked.at if since is None else since
                refusals += [problem.kind for problem in asked.problems]
                refusals += [failure.kind for _, failure in asked.passed]
                self.passed |= {offer.key: failure for offer, failure in asked.passed}
                _stop_if_told(asked.stop)
                if (until := asked.until) is not None:
                    break
                attempt = begun.first_attempt + round_number
                claimed = self._claim_first(asked, attempt, published)
                if claimed is not None and claimed.node is not None:
                    self.epoch += 1
                    return Held(claimed, claimed.node, self.claims[first:-1])
            round_number += 1
            if until is not None:
                self.step("rest", self.effects.rest, begun, tuple(self.placements), until)
                since = None  # patience begins anew
                continue
            refusals += [claimed.failure.kind for claimed in self.claims[first:] if claimed.failure]
            if refusals and set(refusals) <= HOPELESS:
                raise Stopped(Ending.NEVER_STARTED, "refused")
            if not self.step("pause", self.effects.pause, since, round_number):
                raise Stopped(Ending.NEVER_STARTED, "no offer could be had")

    def _ask_around(self, begun: Begun) -> Iterator[Asked]:
        """Yield the primary's answers for as long as it is worth asking, then the fallbacks'."""
        past, since, again = tuple(self.placements), None, True
        while again:
            asked: Asked = self.step("ask_primary", self.effects.ask_primary, begun, past, since)
            since, again = (asked.at if since is None else since), asked.again
            yield asked
        yield self.step("ask_fallback", self.effects.ask_fallback, begun, past)

    def _claim_first(self, asked: Asked, attempt: int, published: Published) -> Claimed | None:
        """Claim along the ranking. What an answer rules out is not tried."""
        tried: set[str] = set()
        lost = recovery.lost_lately(self.placements, asked.at)
        while True:
            ranked = self.effects.rank(asked, tuple(self.claims), lost)
            choices = abreast([choice for choice in ranked if choice.offer.key not in tried], self.effects.abreast)
            if not choices:
                return None
            tried.update(choice.offer.key for choice in choices)
            answers: tuple[Claimed, ...]
            if len(choices) == 1:
                answers = (self.step("claim", self.effects.claim, choices[0], self.epoch, attempt, published),)
            else:
                answers = self.step("race", self.effects.race, choices, self.epoch, attempt, published)
            self.claims += answers
            tried.update(claimed.offer.key for claimed in answers)  # a recorded answer may be to an older ranking
            if answers[-1].node is not None:
                return answers[-1]
            for claimed in answers:
                _stop_if_told(claimed.stop)


def abreast(choices: Sequence[Choice], most: int) -> tuple[Choice, ...]:
    """Return the best choice, and those that may be claimed beside it: other regions, the same market.

    A machine at AutoDL is claimed alone: it takes minutes until one that is not wanted is gone.
    """
    found: list[Choice] = []
    for choice in choices:
        offer = choice.offer
        places = {(one.offer.cloud, one.offer.region) for one in found}
        beside = offer.cloud != "autodl" and bool(found) and found[0].offer.market == offer.market
        if not found or (beside and (offer.cloud, offer.region) not in places):
            found.append(choice)
        if len(found) >= most or found[0].offer.cloud == "autodl":
            break
    return tuple(found)


def _stop_if_told(reason: str) -> None:
    if reason:
        raise Stopped(Ending.TAKEN_DOWN if reason == TAKEN_DOWN else Ending.LIMIT, reason)
