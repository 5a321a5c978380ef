"""The ranking: its promises as properties, and the choices behind it as examples."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from provisioner import assets, planner
from provisioner.cli.plan import plan as plan_command
from provisioner.cli.plan_text import plan_json
from provisioner.config import Config, load, parse
from provisioner.controller.stores import place
from provisioner.model import Failure, FailureKind, Gpu, Market, Money, Offer, Scope
from provisioner.planner import Block, FailureMemory, Terms, rank

USD_CNY = Decimal("7.1")


def usd(amount):
    return Money(Decimal(str(amount)), "USD")


def failure(scope, ttl_s=180.0, kind=FailureKind.NO_CAPACITY):
    return Failure(kind, scope, "InsufficientInstanceCapacity", "no room", ttl_s=ttl_s)


T4_PRICE = usd(0.526)


def offer(zone="us-east-1a", instance_type="g4dn.xlarge", market=Market.ON_DEMAND, price=T4_PRICE, **more):
    cloud = more.pop("cloud", "aws")
    gpu = more.pop("gpu", Gpu("T4", 1, 16))
    return Offer(cloud, more.pop("region", zone[:-1]), zone, instance_type, gpu, market, price, **more)


def config(fallback: str, **sections: str) -> Config:
    text = "\n".join(
        [
            "job: {name: digits, command: train}",
            "checkpoint: {store: 's3://my-bucket/failover'}",
            f"fallback: {fallback}",
            *(f"{name}: {body}" for name, body in sections.items()),
        ]
    )
    return parse(text.encode(), "failover.yaml", Path(), {})


def order(plan):
    return [ranked.offer.key.removeprefix("aws/") for ranked in plan.ranked]


def of_catalog(made: Config, **more):
    return planner.plan(made, planner.catalog_offers(made), passed_over=planner.absent(made), **more)


# -- what the operator sees --------------------------------------------------------------------------------------------


def test_p3_is_gone_and_the_plan_says_so_and_takes_the_next():
    plan = of_catalog(config("[{aws: {regions: [us-east-1], instance_types: [p3.2xlarge, g4dn.xlarge]}}]"))
    assert order(plan)[0] == "us-east-1/us-east-1a/g4dn.xlarge/spot"
    reasons = {one.subject: one.reason for one in plan.passed_over}
    assert reasons["aws/us-east-1/p3.2xlarge"] == (
        "p3.2xlarge is not offered in any zone of us-east-1 (catalog of 2026-11)"
    )


def test_spot_machines_of_every_type_come_before_machines_on_demand_the_cheapest_to_the_end_first():
    plan = of_catalog(config("[{aws: {regions: [us-east-1], instance_types: [g6.xlarge, g4dn.xlarge]}}]"))
    steps = list(dict.fromkeys((r.offer.instance_type, r.offer.market) for r in plan.ranked))
    assert steps == [
        ("g4dn.xlarge", Market.SPOT),
        ("g6.xlarge", Market.SPOT),
        ("g4dn.xlarge", Market.ON_DEMAND),
        ("g6.xlarge", Market.ON_DEMAND),
    ]
    assert plan.ranked[0].reason == "the spot price is unknown, at most 0.526 USD as on demand, reckoned as 0.2104 USD"
    assert plan.ranked[0].at_most == usd(0.526)


def test_an_unknown_price_comes_last_and_is_shown_beside_the_one_that_is_known():
    plan = of_catalog(
        config("[{aws: {regions: [us-west-2, us-east-1], instance_types: [g4dn.xlarge], market: on-demand}}]")
    )
    regions = [ranked.offer.region for ranked in plan.ranked]
    assert regions == sorted(regions)  # us-east-1, with its price, before us-west-2
    assert plan.ranked[-1].reason == "the price is unknown in us-west-2 (us-east-1 on demand: 0.526 USD)"
    assert plan.ranked[-1].at_most is None


def test_with_a_cap_an_unknown_on_demand_price_is_passed_over_and_spot_is_held_by_the_cloud():
    plan = of_catalog(config("[{aws: {regions: [us-west-2], instance_types: [g4dn.xlarge], max_price: 1 USD}}]"))
    assert {ranked.offer.market for ranked in plan.ranked} == {Market.SPOT}
    assert {ranked.at_most for ranked in plan.ranked} == {usd(1)}
    (reason,) = {one.reason for one in plan.passed_over}
    assert reason == (
        "the price is unknown in us-west-2 (us-east-1 on demand: 0.526 USD), so max_price 1 USD cannot be kept"
    )


def test_zones_of_several_regions_take_turns():
    regions = "[us-west-2, eu-west-1]"
    plan = of_catalog(config(f"[{{aws: {{regions: {regions}, instance_types: [g4dn.xlarge], market: spot}}}}]"))
    assert [ranked.offer.region for ranked in plan.ranked][:4] == ["us-west-2", "eu-west-1"] * 2


def test_places_come_in_the_order_of_the_file_whatever_they_cost():
    made = config(
        "[{aws: {regions: [us-west-2], instance_types: [g4dn.xlarge]}}, {aws: {regions: [us-east-1]}}]",
        primary="{autodl: {mode: elastic, gpus: [H800], image_uuid: image-1}}",
    )
    home = offer("", "H800", cloud="autodl", region="westDC3", gpu=Gpu("H800", 1, 80), price=Money(Decimal(9), "CNY"))
    plan = planner.plan(made, [*planner.catalog_offers(made), home])
    places = list(dict.fromkeys(ranked.block for ranked in plan.ranked))
    assert places == ["primary.autodl", "fallback[0].aws", "fallback[1].aws"]


def test_what_one_place_finds_too_dear_a_later_one_may_take():
    made = config(
        "[{aws: {regions: [us-east-1], max_price: 0.1 USD, market: on-demand}},"
        " {aws: {regions: [us-east-1], market: on-demand}}]"
    )
    plan = planner.plan(made, [offer()])
    assert [ranked.block for ranked in plan.ranked] == ["fallback[1].aws"]


def test_prices_in_two_currencies_are_compared():
    dear, cheap = offer(price=usd(1), zone="us-east-1a"), offer(zone="us-east-1b", price=Money(Decimal(5), "CNY"))
    plan = rank([Block("b", "aws")], [dear, cheap], memory=FailureMemory(), now=0, terms=Terms(usd_cny=USD_CNY))
    assert [ranked.offer for ranked in plan.ranked] == [cheap, dear]


def test_sold_out_cards_and_too_few_are_passed_over_with_a_reason():
    offers = [
        offer(available=0),
        offer("us-east-1b", gpu=Gpu("T4", 4, 16), available=2),
        offer("us-east-1c", available=1),
    ]
    plan = rank([Block("b", "aws")], offers, memory=FailureMemory(), now=0)
    assert [one.reason for one in plan.passed_over] == ["no card is free", "2 cards are free, 4 are needed"]
    assert [ranked.offer.zone for ranked in plan.ranked] == ["us-east-1c"]


def test_this_machine_is_the_last_resort_that_the_file_makes_it():
    made = config("[{aws: {regions: [us-east-1], instance_types: [g4dn.xlarge]}}, {local: {}}]")
    here = offer("", "process", cloud="local", region="local", gpu=Gpu("none", 0, 0), price=None)
    plan = planner.plan(made, [here, *planner.catalog_offers(made)])
    assert plan.ranked[-1].offer == here
    assert plan.ranked[-1].cost is None


def test_v100_says_which_machine_image_it_needs():
    plan = of_catalog(config("[{aws: {regions: [us-east-1], instance_types: [p3dn.24xlarge]}}]"))
    assert "V100-32GB needs a machine image with the proprietary driver" in plan.ranked[0].reason
    assert "8 GPUs, 1 asked for" in plan.ranked[0].reason


# -- after a loss ------------------------------------------------------------------------------------------------------


def test_the_region_that_lost_the_machine_comes_last_and_its_zone_last_of_all():
    # Going straight back to the region that just took a machine costs a quarter more preemptions.
    made = config("[{aws: {regions: [us-east-1, us-west-2], instance_types: [g4dn.xlarge], market: spot}}]")
    lost = planner.catalog_offers(made)[0]
    plan = of_catalog(made, lost=[lost])
    regions = [ranked.offer.region for ranked in plan.ranked]
    assert regions == ["us-west-2"] * 3 + ["us-east-1"] * 5
    assert plan.ranked[-1].offer.zone == lost.zone == "us-east-1a"
    assert plan.ranked[-1].reason.endswith("last, since a machine was lost here lately")
    assert plan.ranked[3].reason.endswith("late, since a machine was lost in us-east-1 lately")


def test_of_several_losses_the_newest_comes_last_and_the_only_place_is_still_used():
    made = config("[{aws: {regions: [us-east-1, us-west-2], instance_types: [g4dn.xlarge], market: spot}}]")
    offers = planner.catalog_offers(made)
    east, west = offers[0], next(one for one in offers if one.region == "us-west-2")
    order = [one.offer for one in planner.plan(made, offers, lost=[west, east]).ranked]
    assert [order[-2], order[-1]] == [east, west]
    assert order[0].region == "us-east-1", "the region that lost one earlier"
    assert [one.offer for one in planner.plan(made, [west], lost=[west, east]).ranked] == [west]


def test_a_machine_lost_at_home_moves_to_the_fallback_before_it_goes_back():
    made = config(
        "[{aws: {regions: [us-east-1], instance_types: [g4dn.xlarge]}}]",
        primary="{autodl: {mode: pro, gpus: [RTX 4090D], image_uuid: image-1}}",
    )
    home = offer("", "4090D", cloud="autodl", region="westDC3", gpu=Gpu("RTX 4090D", 1, 24), price=None)
    offers = [home, *planner.catalog_offers(made)]
    assert planner.plan(made, offers).ranked[0].offer == home
    assert planner.plan(made, offers, lost=[home]).ranked[0].offer.cloud == "aws"
    assert planner.plan(made, offers, lost=[home]).ranked[-1].offer == home


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scope", "blocked"),
    [
        (Scope.OFFER, "0"),
        (Scope.ZONE, "012"),
        (Scope.MARKET, "03"),
        (Scope.REGION, "0123"),
        (Scope.ACCOUNT, "01234"),
    ],
)
def test_a_refusal_reaches_as_far_as_its_scope(scope, blocked):
    offers = [
        offer(),
        offer(instance_type="g6.xlarge", market=Market.SPOT),
        offer(market=Market.SPOT),
        offer("us-east-1b"),
        offer("us-west-2a"),
        offer("us-east-1a", cloud="gcp"),
    ]
    memory = FailureMemory().remember(failure(scope), offers[0], now=1000)
    assert "".join(str(i) for i, one in enumerate(offers) if memory.blocks(one, 1100)) == blocked
    assert not any(memory.blocks(one, 1180) for one in offers)  # its time is over


def test_of_two_refusals_for_one_scope_the_longer_one_stays():
    memory = FailureMemory().remember(failure(Scope.ZONE, 600), offer(), now=0)
    memory = memory.remember(failure(Scope.ZONE, 60), offer(instance_type="g6.xlarge"), now=10)
    assert len(memory.entries) == 1
    assert memory.blocks(offer(), 599)
    assert memory.forget(600).entries == ()


def test_the_plan_says_what_was_refused_and_when_it_is_tried_again():
    memory = FailureMemory().remember(failure(Scope.OFFER), offer(), now=0)
    plan = rank([Block("b", "aws")], [offer()], memory=memory, now=60)
    assert plan.ranked == ()
    assert plan.passed_over[0].reason == (
        "no_capacity (InsufficientInstanceCapacity) for this offer, tried again in 120 s"
    )


# -- properties --------------------------------------------------------------------------------------------------------


def _remember(pairs):
    memory = FailureMemory()
    for reason, refused in pairs:
        memory = memory.remember(reason, refused, now=0)
    return memory


ZONES = ("us-east-1a", "us-east-1b", "us-west-2a", "eu-west-1a")
OFFERS = st.builds(
    offer,
    zone=st.sampled_from(ZONES),
    instance_type=st.sampled_from(["g4dn.xlarge", "g6.xlarge", "p3.2xlarge", "unheard.of"]),
    market=st.sampled_from(Market),
    price=st.none()
    | st.builds(Money, st.decimals("0.1", "9", places=2, allow_nan=False), st.sampled_from(["USD", "CNY"])),
    gpu=st.builds(
        Gpu, st.sampled_from(["T4", "L4", "V100", "unheard of"]), st.integers(0, 8), st.sampled_from([0, 16, 24])
    ),
    available=st.none() | st.integers(0, 4),
    cloud=st.sampled_from(["aws", "aws", "autodl"]),
)
SETS = st.lists(OFFERS, max_size=12, unique_by=lambda one: one.key)
BLOCKS = st.lists(
    st.builds(
        Block,
        name=st.just("b"),
        cloud=st.sampled_from(["aws", "autodl"]),
        regions=st.sampled_from([(), ("us-east-1",), ("us-west-2", "us-east-1")]),
        markets=st.sampled_from([(Market.SPOT, Market.ON_DEMAND), (Market.SPOT,)]),
        max_price=st.none() | st.builds(Money, st.decimals("0.1", "9", places=2), st.sampled_from(["USD", "CNY"])),
        held_markets=st.sampled_from([frozenset(), frozenset({Market.SPOT})]),
        gpus=st.sampled_from([(), ("T4",), ("T4", "L4")]),
        count=st.integers(1, 2),
        min_vram_gb=st.sampled_from([0.0, 24.0]),
    ),
    max_size=3,
)
MEMORIES = st.lists(
    st.tuples(
        st.builds(failure, st.sampled_from(Scope), st.sampled_from([10.0, 100.0]), st.sampled_from(FailureKind)), OFFERS
    ),
    max_size=3,
).map(_remember)


@given(BLOCKS, SETS, MEMORIES, st.lists(OFFERS, max_size=3), st.sampled_from([0, 50, 500]))
def test_every_offer_is_ranked_or_passed_over_with_a_reason(blocks, offers, memory, lost, now):
    plan = rank(blocks, offers, memory=memory, now=now, lost=lost)
    keys = [one.offer.key for one in plan.ranked] + [one.subject for one in plan.passed_over]
    assert sorted(keys) == sorted(one.key for one in offers)
    assert all(one.reason for one in plan.ranked)
    assert all(one.reason for one in plan.passed_over)


@given(BLOCKS, SETS, MEMORIES, st.lists(OFFERS, max_size=3), st.sampled_from([0, 50, 500]))
def test_a_blocked_scope_is_never_ranked(blocks, offers, memory, lost, now):
    plan = rank(blocks, offers, memory=memory, now=now, lost=lost)
    assert not any(memory.blocks(one.offer, now) for one in plan.ranked)


@given(BLOCKS, SETS, st.lists(OFFERS, max_size=3))
def test_no_price_goes_over_its_cap(blocks, offers, lost):
    def in_usd(money):
        return money.amount / USD_CNY if money.currency == "CNY" else money.amount

    plan = rank(blocks, offers, memory=FailureMemory(), now=0, lost=lost, terms=Terms(usd_cny=USD_CNY))
    for one in plan.ranked:
        caps = [block.max_price for block in blocks if not block.mismatch(one.offer)]
        if all(cap is not None for cap in caps):
            assert one.at_most is not None
            assert in_usd(one.at_most) <= max(in_usd(cap) for cap in caps if cap is not None)


@given(BLOCKS, SETS, OFFERS)
def test_the_lost_zone_is_never_first_when_there_is_another(blocks, offers, lost):
    plan = rank(blocks, offers, memory=FailureMemory(), now=0, lost=[lost])

    def there(one):
        return (one.offer.cloud, one.offer.region, one.offer.zone) == (lost.cloud, lost.region, lost.zone)

    places = [there(one) for one in plan.ranked]
    assert places == sorted(places)


@given(MEMORIES)
def test_a_memory_survives_json(memory):
    assert FailureMemory.from_json(json.loads(json.dumps(memory.as_json()))) == memory


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_prints_the_plan_of_the_example(monkeypatch):
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    file = str(assets.path("examples/failover.yaml"))
    table = CliRunner().invoke(plan_command, [file])
    assert table.exit_code == 0
    assert table.stderr == ""
    assert "p3.2xlarge is not offered in any zone of us-east-1 (catalog of 2026-11)" in " ".join(table.stdout.split())
    assert max(len(line) for line in table.stdout.splitlines()) <= 80
    first = table.stdout.splitlines()[2].split()
    assert first[:2] == ["1-5", "g4dn.xlarge"]
    answer = CliRunner().invoke(plan_command, [file, "--json"])
    data = json.loads(answer.stdout)
    assert data["offers"][0]["instance_type"] == "g4dn.xlarge"
    assert data["offers"][0]["at_most"] == {"amount": "0.526", "currency": "USD"}
    assert data.pop("replicas") == []
    assert data == json.loads(json.dumps(plan_json(of_catalog_file(file))))


def of_catalog_file(file):
    made = load(Path(file), {})
    passed = [planner.PassedOver("autodl", "AUTODL_TOKEN is not set"), *planner.absent(made)]
    stores = [place(made.checkpoint.main)]
    return planner.plan(made, planner.catalog_offers(made), passed_over=passed, stores=stores)


@pytest.mark.parametrize("key", ["budget", "budget_per_day"])
def test_with_a_budget_nothing_is_tried_whose_price_nothing_bounds(key):
    text = (
        "job: {name: a, command: 'true'}\n"
        "checkpoint: {store: s3://bucket/prefix}\n"
        "fallback: [{aws: {regions: [eu-west-1], market: on-demand}}]\n"
    )
    free = parse(text.encode(), "failover.yaml", Path(), {})
    offers = planner.catalog_offers(free)
    assert planner.plan(free, offers).ranked
    bound = parse(f"{text}policy: {{{key}: 20 USD}}\n".encode(), "failover.yaml", Path(), {})
    plan = planner.plan(bound, offers)
    assert plan.ranked == ()
    assert {one.reason for one in plan.passed_over} == {
        f"nothing bounds its price, so policy.{key} cannot be kept; set max_price"
    }
