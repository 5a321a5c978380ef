"""Expected cost and time, with numbers computed by hand."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

import pytest

from provisioner import catalog
from provisioner.catalog import SpotPrice, geography
from provisioner.hazard import Seen
from provisioner.model import Failure, FailureKind, Gpu, Market, Money, Offer, Scope
from provisioner.planner import Block, FailureMemory, Terms, Work, pool, rank, speed
from provisioner.planner.expected import priced, way


@dataclass
class At:
    cloud: str
    region: str


HOME = At("aws", "us-east-1")
WORK = Work(hours=10, known=True, on="T4", speeds={"L4": 2.0}, every_s=3600)


def offer(zone="us-east-1a", gpu="T4", market=Market.ON_DEMAND, price: str | None = "1", cloud="aws", kind=""):
    region = zone[:-1] if cloud == "aws" else zone[:-2]
    money = None if price is None else Money(Decimal(price), "USD")
    return Offer(cloud, region, zone, kind or f"one-{gpu}", Gpu(gpu, 1, 16), market, money)


def reckon(one, work=WORK, rate=0.0, stores=(), usd=1):
    return priced(way(one, work, rate, stores), one.price_per_hour, Decimal(usd))


def order(offers, cloud="aws", memory=None, **terms):
    plan = rank(
        [Block("b", cloud)], offers, memory=memory or FailureMemory(), now=0, terms=Terms(**{"work": WORK, **terms})
    )
    return [one.offer for one in plan.ranked]


def test_a_card_twice_as_fast_takes_half_the_training_and_the_same_start():
    found = reckon(offer(gpu="L4"))
    assert found.way.train == 5
    assert found.way.start == pytest.approx(300 / 3600)  # 5 min to boot
    assert found.cost == Decimal("5.0833")  # (5 h + 5 min) x 1 USD


def test_a_spot_machine_pays_for_its_losses():
    # One loss in 6 h; each costs half an hour of training and a start of 5 min: 0.5833 h, a share of 0.0972.
    # (10 + 0.0833) / (1 - 0.0972) = 11.1692 h, at 0.2 USD: 2.2338 USD.
    found = reckon(offer(market=Market.SPOT, price="0.2"), rate=1 / 6)
    assert found.way.hours == pytest.approx(11.1692, abs=1e-4)
    assert found.way.losses == pytest.approx(1.8615, abs=1e-4)
    assert found.cost == Decimal("2.2338")


def test_what_was_seen_in_a_pool_outweighs_the_usual():
    assert Seen().rate == pytest.approx(1 / 6)
    assert Seen(94, 4).rate == pytest.approx(5 / 100)
    steady, rough = (
        offer("us-east-1a", market=Market.SPOT, price="0.2"),
        offer("us-east-1b", market=Market.SPOT, price="0.19"),
    )
    assert order([steady, rough]) == [rough, steady]
    assert order([steady, rough], seen={pool(rough): Seen(2, 4)}) == [steady, rough]


def test_where_losses_eat_all_progress_there_is_no_end():
    found = reckon(offer(market=Market.SPOT, price="0.01"), rate=1.7)  # 1.7 losses an hour x 0.5833 h: 99 %
    assert found.way.hours == float("inf")
    assert found.cost is None
    assert order([offer(market=Market.SPOT, price="0.01"), offer("us-east-1b")], seen={pool(offer()): Seen(0.1, 20)})[
        0
    ] == offer("us-east-1b")


def test_checkpoints_that_leave_a_cloud_are_paid_for():
    # 2 GB once from AWS at 0.09 USD a GB, and ten times out of Google Cloud at 0.12: 0.18 + 2.40 USD.
    # It arrives at 0.04 GB/s in 50 s, so the start takes 350 s.
    work = Work(hours=10, known=True, every_s=3600, checkpoint_gb=2.0)
    found = reckon(offer("us-central1-a", cloud="gcp"), work=work, stores=[HOME])
    assert found.way.egress == Decimal("2.5800")
    assert found.cost == Decimal("12.6772")  # 10 h 350 s x 1 USD + 2.58 USD
    at_home = reckon(offer(), work=work, stores=[HOME])
    assert at_home.way.egress == 0
    assert at_home.way.start == pytest.approx((300 + 2 / 0.2) / 3600)


def test_yuan_become_dollars_at_the_given_rate():
    one = Offer("autodl", "westDC3", "", "4090D", Gpu("T4", 1, 16), Market.ON_DEMAND, Money(Decimal("7.1"), "CNY"))
    found = reckon(one, usd="7.1")
    assert found.cost == Decimal("10.0250")  # 10 h 90 s


def test_half_of_the_job_costs_half_but_for_the_start():
    assert reckon(offer(), work=Work(hours=10, known=True, done=0.5)).cost == Decimal("5.0833")


def test_cards_are_compared_by_their_figures_unless_somebody_measured():
    t4, l4 = catalog.card("T4"), catalog.card("L4")
    assert t4 is not None
    assert l4 is not None
    assert (t4.fp16_tflops, t4.bandwidth_gbs, l4.fp16_tflops, l4.bandwidth_gbs) == (65, 320, 121, 300)
    assert speed(Work(), "L4") == pytest.approx(1.2470, abs=1e-4)  # 1 / (0.5 x 65/121 + 0.5 x 320/300)
    assert speed(Work(compute_share=1.0), "L4") == pytest.approx(121 / 65)
    assert speed(Work(compute_share=0.0), "L4") == pytest.approx(300 / 320)
    assert speed(Work(speeds={"L4": 1.6}), "L4") == 1.6
    assert speed(Work(speeds={"A100": 9}), "A100-80GB") == 9
    assert speed(Work(), "T4") == 1
    assert speed(Work(), "unheard of") is None


def test_the_dearer_hour_may_be_the_cheaper_job():
    slow, fast = offer(price="0.6"), offer("us-east-1b", gpu="L4", price="0.9")
    assert order([slow, fast]) == [fast, slow]  # 6.05 USD and 4.58 USD


def test_with_a_deadline_what_cannot_make_it_comes_behind_what_can():
    spot, on_demand = offer(market=Market.SPOT, price="0.2"), offer()
    assert order([on_demand, spot]) == [spot, on_demand]
    assert order([on_demand, spot], seconds_left=10.5 * 3600) == [on_demand, spot]  # spot takes 11.2 h
    guessed = Work(hours=10, every_s=3600)
    assert order([on_demand, spot], seconds_left=10.5 * 3600, work=guessed) == [spot, on_demand]


def test_what_the_budget_cannot_bear_is_passed_over_with_the_sum():
    plan = rank(
        [Block("b", "aws")], [offer(price="3")], memory=FailureMemory(), now=0,
        terms=Terms(work=WORK, budget_left=Money(Decimal(20), "USD")),
    )  # fmt: skip
    assert [one.reason for one in plan.passed_over] == [
        "would cost about 30.25 USD to the end, and policy.budget leaves 20 USD"
    ]


def test_of_equal_offers_the_one_nearer_to_the_store_comes_first():
    near, far = offer("us-east-2a"), offer("ap-northeast-1a")
    assert order([far, near], stores=(HOME,)) == [near, far]
    assert order([far, near], round_trips={("aws", "ap-northeast-1"): 8.0, ("aws", "us-east-2"): 190.0}) == [far, near]
    assert geography.distance_km("aws", "us-east-1", "gcp", "europe-west2") == pytest.approx(5900, rel=0.01)


def test_zones_that_a_cloud_named_as_having_room_come_first_for_that_type_and_market():
    zones = [offer(f"us-central1-{letter}", cloud="gcp") for letter in "abcf"]
    other = offer("us-central1-f", cloud="gcp", kind="another", price="0.9")
    refusal = Failure(
        FailureKind.NO_CAPACITY, Scope.OFFER, "ZONE_RESOURCE_POOL_EXHAUSTED", "x", elsewhere=("us-central1-f",)
    )
    memory = FailureMemory().remember(refusal, zones[0], now=0)
    found = order([*zones, other], cloud="gcp", memory=memory)
    assert found == [zones[3], other, zones[1], zones[2]]


def test_a_region_in_another_country_is_passed_over():
    plan = rank(
        [Block("b", "aws", countries=("DE", "US"))], [offer(), offer("eu-west-1a"), offer("mars-1a")],
        memory=FailureMemory(), now=0,
    )  # fmt: skip
    assert [one.offer.zone for one in plan.ranked] == ["us-east-1a"]
    assert [one.reason for one in plan.passed_over] == [
        "eu-west-1 is in IE, and resources.countries allows DE, US",
        "nobody knows in which country mars-1 is, and resources.countries allows DE, US",
    ]
    assert geography.country("autodl", "") == "CN"


def test_every_region_that_a_file_may_name_has_a_country():
    assert [region for region in catalog.regions() if not geography.country("aws", region)] == []
    assert [region for region in catalog.AUTODL_REGIONS if not geography.country("autodl", region)] == []


def test_a_spot_price_that_was_looked_up_is_reckoned_with_and_still_no_price():
    spot = offer("us-east-1a", market=Market.SPOT, price=None, kind="g4dn.xlarge")
    blocks = [Block("b", "aws", max_price=Money(Decimal("0.4"), "USD"), held_markets=frozenset({Market.SPOT}))]

    def one(**prices):
        (found,) = rank(blocks, [spot], memory=FailureMemory(), now=0, terms=Terms(work=WORK), **prices).ranked
        return found

    usual = Money(Decimal("0.526"), "USD")
    seen = one(ceiling=lambda _: usual, spot_price=lambda _: SpotPrice(Money(Decimal("0.2"), "USD"), 0))
    assert (seen.basis, seen.cost, seen.cost_at_most) == ("seen", Money(Decimal("2.2338"), "USD"), None)
    assert seen.at_most == blocks[0].max_price  # AWS holds it to that
    guessed = one(ceiling=lambda _: usual, spot_price=lambda _: None)
    assert (guessed.basis, guessed.expected.price) == ("ceiling", Money(Decimal("0.2104"), "USD"))
    capped = one(ceiling=lambda _: None, spot_price=lambda _: None)
    assert (capped.basis, capped.cost) == ("cap", None)
    assert capped.cost_at_most == Money(Decimal("4.4677"), "USD")  # 11.1692 h at 0.4 USD
    assert seen.offer.price_per_hour is guessed.offer.price_per_hour is None


def held(cap, seen=None, ceiling="0.526", looked_up=0, budget=None):
    """Plan one spot machine that AWS holds to ``cap``, at noon of the day in whose first second prices are read."""
    block = Block("b", "aws", max_price=Money(Decimal(cap), "USD"), held_markets=frozenset({Market.SPOT}))
    return rank(
        [block], [offer(market=Market.SPOT, price=None, kind="g4dn.xlarge")],
        memory=FailureMemory(), now=43200, terms=Terms(work=WORK, budget_left=budget),
        ceiling=lambda _: ceiling and Money(Decimal(ceiling), "USD"),
        spot_price=lambda _: seen and SpotPrice(Money(Decimal(seen), "USD"), looked_up),
    )  # fmt: skip


def test_a_limit_below_todays_spot_price_costs_no_call_and_below_an_older_or_a_reckoned_one_it_is_tried():
    today = held("0.05", seen="0.31", looked_up=43200 - 3600)
    assert today.ranked == ()
    assert today.passed_over[0].reason == "the spot price is about 0.31 USD an hour, above max_price 0.05 USD"
    (old,) = held("0.05", seen="0.31").ranked
    assert old.reason.endswith(
        "the cloud holds it to max_price 0.05 USD, which may be too low: 0.31 USD an hour when last looked up, "
        "too long ago to count"
    )
    (reckoned,) = held("0.05").ranked
    assert reckoned.reason.endswith(
        "max_price 0.05 USD, which may be too low: reckoned as 0.2104 USD, 40% of the price on demand"
    )
    (unknown,) = held("0.05", ceiling=None).ranked
    assert unknown.reason.endswith("the cloud holds it to max_price 0.05 USD")
    assert held("0.31", seen="0.31", looked_up=43200).ranked


def test_what_has_no_price_here_is_passed_over_when_at_the_known_regions_price_the_budget_ends_too_early():
    # 11.1692 h at 40 % of us-east-1's 0.526 USD: 2.35 USD, whatever max_price says
    left = Money(Decimal(2), "USD")
    for cap in ("0.4", "0.1"):
        dear = held(cap, ceiling=None, budget=left)
        assert dear.ranked == ()
        assert dear.passed_over[0].reason == (
            "would cost about 2.35 USD to the end, at the price of us-east-1, and policy.budget leaves 2 USD"
        )
        assert dear.passed_over[0].over_budget
    assert held("0.4", ceiling=None, budget=Money(Decimal("2.4"), "USD")).ranked


@pytest.mark.parametrize(("left", "begun"), [("0.01", False), ("0.02", True)])
def test_no_machine_is_begun_whose_least_charge_the_budget_does_not_bear(left, begun):
    """AWS bills a minute at least: of 1 USD an hour 0.0167 USD. How long the job takes is not known."""
    terms = Terms(work=Work(), budget_left=Money(Decimal(left), "USD"))
    plan = rank([Block("b", "aws")], [offer()], memory=FailureMemory(), now=0, terms=terms)
    assert bool(plan.ranked) is begun
    words = "aws bills 60 s at least, 0.0167 USD at 1 USD an hour, and policy.budget leaves 0.01 USD"
    assert [(one.reason, one.over_budget) for one in plan.passed_over] == ([] if begun else [(words, True)])
    autodl = rank([Block("b", "autodl")], [offer(cloud="autodl")], memory=FailureMemory(), now=0, terms=terms)
    assert autodl.ranked, "of AutoDL no minimum is known"


def test_zones_of_one_type_keep_their_own_times_in_what_is_said():
    calm, rough = (offer(f"us-east-1{letter}", market=Market.SPOT, price="0.2") for letter in "ab")
    seen = {pool(calm): Seen(94, 0), pool(rough): Seen(2, 4)}
    terms = Terms(work=WORK, seen=seen, seconds_left=10 * 3600)
    plan = rank([Block("b", "aws")], [calm, rough], memory=FailureMemory(), now=0, terms=terms)
    assert [one.reason.split("; ")[1] for one in plan.ranked] == [
        "late, since it takes 10.1 h and the deadline leaves 10.0 h",
        "late, since it takes 15.9 h and the deadline leaves 10.0 h",
    ]
