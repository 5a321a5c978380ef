"""The planner's keys in failover.yaml: what they become, and what is said of a slip."""

from __future__ import annotations

import pickle
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from provisioner.catalog import overlay, tables
from provisioner.config import ConfigMistakes, parse
from provisioner.controller.records import Begun, Claimed, Placement, Released, Watched
from provisioner.controller.standing import beyond_budget, standing
from provisioner.hazard import life
from provisioner.model import Ending, Gpu, JobRef, Market, Money, Node, Offer
from provisioner.planner import FailureMemory, Standing, plan, pool, terms

BASE = """\
job: {name: a, command: 'true', steps: 100, estimate: {time: 20h, on: l4, speeds: {h100: 7}, checkpoint_gb: 2}}
resources: {countries: [us, DE]}
checkpoint: {store: s3://bucket/prefix, every: 30m}
fallback: [{aws: {regions: [us-east-1], zones: [us-east-1b]}}]
policy: {budget: 20 USD, deadline: 30h, usd_cny: 7}
"""


def made(text=BASE):
    return parse(text.encode(), "failover.yaml", Path(), {})


def test_names_are_taken_as_people_write_them():
    config = made()
    assert config.job.estimate.on == "L4"
    assert config.job.estimate.speeds == {"H100": 7}
    assert config.resources.countries == ("US", "DE")
    work = terms(config).work
    assert (work.hours, work.known, work.every_s) == (20, True, 1800)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("on: l4", "on: A100", "`A100` is sold in several sizes; write A100-40GB or A100-80GB"),
        ("on: l4", "on: L4OS", "no GPU is called `L4OS`; did you mean `L40S`?"),
        ("[us, DE]", "[USA]", "no cloud here has a region in `USA`; write ISO codes of two letters"),
        ("us-east-1b", "us-west-2b", "`us-west-2b` is in none of the regions of this entry; add its region to regions"),
        ("us-east-1b", "us-east-1", "`us-east-1` is not a zone; write one such as us-east-1a"),
        ("h100: 7", "h100: 0", "speeds"),
    ],
)
def test_a_slip_is_told_with_its_line(old, new, said):
    with pytest.raises(ConfigMistakes) as caught:
        made(BASE.replace(old, new))
    assert said in str(caught.value)


SPOT = Offer("aws", "us-east-1", "us-east-1b", "g6.xlarge", Gpu("L4", 1, 24), Market.SPOT, None)


def placement(ending, hours, last_step, price):
    node = Node("i-1", SPOT, JobRef("a", "00000000"), 1, "t", 0.0)
    watched = Watched(ending, "", hours * 3600, None, None, None, last_step)
    return Placement(1, (), Claimed(SPOT, 0.0, node, None, price), node, watched, Released(hours * 3600))


def test_only_a_machine_that_its_cloud_took_counts_as_a_loss_of_the_pool():
    left = placement(Ending.STOPPED, 3, 20, Money(Decimal(1), "USD"))
    left = replace(left, watched=replace(left.watched, cause="home", rules=1))
    took = replace(left, watched=replace(left.watched, cause="notice", taken=True))
    assert standing(made(), Begun(0.0, 1), [left, took], 9e4).seen == {
        pool(SPOT): life(3.0, lost=False) + life(3.0, lost=True)
    }


def test_a_run_is_planned_from_where_it_stands():
    past = [
        placement(Ending.LOST, 3, 20, Money(Decimal(1), "USD")),
        placement(Ending.STOPPED, 2, 40, Money(Decimal(7), "CNY")),
    ]
    at = standing(made(), Begun(0.0, 1), past, 6 * 3600)
    assert at.spent == Money(Decimal(5), "USD")  # 3 h at 1 USD, 2 h at 7 CNY
    assert at.done == 0.4
    assert at.seen == {pool(SPOT): life(3.0, lost=True) + life(2.0, lost=True)}
    found = terms(made(), standing=at)
    assert found.work.left == pytest.approx(12)
    assert (found.budget_left, found.seconds_left) == (Money(Decimal(15), "USD"), 24 * 3600)


def test_where_nobody_knows_how_far_a_job_is_no_limit_goes_by_its_length():
    config = made(BASE.replace("steps: 100, ", ""))
    at = standing(config, Begun(0.0, 1), [placement(Ending.LOST, 3, 20, None)], 6 * 3600)
    assert at.done is None
    assert not terms(config, standing=at).work.known
    assert terms(config, standing=Standing()).work.known


def test_a_run_that_the_budget_cannot_bear_ends_at_once_instead_of_waiting():
    dear = replace(SPOT, market=Market.ON_DEMAND, price_per_hour=Money(Decimal(9), "USD"))
    config = made()
    found = plan(config, [dear])
    assert beyond_budget(config, found, FailureMemory()) == (
        "budget of 20 USD: aws/us-east-1/us-east-1b/g6.xlarge/on-demand would cost about 180.88 USD to the end, and "
        "policy.budget leaves 20 USD"
    )
    assert not beyond_budget(config, plan(config, [SPOT]), FailureMemory())


def test_a_run_that_is_taken_up_again_ranks_by_the_spot_prices_of_then(monkeypatch, tmp_path):
    monkeypatch.setenv("FAILOVER_CACHE_DIR", str(tmp_path))
    at = 1_790_000_000.0
    row = (SPOT.zone, SPOT.instance_type, "0.9", "USD", f"{at}")
    file = overlay.path({"FAILOVER_CACHE_DIR": str(tmp_path)})
    overlay.write(file, overlay.Overlay({"aws_spot": overlay.Table((row,), at, "EC2")}))
    tables.forget()
    config = made(BASE.replace("[us-east-1b]}}", "[us-east-1b], max_price: 0.5 USD}}"))
    try:
        recorded = pickle.dumps(standing(config, Begun(at, 1), [], at))
        file.unlink()
    finally:
        tables.forget()
    then = plan(config, [SPOT], now=at, standing=pickle.loads(recorded))  # noqa: S301 - our own
    assert [one.reason for one in then.passed_over] == [
        "the spot price is about 0.9 USD an hour, above max_price 0.5 USD"
    ]
    assert plan(config, [SPOT], now=at).ranked
