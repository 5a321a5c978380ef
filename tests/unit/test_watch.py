"""When a placement has ended, and when it has not."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.controller.patience import Patience
from provisioner.controller.records import Watched
from provisioner.controller.rhythm import Rhythm
from provisioner.controller.watch import Signs, Watch, judge, suspicion
from provisioner.model import Ending, Gpu, JobRef, Market, Money, Node, NodeState, Offer

PATIENCE = Patience(poll_s=1, lost_after_s=60, boot_timeout_s=600)
BEATING = Signs(now=1000, claimed_at=0, state=NodeState.RUNNING, heartbeat={"step": 4, "time": 999}, heard_at=999)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, None),
        ({"done": {"result": "completed", "final_step": 9}}, Ending.COMPLETED),
        ({"done": {"result": "failed", "exit_code": 3}}, Ending.FAILED),
        ({"done": {"result": "completed"}, "state": NodeState.GONE}, Ending.COMPLETED),
        ({"done": {"result": "completed"}, "stop": "taken down"}, Ending.COMPLETED),
        ({"stop": "taken down"}, Ending.TAKEN_DOWN),
        ({"stop": "budget of 20 USD reached"}, Ending.LIMIT),
        ({"heartbeat": {"end": {"reason": "spot notice", "exit_code": 75, "cause": "notice"}}}, Ending.STOPPED),
        ({"state": NodeState.GONE}, Ending.LOST),
        ({"state": NodeState.STOPPED}, Ending.LOST),
        ({"state": NodeState.STOPPING}, None),  # its node may still save, and a new epoch would cut it off
        ({"state": NodeState.STOPPING, "heard_at": 979}, Ending.LOST),
        ({"state": NodeState.STOPPING, "heartbeat": {"end": {"reason": "saved"}}}, Ending.STOPPED),
        ({"state": NodeState.GONE, "heartbeat": None, "heard_at": None}, Ending.NEVER_STARTED),
        ({"state": NodeState.PENDING, "heartbeat": None, "heard_at": None, "claimed_at": 500}, None),
        ({"heartbeat": None, "heard_at": None, "claimed_at": 399}, Ending.NEVER_STARTED),
        ({"heard_at": 939}, Ending.LOST),
        ({"heard_at": 941}, None),
        ({"heard_at": 100, "stored": False}, None),
        ({"state": None}, None),
        ({"state": NodeState.GONE, "stored": False, "read_at": 990}, None),
        ({"state": NodeState.GONE, "stored": False, "read_at": 300}, Ending.LOST),
        ({"state": None, "heard_at": 100}, Ending.LOST),
    ],
)
def test_each_sign_has_its_verdict(change: dict[str, object], expected: Ending | None) -> None:
    verdict = judge(replace(BEATING, **change), PATIENCE)
    assert (verdict and verdict[0]) == expected


AUTO = Patience(poll_s=10, lost_after_s=None, boot_timeout_s=600)
STEADY = replace(BEATING, rhythm=Rhythm((10.0,) * 20))


@pytest.mark.parametrize(
    ("change", "expected", "suspected"),
    [
        ({}, None, False),
        ({"heard_at": 950}, None, True),
        ({"heard_at": 821}, None, True),
        ({"heard_at": 819}, Ending.LOST, False),
        ({"heard_at": 819, "state": None}, None, True),
        ({"heard_at": 699, "state": None}, Ending.LOST, False),
        ({"heard_at": 819, "blind_s": 150}, None, False),
        ({"heard_at": 950, "stored": False}, None, False),
        ({"heard_at": 950, "state": NodeState.STOPPING}, Ending.LOST, False),
        ({"heard_at": 950, "state": NodeState.STOPPING, "rhythm": Rhythm((30.0,) * 20)}, None, False),
        ({"state": NodeState.GONE}, Ending.LOST, False),
        ({"heard_at": 700, "rhythm": Rhythm((20.0, 90.0) * 20)}, None, True),
        ({"heartbeat": None, "heard_at": None, "claimed_at": 399, "blind_s": 100}, None, False),
    ],
    ids=[
        "beating", "silent for long", "not long enough", "lost", "no word of the cloud", "no word for too long",
        "the store was away", "the store is away", "on its way out", "on its way out and slow", "gone", "a slow store",
        "the store was away at its start",
    ],
)  # fmt: skip
def test_silence_alone_is_not_enough_while_the_cloud_says_that_the_machine_runs(
    change: dict[str, object], expected: Ending | None, suspected: bool
) -> None:
    signs = replace(STEADY, **change)
    verdict = judge(signs, AUTO)
    assert (verdict and verdict[0]) == expected
    if signs.stored:
        assert bool(suspicion(signs, AUTO)) is suspected


@given(
    state=st.sampled_from([*NodeState, None]),
    heard=st.none() | st.floats(0, 1000),
    claimed=st.floats(0, 1000),
)
def test_a_store_that_cannot_be_read_is_no_silence(
    state: NodeState | None, heard: float | None, claimed: float
) -> None:
    """Losing sight of the store is never by itself the loss of the job."""
    signs = Signs(now=1000, claimed_at=claimed, state=state, stored=False, heartbeat={"step": 1}, heard_at=heard)
    verdict = judge(signs, PATIENCE)
    assert verdict is None or state in {NodeState.GONE, NodeState.STOPPED}


class Script:
    """A cloud and a store that show one scene after another."""

    def __init__(self, scenes: list[tuple[NodeState | None, tuple[dict | None, dict | None] | None]]) -> None:
        self.scenes = scenes
        self.at = 0
        self.changes: list[dict] = []
        self.ahead: list[float | None] = []
        self.told: list[str] = []

    def state(self, node: Node) -> NodeState | None:
        return self.scenes[self.at][0]

    def read(self, node: Node) -> tuple[dict | None, dict | None] | None:
        scene = self.scenes[self.at][1]
        self.at = min(self.at + 1, len(self.scenes) - 1)
        return scene

    def homeward(self, heartbeat: dict[str, object]) -> str:
        return "time to go home" if heartbeat.get("step") == -77 else ""

    def stop(self) -> str:
        return ""

    def changed(self, node: Node, heartbeat: dict, *, first: bool, ahead_s: float | None) -> None:
        self.changes.append(heartbeat)
        self.ahead.append(ahead_s)

    def suspected(self, node: Node, why: str) -> None:
        self.told.append(why)


NODE = Node(
    id="i-1",
    offer=Offer(
        "aws", "us-east-1", "us-east-1a", "g4dn.xlarge", Gpu("T4", 1, 16), Market.SPOT, Money(Decimal("0.5"), "USD")
    ),
    job=JobRef("digits", "00000001"),
    epoch=1,
    token="t",
    claimed_at=0,
)


def test_a_blind_spell_longer_than_the_patience_does_not_lose_a_living_node() -> None:
    beat1 = {"seq": 1, "step": 1, "time": 10.0}
    beat2 = {"seq": 2, "step": 8, "time": 200.0}
    done = {"result": "completed", "final_step": 10, "exit_code": 0}
    blind = [(None, None)] * 120
    script = Script(
        [(NodeState.RUNNING, (None, beat1)), *blind, (NodeState.RUNNING, (None, beat2)), (None, (done, beat2))]
    )
    clock = iter(range(10, 1000))
    watched = Watch(script, PATIENCE, lambda: next(clock), lambda _: None).until_end(NODE)
    assert (watched.ending, watched.last_step, watched.exit_code) == (Ending.COMPLETED, 10, 0)
    assert script.changes == [beat1, beat2]


PULLING = {"phase": "pulling", "time": 5.0, "image": {"layers": 2, "of": 9}}


@pytest.mark.parametrize("state", [NodeState.RUNNING, NodeState.GONE])
def test_an_image_that_is_being_pulled_is_no_node_that_fell_silent(state: NodeState) -> None:
    """The time for a start goes on, whatever the start script writes and whenever it writes it."""
    pulling = [(NodeState.RUNNING, (None, {**PULLING, "time": float(n)})) for n in range(3)]
    script = Script([*pulling, (state, (None, {**PULLING, "time": 2.0}))])
    clock = iter(range(0, 100_000, 50))
    watched = Watch(script, PATIENCE, lambda: next(clock), lambda _: None).until_end(NODE)
    assert watched.ending is Ending.NEVER_STARTED
    assert watched.reason.endswith("; its image was being pulled, 2 of 9 layers were there")
    assert (watched.at > PATIENCE.boot_timeout_s) is (state is NodeState.RUNNING)


def test_the_first_heartbeat_is_that_of_a_node() -> None:
    firsts: list[bool] = []

    class Listening(Script):
        def changed(self, node: Node, heartbeat: dict, *, first: bool, ahead_s: float | None) -> None:
            firsts.append(first)

    beats = [PULLING, {**PULLING, "time": 15.0}, {"seq": 1, "time": 20.0}, {"seq": 2, "time": 25.0}]
    script = Listening(
        [*((NodeState.RUNNING, (None, beat)) for beat in beats), (None, ({"result": "completed"}, None))]
    )
    clock = iter(range(1000))
    Watch(script, PATIENCE, lambda: next(clock), lambda _: None).until_end(NODE)
    assert firsts == [False, False, True, False]


def test_a_node_with_a_wrong_clock_is_not_lost() -> None:
    """Silence is measured on the controller's clock: a heartbeat dated 1970 that changes is a living node."""
    scenes = [(NodeState.RUNNING, (None, {"seq": n, "step": n, "time": 5.0})) for n in range(100)]
    done = {"result": "completed", "final_step": 99}
    script = Script([*scenes, (NodeState.RUNNING, (done, scenes[-1][1][1]))])
    clock = iter(range(1_000_000, 2_000_000, 30))
    watched = Watch(script, PATIENCE, lambda: next(clock), lambda _: None).until_end(NODE)
    assert watched.ending is Ending.COMPLETED


