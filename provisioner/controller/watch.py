"""When has a placement ended? A pure judgement over what the store and the cloud show, and the loop that asks them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from provisioner.controller.clocks import NodeClock
from provisioner.controller.flow import TAKEN_DOWN
from provisioner.controller.last_word import by_its_word
from provisioner.controller.patience import Patience
from provisioner.controller.records import Watched
from provisioner.controller.recovery import RULES, taken
from provisioner.controller.rhythm import Rhythm
from provisioner.controller.start_failures import NO_IMAGE
from provisioner.model import Ending, Node, NodeState

LAST_WORD_S = 5.0
PULLING = "pulling"
BLIND_S = 600.0
"""How long a store that does not answer keeps a machine that is gone from being replaced, in seconds."""


@dataclass(frozen=True, slots=True)
class Signs:
    """What is known of a node at one moment.

    ``state`` is None where the cloud could not be asked just now, ``stored`` False where the store could not.
    ``read_at`` is when the store last answered, ``heard_at`` when the heartbeat last changed: both on our own clock,
    so a node's wrong one does not matter. Losing sight is no silence: ``blind_s`` counts for how long the store could
    not be read since then, ``blind_at`` is since when it cannot be read now.
    """

    now: float
    claimed_at: float
    state: NodeState | None = None
    stored: bool = True
    done: dict[str, object] | None = None
    heartbeat: dict[str, object] | None = None
    read_at: float = 0.0
    heard_at: float | None = None
    stop: str = ""
    blind_s: float = 0.0
    blind_at: float | None = None
    rhythm: Rhythm = field(default_factory=Rhythm)
    clock: NodeClock = field(default_factory=NodeClock)
    suspected: bool = False

    @property
    def silent_s(self) -> float:
        """How long nothing was heard of the node, and could have been, in seconds; since its claim before the first."""
        return self.now - (self.claimed_at if self.heard_at is None else self.heard_at) - self.blind_s


def judge(signs: Signs, patience: Patience) -> tuple[Ending, str] | None:
    """Say how the placement ended, or None while it goes on.

    The node's own word comes first, then the operator's, then the cloud's, then silence. A store that cannot be read
    is no silence: losing sight is not losing the job.
    """
    if signs.done is not None:
        return by_its_word(signs.done)
    if signs.stop:
        return (Ending.TAKEN_DOWN if signs.stop == TAKEN_DOWN else Ending.LIMIT), signs.stop
    end = signs.heartbeat.get("end") if signs.heartbeat else None
    if isinstance(end, dict):
        reason = str(end.get("reason") or "the node stopped")
        return (Ending.FAILED if end.get("cause") == NO_IMAGE else Ending.STOPPED), reason
    if signs.state in {NodeState.GONE, NodeState.STOPPED}:
        return _gone(signs)
    return _silent(signs, patience) if signs.stored else None


def _gone(signs: Signs) -> tuple[Ending, str] | None:
    if not signs.stored and signs.now - signs.read_at < BLIND_S:
        return None  # its last word may be "done", and cannot be read just now
    if not came_up(signs.heartbeat):
        return Ending.NEVER_STARTED, f"the machine is {signs.state} and never sent a heartbeat{_pulling(signs)}"
    return Ending.LOST, f"the cloud says the machine is {signs.state}"


def _silent(signs: Signs, patience: Patience) -> tuple[Ending, str] | None:
    silent = signs.silent_s
    if signs.heard_at is None:
        if silent > patience.boot_timeout_s:
            line = f"no heartbeat within {patience.boot_timeout_s:.0f} s of the claim{_pulling(signs)}"
            return Ending.NEVER_STARTED, line
        return None
    if signs.state is NodeState.STOPPING and silent > patience.last_words_s(signs.rhythm):
        return Ending.LOST, f"the cloud says the machine is {signs.state}, and it is silent"
    if silent > patience.lost_s(signs.rhythm, signs.state):
        return Ending.LOST, f"no heartbeat for {silent:.0f} s; {_clouds_word(signs)}"
    return None


def suspicion(signs: Signs, patience: Patience) -> str:
    """Say why a node that is not lost is suspected, or nothing."""
    silent = signs.silent_s
    if signs.heard_at is None or silent <= patience.suspicious_s(signs.rhythm) or judge(signs, patience) is not None:
        return ""
    mean = signs.rhythm.mean_s
    usual = "" if mean is None else f", where one comes every {mean:.0f} s"
    lost = patience.lost_s(signs.rhythm, signs.state)
    return f"no heartbeat for {silent:.0f} s{usual}; {_clouds_word(signs)}; lost after {lost:.0f} s"


def _clouds_word(signs: Signs) -> str:
    if signs.state is NodeState.UNLISTED:
        return "its cloud does not list it"
    return "its cloud does not answer" if signs.state is None else f"its cloud says that it is {signs.state}"


def came_up(heartbeat: Mapping[str, object] | None) -> bool:
    """Say whether a node has written it: while an image is pulled, the start script writes in its place."""
    return heartbeat is not None and heartbeat.get("phase") != PULLING


def _pulling(signs: Signs) -> str:
    image = (signs.heartbeat or {}).get("image")
    if not isinstance(image, dict) or came_up(signs.heartbeat):
        return ""
    return f"; its image was being pulled, {image.get('layers')} of {image.get('of')} layers were there"


class View(Protocol):
    """Where the signs come from. A method raises CloudError when its source cannot be asked just now."""

    def state(self, node: Node) -> NodeState | None:
        """Ask the cloud; None when it does not answer."""
        ...

    def read(self, node: Node) -> tuple[dict[str, object] | None, dict[str, object] | None] | None:
        """Read (done, heartbeat) of this epoch from the store; None when the store does not answer."""
        ...

    def stop(self) -> str:
        """Say why the job must end now, or nothing."""
        ...

    def changed(self, node: Node, heartbeat: dict[str, object], *, first: bool, ahead_s: float | None) -> None:
        """Take note of a new heartbeat. ``ahead_s``: how far its clock is ahead of ours; None: not known yet."""
        ...

    def suspected(self, node: Node, why: str) -> None:
        """Take note that a node is suspected, or, without a reason, that it was heard again."""
        ...

    def homeward(self, heartbeat: dict[str, object]) -> str:
        """Say why the job should go home now, or nothing."""
        ...


@dataclass
class Watch:
    """Follows one node."""

    view: View
    patience: Patience
    now: Callable[[], float]
    wait: Callable[[float], object]

    def until_end(self, node: Node) -> Watched:
        """Look again and again until the placement has ended."""
        signs = self.begin(node)
        while True:
            signs = self.look(node, signs)
            verdict = judge(signs, self.patience)
            if verdict is not None:
                return self.ended(node, signs, *verdict)
            if signs.heartbeat is not None and (why := self.view.homeward(signs.heartbeat)):
                return self._watched(signs, Ending.HOMEWARD, why)
            self.wait(self.patience.poll_s)

    def ended(self, node: Node, signs: Signs, ending: Ending, reason: str) -> Watched:
        """Return how the placement went, with the node's last figures."""
        return self._watched(self._last_word(node, signs), ending, reason)

    def begin(self, node: Node) -> Signs:
        """Return what is known before the first look."""
        now = self.now()
        return Signs(now=now, claimed_at=node.claimed_at, read_at=now)

    def _last_word(self, node: Node, signs: Signs) -> Signs:
        """Wait a moment for the heartbeat that follows ``done.json``: it has the node's last figures."""
        until = signs.now + LAST_WORD_S
        while signs.done is not None and not (signs.heartbeat or {}).get("end") and signs.now < until:
            self.wait(min(self.patience.poll_s, 0.5))
            signs = self.look(node, signs)
        return signs

    def look(self, node: Node, before: Signs) -> Signs:
        """Ask the cloud and the store once."""
        state = self.view.state(node)  # before the store: a node writes its last word, then its machine goes
        read = self.view.read(node)
        signs = replace(before, now=self.now(), state=state, stored=read is not None, stop=self.view.stop())
        if read is None:
            signs = replace(signs, blind_at=signs.now if before.blind_at is None else before.blind_at)
            return self._believed(before, signs)
        done, heartbeat = read
        if before.blind_at is not None:
            signs = replace(signs, blind_s=before.blind_s + signs.now - before.blind_at, blind_at=None)
        signs = replace(signs, read_at=signs.now)
        if heartbeat is not None and heartbeat != before.heartbeat and not _older(heartbeat, before.heartbeat):
            up = came_up(heartbeat)
            signs = self._heard(signs, heartbeat) if up else replace(signs, heartbeat=heartbeat)
            first = up and not came_up(before.heartbeat)
            self.view.changed(node, heartbeat, first=first, ahead_s=self.ahead_s(signs))
        return self._suspect(node, self._believed(before, replace(signs, done=done)))

    def _believed(self, before: Signs, signs: Signs) -> Signs:
        """Take a machine that its cloud does not list for gone when that is confirmed: lists lag behind.

        It was on its way out; or it is not listed at a second look either, and a heartbeat that was due has not come.
        """
        if signs.state is not NodeState.UNLISTED or before.state is None or signs.heard_at != before.heard_at:
            return signs
        again = before.state is NodeState.UNLISTED and signs.silent_s >= self.patience.due_s(signs.rhythm)
        return replace(signs, state=NodeState.GONE) if again or before.state.is_over else signs

    def _heard(self, signs: Signs, heartbeat: dict[str, object]) -> Signs:
        """Take what a new heartbeat tells of the node's rhythm and of its clock."""
        rhythm, clock, at = signs.rhythm, signs.clock, _number(heartbeat.get("time"))
        if signs.heard_at is not None and not signs.blind_s:
            rhythm = rhythm.heard(signs.now - signs.heard_at)
        if at is not None:
            clock = clock.heard(signs.now - at, fresh=signs.heard_at is not None)
        return replace(signs, heartbeat=heartbeat, heard_at=signs.now, blind_s=0.0, rhythm=rhythm, clock=clock)

    def _suspect(self, node: Node, signs: Signs) -> Signs:
        """Tell when a node begins to be suspected, and when it was heard again."""
        why = suspicion(signs, self.patience)
        heard = signs.heard_at == signs.now
        if why and not signs.suspected:
            self.view.suspected(node, why)
            return replace(signs, suspected=True)
        if heard and signs.suspected:
            self.view.suspected(node, "")
            return replace(signs, suspected=False)
        return signs

    def ahead_s(self, signs: Signs) -> float | None:
        """Return by how many seconds the node's clock is ahead of ours; None: not known yet."""
        return signs.clock.ahead_s(self.patience.heartbeat_s)

    def _watched(self, signs: Signs, ending: Ending, reason: str) -> Watched:
        beat, done = signs.heartbeat or {}, signs.done or {}
        ahead = self.ahead_s(signs) or 0.0

        def ours(key: str) -> float | None:
            """Return a time of the node by our own clock: it was after the claim, and before now."""
            at = _number(beat.get(key))
            return None if at is None else min(max(at - ahead, signs.claimed_at), signs.now)

        end = beat.get("end")
        cause = done.get("cause") or (end.get("cause") if isinstance(end, dict) else "")
        step = done.get("final_step") if done.get("final_step") is not None else beat.get("step")
        return Watched(
            ending=ending,
            reason=reason,
            at=signs.now,
            last_seen=ours("time"),
            first_step_at=ours("first_step_at"),
            restored_step=_integer(beat.get("restored_step")),
            last_step=_integer(step),
            exit_code=_integer(done.get("exit_code")),
            cause=str(cause or ""),
            clock_ahead=round(ahead, 1),
            taken=taken(ending, str(cause or ""), over=signs.state is not None and signs.state.is_over),
            rules=RULES,
        )


def _older(heartbeat: Mapping[str, object], known: Mapping[str, object] | None) -> bool:
    """Say whether a store showed a heartbeat from before the one that is known: that is no sign of life.

    A node that starts anew may count from 1 again, and a clock may be put back; but hardly both at once.
    """
    pairs = [(_number(heartbeat.get(name)), _number((known or {}).get(name))) for name in ("seq", "time")]
    return all(now is not None and then is not None and now < then for now, then in pairs)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _integer(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) else None
