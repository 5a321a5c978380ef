"""A world for the workflow: clouds, a store and machines that act only when they are told to, on a clock of their own.

The flow runs in a greenlet. It stops before and after each effect and at each look of a watch, so that anything may
happen there: also that its controller dies, or is stopped, and wakes up after another one has taken over.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]

from provisioner.checkpoint import layout
from provisioner.controller import moving, recovery
from provisioner.controller.flow import FINAL, Flow
from provisioner.controller.patience import Patience
from provisioner.controller.records import (
    Asked,
    Begun,
    Choice,
    Claimed,
    Finished,
    Published,
    Recovered,
    Released,
    Stood,
    Watched,
)
from provisioner.controller.watch import BLIND_S, Watch
from provisioner.errors import Unreachable
from provisioner.model import (
    Ending,
    Failure,
    FailureKind,
    Gpu,
    JobRef,
    Market,
    Money,
    Node,
    NodeState,
    Offer,
    Scope,
    claim_token,
)

JOB = JobRef("digits", "00000001")
STEPS = 20
CLAIMS = {"claim", "claim_home"}
PRICE = Money(Decimal(36), "USD")
"""A cent a second."""
PATIENCE = Patience(poll_s=1.0, lost_after_s=30.0, boot_timeout_s=60.0, heartbeat_s=1.0)


def offer(cloud: str, zone: str) -> Offer:
    """Return an offer with a known price."""
    return Offer(cloud, zone[:-1], zone, "card", Gpu("T4", 1, 16), Market.SPOT, PRICE)


HOME = offer("autodl", "westDC3")
AWAY = (offer("aws", "us-east-1a"), offer("aws", "us-east-1b"), offer("gcp", "us-central1-b"))


class Dead(BaseException):
    """The controller is killed here."""


@dataclass
class Machine:
    """A machine as it is, whatever anybody believes. Times are the world's."""

    id: str
    token: str
    epoch: int
    offer: Offer
    begun: float
    before: int | None
    """The epoch that it stands by for; None where it begins at once."""
    ended: float | None = None
    known_gone: bool = False
    cut: bool = False
    read_start: bool = False
    step: int = 0
    lost: bool = False
    """The answer to its claim was lost, and so is every later one."""
    unsure: bool = False
    """The flow does not know of it: see ``lost``, or it was made by a controller that had been replaced."""

    @property
    def runs(self) -> bool:
        """Whether it costs money."""
        return self.ended is None


@dataclass
class Place:
    """What is outside the controllers: clouds, store, machines, the clock."""

    clock: float = 0.0
    machines: list[Machine] = field(default_factory=list)
    starts: set[str] = field(default_factory=set)
    """Tokens whose start object is in the store."""
    owners: dict[int, str] = field(default_factory=dict)
    beats: dict[int, dict[str, Any]] = field(default_factory=dict)
    hints: set[int] = field(default_factory=set)
    calls: set[int] = field(default_factory=set)
    commits: list[tuple[int, int]] = field(default_factory=list)
    done: dict[str, Any] | None = None
    cloud_up: bool = True
    store_up: bool = True
    dark_at: float = 0.0
    """Since when the store does not answer, if it does not."""
    sold_out: set[Offer] = field(default_factory=set)
    lose_answers: int = 0
    homesick: bool = False
    broken: list[str] = field(default_factory=list)

    def machine(self, token: str) -> Machine | None:
        """Find a machine by the token of its claim."""
        return next((one for one in self.machines if one.token == token), None)

    # --- what a machine does ------------------------------------------------------------------------------------------

    def act(self, one: Machine) -> None:
        """Do the next thing that the node of a machine does."""
        if not one.runs or one.cut:
            return
        if not one.read_start:
            one.read_start = one.token in self.starts
            if not one.read_start and self.clock - one.begun > 2 * PATIENCE.boot_timeout_s:
                one.ended = self.clock
            return
        if max(self.owners, default=0) > one.epoch and one.before is None:
            one.ended = self.clock  # fenced
        elif one.before is not None:
            self._stand_by(one)
        elif self.owners.setdefault(one.epoch, one.token) != one.token:
            one.ended = self.clock
        else:
            self._train(one)

    def _stand_by(self, one: Machine) -> None:
        end = self.beats.get(one.before or 0, {}).get("end") or {}
        self._beat(one, phase="standby")
        if one.epoch in self.calls or end.get("cause") == "home":
            one.before = None

    def _train(self, one: Machine) -> None:
        if not self.beats.get(one.epoch, {}).get("owned"):
            one.step = max((step for _, step in self.commits), default=0)
            self._beat(one, owned=True, restored_step=one.step, phase="training")
            return
        if one.epoch in self.hints:
            self._beat(one, end={"reason": "going home", "cause": "home"})
            one.ended = self.clock
            return
        if self.done is not None and one.step < STEPS:
            self.broken.append(f"epoch {one.epoch} trains on after the job has ended")
        one.step = min(STEPS, one.step + 1)
        if any(epoch > one.epoch for epoch, _ in self.commits):
            self.broken.append(f"epoch {one.epoch} commits after a newer one")
        self.commits.append((one.epoch, one.step))
        self._beat(one, step=one.step, first_step_at=self.clock, phase="training")
        if one.step == STEPS:
            self.done = {"result": "completed", "final_step": STEPS, "epoch": one.epoch, "cause": "done"}
            self.done["time"] = self.clock
            self._beat(one, end={"reason": "completed", "cause": "done"})
            one.ended = self.clock

    def _beat(self, one: Machine, **fields: Any) -> None:
        before = self.beats.get(one.epoch, {})
        self.beats[one.epoch] = {**before, "time": self.clock, "epoch": one.epoch, **fields}


