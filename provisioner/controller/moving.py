"""The way home: a machine stands by until the command has proved to run there; then the fallback stops, and it begins.

Each part can be repeated after a crash. A controller that dies in between leaves no gap: called by the fallback's last
heartbeat, the machine that stands by begins by itself; not called, both train and wait on until they are looked after.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING

from provisioner import planner
from provisioner.checkpoint import layout
from provisioner.controller.clocks import ahead_of_store
from provisioner.controller.flow import FINAL
from provisioner.controller.records import Begun, Claimed, Placement, Stood, Watched
from provisioner.controller.watch import View, Watch, judge
from provisioner.errors import CloudError
from provisioner.model import Ending, Node, NodeState, Offer

if TYPE_CHECKING:
    from provisioner.controller.effects import World

WORTH = Decimal("0.05")
"""What share of the cost of staying a move has to save."""
SLACK_S = 60.0
"""How long after its time to stop a fallback machine is waited for before its job goes on at home, in seconds."""
HINT_S = 5.0
"""How often the hint is written anew until the node has heard it, in seconds."""
WISH = "home"
"""File in the job's directory by which the operator asks for the way home."""


class Doorstep:
    """What ``homeward.Homeward`` asks: the wish of the operator, the primary's stock, and whether a move pays."""

    def __init__(
        self, world: World, claimed: Claimed, begun: Begun, past: Sequence[Placement], step: int | None
    ) -> None:
        """Take the placement that trains; ``step`` is its newest step."""
        self._world = world
        self._claimed, self._begun, self._past = claimed, begun, past
        self._step = step

    def wished(self) -> bool:
        """Say whether the operator has asked, once."""
        return take_wish(self._world)

    def home_offers(self) -> Sequence[Offer]:
        """List the primary's free offers, the best first. Raises CloudError."""
        return [choice.offer for choice in self._world.way_home.free(self._begun, tuple(self._past))]

    def pays(self, offer: Offer) -> str:
        """Say what the move saves, if it saves enough, and no limit ends the job meanwhile."""
        if not self._world.way_home.bears(offer, self._claimed, self._begun, tuple(self._past)):
            return ""
        config = self._world.config
        here, there = self._claimed.price, offer.price_per_hour
        if here is None or there is None:
            return ""
        at, step = self._world.standing(self._begun, self._past), self._step
        if config.job.steps is not None and step is not None:
            at = replace(at, done=min(1.0, step / config.job.steps))
        terms = planner.terms(config, standing=at, stores=self._world.places())
        found = planner.saving(self._claimed.offer, here, offer, there, terms)
        if found is None or found[0] <= found[1] * WORTH:
            return ""
        return f"the move saves about {found[0]} of {found[1]} USD to the end"

    def tell(self, kind: str, **fields: object) -> None:
        """Pass an event on."""
        self._world.events.emit(kind, job=self._world.job.name, **fields)


def take_wish(world: World) -> bool:
    """Say whether the operator has asked for the way home, once."""
    path = world.directory.path / WISH
    if not path.exists():
        return False
    path.unlink(missing_ok=True)
    return True


def moves_home(past: Sequence[Placement]) -> list[float]:
    """Return when the job went home, in Unix seconds, also where the fallback was lost on the way: both ran then."""
    home = [(before, after) for before, after in pairwise(past) if after.node.offer.cloud == "autodl"]
    return [before.watched.at for before, after in home if after.node.claimed_at < before.released.at]


def ended_by(world: World, offer: Offer, claimed: Claimed, begun: Begun, past: Sequence[Placement]) -> str:
    """Say which limit would end the job while a machine at home runs beside the one that it has; nothing: none."""
    now, policy = world.now(), world.config.policy
    both_s = policy.boot_timeout + policy.failback.trial + policy.failback.handover
    home = Claimed(offer, now, Node("", offer, world.job, 0, "", now), None)
    limit = world.limits.first(begun, past, replace(claimed, beside=(*claimed.beside, home)))
    if limit is None or limit.at >= now + both_s:
        return ""
    line = limit.line.removesuffix(" reached")
    return f"the {line} does not last for the {both_s / 60:.0f} min that both machines may be needed"


