"""A job on demand under a deadline goes back to spot where it has the time, beside the machine that trains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.controller.records import Begun, Claimed
from provisioner.controller.spotward import Spotward
from provisioner.controller.view import PlacementView
from provisioner.model import Failure, FailureKind, Market, Node, Offer, Scope
from tests.sweeps import JOB, world
from tests.unit.test_planner import offer

HERE = offer()
SPOTS = [offer(zone, market=Market.SPOT, price=None) for zone in ("us-east-1a", "us-west-2a", "us-west-2b")]
BEGUN = Begun(0.0, 1)
BEAT: dict[str, object] = {"step": 100, "phase": "training"}


class Cloud:
    def offers(self, _request: object) -> list[Offer]:
        return [HERE, *SPOTS]


@pytest.fixture
def make(tmp_path: Path) -> Any:
    def made(deadline: str = "12h", *, steps: int | None = 1000, estimate: str | None = "10h", **policy: Any) -> Any:
        job: dict[str, Any] = {"name": "digits", "command": "train"}
        job |= {"estimate": {"time": estimate}} if estimate else {}
        job |= {"steps": steps} if steps else {}
        caps = {"regions": ["us-east-1", "us-west-2"], "max_price": "0.3 USD"}
        limits = {**({"deadline": deadline} if deadline else {}), **policy}
        found: Any = world({"aws": Cloud()}, {"job": job, "fallback": [{"aws": caps}]}, tmp_path, limits)
        found.now = lambda: found.at
        found.at = 3600.0
        return found

    return made


def claimed(there: Offer = HERE) -> Claimed:
    return Claimed(there, 0.0, Node("i-1", there, JOB, 1, "token", 0.0), None)


def view(made: Any, there: Offer = HERE) -> PlacementView:
    return PlacementView(made, claimed(there), BEGUN, ())


def test_it_tries_the_best_spot_machine_of_another_region_and_not_again_for_a_while(make):
    made = make()
    why = view(made).homeward(BEAT)
    assert why.startswith(f"back to spot ({SPOTS[1].key}): the deadline leaves 1.")
    asked = made.way_home.ask_home(claimed(), BEGUN, ())
    assert [choice.offer for choice in made.rank(asked, (), ())] == [SPOTS[1]]
    assert view(made).homeward(BEAT) == "", "it has just been tried"
    made.at += 1800
    assert view(made).homeward(BEAT)


def test_a_controller_that_was_started_in_between_looks_again_instead(make):
    made = make()
    assert view(made).homeward(BEAT)
    made.way_home.spotward = Spotward(made)
    assert made.way_home.ask_home(claimed(), BEGUN, ()).offers == ()


def test_without_an_estimate_the_pace_of_the_machine_that_trains_counts(make):
    """100 of 1000 steps in an hour."""
    made = make("12h", estimate=None)
    assert view(made).homeward(BEAT) == "", "nobody knows how long the job is"
    assert view(made).homeward({**BEAT, "first_step_at": 5.0, "time": 3605.0, "restored_step": None})


def test_what_was_refused_lately_is_not_tried(make):
    made = make()
    refused = Failure(FailureKind.NO_CAPACITY, Scope.MARKET, "InsufficientInstanceCapacity", "none", ttl_s=600.0)
    made.refusals.remember(refused, SPOTS[1])
    assert view(made).homeward(BEAT) == ""


@pytest.mark.parametrize(
    ("settings", "there", "beat", "at"),
    [
        ({"deadline": ""}, HERE, BEAT, 3600.0),
        ({"steps": None}, HERE, BEAT, 3600.0),
        ({}, SPOTS[0], BEAT, 3600.0),
        ({}, HERE, {**BEAT, "phase": "restoring"}, 3600.0),
        ({}, HERE, {**BEAT, "step": None}, 3600.0),
        ({}, HERE, BEAT, 2.6 * 3600.0),
        ({}, HERE, {**BEAT, "step": 990}, 3600.0),
        ({"budget": "0.4 USD"}, HERE, BEAT, 3600.0),
    ],
    ids=["no deadline", "no steps", "on spot", "not training", "no step yet", "no slack", "nearly done", "no money"],
)
def test_otherwise_it_stays_where_it_is(make, settings, there, beat, at):
    made = make(**settings)
    made.at = at
    assert view(made, there).homeward(beat) == ""
    assert view(made, replace(there, cloud="autodl")).homeward(beat) == ""