class World:
    """The effects of one controller on the place."""

    job = JOB
    abreast = 1

    def __init__(self, place: Place) -> None:
        """Take what is outside."""
        self.place = place
        self.stale = False
        self.way_home = self
        # What the way home asks of a world.
        failback = SimpleNamespace(trial=10.0, handover=20.0)
        self.config = SimpleNamespace(policy=SimpleNamespace(failback=failback, poll=1.0))
        self.take_down = SimpleNamespace(wait=self._wait, is_set=lambda: False)
        self.events = SimpleNamespace(emit=lambda *_, **__: None)
        store = SimpleNamespace(put=self._put, get=self._get, look=self._get)
        self.launcher = SimpleNamespace(store=store, read_signs=self._signs)

    def now(self) -> float:
        """Return the place's time."""
        return self.place.clock

    def patience(self) -> Patience:
        """Return the model's."""
        return PATIENCE

    def _wait(self, seconds: float) -> None:
        self.place.clock += seconds
        pause()

    def _put(self, key: str, _: bytes) -> None:
        if not self.place.store_up:
            raise Unreachable("the store does not answer")
        for epoch in range(1, 200):
            if key == layout.hint(epoch):
                self.place.hints.add(epoch)
            elif key == layout.call(epoch):
                self.place.calls.add(epoch)

    def _get(self, _: str) -> None:
        """Nothing is known of a machine's clock: it is ours."""
        if not self.place.store_up:
            raise Unreachable("the store does not answer")

    def _signs(self, epoch: int) -> tuple[Any, Any]:
        if not self.place.store_up:
            raise Unreachable("the store does not answer")
        return self.place.done, self.place.beats.get(epoch)

    def cloud(self, _: str) -> World:
        """Every cloud is this one."""
        return self

    def inspect(self, node: Node) -> NodeState:
        """Say what the cloud says."""
        if not self.place.cloud_up:
            raise Unreachable("the cloud does not answer")
        one = self.place.machine(node.token)
        gone = one is None or (not one.runs and one.known_gone)
        return NodeState.GONE if gone else NodeState.RUNNING

    # --- the steps ----------------------------------------------------------------------------------------------------

    def begin(self) -> Begun:
        for one in self.place.machines:
            self._end(one)
        return Begun(self.now(), max(self.place.owners, default=0) + 1, int(self.now()))

    def publish(self) -> Published:
        return Published((), None)

    def ask_primary(self, begun: Begun, past: tuple, since: float | None) -> Asked:
        return Asked(self._free((HOME,)), self.now())

    def ask_fallback(self, begun: Begun, past: tuple) -> Asked:
        return Asked(self._free(AWAY), self.now())

    def ask_home(self, claimed: Claimed, begun: Begun, past: tuple) -> Asked:
        return Asked(self._free((HOME,)), self.now())

    def _free(self, offers: tuple[Offer, ...]) -> tuple[Offer, ...]:
        return tuple(one for one in offers if one not in self.place.sold_out)

    def rank(self, asked: Asked, claims: tuple[Claimed, ...], lost: Sequence[Offer]) -> list[Choice]:
        return [Choice(one) for one in sorted(asked.offers, key=lambda one: one in lost)]

    def claim(
        self, choice: Choice, epoch: int, attempt: int, published: Published, before: int | None = None
    ) -> Claimed:
        """As ``effects.World``: the start object first, one machine a token, and no start without an answer."""
        place, one = self.place, choice.offer
        token = claim_token(JOB, epoch, one, attempt)
        place.starts.add(token)
        made = place.machine(token)
        refused = None
        if made is None and not place.cloud_up:
            refused = FailureKind.NETWORK
        elif made is None and one in place.sold_out:
            refused = FailureKind.NO_CAPACITY
        elif made is None:
            made = Machine(f"m-{len(place.machines)}", token, epoch, one, self.now(), before, unsure=True)
            place.machines.append(made)
            if place.lose_answers:
                place.lose_answers -= 1
                made.lost = True
        if made is not None and made.lost:
            refused = FailureKind.NETWORK
        if made is not None:
            made.unsure = made.lost or (self.stale and made.unsure)
        if refused is not None or made is None:
            place.starts.discard(token)
            return Claimed(one, self.now(), None, Failure(refused or FailureKind.UNKNOWN, Scope.OFFER, "no", "no"))
        return Claimed(one, self.now(), Node(made.id, one, JOB, epoch, token, made.begun), None)

    def claim_home(self, choice: Choice, epoch: int, attempt: int, published: Published, before: int) -> Claimed:
        return self.claim(choice, epoch, attempt, published, before)

    def race(self, choices: tuple, epoch: int, attempt: int, published: Published) -> tuple[Claimed, ...]:
        raise NotImplementedError("one claim at a time")

    def watch(self, claimed: Claimed, node: Node, begun: Begun, past: tuple) -> Watched:
        watched, place = Watch(View(self), PATIENCE, self.now, self._wait).until_end(node), self.place
        if watched.ending not in FINAL and place.done is not None and place.store_up:
            place.broken.append(f"a job that is done is called {watched.ending}")
        blind_s = 0.0 if place.store_up else self.now() - place.dark_at
        if watched.ending is Ending.LOST and place.done is not None and not place.store_up and blind_s < BLIND_S:
            place.broken.append(f"a last word that could not be read was waited for {blind_s:.0f} s")
        if watched.reason.startswith("no heartbeat") and not place.store_up:
            place.broken.append("a store that does not answer is taken for silence")
        return watched

    def stand_by(self, claimed: Claimed, here: Node, home: Claimed, there: Node, begun: Begun, past: tuple) -> Stood:
        self.place.homesick = False
        return moving.stand_by(self, (View(self), here), (View(self), there))  # type: ignore[arg-type]

    def hand_over(self, claimed: Claimed, here: Node, there: Node, begun: Begun, past: tuple) -> Watched:
        return moving.hand_over(self, View(self), here, there)  # type: ignore[arg-type]

    def release(self, node: Node) -> Released:
        if not self.place.cloud_up:
            return Released(self.now(), "the cloud does not answer")
        one = self.place.machine(node.token)
        if one is not None:
            self._end(one)
        self.place.starts.discard(node.token)
        done = self.place.done if self.place.store_up else None
        return Released(self.now(), done=done if done is not None and done["epoch"] == node.epoch else None)

    def _end(self, one: Machine) -> None:
        one.ended = self.now() if one.runs else one.ended
        one.known_gone = True

    def recover(self, begun: Begun, past: tuple) -> Recovered:
        held = recovery.hold(past, 10)
        while held is not None and self.now() < held.until:
            self._wait(held.until - self.now())
        return Recovered(self.now())

    def rest(self, begun: Begun, past: tuple, until: float) -> float:
        raise NotImplementedError("no budget for a day")

    def pause(self, since: float, round_number: int) -> bool:
        self._wait(30.0)
        return self.now() - since < 300.0

    def finish(self, claimed: frozenset[str]) -> Finished:
        if self.place.cloud_up:
            for one in self.place.machines:
                self._end(one)
        return Finished(self.now(), tuple(one.id for one in self.place.machines if one.runs))