def stand_by(world: World, here: tuple[View, Node], there: tuple[View, Node]) -> Stood:
    """Wait until the machine at home is ready, or is known to be of no use; the fallback trains on meanwhile."""
    patience = world.patience()
    wait = world.take_down.wait
    watches = [(Watch(view, patience, world.now, wait), node) for view, node in (here, there)]
    signs = [watch.begin(node) for watch, node in watches]
    until = world.now() + patience.boot_timeout_s + world.config.policy.failback.trial
    while True:
        signs = [watch.look(node, before) for (watch, node), before in zip(watches, signs, strict=True)]
        away, home = (judge(sign, patience) for sign in signs)
        if away is not None and away[0] in FINAL:
            return Stood(False, "the job has ended meanwhile", world.now())  # noqa: FBT003
        if home is not None:
            return Stood(False, home[1], world.now())  # noqa: FBT003
        if (signs[1].heartbeat or {}).get("phase") == "standby":
            return Stood(True, "", world.now())  # noqa: FBT003
        if world.now() >= until:
            return Stood(False, "home was not ready in time", world.now())  # noqa: FBT003
        world.take_down.wait(world.config.policy.poll)


def hand_over(world: World, view: View, here: Node, there: Node) -> Watched:
    """Ask the fallback for a last checkpoint and its end, follow it there, and call the machine at home.

    A job that ends for good meanwhile calls nobody. HOMEWARD when the machine at home has gone before the fallback was
    asked: it trains on.
    """
    policy = world.config.policy
    by = world.now() + policy.failback.handover
    late = by + SLACK_S
    hint = {"kind": "going home", "cause": "home", "detail": there.offer.key, "final": True}
    patience = world.patience()
    watch = Watch(view, patience, world.now, world.take_down.wait)
    signs = watch.begin(here)
    asked_at = float("-inf")
    while True:
        signs = watch.look(here, signs)
        verdict = judge(signs, patience)
        if verdict is None and world.now() >= late:
            verdict = Ending.LOST, "it did not stop for the way home"
        if verdict is not None:
            watched = watch.ended(here, signs, *verdict)
            break
        if asked_at == float("-inf") and (why := _of_no_use(world, there)):
            return watch.ended(here, signs, Ending.HOMEWARD, why)
        if world.now() - asked_at >= HINT_S and (signs.heartbeat or {}).get("phase") in {"training", "saving", None}:
            asked_at = world.now()
            _write(world, layout.hint(here.epoch), {**hint, "deadline": by + _ahead(world, here, watch.ahead_s(signs))})
        world.take_down.wait(min(1.0, policy.poll))
    if watched.ending not in FINAL:
        _call(world, there.epoch)
    return watched


def _ahead(world: World, here: Node, known: float | None) -> float:
    """Return how far the fallback's clock is ahead: it hears the hint once, perhaps before its clock is known."""
    try:
        return ahead_of_store(world.launcher.store, here.epoch) if known is None else known
    except CloudError as error:
        world.events.emit("blind", what="store", problem=str(error))
        return 0.0


def _of_no_use(world: World, there: Node) -> str:
    """Say why the machine at home cannot take over, if that is known: it may have stood by long ago."""
    try:
        state = world.cloud(there.offer.cloud).inspect(there)
        if state is NodeState.UNLISTED:  # a list may lag behind: it is looked at again
            world.take_down.wait(world.config.policy.poll)
            state = world.cloud(there.offer.cloud).inspect(there)
        if state.is_over or state is NodeState.UNLISTED:
            return "the machine at home is gone"
        _, beat = world.launcher.read_signs(there.epoch)
    except CloudError as error:
        world.events.emit("blind", what="the machine at home", problem=str(error))
        return ""
    return "the machine at home has ended" if (beat or {}).get("end") else ""


def _call(world: World, epoch: int) -> None:
    """Let the machine at home begin. It begins by itself where the fallback has said why it ends."""
    while not _write(world, layout.call(epoch), {}) and not world.take_down.is_set():
        world.take_down.wait(world.config.policy.poll)


def _write(world: World, key: str, value: dict[str, object]) -> bool:
    try:
        world.launcher.store.put(key, json.dumps(value).encode())
    except CloudError as error:
        world.events.emit("blind", what="store", problem=str(error))
        return False
    return True
