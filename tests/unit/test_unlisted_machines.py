"""A machine that its cloud does not list for a moment: lists lag behind, and only a second look tells."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.controller.patience import Patience
from provisioner.controller.records import Watched
from provisioner.controller.watch import Watch
from provisioner.model import Ending, Gpu, JobRef, Market, Money, Node, NodeState, Offer

OFFER = Offer("aws", "us-east-1", "us-east-1a", "g4dn.xlarge", Gpu("T4", 1, 16), Market.SPOT, Money(Decimal(1), "USD"))
NODE = Node("i-1", OFFER, JobRef("digits", "00000001"), 1, "t", 0.0)
PATIENCE = Patience(poll_s=10.0, lost_after_s=None, boot_timeout_s=600.0, heartbeat_s=5.0)
RUNNING, UNLISTED, STOPPING, GONE = NodeState.RUNNING, NodeState.UNLISTED, NodeState.STOPPING, NodeState.GONE


class Machine:
    """It is shown in these states, one a look, the last one for ever; its heart beats until ``dies`` and is done then.

    One that dies without a word is not done.
    """

    def __init__(self, states: list[NodeState | None], *, dies: float, done: bool = False) -> None:
        self.states, self.dies, self.done = states, dies, done
        self.looks, self.now = 0, 0.0

    def state(self, node: Node) -> NodeState | None:
        self.looks += 1
        return self.states[min(self.looks, len(self.states)) - 1]

    def read(self, node: Node) -> tuple[dict | None, dict | None]:
        seq = int(min(self.now, self.dies) // PATIENCE.heartbeat_s)
        done = {"result": "completed", "final_step": seq} if self.done and self.now >= self.dies else None
        return done, {"seq": seq, "step": seq, "time": seq * PATIENCE.heartbeat_s}

    def stop(self) -> str:
        return ""

    def homeward(self, heartbeat: dict[str, object]) -> str:
        return ""

    def changed(self, *_: object, **__: object) -> None: ...

    def suspected(self, *_: object) -> None: ...

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def watched(self) -> Watched:
        return Watch(self, PATIENCE, lambda: self.now, self.wait).until_end(NODE)


@given(states=st.lists(st.sampled_from([RUNNING, UNLISTED, None]), min_size=1, max_size=40))
def test_a_machine_that_a_list_does_not_show_is_not_lost_while_its_heart_beats(states: list[NodeState | None]) -> None:
    assert Machine(states, dies=400.0, done=True).watched().ending is Ending.COMPLETED


def test_one_that_is_not_listed_any_more_and_silent_is_lost_within_two_looks() -> None:
    watched = Machine([*[RUNNING] * 12, UNLISTED], dies=118.0).watched()
    assert (watched.ending, watched.taken) == (Ending.LOST, True)
    assert watched.reason == "the cloud says the machine is gone"
    assert watched.at - 118.0 <= 2 * PATIENCE.poll_s + PATIENCE.poll_s


@pytest.mark.parametrize("states", [[GONE], [STOPPING, UNLISTED]], ids=["it says so", "it was on its way out"])
def test_a_definite_end_is_believed_at_once(states: list[NodeState]) -> None:
    watched = Machine([*[RUNNING] * 12, *states], dies=105.0).watched()
    assert (watched.ending, watched.at) == (Ending.LOST, 110.0 + 10.0 * len(states))


def test_one_that_never_came_up_and_is_not_listed_is_given_up_at_the_second_look() -> None:
    class Silent(Machine):
        def read(self, node: Node) -> tuple[None, None]:
            return None, None

    watched = Silent([NodeState.PENDING] * 3 + [UNLISTED], dies=0.0).watched()
    assert (watched.ending, watched.at) == (Ending.NEVER_STARTED, 40.0)
    assert replace(watched, at=0.0).reason == "the machine is gone and never sent a heartbeat"
