"""What follows when a machine has come to its end: another one, at once or later, elsewhere; or none."""

from __future__ import annotations

import json
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner import planner
from provisioner.config import parse
from provisioner.controller.records import Begun, Claimed, Placement, Released, Watched
from provisioner.controller.recovery import AVOIDED_S, HOUR_S, hold, hopeless, lost_lately, taken
from provisioner.model import Ending, Gpu, JobRef, Market, Money, Node, NodeState, Offer
from tests.sweeps import aws, world

PRICE = Money(Decimal(1), "USD")


def offer(zone: str) -> Offer:
    return Offer("aws", zone[:-1], zone, "g4dn.xlarge", Gpu("T4", 1, 16), Market.SPOT, PRICE)


def placement(
    at: float,
    *,
    zone: str = "us-east-1a",
    lived: float = 3600.0,
    step: int | None = None,
    ending: Ending = Ending.LOST,
    cause: str = "",
    took: bool = True,
    rules: int = 1,
    why: str = "why",
    restored: int | None = None,
) -> Placement:
    """Return a machine that ended at ``at``; with a step it has trained."""
    node = Node("i", offer(zone), JobRef("digits", "1a2b3c4d"), 1, "t", at - lived)
    first = None if step is None else at - lived / 2
    watched = Watched(ending, why, at, at, first, restored, step, cause=cause, taken=took, rules=rules)
    return Placement(1, (), Claimed(node.offer, at - lived, node, None), node, watched, Released(at))


def row(*changes: dict[str, Any]) -> list[Placement]:
    return [placement(10000.0 * number, **change) for number, change in enumerate(changes, 1)]


def ends(cause: str, *steps: int | None, **more: Any) -> list[dict[str, Any]]:
    return [{"cause": cause, "ending": Ending.STOPPED, "took": False, "step": step, **more} for step in steps]


TAKEN: list[dict[str, Any]] = [{"step": None}]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (TAKEN * 9, ""),
        ([*ends("machine", None), *TAKEN, *ends("machine", None), *TAKEN], ""),
        ([*ends("machine", None), *TAKEN, *ends("store", None, None)], "trained no step"),
        (ends("", None, None, None, ending=Ending.NEVER_STARTED), "trained no step"),
        (ends("", 40, 40, 40, 40, 40, ending=Ending.LOST), ""),
        (ends("", 40, 40, 38, 40, 39, 40, ending=Ending.LOST), "6 machines in a row were lost and got no further"),
        ([*ends("", 40, 40, 38, ending=Ending.LOST), *ends("", 40, 39, 40, ending=Ending.LOST, restored=30)], ""),
        ([*ends("store", 40, 38), *ends("store", 39, restored=30)], ""),
        (ends("hung", 40, 40, 40), "hung and got no further"),
        (ends("disk_full", 40, 40, 40), "ended and got no further"),
        (ends("disk_full", 40, 60, 60), ""),
        (ends("disk_full", 40, 40), ""),
        ([*ends("store", 40), *ends("hung", 40), *ends("stopped", 40)], "ended and got no further"),
        ([{"step": 40}] * 9, ""),
        ([*ends("hung", 40, 40), {"step": 40}, *ends("hung", 40)], ""),
        ([{"step": 40, "took": False, "why": "budget of 5 USD a day reached"}] * 9, ""),
        ([{"step": 40, "rules": 0, "took": False}] * 9, ""),
        ([{"step": None, "rules": 0, "took": False}] * 3, "trained no step"),
    ],
    ids=[
        "preempted before the first step, often", "preempted between", "twice the machine, once the store",
        "never started", "silent at the same step", "silent at the same step for too often", "silent, but saved",
        "no further, but saved", "hung", "disk full", "disk full, and further", "disk full twice",
        "one after the other", "preempted at the same step, often", "preempted in between", "given back for the day",
        "an earlier release's",
        "an earlier release's without a step",
    ],
)  # fmt: skip
def test_only_what_is_not_the_clouds_doing_and_brings_nothing_ends_a_job(
    changes: list[dict[str, Any]], words: str
) -> None:
    why = hopeless(row(*changes))
    assert bool(why) is bool(words)
    assert words in why


@pytest.mark.parametrize(
    ("ending", "cause", "over", "expected"),
    [
        (Ending.LOST, "", True, True),
        (Ending.LOST, "", False, False),
        (Ending.STOPPED, "notice", False, True),
        (Ending.STOPPED, "lost_gpu", False, True),
        (Ending.STOPPED, "disk_full", True, False),
        (Ending.NEVER_STARTED, "", True, False),
    ],
)
def test_a_machine_is_taken_by_a_notice_or_by_its_clouds_own_word(
    ending: Ending, cause: str, over: bool, expected: bool
) -> None:
    assert taken(ending, cause, over=over) is expected