class Living:
    """A node whose heartbeats reach the controller late, and whose clock is off; its machine runs till the end."""

    def __init__(
        self, delays: list[float], *, ahead: float = 0.0, dies: bool = False, away: tuple[float, float] = (0, 0)
    ):
        self.now, self.ahead, self.dies, self.away = 0.0, ahead, dies, away
        self.beats: list[tuple[float, dict]] = []
        at = 20.0
        for seq, delay in enumerate(delays):
            at += delay
            beat = {"seq": seq, "step": seq, "time": at + ahead, "first_step_at": 30.0 + ahead if seq > 1 else None}
            self.beats.append((at, beat))
        self.told: list[str] = []
        self.known: list[float | None] = []

    def state(self, node: Node) -> NodeState:
        return NodeState.RUNNING

    def read(self, node: Node) -> tuple[dict | None, dict | None] | None:
        if self.away[0] <= self.now < self.away[1]:
            return None
        beat = max((one for one in self.beats if one[0] <= self.now), default=(0.0, None), key=lambda one: one[0])[1]
        over = not self.dies and beat is self.beats[-1][1]
        return ({"result": "completed", "final_step": beat["step"]} if over and beat else None), beat

    def homeward(self, heartbeat: dict[str, object]) -> str:
        return ""

    def stop(self) -> str:
        return ""

    def changed(self, node: Node, heartbeat: dict, *, first: bool, ahead_s: float | None) -> None:
        self.known.append(ahead_s)

    def suspected(self, node: Node, why: str) -> None:
        self.told.append(why)

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def watched(self, patience: Patience = AUTO) -> Watched:
        return Watch(self, patience, lambda: self.now, self.wait).until_end(NODE)


