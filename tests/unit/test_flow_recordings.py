"""A run that an earlier release recorded is taken up by this one, wherever it broke off.

``recordings/flow-1.json``: the steps of whole runs, with their answers, as the release before the step ``recover``
recorded them. The engine refuses a step of another name than the recorded one, and so does the test.
"""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from provisioner.controller.flow import Flow
from provisioner.model import Ending
from tests.unit.test_flow import FAR, Homesick, Stuck, World

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "recordings/flow-1.json").read_text())


def hung() -> World:
    world = Stuck(home=[True], refusals={}, endings=[])
    world.steps = [40, 40, 40, 40]
    return world


WORLDS: dict[str, Callable[[], World]] = {
    "first scene": lambda: World([True, False], {2: 1}, [Ending.LOST, Ending.COMPLETED]),
    "lost thrice": lambda: World([False], {}, [Ending.LOST, Ending.STOPPED, Ending.LOST, Ending.COMPLETED], away=FAR),
    "race": lambda: World([False], {1: 1}, [Ending.LOST, Ending.LOST, Ending.COMPLETED], away=FAR, abreast=3),
    "way home": lambda: Homesick([True], {}, [], calls="rnh"),
    "hung": hung,
    "never started": lambda: World([True], {}, [Ending.NEVER_STARTED]),
    "nothing to be had": lambda: World([False], {1: 3}, [Ending.COMPLETED]),
}


@dataclass
class Replay:
    """Gives the first recorded answers, then lets the world go on. The world lives through both."""

    steps: list[tuple[str, str]]
    at: int = 0
    live: tuple[str, ...] = ()

    def __call__(self, name: str, call: Callable, *args: object) -> object:
        answer = call(*args)
        if self.at < len(self.steps):
            recorded, data = self.steps[self.at]
            assert name == recorded, f"step {self.at} was {recorded}"
            answer = pickle.loads(base64.b64decode(data))  # noqa: S301 - our own
        else:
            self.live += (name,)
        self.at += 1
        return answer


@pytest.mark.parametrize("name", WORLDS)
def test_a_whole_recording_replays_to_the_end_that_it_had(name: str) -> None:
    recorded, world = RECORDED[name], WORLDS[name]()
    replay = Replay(recorded["steps"])
    report = Flow(world, replay).run()
    assert replay.live == ()
    assert (report["result"], len(report["placements"])) == (recorded["result"], recorded["placements"])


@pytest.mark.parametrize("name", WORLDS)
def test_a_recording_that_broke_off_anywhere_goes_on_by_the_rules_of_this_release(name: str) -> None:
    recorded = RECORDED[name]
    for broken in range(len(recorded["steps"])):
        world = WORLDS[name]()
        replay = Replay(recorded["steps"][:broken])
        report = Flow(world, replay).run()
        assert (report["result"], report["leaked"], world.machines) == (recorded["result"], [], {})
        if name == "lost thrice":
            assert replay.live.count("recover") == max(0, replay.live.count("watch") - 1)