def test_a_region_that_lost_a_machine_comes_last_for_an_hour_and_is_used_where_it_is_the_only_one() -> None:
    east, west = offer("us-east-1a"), offer("us-west-2a")
    fallback = "[{aws: {regions: [us-east-1, us-west-2], instance_types: [g4dn.xlarge], market: spot}}]"
    text = f"{{job: {{name: digits, command: x}}, checkpoint: {{store: 's3://bucket/j'}}, fallback: {fallback}}}"
    config = parse(text.encode(), "failover.yaml", Path(), {})

    def best(past: list[Placement], now: float, *offers: Offer) -> str:
        return planner.plan(config, offers, lost=lost_lately(past, now)).ranked[0].offer.zone

    assert best([], 0, east, west) == "us-east-1a"
    once = [placement(1000)]
    assert best(once, 1001, east, west) == "us-west-2a"
    twice = [*once, placement(2000, zone="us-west-2a")]
    assert best(twice, 2001, east, west) == "us-east-1a", "of two that lost one, that which lost it earlier"
    assert best(twice, 1000 + AVOIDED_S, east, west) == "us-east-1a"
    assert best(once, 1000 + AVOIDED_S - 1, east, west) == "us-west-2a"
    assert best(once, 1000 + AVOIDED_S, east, west) == "us-east-1a", "its time is over"
    assert best(once, 1001, east) == "us-east-1a"
    home = placement(1000, cause="home")
    assert lost_lately([home], 1001) == ()


def test_what_an_earlier_release_recorded_is_avoided_as_it_was() -> None:
    past = [placement(1000, rules=0), placement(2000, zone="us-west-2a", rules=0)]
    assert [one.zone for one in lost_lately(past, 9e9)] == ["us-west-2a"]


@settings(max_examples=50)
@given(
    lives=st.lists(st.tuples(st.floats(1, 4000), st.none() | st.integers(0, 50)), max_size=80), limit=st.integers(1, 12)
)
def test_no_hour_sees_more_new_machines_than_the_policy_allows(
    lives: list[tuple[float, int | None]], limit: int
) -> None:
    now, past, starts = 0.0, list[Placement](), list[float]()
    for lived, step in lives:
        now += lived
        past.append(placement(now, lived=lived, step=step))
        found = hold(past, limit)
        now = max(now, found.until if found else now)
        starts.append(now)
        assert len([at for at in starts if at > now - HOUR_S + 1e-6]) <= limit


def test_a_healthy_spot_job_never_waits_and_one_that_gets_nowhere_waits_longer_and_longer() -> None:
    def waits(past: list[Placement]) -> list[float]:
        ways = [(past[count].released.at, hold(past[: count + 1], 12)) for count in range(len(past))]
        return [max(0.0, found.until - at) if found else 0.0 for at, found in ways]

    healthy = [placement(360.0 * number, lived=300, step=10 * number) for number in range(1, 40)]
    assert waits(healthy) == [0.0] * 39, "ten new machines an hour"
    quick = [placement(100.0 * number, lived=60, step=10) for number in range(1, 11)]
    assert waits(quick) == [0, 0, 30, 60, 120, 240, 480, 900, 900, 900]


class Silent:
    """A cloud that is not asked."""

    def inspect(self, node: Node) -> NodeState:
        return NodeState.GONE


@pytest.mark.parametrize(
    ("policy", "stop"), [({}, ""), ({"deadline": "30m"}, "deadline of 1800 s reached"), ({}, "taken down")]
)
def test_the_wait_is_told_and_ends_at_its_time_or_by_a_limit_or_the_operator(
    tmp_path: Any, policy: dict[str, str], stop: str
) -> None:
    made: Any = world(
        {"aws": Silent()}, aws(regions=["us-east-1"]), tmp_path, {"recoveries_per_hour": 1, "poll": "10s", **policy}
    )
    clock = [4000.0]
    made.now = lambda: clock[0]

    def wait(seconds: float) -> None:
        clock[0] += seconds
        if stop == "taken down" and clock[0] > 4500:
            (made.directory.path / "takedown").touch()

    ended = threading.Event()
    ended.wait = wait  # type: ignore[assignment,method-assign]
    made.take_down = ended
    past = (placement(3000.0, step=10), placement(4000.0, lived=600.0, step=20))
    recovered = made.recover(Begun(3500.0, 1), past)
    at = {"": 7000.0, "taken down": 4510.0}.get(stop, 5300.0)
    assert (recovered.at, recovered.stop) == (at, stop)
    assert recovered.waited == at - 4000.0
    events = [json.loads(line) for line in (made.directory.path / "events.jsonl").read_text().splitlines()]
    told = [event for event in events if event["kind"] == "held_back"]
    assert [event["seconds"] for event in told] == [3000]
    assert "policy.recoveries_per_hour" in told[0]["reason"]
