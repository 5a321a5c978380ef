"""The benchmark of spot policies: no policy can pay less than its bound, and who minds the deadline is not late."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.policy_best import best
from benchmarks.policy_rules import ALL_ZONES, ONE_ZONE
from benchmarks.policy_world import ENOUGH, NOTHING, ON_DEMAND, Have, Job, play

GAP_H = 0.25


def cheapest(
    job: Job, free: list[tuple[bool, ...]], sample: int = 0, paid: float = 0.0, least: float = math.inf
) -> float:
    """Try everything that a policy may do."""
    if job.at > job.deadline + ENOUGH or paid >= least:
        return least
    if job.done >= job.work - ENOUGH:
        return paid
    here = replace(job, seen={**job.seen})
    here.look(free[sample % len(free)])
    spots = [zone for zone, there in enumerate(here.free) if there]
    moves = [NOTHING, ON_DEMAND, *(Have("spot", zone) for zone in spots)]
    if here.have.mode == "od" and here.boot <= ENOUGH:
        moves += [Have("od", beside=zone) for zone in spots]
    for move in moves:
        then = replace(here, seen={**here.seen})
        then.take(move)
        least = min(least, cheapest(then, free, sample + 1, paid + then.advance(), least))
    return least


zones = st.integers(1, 2).flatmap(lambda count: st.lists(st.tuples(*[st.booleans()] * count), min_size=1, max_size=6))


@settings(max_examples=60, deadline=None)
@given(
    free=zones,
    work=st.sampled_from([0.25, 0.4, 0.75]),
    start=st.sampled_from([0.1, 0.25, 0.4]),
    spare=st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.6]),
)
def test_the_best_with_hindsight_is_the_cheapest_of_all_that_can_be_done(free, work, start, spare):
    job = Job(work, work + start + spare, start, GAP_H)
    assert best(job, free) == pytest.approx(cheapest(job, free))


def test_beside_a_machine_on_demand_spot_gets_ready_where_the_deadline_leaves_no_time_to_change():
    """By hand: on demand for 0.25 h of start and 0.25 h of work with spot beside it, then 0.5 h of spot."""
    job = Job(0.75, 1.0, 0.25, GAP_H)
    free = [(False,), (True,), (True,), (True,)]
    assert best(job, free) == pytest.approx(0.5 + 0.3 * 0.25 + 0.3 * 0.5)


def test_a_deadline_that_nothing_meets_has_no_best():
    assert best(Job(1.0, 1.1, 0.25, GAP_H), [(True,)]) == math.inf


PROMISED = [name for name in ONE_ZONE if name != "spot alone"]


@settings(max_examples=40, deadline=None)
@given(
    free=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60),
    factor=st.floats(1, 2),
    start=st.sampled_from([0.1, 0.3]),
)
def test_no_rule_that_minds_the_deadline_is_late_and_none_that_is_in_time_beats_the_best(free, factor, start):
    gap, work = 0.1, 6.0
    least = best(Job(work, factor * (work + start) + gap, start, gap), free)
    for name, policy in ALL_ZONES.items():
        cost, made = play(policy, Job(work, factor * (work + start) + gap, start, gap, ("a", "b")), free)
        assert cost >= least - 1e-6 or not made, name
        assert made or name.startswith("SkyPilot"), name
    one = [(both[0],) for both in free]
    for name in PROMISED:
        assert play(ONE_ZONE[name], Job(work, factor * (work + start) + gap, start, gap), one)[1], name
