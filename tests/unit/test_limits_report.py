"""What a run cost, what it lost, and when it is enough."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal

import pytest

from provisioner.controller.limits import Limits
from provisioner.controller.records import Begun, Claimed, Finished, Placement, Released, Surplus, Watched
from provisioner.controller.report import RESULTS, build_report, cost
from provisioner.model import Ending, Gpu, JobRef, Market, Money, Node, Offer

JOB = JobRef("digits", "00000001")


def placement(
    epoch: int,
    cloud: str,
    price: Money | None,
    *,
    start: float,
    end: float,
    ending: Ending = Ending.LOST,
    last_step: int | None = None,
    restored: int | None = None,
    first_step_at: float | None = None,
    at_most: Money | None = None,
) -> Placement:
    offer = Offer(cloud, "r", "z", "t", Gpu("T4", 1, 16), Market.SPOT, price)
    node = Node(f"i-{epoch}", offer, JOB, epoch, "token", claimed_at=start)
    watched = Watched(ending, "", end, end, first_step_at, restored, last_step)
    return Placement(epoch, (), Claimed(offer, start, node, None, at_most), node, watched, Released(end))


HOUR_OF_YUAN = placement(1, "autodl", Money(Decimal(2), "CNY"), start=0, end=3600, last_step=47)
HALF_HOUR_OF_DOLLARS = placement(
    2,
    "aws",
    Money(Decimal("0.5"), "USD"),
    start=3700,
    end=5500,
    ending=Ending.COMPLETED,
    last_step=100,
    restored=40,
    first_step_at=3725,
)


def test_cost_is_kept_apart_by_currency() -> None:
    assert cost([HOUR_OF_YUAN, HALF_HOUR_OF_DOLLARS]) == {"CNY": Decimal(2), "USD": Decimal("0.25")}


def test_the_report_counts_lost_steps_and_the_time_to_the_first_new_one() -> None:
    report = build_report(
        JOB, Begun(0, 1), [HOUR_OF_YUAN, HALF_HOUR_OF_DOLLARS], [], Ending.COMPLETED, "", Finished(5501, ())
    )
    assert report["steps_lost"] == 7
    assert report["recovery_seconds"] == 125
    assert report["restored_step"] == 40
    assert report["final_step"] == 100
    assert report["cost_estimate"] == {
        "by_currency": {"CNY": 2.0, "USD": 0.25},
        "upper_bound": False,
        "unpriced": [],
    }
    assert (report["result"], report["exit_code"]) == ("completed", 0)


def test_a_machine_without_a_price_is_named_and_not_counted_as_free() -> None:
    unpriced = placement(1, "local", None, start=0, end=10)
    report = build_report(JOB, Begun(0, 1), [unpriced], [], Ending.COMPLETED, "", Finished(11, ()))
    assert report["cost_estimate"] == {"by_currency": {}, "upper_bound": False, "unpriced": ["local/r/z/t/spot"]}


def test_a_release_that_was_not_confirmed_is_left_behind_only_if_the_clouds_have_it_at_the_end() -> None:
    doubtful = replace(HOUR_OF_YUAN, released=Released(9, "no answer"))
    for left in ((), ("aws/r/machine/i-1",), ("aws: cannot tell: no answer",)):
        report = build_report(JOB, Begun(0, 1), [doubtful], [], Ending.COMPLETED, "", Finished(11, left))
        assert report["leaked"] == [*left]


def test_every_final_ending_has_its_own_exit_code() -> None:
    codes = [code for _, code in RESULTS.values()]
    assert len(codes) == len(set(codes))


@dataclass(frozen=True)
class Policy:
    budget: Money | None = None
    usd_cny: Decimal = Decimal("7.2")
    deadline: float | None = None


@pytest.mark.parametrize(
    ("policy", "now", "expected"),
    [
        (Policy(), 1e9, ""),
        (Policy(deadline=100), 99.9, ""),
        (Policy(deadline=100), 100, "deadline of 100 s reached"),
        (Policy(budget=Money(Decimal(3), "CNY")), 3600, ""),
        (Policy(budget=Money(Decimal(2), "CNY")), 3600, "budget of 2 CNY reached"),
        (Policy(budget=Money(Decimal("0.28"), "USD")), 3600, ""),
        (Policy(budget=Money(Decimal("0.27"), "USD")), 3600, "budget of 0.27 USD reached"),
    ],
)
def test_a_limit_is_reached_when_it_is_reached(policy: Policy, now: float, expected: str) -> None:
    assert Limits(policy).reached(Begun(0, 1), [HOUR_OF_YUAN], None, now) == expected


def test_the_running_machine_counts_by_the_second() -> None:
    limits = Limits(Policy(budget=Money(Decimal("0.5"), "USD")))
    start = HALF_HOUR_OF_DOLLARS.node.claimed_at
    assert limits.reached(Begun(0, 1), [], HALF_HOUR_OF_DOLLARS.claimed, start + 3599) == ""
    assert limits.reached(Begun(0, 1), [], HALF_HOUR_OF_DOLLARS.claimed, start + 3600) == "budget of 0.5 USD reached"


def test_a_machine_at_home_counts_too_while_it_stands_by_and_after_it_was_given_back() -> None:
    limits = Limits(Policy(budget=Money(Decimal(1), "USD"), usd_cny=Decimal(4)))
    away, home = HALF_HOUR_OF_DOLLARS.claimed, HOUR_OF_YUAN.claimed  # 0.5 USD an hour each
    start = HALF_HOUR_OF_DOLLARS.node.claimed_at
    beside = replace(home, node=replace(HOUR_OF_YUAN.node, claimed_at=start + 1800))
    both = replace(away, beside=(beside,))
    assert limits.reached(Begun(0, 1), [], both, start + 4499) == ""
    assert limits.reached(Begun(0, 1), [], both, start + 4500) == "budget of 1 USD reached"
    back = replace(beside, node=None, surplus=Surplus(beside.node, start + 3600))
    assert limits.reached(Begun(0, 1), [], replace(away, beside=(back,)), start + 5399) == ""
    assert limits.reached(Begun(0, 1), [], replace(away, beside=(back,)), start + 5400) == "budget of 1 USD reached"


def test_a_spot_machine_counts_with_the_most_that_it_can_cost() -> None:
    """A budget that takes an unknown price for nothing is no budget."""
    bound = Money(Decimal("0.5"), "USD")
    spot = placement(1, "aws", None, start=0, end=7200, at_most=bound)
    assert cost([spot]) == {"USD": Decimal(1)}
    report = build_report(JOB, Begun(0, 1), [spot], [], Ending.COMPLETED, "", Finished(7201, ()))
    assert report["cost_estimate"]["upper_bound"]
    limits = Limits(Policy(budget=Money(Decimal("0.5"), "USD")))
    assert limits.reached(Begun(0, 1), [], spot.claimed, 3600) == "budget of 0.5 USD reached"
