"""When does a job go home? On a clock of the test's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal

import pytest

from provisioner.config import FailbackConfig
from provisioner.controller.homeward import Homeward
from provisioner.errors import Unreachable
from provisioner.model import Gpu, Market, Money, Offer
from provisioner.planner import Terms, Work, saving

HOUR, DAY = 3600.0, 86400.0


def offer(cloud: str, gpu: str, market: Market, available: int | None = None) -> Offer:
    return Offer(cloud, "r", "z", gpu, Gpu(gpu, 1, 24), market, Money(Decimal(1), "USD"), available)


FREE, UNKNOWN = (offer("autodl", "RTX 4090", Market.ON_DEMAND, free) for free in (1, None))


@dataclass
class House:
    """A primary whose stock follows a script: from when to when there is a card, in seconds."""

    open: Sequence[tuple[float, float]] = ((0.0, 1e9),)
    card: Offer = FREE
    saves: str = "the move saves 1 USD"
    wish: bool = False
    away: bool = False
    now: float = 0.0
    minute: int = 12 * 60
    asked: list[float] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def wished(self) -> bool:
        wish, self.wish = self.wish, False
        return wish

    def home_offers(self) -> list[Offer]:
        self.asked.append(self.now)
        if self.away:
            raise Unreachable("AutoDL does not answer")
        return [self.card] if any(begin <= self.now < end for begin, end in self.open) else []

    def pays(self, offer: Offer) -> str:
        return self.saves

    def tell(self, kind: str, **_: object) -> None:
        self.told.append(kind)


def moves(house: House, hours: float, *, moved: Sequence[float] = (), **policy: object) -> list[float]:
    """Look every ten seconds; return when it was time to go home."""
    config = FailbackConfig.model_validate(policy)
    homeward = Homeward(config, now=lambda: house.now, minute=lambda: house.minute, jitter=lambda: 0.5)
    found = []
    while house.now < hours * HOUR:
        if homeward.why(house, moved):
            found.append(house.now)
        house.now += 10.0
    return found


def test_a_card_that_has_been_there_for_ten_minutes_calls_and_one_that_comes_and_goes_does_not() -> None:
    assert moves(House(), 0.4) == [600.0]
    blinking = House(open=[(600.0 * n, 600.0 * n + 500.0) for n in range(20)])
    assert moves(blinking, 3) == []
    assert moves(House(open=[(1800.0, 1e9)]), 0.8) == [2400.0]


def test_a_try_that_comes_to_nothing_is_made_again_after_the_pause_and_the_hold() -> None:
    assert moves(House(), 1, after=60.0, again=1200.0) == [60.0, 1260.0, 2460.0]


def test_a_machine_at_home_that_was_of_no_use_makes_the_next_try_wait_twice_as_long_until_one_takes_over() -> None:
    house = House()
    homeward = Homeward(
        FailbackConfig(after=0.0, again=100.0, every=10.0), now=lambda: house.now, minute=lambda: 0, jitter=lambda: 0.5
    )
    tries = []
    while house.now < 2000.0:
        if homeward.why(house, []):
            tries.append(house.now)
            homeward.spoiled()
        house.now += 10.0
    assert tries == [0.0, 200.0, 600.0, 1400.0]
    homeward.arrived()
    assert homeward.why(house, [])


def test_pro_tells_no_stock_so_it_is_tried_now_and_then() -> None:
    assert moves(House(card=UNKNOWN), 1, again=900.0) == [600.0, 1500.0, 2400.0, 3300.0]


def test_the_primary_is_asked_about_once_a_minute_and_its_silence_is_no_card() -> None:
    house = House(away=True)
    assert moves(house, 1) == []
    assert len(house.asked) == pytest.approx(60, abs=2)
    assert set(house.told) == {"blind"}


def test_what_does_not_pay_or_is_not_wanted_stays_and_the_operators_word_goes_above_all() -> None:
    assert moves(House(saves=""), 2) == []
    assert moves(House(), 2, mode="never") == []
    asks = House()
    assert moves(asks, 2, mode="ask") == []
    assert asks.told == ["home_calls"], "told once"
    assert moves(House(wish=True, open=[], saves=""), 1, mode="never") == [0.0]


def test_quiet_hours_and_the_limit_of_a_day_hold() -> None:
    night = House(minute=23 * 60)
    assert moves(night, 2, quiet="22:00-07:00") == []
    assert moves(House(minute=12 * 60), 0.4, quiet="22:00-07:00") == [600.0]
    assert moves(House(), 2, moved=[-100.0] * 4) == []
    assert moves(House(), 0.4, moved=[-DAY - 10.0] * 4) == [600.0]


@pytest.mark.parametrize(
    ("hours", "done", "here", "there", "pays"),
    [
        (20.0, 0.0, "0.5", "0.26", True),
        (20.0, 0.999, "0.5", "0.26", False),
        (20.0, 0.0, "0.2", "0.26", True),
        (20.0, 0.0, "0.05", "2", False),
    ],
    ids=["cheaper and faster", "almost done", "faster is cheaper in the end", "dearer"],
)
def test_a_move_pays_when_what_is_left_is_cheaper_there_with_both_starts_paid(
    hours: float, done: float, here: str, there: str, pays: bool
) -> None:
    terms = Terms(work=Work(hours=hours, known=True, done=done))
    found = saving(
        offer("aws", "T4", Market.SPOT), Money(Decimal(here), "USD"), FREE, Money(Decimal(there), "USD"), terms
    )
    assert found is not None
    assert (found[0] > 0) is pays
