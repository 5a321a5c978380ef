"""The flow under every answer of the world, and under kill -9 between any two steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.controller.flow import TAKEN_DOWN, Flow, abreast
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
    Surplus,
    Watched,
)
from provisioner.model import (
    Ending,
    Failure,
    FailureKind,
    Gpu,
    JobRef,
    Market,
    Money,
    Node,
    Offer,
    Scope,
    claim_token,
)

ZONES = ("us-east-1a", "us-east-1b", "us-east-1c")


def offer(cloud: str, zone: str) -> Offer:
    price = Money(Decimal("0.5"), "USD")
    return Offer(cloud, zone[:-1], zone, "g4dn.xlarge", Gpu("T4", 1, 16), Market.SPOT, price)


HOME = offer("autodl", "westDC3")
AWAY = tuple(offer("aws", zone) for zone in ZONES)
FAR = tuple(offer("aws", zone) for zone in ("us-east-1a", "us-west-2a", "eu-west-1a"))


class Killed(BaseException):
    """The controller dies here."""


@dataclass
class World:
    """A world that follows a script and remembers what exists."""

    home: list[bool]
    refusals: dict[int, int]
    endings: list[Ending]
    job: JobRef = field(default_factory=lambda: JobRef("digits", "00000001"))
    clock: float = 0.0
    machines: dict[str, Node] = field(default_factory=dict)
    made: dict[str, Node] = field(default_factory=dict)
    watched: int = 0
    most_alive: int = 0
    asked_home: int = 0
    away: tuple[Offer, ...] = AWAY
    abreast: int = 1
    rules: int = 1
    """0: what this world records is what the release before the step ``recover`` recorded."""
    stop: str = ""
    """What the wait before the next machine comes to."""
    done_late: bool = False
    """The node is done between the verdict on its placement and the release of its machine."""

    @property
    def way_home(self) -> World:
        return self

    def _tick(self) -> float:
        self.clock += 1
        return self.clock

    def begin(self) -> Begun:
        return Begun(self._tick(), 1)

    def publish(self) -> Published:
        return Published((), None)

    def ask_primary(self, begun: Begun, past: tuple, since: float | None) -> Asked:
        self.asked_home += 1
        free = self.home[min(self.asked_home, len(self.home)) - 1]
        return Asked((HOME,) if free else (), self._tick())

    def ask_fallback(self, begun: Begun, past: tuple) -> Asked:
        return Asked(self.away, self._tick())

    def rank(self, asked: Asked, claims: tuple[Claimed, ...], lost: Sequence[Offer]) -> list[Choice]:
        return [Choice(offer) for offer in sorted(asked.offers, key=lambda offer: offer in lost)]

    def claim(self, choice: Choice, epoch: int, attempt: int, published: Published) -> Claimed:
        offer = choice.offer
        if offer in self.away and self.away.index(offer) < self.refusals.get(epoch, 0):
            failure = Failure(FailureKind.NO_CAPACITY, Scope.OFFER, "InsufficientInstanceCapacity", "none left")
            return Claimed(offer, self._tick(), None, failure)
        token = claim_token(self.job, epoch, offer, attempt)
        node = self.made.get(token) or Node(f"i-{len(self.made)}", offer, self.job, epoch, token, self._tick())
        self.made[token] = node
        self.machines[token] = node
        self.most_alive = max(self.most_alive, len(self.machines))
        return Claimed(offer, self._tick(), node, None)

    def race(self, choices: tuple, epoch: int, attempt: int, published: Published) -> tuple:
        answers = [self.claim(choice, epoch, attempt, published) for choice in choices]
        kept = next((one for one in answers if one.node is not None), answers[0])
        for one in answers:
            if one is not kept and one.node is not None:
                self.release(one.node)
        others = [one for one in answers if one is not kept]
        given = [replace(one, node=None, surplus=Surplus(one.node, one.at)) if one.node else one for one in others]
        return (*given, kept)

    def watch(self, claimed: Claimed, node: Node, begun: Begun, past: tuple) -> Watched:
        assert [*self.machines.values()] == [node], "one machine at a time is watched"
        ending = self.endings[min(len(past), len(self.endings) - 1)]
        at = self._tick()
        step = 10 * (len(past) + 1)
        trained = None if ending is Ending.NEVER_STARTED else at
        return Watched(ending, "", at, at, trained, step - 10 if past else None, step, rules=self.rules)

    def release(self, node: Node) -> Released:
        self.machines.pop(node.token, None)
        done = {"result": "completed", "final_step": 99, "exit_code": 0, "cause": "done"} if self.done_late else None
        return Released(self._tick(), done=done)

    def recover(self, begun: Begun, past: tuple) -> Recovered:
        assert past[-1].watched.rules == 1, "an earlier release knew no such step"
        return Recovered(self._tick(), 0.0, self.stop)

    def pause(self, since: float, round_number: int) -> bool:
        return round_number < 3

    def finish(self, claimed: frozenset[str]) -> Finished:
        return Finished(self._tick(), tuple(node.id for node in self.machines.values()))


@dataclass
class Homesick(World):
    """A job that trains away hears home's call, once for each letter of ``calls``.

    r: home refuses. n: its machine is never ready. g: it is gone when the job is to be handed over. h: the job moves.
    c: it completes while it is handed over. d: the fallback is lost then. t: the operator takes it down while home is
    asked.
    """

    calls: str = ""
    tries: list[int] = field(default_factory=list)
    """The attempts at home so far: one that is repeated after a crash is the same."""
    epochs: dict[int, int] = field(default_factory=dict)
    spent_beside: list[Surplus | None] = field(default_factory=list)
    """What the last look at the fallback knew of machines at home that were given back."""

    def ask_primary(self, begun: Begun, past: tuple, since: float | None) -> Asked:
        free = not past or past[-1].watched.cause == "home"
        return Asked((HOME,) if free else (), self._tick())

    def watch(self, claimed: Claimed, node: Node, begun: Begun, past: tuple) -> Watched:
        at = self._tick()
        if node.offer == HOME and not past:
            return Watched(Ending.LOST, "", at, at, at, None, 10)
        if "t" in self.calls and len(self.tries) == len(self.calls):
            return Watched(Ending.TAKEN_DOWN, TAKEN_DOWN, at, at, at, 10, 20)
        if node.offer == HOME or len(self.tries) == len(self.calls):
            self.spent_beside = [one.surplus for one in claimed.beside]
            return Watched(Ending.COMPLETED, "", at, at, at, 10, 100)
        return Watched(Ending.HOMEWARD, "a card", at, at, at, 10, 20)

    def ask_home(self, claimed: Claimed, begun: Begun, past: tuple) -> Asked:
        return Asked((HOME,), self._tick())

    def claim_home(self, choice: Choice, epoch: int, attempt: int, published: Published, before: int) -> Claimed:
        if attempt not in self.tries:
            self.tries.append(attempt)
        self.epochs[epoch] = self.tries.index(attempt)
        if self.calls[self.epochs[epoch]] == "t":
            return Claimed(HOME, self._tick(), None, None, stop=TAKEN_DOWN)
        if self.calls[self.epochs[epoch]] == "r":
            return Claimed(HOME, self._tick(), None, Failure(FailureKind.NO_CAPACITY, Scope.OFFER, "sold out", ""))
        return self.claim(choice, epoch, attempt, published)

    def stand_by(self, claimed: Claimed, here: Node, home: Claimed, there: Node, begun: Begun, past: tuple) -> Stood:
        assert {here.token, there.token} <= set(self.machines), "the fallback trains on"
        if self.calls[self.epochs[there.epoch]] == "n":
            return Stood(False, "no driver", self._tick())
        return Stood(True, "", self._tick())

    def hand_over(self, claimed: Claimed, here: Node, there: Node, begun: Begun, past: tuple) -> Watched:
        letter, at = self.calls[self.epochs[there.epoch]], self._tick()
        ending = {"g": Ending.HOMEWARD, "h": Ending.STOPPED, "c": Ending.COMPLETED, "d": Ending.LOST}[letter]
        return Watched(ending, "", at, at, at, 10, 30, cause="home" if letter == "h" else "")


class Recorder:
    """Records answers as the engine does; dies after the n-th new one."""

    def __init__(self) -> None:
        self.answers: list[object] = []
        self.die_after: int | None = None
        self.at = 0

    def __call__(self, name: str, call: Callable, *args: object) -> object:
        if self.at < len(self.answers):
            answer = self.answers[self.at]
        else:
            answer = call(*args)
            if self.die_after == len(self.answers):
                raise Killed  # after the effect, before the record: the worst moment
            self.answers.append(answer)
        self.at += 1
        return answer


def run(world: World, recorder: Recorder) -> dict:
    recorder.at = 0
    return Flow(world, recorder).run()


scripts = st.builds(
    World,
    home=st.lists(st.booleans(), min_size=1, max_size=6),
    refusals=st.dictionaries(st.integers(1, 4), st.integers(0, 3), max_size=4),
    endings=st.lists(st.sampled_from([Ending.LOST, Ending.STOPPED]), max_size=3).map(lambda e: [*e, Ending.COMPLETED]),
    rules=st.sampled_from([0, 1]),
)


@settings(max_examples=200)
@given(world=scripts, die_after=st.integers(0, 40))
def test_killed_anywhere_it_ends_with_one_machine_an_epoch_and_nothing_left(world: World, die_after: int) -> None:
    recorder = Recorder()
    recorder.die_after = die_after
    try:
        report = run(world, recorder)
    except Killed:
        recorder.die_after = None
        report = run(world, recorder)
    assert report["result"] in {"completed", "no_offer"}
    assert report["leaked"] == []
    epochs = [node.epoch for node in world.made.values()]
    assert len(epochs) == len(set(epochs)), "two machines for one epoch"
    assert world.most_alive <= 1


@settings(max_examples=100)
@given(world=scripts, die_after=st.integers(0, 40), width=st.integers(2, 4))
def test_a_race_killed_anywhere_keeps_one_machine(world: World, die_after: int, width: int) -> None:
    world.away, world.abreast = FAR, width
    recorder = Recorder()
    recorder.die_after = die_after
    try:
        report = run(world, recorder)
    except Killed:
        recorder.die_after = None
        report = run(world, recorder)
    assert report["leaked"] == []
    assert world.machines == {}
    assert world.most_alive <= width


@pytest.mark.parametrize("world", [
    World([True], {}, [Ending.LOST], done_late=True),
    Homesick([True], {}, [], calls="h", done_late=True),
])  # fmt: skip
def test_a_node_that_is_done_after_it_was_given_up_has_completed_and_nothing_more_is_bought(world: World) -> None:
    flow = Flow(world, lambda name, call, *args: call(*args))
    report = flow.run()
    assert report["result"] == "completed"
    assert report["placements"][-1]["last_step"] == 99
    assert len(flow.placements) == 1
    assert not world.machines


def test_a_race_goes_through_other_regions_of_the_same_market_only() -> None:
    first, beside = offer("aws", "us-east-1a"), offer("aws", "us-west-2a")
    dear = replace(offer("aws", "eu-west-1a"), market=Market.ON_DEMAND)
    choices = [Choice(one) for one in (first, offer("aws", "us-east-1b"), dear, beside, offer("aws", "us-west-2b"))]
    assert [choice.offer for choice in abreast(choices, 3)] == [first, beside]
    assert [choice.offer for choice in abreast(choices, 1)] == [first]
    home = [Choice(one) for one in (HOME, offer("autodl", "beijingDC2"), first)]
    assert [choice.offer for choice in abreast(home, 3)] == [HOME]
    assert [choice.offer for choice in abreast([Choice(first), *home], 3)] == [first]
    assert abreast([], 3) == ()


@pytest.mark.parametrize(
    ("calls", "clouds"),
    [
        ("", ["autodl", "aws"]),
        ("h", ["autodl", "aws", "autodl"]),
        ("rnh", ["autodl", "aws", "autodl"]),
        ("nr", ["autodl", "aws"]),
        ("d", ["autodl", "aws", "autodl"]),
        ("nc", ["autodl", "aws"]),
        ("g", ["autodl", "aws"]),
        ("gh", ["autodl", "aws", "autodl"]),
    ],
)
def test_the_way_home(calls: str, clouds: list[str]) -> None:
    world = Homesick(home=[True], refusals={}, endings=[], calls=calls)
    report = run(world, Recorder())
    assert [placement["cloud"] for placement in report["placements"]] == clouds
    assert (report["result"], report["leaked"], world.machines) == ("completed", [], {})
    assert len(report["surplus"]) == sum(calls.count(letter) for letter in "ncg")
    if not calls or calls[-1] in "nrg":
        assert len(world.spent_beside) == len(report["surplus"]), "a budget counts them while the fallback trains on"
    assert report["refused"] == []
    attempts = [attempt for placement in report["placements"] for attempt in placement["attempts"]]
    assert sum(attempt["failure"] == "no_capacity" for attempt in attempts) == calls.count("r")


def test_a_job_taken_down_while_home_is_asked_tells_what_its_machines_cost() -> None:
    world = Homesick(home=[True], refusals={}, endings=[], calls="t")
    report = run(world, Recorder())
    assert [placement["cloud"] for placement in report["placements"]] == ["autodl", "aws"]
    assert (report["result"], report["leaked"], world.machines) == ("taken_down", [], {})


@settings(max_examples=200)
@given(calls=st.text("rng", max_size=3), end=st.sampled_from(["", "h", "c", "d"]), die_after=st.integers(0, 40))
def test_the_way_home_killed_anywhere_makes_one_machine_an_epoch_and_leaves_none(
    calls: str, end: str, die_after: int
) -> None:
    world = Homesick(home=[True], refusals={}, endings=[], calls=calls + end)
    recorder = Recorder()
    recorder.die_after = die_after
    try:
        report = run(world, recorder)
    except Killed:
        recorder.die_after = None
        report = run(world, recorder)
    assert (report["result"], report["leaked"], world.machines) == ("completed", [], {})
    epochs = [node.epoch for node in world.made.values()]
    assert len(epochs) == len(set(epochs)), "two machines for one epoch"
    assert world.most_alive <= 2


class Stuck(World):
    """A job whose command hangs on every machine, at these steps; with None it makes no step and is lost."""

    steps: list[int | None]

    def watch(self, claimed: Claimed, node: Node, begun: Begun, past: tuple) -> Watched:
        at, step = self._tick(), self.steps[len(past)] if len(past) < len(self.steps) else 100
        if len(past) == len(self.steps):
            return Watched(Ending.COMPLETED, "", at, at, at, 0, step)
        ending, cause = (Ending.LOST, "") if step is None else (Ending.STOPPED, "hung")
        return Watched(ending, "hung: no step", at, at, at, 0, step or 60, cause=cause)


@pytest.mark.parametrize(
    ("steps", "placements", "result"),
    [
        ([40, 40, 40, 40], 3, "failed"),
        ([40, 39, 40, 80], 3, "failed"),
        ([40, 80, 80, 80], 4, "failed"),
        ([40, 80, 120, 160], 5, "completed"),
        ([40, 40, None, 40], 5, "completed"),
    ],
    ids=["at the same step", "no further", "further once", "further each time", "lost between"],
)
def test_a_job_that_hangs_wherever_it_runs_costs_three_machines_and_no_more(
    steps: list[int | None], placements: int, result: str
) -> None:
    world = Stuck(home=[True], refusals={}, endings=[])
    world.steps = steps
    report = run(world, Recorder())
    assert (report["result"], len(report["placements"])) == (result, placements)
    assert {placement["cause"] for placement in report["placements"]} <= {"hung", ""}
    if result == "failed":
        assert report["reason"] == "3 machines in a row hung and got no further: hung: no step"


@pytest.mark.parametrize(
    ("stop", "result"), [("budget of 20 USD reached", "limit_reached"), (TAKEN_DOWN, "taken_down")]
)
def test_a_limit_or_the_operator_ends_the_wait_before_the_next_machine(stop: str, result: str) -> None:
    world = World(home=[True], refusals={}, endings=[Ending.LOST, Ending.COMPLETED], stop=stop)
    report = run(world, Recorder())
    assert (report["result"], len(report["placements"]), report["leaked"]) == (result, 1, [])


def test_the_first_scene_of_the_mission() -> None:
    """AutoDL is lost, zone a is sold out, zone b takes the job, and it finishes."""
    world = World(home=[True, False], refusals={2: 1}, endings=[Ending.LOST, Ending.COMPLETED])
    report = run(world, Recorder())
    assert report["result"] == "completed"
    assert report["exit_code"] == 0
    first, second = report["placements"]
    assert (first["cloud"], first["ended"]) == ("autodl", "lost")
    assert (second["cloud"], second["zone"], second["ended"]) == ("aws", "us-east-1b", "completed")
    assert [(a["zone"], a["failure"]) for a in second["attempts"]] == [("us-east-1a", "no_capacity")]
    assert report["restored_step"] == 10
    assert report["leaked"] == []


def test_nothing_anywhere_is_no_offer_and_names_every_refusal() -> None:
    world = World(home=[False], refusals={1: 3}, endings=[Ending.COMPLETED])
    report = run(world, Recorder())
    assert (report["result"], report["exit_code"]) == ("no_offer", 3)
    assert {a["zone"] for a in report["refused"]} == set(ZONES)


def test_a_machine_that_never_starts_is_not_tried_for_ever() -> None:
    world = World(home=[True], refusals={}, endings=[Ending.NEVER_STARTED])
    report = run(world, Recorder())
    assert report["result"] == "failed"
    assert len(report["placements"]) == 3