@settings(max_examples=50)
@given(delays=st.lists(st.floats(5, 60), min_size=3, max_size=200))
def test_a_node_whose_store_is_slow_is_not_lost(delays: list[float]) -> None:
    assert Living(delays).watched().ending is Ending.COMPLETED


def test_a_silent_machine_that_runs_is_suspected_told_once_and_lost_after_three_minutes() -> None:
    living = Living([5.0] * 100, dies=True)
    watched = living.watched()
    assert watched.ending is Ending.LOST
    assert watched.at - 520 == pytest.approx(190, abs=11)
    assert "its cloud says that it is running" in watched.reason
    assert len(living.told) == 1
    assert "lost after 180 s" in living.told[0]


def test_one_that_is_heard_again_is_suspected_no_more() -> None:
    living = Living([5.0] * 40 + [90.0] + [5.0] * 40)
    assert living.watched().ending is Ending.COMPLETED
    assert [bool(why) for why in living.told] == [True, False]


def test_a_node_that_backs_off_after_the_stores_outage_is_not_lost_when_it_is_back() -> None:
    """Both were cut off from the store; the controller reads it first, half a minute before the node writes again."""
    living = Living([5.0] * 40 + [335.0] + [5.0] * 40, away=(225.0, 520.0))
    assert living.watched(PATIENCE).ending is Ending.COMPLETED


