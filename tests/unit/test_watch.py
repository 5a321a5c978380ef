"""When a placement has ended, and when it has not."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.controller.watch import Patience, Signs, Watch, judge
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

    def changed(self, node: Node, heartbeat: dict, *, first: bool) -> None:
        self.changes.append(heartbeat)


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


def test_a_node_with_a_wrong_clock_is_not_lost() -> None:
    """Silence is measured on the controller's clock: a heartbeat dated 1970 that changes is a living node."""
    scenes = [(NodeState.RUNNING, (None, {"seq": n, "step": n, "time": 5.0})) for n in range(100)]
    done = {"result": "completed", "final_step": 99}
    script = Script([*scenes, (NodeState.RUNNING, (done, scenes[-1][1][1]))])
    clock = iter(range(1_000_000, 2_000_000, 30))
    watched = Watch(script, PATIENCE, lambda: next(clock), lambda _: None).until_end(NODE)
    assert watched.ending is Ending.COMPLETED


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
