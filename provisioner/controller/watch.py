"""When has a placement ended? A pure judgement over what the store and the cloud show, and the loop that asks them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from provisioner.controller.flow import TAKEN_DOWN
from provisioner.controller.records import Watched
from provisioner.controller.start_failures import NO_IMAGE
from provisioner.model import Ending, Node, NodeState

LAST_WORD_S = 5.0
LAST_WORDS_S = 20.0
"""A machine on its way out that is silent for this long has nothing more to say; one that is not may still save."""
BLIND_S = 600.0
"""How long a store that does not answer keeps a machine that is gone from being replaced, in seconds."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait, in seconds: between looks, for a silent node, for a first sign of life."""

    poll_s: float
    lost_after_s: float
    boot_timeout_s: float


@dataclass(frozen=True, slots=True)
class Signs:
    """What is known of a node at one moment.

    ``state`` is None where the cloud could not be asked just now, ``stored`` False where the store could not.
    ``read_at`` is when the store last answered, ``heard_at`` when the heartbeat last changed: both on our own clock,
    so a node's wrong one does not matter.
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


def judge(signs: Signs, patience: Patience) -> tuple[Ending, str] | None:
    """Say how the placement ended, or None while it goes on.

    The node's own word comes first, then the operator's, then the cloud's, then silence. A store that cannot be read
    is no silence: losing sight is not losing the job.
    """
    if signs.done is not None:
        completed = signs.done.get("result") == "completed"
        return (Ending.COMPLETED if completed else Ending.FAILED), str(signs.done.get("reason") or "")
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
    if signs.heartbeat is None:
        return Ending.NEVER_STARTED, f"the machine is {signs.state} and never sent a heartbeat"
    return Ending.LOST, f"the cloud says the machine is {signs.state}"


def _silent(signs: Signs, patience: Patience) -> tuple[Ending, str] | None:
    if signs.heard_at is None:
        waited = signs.now - signs.claimed_at
        if waited > patience.boot_timeout_s:
            return Ending.NEVER_STARTED, f"no heartbeat within {patience.boot_timeout_s:.0f} s of the claim"
        return None
    silent = signs.now - signs.heard_at
    if signs.state is NodeState.STOPPING and silent > min(LAST_WORDS_S, patience.lost_after_s):
        return Ending.LOST, f"the cloud says the machine is {signs.state}, and it is silent"
    if silent > patience.lost_after_s:
        return Ending.LOST, f"no heartbeat for {silent:.0f} s"
    return None


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

    def changed(self, node: Node, heartbeat: dict[str, object], *, first: bool) -> None:
        """Take note of a new heartbeat."""
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
            return signs
        done, heartbeat = read
        signs = replace(signs, read_at=signs.now)
        if heartbeat is not None and heartbeat != before.heartbeat:
            self.view.changed(node, heartbeat, first=before.heartbeat is None)
            signs = replace(signs, heartbeat=heartbeat, heard_at=signs.now)
        return replace(signs, done=done)

    @staticmethod
    def _watched(signs: Signs, ending: Ending, reason: str) -> Watched:
        beat, done = signs.heartbeat or {}, signs.done or {}
        end = beat.get("end")
        cause = done.get("cause") or (end.get("cause") if isinstance(end, dict) else "")
        step = done.get("final_step") if done.get("final_step") is not None else beat.get("step")
        return Watched(
            ending=ending,
            reason=reason,
            at=signs.now,
            last_seen=_number(beat.get("time")),
            first_step_at=_number(beat.get("first_step_at")),
            restored_step=_integer(beat.get("restored_step")),
            last_step=_integer(step),
            exit_code=_integer(done.get("exit_code")),
            cause=str(cause or ""),
        )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _integer(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) else None
