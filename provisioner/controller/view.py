"""What the watch loop may see of one placement in the real world."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from provisioner.clouds.base import Foretells, Outlook
from provisioner.controller import traffic
from provisioner.controller.beside import told_if_slow
from provisioner.controller.clocks import TOLD_S
from provisioner.controller.hints import Hints
from provisioner.controller.moving import Doorstep, moves_home, take_wish
from provisioner.controller.records import Begun, Claimed, Placement
from provisioner.errors import CloudError, FailoverError
from provisioner.model import Node, NodeState

if TYPE_CHECKING:
    from provisioner.controller.effects import World


class PlacementView:
    """What the watch loop may see of one placement."""

    def __init__(self, world: World, claimed: Claimed, begun: Begun, past: tuple[Placement, ...]) -> None:
        """Take the placement."""
        self.world = world
        self.claimed = claimed
        self.begun = begun
        self.past = past
        self.heartbeat: Mapping[str, object] = {}
        """The newest."""
        self.ahead_s: float | None = None
        """How far the machine's clock is ahead of ours; None: not known yet."""
        self._told_of_clock = False
        self._state: NodeState | None = None
        self._read: Mapping[str, object] | None = None
        self._hints = hints_of(self, claimed.node) if claimed.node is not None else None

    def state(self, node: Node) -> NodeState | None:
        """Ask the cloud; None when it does not answer."""
        try:
            self._state = self.world.cloud(node.offer.cloud).inspect(node)
        except CloudError as error:
            self.world.events.emit("blind", what=node.offer.cloud, problem=str(error))
            self._state = None
        return self._state

    def read(self, node: Node) -> tuple[dict[str, object] | None, dict[str, object] | None] | None:
        """Read (done, heartbeat) from the store; None when it does not answer."""
        try:
            with told_if_slow(lambda: self.world.events.emit("slow", what="the store")):
                _, self._read = signs = self.world.launcher.read_signs(node.epoch)
        except CloudError as error:
            self.world.events.emit("blind", what="store", problem=str(error))
            self._read = None
            return None
        return signs

    def stop(self) -> str:
        """Say why the job must end now, or nothing. Before a limit the node is told, and may end by itself."""
        why = self.world.why_stop(self.begun, self.past, self.claimed)
        return why or (self._hints.look(self._state, self._read) if self._hints is not None else "")

    def homeward(self, heartbeat: dict[str, object]) -> str:
        """Only a job that is away can go home, or back to spot."""
        if self.claimed.offer.cloud == "autodl":
            if take_wish(self.world):  # else it would move the job hours later, from a fallback
                self.world.events.emit("at_home", epoch=self.claimed.node.epoch if self.claimed.node else None)
            return ""
        if heartbeat.get("phase") not in {"training", "saving"}:
            return ""
        if why := self.world.way_home.spotward.why(self.claimed, self.begun, self.past, heartbeat):
            return why
        if self.world.config.primary is None:
            return ""
        step = heartbeat.get("step")
        door = Doorstep(self.world, self.claimed, self.begun, self.past, step if isinstance(step, int) else None)
        return self.world.way_home.homeward.why(door, moves_home(self.past))

    def suspected(self, node: Node, why: str) -> None:
        """Tell that a node is suspected, or was heard again."""
        if why:
            self.world.events.emit("suspected", epoch=node.epoch, node=node.id, reason=why)
        else:
            self.world.events.emit("heard_again", epoch=node.epoch, node=node.id)

    def changed(self, node: Node, heartbeat: dict[str, object], *, first: bool, ahead_s: float | None) -> None:
        """Tell of a new heartbeat. The way home watches the machine that trains anew: its first one is told once."""
        first = first and node.id not in self.world.heard
        if first:
            self.world.heard.add(node.id)
            self.world.forget_start(node.epoch, node.token)
        self.ahead_s = ahead_s
        if ahead_s is not None and abs(ahead_s) > TOLD_S and not self._told_of_clock:
            self._told_of_clock = True
            self.world.events.emit("clock", epoch=node.epoch, node=node.id, ahead=round(ahead_s, 1))
        copies = traffic.copies(self.world.stores(), node.offer, heartbeat)
        known = {copy.uri: copy for copy in traffic.copies(self.world.stores(), node.offer, self.heartbeat)}
        advised, last = _advice(heartbeat), _advice(self.heartbeat)
        self.heartbeat = heartbeat
        if advised and advised.get("rule") != last.get("rule"):
            self.world.events.emit("advised", epoch=node.epoch, advice=advised["advice"], change=advised.get("change"))
        self.world.events.emit(
            "heartbeat",
            epoch=node.epoch,
            phase=heartbeat.get("phase"),
            step=heartbeat.get("step"),
            first=first,
            image=heartbeat.get("image"),
            restore=heartbeat.get("restore"),
            data=heartbeat.get("data"),
            efficiency=heartbeat.get("efficiency"),
            replicas=[traffic.as_json(copy) for copy in copies],
        )
        if data := heartbeat.get("data"):
            with suppress(FailoverError):  # the links that it has may do
                self.world.launcher.data.keep_fresh(node.epoch, data)
        for copy in copies:
            before = known.get(copy.uri)
            if copy.problem and not (before and before.problem):
                self.world.events.emit("copy_failed", epoch=node.epoch, uri=copy.uri, problem=copy.problem)
            if copy.step is not None and copy.step != (before.step if before else None):
                self.world.events.emit("copied", epoch=node.epoch, uri=copy.uri, step=copy.step)


def _advice(heartbeat: Mapping[str, object]) -> Mapping[str, object]:
    """Return what the command advises, empty where it does not."""
    found = heartbeat.get("efficiency")
    return found if isinstance(found, dict) and found.get("advice") else {}


def hints_of(view: PlacementView, node: Node) -> Hints:
    """Return what tells the node of a placement what it cannot see."""
    world = view.world

    def outlook() -> Outlook | None:
        try:
            cloud = world.cloud(node.offer.cloud)
            return cloud.outlook(node) if isinstance(cloud, Foretells) else None
        except CloudError as error:
            world.events.emit("blind", what=node.offer.cloud, problem=str(error))
            return None

    return Hints(
        world.launcher.store,
        node.epoch,
        claimed_at=node.claimed_at,
        limit=lambda: world.limits.first(view.begun, view.past, view.claimed),
        outlook=outlook,
        emit=world.events.emit,
        poll_s=world.config.policy.poll,
        heartbeat_s=world.config.policy.heartbeat,
        ahead=lambda: view.ahead_s,
        now=world.now,
    )