class View:
    """What a watch sees of the place."""

    def __init__(self, world: World) -> None:
        self._world = world

    def state(self, node: Node) -> NodeState | None:
        try:
            return self._world.inspect(node)
        except Unreachable:
            return None

    def read(self, node: Node) -> tuple[Any, Any] | None:
        place = self._world.place
        return (place.done, place.beats.get(node.epoch)) if place.store_up else None

    def stop(self) -> str:
        return ""

    def changed(self, node: Node, heartbeat: dict[str, object], *, first: bool, ahead_s: float) -> None:
        pass

    def suspected(self, node: Node, why: str) -> None:
        pass

    def homeward(self, heartbeat: dict[str, object]) -> str:
        place = self._world.place
        here = next(one for one in place.machines if one.epoch == heartbeat["epoch"])
        return "a card" if place.homesick and place.cloud_up and here.offer != HOME else ""


def pause() -> None:
    """Let the place go on. Ends the controller here if that was decided meanwhile."""
    parent = getcurrent().parent
    assert parent is not None
    parent.switch()


@dataclass
class Journal:
    """The recorded answers of one run, as the engine keeps them: pickled, and the same steps in every replay."""

    answers: list[tuple[str, bytes, bytes]] = field(default_factory=list)

    def had(self) -> list[Node]:
        """Return the machines that the job ever had."""
        claims = [pickle.loads(answer) for name, _, answer in self.answers if name in CLAIMS]  # noqa: S301 - ours
        return [one.node for one in claims if one.node is not None]

    def held(self) -> list[Node]:
        """Return the machines that were had and not given back."""
        found: list[Node] = []
        for name, asked, answer in self.answers:
            if name in CLAIMS:
                node = pickle.loads(answer).node  # noqa: S301 - ours
                found += [] if node is None else [node]
            elif name == "release":
                gone = pickle.loads(asked)[0]  # noqa: S301 - ours
                found = [one for one in found if one.token != gone.token]
        return found