@pytest.mark.parametrize("ahead", [3600.0, -3600.0, 86400.0, 1.0])
@pytest.mark.parametrize("dies", [False, True])
def test_a_clock_that_is_off_changes_no_verdict_and_no_figure(ahead: float, dies: bool) -> None:
    delays = [5.3] * 60
    right, wrong = Living(delays, dies=dies).watched(), Living(delays, dies=dies, ahead=ahead).watched()
    assert (wrong.ending, wrong.at, wrong.reason, wrong.last_step) == (
        right.ending,
        right.at,
        right.reason,
        right.last_step,
    )
    assert wrong.first_step_at == pytest.approx(right.first_step_at, abs=5)
    assert wrong.last_seen == pytest.approx(right.last_seen, abs=5)
    assert wrong.clock_ahead == pytest.approx(ahead, abs=5)


def test_the_figures_of_a_short_job_come_from_its_last_heartbeat() -> None:
    """``done.json`` is written before the last heartbeat; a look in between must not settle for the one before."""
    first = {"seq": 1, "step": 0, "restored_step": None, "first_step_at": None, "time": 10.0}
    last = {**first, "seq": 2, "step": 30, "restored_step": 20, "first_step_at": 12.0, "end": {"exit_code": 0}}
    done = {"result": "completed", "final_step": 30, "exit_code": 0}
    script = Script([(NodeState.RUNNING, (None, first)), (NodeState.RUNNING, (done, first)), (None, (done, last))])
    clock = iter(range(10, 1000))
    watched = Watch(script, PATIENCE, lambda: next(clock), lambda _: None).until_end(NODE)
    assert (watched.restored_step, watched.last_step, watched.first_step_at) == (20, 30, 12.0)


@pytest.mark.parametrize(
    ("done", "end", "cause"),
    [
        ({"result": "failed", "cause": "user_error"}, {"cause": "user_error"}, "user_error"),
        (None, {"reason": "hung: no step", "cause": "hung"}, "hung"),
        (None, {"reason": "of an older node"}, ""),
    ],
)
def test_the_nodes_word_for_the_cause_is_kept(
    done: dict[str, object] | None, end: dict[str, object], cause: str
) -> None:
    script = Script([(NodeState.RUNNING, (done, {"seq": 1, "time": 10.0, "end": end}))])
    clock = iter(range(10, 1000))
    assert Watch(script, PATIENCE, lambda: next(clock), lambda _: None).until_end(NODE).cause == cause


def test_time_to_go_home_ends_the_watch_and_not_the_placement() -> None:
    beats = [{"seq": seq, "step": step, "time": 10.0} for seq, step in ((1, 76), (2, -77))]
    script = Script([(NodeState.RUNNING, (None, beat)) for beat in beats])
    clock = iter(range(10, 1000))
    watched = Watch(script, PATIENCE, lambda: next(clock), lambda _: None).until_end(NODE)
    assert (watched.ending, watched.reason, watched.last_step) == (Ending.HOMEWARD, "time to go home", -77)


def test_a_heartbeat_that_goes_back_is_no_sign_of_life() -> None:
    """A store that shows, now and again, what was there before; or a write that came late."""
    beats = [{"seq": n, "step": n, "time": 10.0 * n} for n in range(4)]
    shown = [beats[0], beats[1], beats[2], beats[3], *[beats[2], beats[3], beats[1]] * 60]
    script = Script([(NodeState.RUNNING, (None, beat)) for beat in shown])
    clock = iter(range(10, 10_000, 10))
    watched = Watch(script, PATIENCE, lambda: next(clock), lambda _: None).until_end(NODE)
    assert (watched.ending, watched.last_step) == (Ending.LOST, 3)
    assert script.changes == beats[:4]


def test_a_node_that_starts_anew_while_the_store_is_away_counts_from_one_and_lives() -> None:
    beats = [{"seq": seq, "time": 10.0 * n} for n, seq in enumerate([*range(40, 45), *range(1, 10)])]
    done = {"result": "completed"}
    script = Script([*((NodeState.RUNNING, (None, beat)) for beat in beats), (None, (done, None))])
    clock = iter(range(10, 10_000, 30))
    assert Watch(script, PATIENCE, lambda: next(clock), lambda _: None).until_end(NODE).ending is Ending.COMPLETED
    assert script.changes == beats
