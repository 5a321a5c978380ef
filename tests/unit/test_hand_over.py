"""Before the fallback is asked to stop, its successor is looked at once more."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner.checkpoint import layout
from provisioner.checkpoint.store import open_store
from provisioner.controller.moving import hand_over
from provisioner.controller.patience import Patience
from provisioner.errors import Unreachable
from provisioner.model import Ending, Gpu, JobRef, Market, Node, NodeState, Offer

JOB = JobRef("digits", "00000001")


def node(epoch: int, cloud: str) -> Node:
    return Node(f"i-{epoch}", Offer(cloud, "r", "z", "t", Gpu("T4", 1, 16), Market.SPOT, None), JOB, epoch, "t", 0.0)


class World:
    """A fallback of epoch 2 that stops when it is asked, and a machine of epoch 3 that stood by."""

    def __init__(self) -> None:
        self.store = open_store("memory://").at("digits")
        self.clock = 100.0
        self.states: dict[int, NodeState] = {2: NodeState.RUNNING, 3: NodeState.RUNNING}
        self.cloud_answers = True
        self.launcher = SimpleNamespace(store=self.store, read_signs=self.read_signs)
        self.take_down = SimpleNamespace(wait=self.wait, is_set=threading.Event().is_set)
        self.events = SimpleNamespace(emit=lambda *_, **__: None)
        self.config = SimpleNamespace(policy=SimpleNamespace(failback=SimpleNamespace(handover=60.0), poll=1.0))
        self.beat(2, phase="training", step=20)
        self.beat(3, phase="standby")

    def now(self) -> float:
        return self.clock

    def wait(self, seconds: float) -> None:
        self.clock += seconds
        if self.store.exists(layout.hint(2)):
            self.beat(2, phase="ended", step=21, end={"reason": "notice: going home", "cause": "home"})

    def beat(self, epoch: int, **fields: Any) -> None:
        self.store.put(layout.heartbeat(epoch), json.dumps({"time": self.clock, "end": None, **fields}).encode())

    def read_signs(self, epoch: int) -> tuple[None, dict[str, object]]:
        return None, json.loads(self.store.get(layout.heartbeat(epoch)) or b"{}")

    def patience(self) -> Patience:
        return Patience(1.0, 60.0, 600.0)

    def cloud(self, _name: str) -> World:
        return self

    def inspect(self, machine: Node) -> NodeState:
        if not self.cloud_answers:
            raise Unreachable("no answer")
        return self.states[machine.epoch]

    # -- what a view has

    def state(self, machine: Node) -> NodeState:
        return self.states[machine.epoch]

    def read(self, machine: Node) -> tuple[None, dict[str, object]]:
        return self.read_signs(machine.epoch)

    def stop(self) -> str:
        return ""

    def changed(self, *_: object, **__: object) -> None: ...

    def suspected(self, *_: object) -> None: ...


def took_the_machine(world: World) -> None:
    world.states[3] = NodeState.GONE


def waited_in_vain(world: World) -> None:
    world.beat(3, phase="ended", end={"reason": "not called within 900 s", "cause": "stopped"})


@pytest.mark.parametrize("mishap", [took_the_machine, waited_in_vain])
def test_the_fallback_trains_on_where_home_is_of_no_use_any_more(mishap: Callable[[World], None]) -> None:
    world = World()
    mishap(world)
    watched = hand_over(world, world, node(2, "aws"), node(3, "autodl"))
    assert watched.ending is Ending.HOMEWARD
    assert not world.store.exists(layout.hint(2)), "the fallback was not asked to stop"
    assert not world.store.exists(layout.call(3))


@pytest.mark.parametrize("ended", [False, True], ids=["before the hint", "a controller that comes back after it"])
def test_a_fallback_that_has_stopped_has_its_successor_called(ended: bool) -> None:
    """A machine that was called by the fallback's last word may have ended the job before the controller is back."""
    world = World()
    world.cloud_answers = False
    if ended:
        world.store.put(layout.hint(2), b"{}")
        world.wait(1.0)
        waited_in_vain(world)
    watched = hand_over(world, world, node(2, "aws"), node(3, "autodl"))
    assert (watched.ending, watched.cause, watched.last_step) == (Ending.STOPPED, "home", 21)
    assert world.store.exists(layout.call(3))