def misplaced(name: str, args: tuple[Any, ...], journal: Journal) -> list[str]:
    """Say what is wrong with a step that is about to be made: what the job holds must fit it."""
    most = {"ask_primary": 0, "ask_fallback": 0, "claim": 0, "pause": 0, "finish": 0, "watch": 1, "claim_home": 1}
    if name not in most:
        return []
    if name in CLAIMS and any(one.epoch >= args[1] for one in journal.had()):
        return [f"{name} for epoch {args[1]}, which had a machine"]
    held = journal.held()
    epochs = [one.epoch for one in held]
    if len(held) > most[name] or (name == "watch" and held[0].token != args[1].token):
        return [f"{name} while the job holds {epochs}"]
    return []


class Controller:
    """One process that runs the flow on a journal. It stops before and after each effect."""

    def __init__(self, place: Place, journal: Journal) -> None:
        """Begin, or take up what the journal has."""
        self.world = World(place)
        self.journal = journal
        self.report: dict[str, Any] | None = None
        self._at = 0
        self._greenlet = greenlet(self._run)

    def _run(self) -> None:
        try:
            self.report = Flow(self.world, self._step).run()
        except Dead:
            return

    def _step(self, name: str, call: Callable[..., Any], *args: object) -> Any:
        asked = pickle.dumps(args)
        if self._at < len(self.journal.answers):
            known, before, answer = self.journal.answers[self._at]
            if (known, pickle.loads(before)) != (name, args):  # noqa: S301 - ours
                self.world.place.broken.append(f"step {self._at} was {known} and is {name}, or is asked otherwise")
        else:
            if not self.world.stale:
                self.world.place.broken += misplaced(name, args, self.journal)
            pause()
            made = call(*args)
            pause()
            if self.world.stale:
                raise Dead
            answer = pickle.dumps(made)
            self.journal.answers.append((name, asked, answer))
        self._at += 1
        return pickle.loads(answer)  # noqa: S301 - ours

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return not self._greenlet.dead

    def go(self) -> None:
        """Let it go on to its next stop."""
        if self.lives:
            self._greenlet.switch()

    def kill(self) -> None:
        """Kill it where it stands."""
        if self._greenlet:
            self._greenlet.throw(Dead)
        else:
            self._greenlet = greenlet(lambda: None)
            self._greenlet.switch()


def bill(report: dict[str, Any]) -> Decimal:
    """Return what a report says that its machines have cost."""
    return Decimal(str(report["cost_estimate"]["by_currency"].get("USD", 0)))


def charged(machine: Machine, now: float) -> Decimal:
    """Return what a cloud charges for a machine."""
    seconds = (now if machine.ended is None else machine.ended) - machine.begun
    return PRICE.amount * Decimal(str(seconds)) / 3600


__all__ = ["AWAY", "HOME", "Controller", "Ending", "Journal", "Machine", "Place", "bill", "charged", "replace"]
