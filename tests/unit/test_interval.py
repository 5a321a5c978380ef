"""The checkpoint interval: against the best fixed one with hindsight, and where it must not go."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.hazard import Seen, life
from provisioner.node.interval import interval_s

RESTORE_S = 60.0
FIXED_S = [20 * 1.15**n for n in range(38)]


def trained(lives: Sequence[float], cost_s: float, choose: Callable[[Seen, float], float]) -> float:
    """Return the seconds of training that are not lost again, over machines that live so long, in seconds."""
    total, seen = 0.0, Seen()
    for seconds in lives:
        at = RESTORE_S
        while at + (step := choose(seen, at)) + cost_s <= seconds:
            total, at = total + step, at + step + cost_s
        seen += life(seconds / 3600.0, lost=True)
    return total


def fixed(every_s: float) -> Callable[[Seen, float], float]:
    return lambda _seen, _at: every_s


@pytest.mark.parametrize("cost_s", [1.0, 10.0, 60.0])
@pytest.mark.parametrize(
    ("mean_h", "shape"), [(0.7, 1.0), (4.0, 1.0), (4.0, 0.45)], ids=["short", "long", "young ones die"]
)
def test_the_interval_is_within_3_percent_of_the_best_fixed_one_with_hindsight(
    cost_s: float, mean_h: float, shape: float
) -> None:
    draw = random.Random(11)
    scale = mean_h * 3600.0 / {1.0: 1.0, 0.45: 2.479}[shape]  # the mean of a Weibull is scale * gamma(1 + 1 / shape)
    lives = [draw.weibullvariate(scale, shape) for _ in range(600)]
    best = max(trained(lives, cost_s, fixed(every)) for every in FIXED_S)
    ours = trained(lives, cost_s, lambda seen, at: interval_s(cost_s, seen.rate_at(at / 3600.0)))
    assert ours >= 0.97 * best


@given(st.floats(0.01, 5000), st.floats(0.001, 100), st.floats(1.01, 50))
def test_a_higher_risk_never_makes_the_interval_longer(cost_s: float, rate: float, more: float) -> None:
    assert interval_s(cost_s, rate * more) <= interval_s(cost_s, rate) * 1.0001
    assert 20.0 <= interval_s(cost_s, rate) <= 3600.0


def test_what_was_seen_and_what_is_warned_of_raise_the_risk_and_age_lowers_it() -> None:
    calm, wild = Seen(), life(0.2, lost=True) + life(0.3, lost=True)
    assert wild.rate_at(1.0) > calm.rate_at(1.0) > calm.rate_at(5.0) > 0.0
    assert calm.rate_at(1.0, warned=True) > 5 * calm.rate_at(1.0)
    assert life(20.0, lost=False).rate < calm.rate
    assert interval_s(5.0, 0.0) == 3600.0, "a machine that stays saves once an hour"
