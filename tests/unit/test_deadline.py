"""Spot or on demand under a deadline: never late, and no dearer than it has to be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner import planner
from provisioner.config import Config, parse
from provisioner.controller.records import Begun, Claimed, Placement, Released, Watched
from provisioner.controller.standing import standing
from provisioner.model import Ending, JobRef, Market, Node, Scope
from provisioner.planner import Course, Markets, Standing
from tests.unit.test_planner import config, failure, offer, usd

traces = st.lists(st.booleans(), min_size=1, max_size=80)


@settings(max_examples=300)
@given(
    there=traces,
    work=st.floats(0.5, 20),
    start=st.floats(0.01, 1),
    gap=st.floats(0.02, 0.5),
    lost=st.floats(0, 0.5),
    spare=st.floats(0, 10),
)
def test_whatever_spot_machines_do_the_job_is_in_time_where_on_demand_alone_would_be(
    there, work, start, gap, lost, spare
):
    """A loss takes up to ``lost`` hours of training with it, and is seen at the next look, ``gap`` hours apart."""
    margin = gap + lost
    deadline, at, done, mode, boot, beside, sample = work + start + margin + spare, 0.0, 0.0, "", 0.0, None, 0
    while done < work - 1e-9:
        here = there[sample % len(there)]
        sample += 1
        if not here and mode == "spot":
            mode, done = "", max(0.0, done - lost)
        course = Course(deadline - at, work - done + (boot if mode == "od" else 0.0), start, margin)
        if not mode:
            mode = {Markets.ON_DEMAND: "od", Markets.EITHER: "spot" if here else "od"}.get(
                course.markets, "spot" if here else ""
            )
            boot, beside = start if mode else 0.0, None
        elif mode == "od":
            wanted = here and course.back_to_spot
            beside = None if not wanted else start if beside is None else beside - gap
            if beside is not None and beside <= 0:
                mode, boot, beside = "spot", 0.0, None
        used = min(boot, gap) if mode else gap
        boot = boot - used if mode else 0.0
        trained = min(gap - used, work - done)
        done, at = done + trained, at + (used + trained if mode else gap)
        assert at <= deadline + 1e-6


FALLBACK = "[{aws: {regions: [us-east-1, us-west-2], instance_types: [g4dn.xlarge]}}]"
SPOT = offer("us-west-2a", market=Market.SPOT, price=usd("0.2"))
OFFERS = [SPOT, offer()]


def made(hours: str, deadline: str, **policy: str) -> Config:
    limits = ", ".join(
        f"{key}: {value}" for key, value in {"deadline": deadline, "lost_after": "60s", **policy}.items()
    )
    estimate = f"estimate: {{time: {hours}}}" if hours else ""
    text = [
        f"job: {{name: digits, command: train, steps: 1000, {estimate}}}",
        "checkpoint: {store: 's3://my-bucket/failover'}",
        f"fallback: {FALLBACK}",
        f"policy: {{{limits}}}",
    ]
    return parse("\n".join(text).encode(), "failover.yaml", Path(), {})


def markets(plan: planner.Plan) -> list[Market]:
    return [one.offer.market for one in plan.ranked]


def test_with_time_to_spare_on_demand_is_held_back_and_the_plan_says_for_how_long():
    plan = planner.plan(made("10h", "30h"), OFFERS)
    assert (markets(plan), plan.holds) == ([Market.SPOT], True)
    held = next(one for one in plan.passed_over if one.held)
    assert held.offer == OFFERS[1]
    assert held.reason.startswith(
        "the deadline leaves 30.0 h, and on demand the job needs 10.1 h: spot only; on demand"
    )


def test_on_demand_is_held_back_too_while_every_spot_machine_was_refused_lately():
    refused = planner.FailureMemory().remember(failure(Scope.OFFER), SPOT, now=0.0)
    plan = planner.plan(made("10h", "30h"), OFFERS, memory=refused, now=1.0)
    assert (markets(plan), plan.holds) == ([], True)


@pytest.mark.parametrize(
    ("elapsed_h", "done", "expected"),
    [
        (0.0, 0.0, [Market.SPOT]),
        (19.0, 0.0, [Market.SPOT]),
        (19.6, 0.0, [Market.ON_DEMAND, Market.SPOT]),
        (19.6, 0.3, [Market.SPOT]),
        (29.04, 0.95, [Market.SPOT, Market.ON_DEMAND]),
        (29.1, 0.95, [Market.ON_DEMAND, Market.SPOT]),
    ],
)
def test_as_time_runs_out_it_takes_either_and_then_on_demand_first(elapsed_h, done, expected):
    at = Standing(elapsed_s=elapsed_h * 3600, done=done, netted=True)
    assert markets(planner.plan(made("10h", "30h"), OFFERS, standing=at)) == expected


def test_where_there_is_no_way_back_to_spot_no_slack_is_kept_for_one():
    """A region holds one machine of a job."""
    beside = replace(SPOT, region="us-east-1", zone="us-east-1b")
    at = Standing(elapsed_s=29.04 * 3600, done=0.95, netted=True)
    assert markets(planner.plan(made("10h", "30h"), [beside, OFFERS[1]], standing=at)) == [Market.SPOT]


def test_the_net_tells_its_reason_in_the_row_of_the_spot_machine():
    plan = planner.plan(made("10h", "30h"), OFFERS, standing=Standing(elapsed_s=29.1 * 3600, done=0.95, netted=True))
    assert markets(plan) == [Market.ON_DEMAND, Market.SPOT]
    assert "a lost spot machine could make it late, so it goes on demand" in plan.ranked[1].reason


@pytest.mark.parametrize(
    "settings",
    [made("", "30h"), made("10h", "30h", retry_for="0s"), config(FALLBACK)],
    ids=["nobody knows how long it is", "it must not wait", "no deadline"],
)
def test_otherwise_nothing_is_held_back(settings):
    assert set(markets(planner.plan(settings, OFFERS))) == {Market.SPOT, Market.ON_DEMAND}


def test_a_run_that_an_earlier_release_recorded_is_ranked_as_it_was_then():
    old = Standing.__new__(Standing)
    old.__setstate__([None, 0.0, 0.0, {}])
    assert markets(planner.plan(made("10h", "30h"), OFFERS, standing=old)) == [Market.SPOT, Market.ON_DEMAND]


def test_what_is_no_dearer_than_spot_is_not_held_back():
    cheap = replace(OFFERS[1], price_per_hour=usd("0.1"))
    assert Market.ON_DEMAND in markets(planner.plan(made("10h", "30h"), [SPOT, cheap]))


def test_the_pace_that_was_measured_counts_more_than_the_estimate():
    """100 of 1000 steps in two hours: the job takes 20 h, not 10."""
    node = Node("i-1", SPOT, JobRef("digits", "00000001"), 1, "token", 0.0)
    watched = Watched(Ending.LOST, "", 7500.0, 7400.0, 200.0, None, 100)
    past = Placement(1, (), Claimed(SPOT, 0.0, node, None, usd("0.5")), node, watched, Released(7500.0))
    slow = made("10h", "20h30m")
    at = standing(slow, Begun(0.0, 1), [past], 7500.0)
    assert (at.hours, at.done) == (pytest.approx(20.0), 0.1)
    assert markets(planner.plan(slow, OFFERS, standing=at)) == [Market.ON_DEMAND, Market.SPOT]
    assert planner.plan(made("", "30h"), OFFERS, standing=at).course is not None, "the pace stands in for an estimate"
