"""What the ranking promises whatever it is given."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.hazard import Seen
from provisioner.model import Failure, FailureKind, Gpu, Market, Money, Offer, Scope
from provisioner.planner import Block, FailureMemory, Terms, Work, pool, rank

ZONES = ("us-east-1a", "us-east-1b", "us-west-2a", "eu-west-1a", "mars-1a")
GPUS = {"g4dn.xlarge": "T4", "g6.xlarge": "L4", "g6.2xlarge": "L4", "p3.2xlarge": "V100", "unheard.of": "unheard of"}
PRICES = st.builds(Money, st.decimals("0.1", "9", places=2), st.sampled_from(["USD", "CNY"]))


@st.composite
def offers(draw):
    kind = draw(st.sampled_from(sorted(GPUS)))
    gpu = Gpu(GPUS[kind], draw(st.integers(1, 4)), draw(st.sampled_from([16, 24])))
    zone = draw(st.sampled_from(ZONES))
    market = draw(st.sampled_from(Market))
    return Offer(
        "aws", zone[:-1], zone, kind, gpu, market, draw(st.none() | PRICES), draw(st.none() | st.integers(0, 4))
    )


SETS = st.lists(offers(), max_size=10, unique_by=lambda one: one.key)
BLOCKS = st.lists(
    st.builds(
        Block,
        name=st.sampled_from(["fallback[0].aws", "fallback[1].aws"]),
        cloud=st.just("aws"),
        regions=st.sampled_from([(), ("us-east-1",), ("us-west-2", "us-east-1")]),
        markets=st.sampled_from([(Market.SPOT, Market.ON_DEMAND), (Market.SPOT,)]),
        max_price=st.none() | PRICES,
        held_markets=st.sampled_from([frozenset(), frozenset({Market.SPOT})]),
        gpus=st.sampled_from([(), ("T4",), ("T4", "L4")]),
        count=st.integers(1, 2),
        min_vram_gb=st.sampled_from([0.0, 24.0]),
        zones=st.sampled_from([(), ("us-east-1a", "us-west-2a")]),
        countries=st.sampled_from([(), ("US",), ("IE", "US")]),
    ),
    min_size=1,
    max_size=3,
)
TERMS = st.builds(
    Terms,
    work=st.builds(
        Work,
        hours=st.sampled_from([1.0, 20.0]),
        known=st.booleans(),
        checkpoint_gb=st.sampled_from([None, 3.0]),
        every_s=st.sampled_from([600.0, 36000.0]),
    ),
    stores=st.sampled_from([(), (type("At", (), {"cloud": "aws", "region": "us-east-1"})(),)]),
    by_cost=st.booleans(),
    seconds_left=st.sampled_from([None, 7200.0, 72000.0]),
    budget_left=st.none() | PRICES,
)
NONE = FailureMemory()
FEW = settings(max_examples=50)


def keys(plan):
    return [one.offer.key for one in plan.ranked]


@FEW
@given(BLOCKS, SETS, TERMS, offers(), PRICES, st.lists(offers(), max_size=2))
def test_a_cheaper_otherwise_equal_offer_never_ranks_lower(blocks, others, terms, one, price, lost):
    cheap = replace(one, zone="us-east-1y", region="us-east-1", price_per_hour=Money(price.amount / 2, price.currency))
    dear = replace(cheap, zone="us-east-1x", price_per_hour=price)  # its name would win a tie
    order = keys(rank(blocks, [*others, dear, cheap], memory=NONE, now=0, lost=lost, terms=terms))
    if dear.key in order:
        assert order.index(cheap.key) < order.index(dear.key)


@FEW
@given(BLOCKS, SETS, TERMS, st.data())
def test_a_tighter_constraint_never_adds_an_offer(blocks, offered, terms, data):
    before = keys(rank(blocks, offered, memory=NONE, now=0, terms=terms))
    which = data.draw(st.integers(0, len(blocks) - 1))
    block = blocks[which]
    cap = block.max_price
    ways: dict[str, list[Any]] = {
        "regions": [block.regions[:1] or ("us-west-2",)],
        "zones": [block.zones[:1] or ("us-east-1b",)],
        "countries": [("IE",) if "US" not in block.countries else ("US",)],
        "markets": [(Market.SPOT,)],
        "gpus": [block.gpus[:1] or ("L4",)],
        "count": [block.count + 1],
        "min_vram_gb": [24.0, 48.0],
        "max_price": [] if cap is None else [Money(cap.amount / 2, cap.currency)],
    }
    name = data.draw(st.sampled_from([*(way for way, values in ways.items() if values), "budget", "deadline"]))
    if name == "budget":
        left = terms.budget_left
        tighter = Money(left.amount / 2, left.currency) if left else Money(Decimal(3), "USD")
        after = rank(blocks, offered, memory=NONE, now=0, terms=replace(terms, budget_left=tighter))
    elif name == "deadline":
        after = rank(blocks, offered, memory=NONE, now=0, terms=replace(terms, seconds_left=3600.0))
    else:
        changed = [*blocks]
        changed[which] = replace(block, **{name: data.draw(st.sampled_from(ways[name]))})
        after = rank(changed, offered, memory=NONE, now=0, terms=terms)
    assert set(keys(after)) <= set(before)


@FEW
@given(BLOCKS, SETS, TERMS, st.sampled_from(Scope), offers(), st.integers(1, 1000))
def test_a_remembered_failure_removes_exactly_its_scope_and_comes_back_after_its_time(
    blocks, offered, terms, scope, refused, ttl
):
    before = rank(blocks, offered, memory=NONE, now=0, terms=terms)
    memory = NONE.remember(Failure(FailureKind.NO_CAPACITY, scope, "x", "x", ttl_s=ttl), refused, now=0)
    (entry,) = memory.entries
    during = rank(blocks, offered, memory=memory, now=ttl - 0.5, terms=terms)
    assert keys(during) == [one.offer.key for one in before.ranked if not entry.covers(one.offer)]
    assert rank(blocks, offered, memory=memory, now=ttl, terms=terms) == before


@FEW
@given(
    BLOCKS,
    SETS,
    TERMS,
    st.lists(offers(), max_size=2),
    st.lists(offers(), max_size=2),
    st.randoms(use_true_random=False),
)
def test_the_order_of_the_input_does_not_matter(blocks, offered, terms, refused, lost, random):
    memory = NONE
    for one in refused:
        memory = memory.remember(
            Failure(FailureKind.NO_CAPACITY, Scope.ZONE, "x", "x", elsewhere=ZONES[:2]), one, now=0
        )
    shuffled = list(offered)
    random.shuffle(shuffled)
    first, second = (rank(blocks, each, memory=memory, now=5, lost=lost, terms=terms) for each in (offered, shuffled))
    assert first.ranked == second.ranked
    assert sorted(map(str, first.passed_over)) == sorted(map(str, second.passed_over))


@FEW
@given(BLOCKS, SETS, TERMS)
def test_by_cost_or_as_listed_the_same_offers_stand_there(blocks, offered, terms):
    either = [
        rank(blocks, offered, memory=NONE, now=0, terms=replace(terms, by_cost=by_cost)) for by_cost in (False, True)
    ]
    assert set(keys(either[0])) == set(keys(either[1]))
    sure = [one.cost.amount for one in either[1].ranked if one.cost]
    if terms.seconds_left is None:
        assert sure == sorted(sure)


@FEW
@given(BLOCKS, SETS, TERMS, st.integers(1, 50))
def test_a_pool_that_loses_more_machines_never_gets_cheaper(blocks, offered, terms, losses):
    def costs(found):
        plan = rank(blocks, offered, memory=NONE, now=0, terms=replace(terms, seen=found))
        return {one.offer.key: one.expected.way.hours for one in plan.ranked if one.expected is not None}

    calm, rough = ({pool(one): Seen(10.0, count) for one in offered} for count in (0, losses))
    before, after = costs(calm), costs(rough)
    assert all(after[key] >= before[key] for key in after.keys() & before.keys())
