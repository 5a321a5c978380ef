"""What the controller tells a node of its end: what, when, and when no longer."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from provisioner.checkpoint import layout
from provisioner.checkpoint.store import open_store
from provisioner.clouds.base import Foretells, Outlook
from provisioner.controller.flow import TAKEN_DOWN
from provisioner.controller.hints import BALANCE, CALM_S, OPERATOR, SHUT_DOWN, STOCK, Hints, Wallet
from provisioner.controller.limits import DEADLINE, Limit
from provisioner.model import Money, NodeState
from provisioner.node.notices.hints import Hints as Reader
from tests.unit.test_autodl_cloud import Setting

START = 1_000_000.0
BEAT = {"step": 5, "end": None, "last_commit": {"step": 5, "seconds": 3.0}}


def yuan(amount: str) -> Money:
    return Money(Decimal(amount), "CNY")


class Placement:
    """A node's hints, and the node's own reader of them, on one clock."""

    def __init__(self) -> None:
        self.now = START
        self.ahead: float | None = None
        self.store = open_store("memory://").at("digits")
        self.limit: Limit | None = None
        self.outlook: Outlook | None = None
        self.emitted: list[tuple[str, bool]] = []
        self.hints = self.controller()

    def controller(self) -> Hints:
        return Hints(
            self.store,
            1,
            claimed_at=START,
            limit=lambda: self.limit,
            outlook=lambda: self.outlook,
            emit=lambda kind, **fields: self.emitted.append((fields["hint"], fields["final"])),
            poll_s=10,
            heartbeat_s=5,
            ahead=lambda: self.ahead,
            now=lambda: self.now,
        )

    def store_time(self) -> float:
        self.store.put("now", b"")
        found = self.store.look("now")
        assert found is not None
        return found.modified

    def look(self, seconds: float = 0, *, state: NodeState = NodeState.RUNNING, beat=BEAT) -> str:
        self.now += seconds
        return self.hints.look(state, beat)

    def told(self):
        notice = Reader(self.store, 1, every_s=0, monotonic=iter(range(10**6)).__next__).watch(0)
        return None if notice is None else (notice.kind, notice.final, notice.deadline)


@pytest.fixture
def placement() -> Placement:
    return Placement()


def test_before_a_deadline_the_node_has_time_to_save_and_its_end_ends_the_job(placement):
    placement.limit = Limit(START + 7200, DEADLINE, "deadline of 7200 s reached")
    placement.look(7200 - 140)
    assert placement.told() is None
    placement.look(10)
    assert placement.told() == (DEADLINE, True, START + 7200)
    assert placement.look(5) == ""
    ended = {**BEAT, "end": {"reason": f"notice: {DEADLINE}"}}
    assert placement.look(5, beat=ended) == "deadline of 7200 s is near: the job has saved and ended"
    assert placement.look(5, beat={**BEAT, "end": {"reason": "notice: spot terminate"}}) == ""


@pytest.mark.parametrize("ahead", [3600.0, -3600.0])
@pytest.mark.parametrize("known", [True, False], ids=["from its heartbeats", "by the store's clock alone"])
def test_a_node_whose_clock_is_off_has_the_time_that_is_left(placement, ahead, known):
    placement.limit = Limit(START + 7200, DEADLINE, "deadline of 7200 s reached")
    if known:
        placement.ahead = ahead
    else:
        at = placement.store_time() + ahead
        placement.store.put(layout.heartbeat(1), json.dumps({**BEAT, "time": at}).encode())
    placement.look(7200 - 130)
    kind, final, deadline = placement.told()
    assert (kind, final) == (DEADLINE, True)
    assert deadline == pytest.approx(START + 7200 + ahead, abs=10)


def test_slow_saves_are_told_earlier_and_a_short_time_is_not_given_up(placement):
    placement.limit = Limit(START + 36000, DEADLINE, "deadline of 36000 s reached")
    slow = {**BEAT, "last_commit": {"seconds": 400.0}}
    placement.look(36000 - 810, beat=slow)
    assert placement.told() is not None
    short = Placement()
    short.limit = Limit(START + 100, DEADLINE, "deadline of 100 s reached")
    short.look(89)
    assert short.told() is None
    short.look(2)
    assert short.told() is not None


def test_a_balance_is_advice_first_and_final_when_minutes_are_left_and_nothing_when_paid_in(placement):
    placement.outlook = Outlook(yuan("4"), yuan("2"))
    placement.look()
    assert placement.told() is None
    placement.outlook = Outlook(yuan("1"), yuan("2"))
    placement.look(60)
    assert placement.told() == (BALANCE, False, pytest.approx(placement.now + 1800))
    placement.outlook = Outlook(yuan("50"), yuan("2"))
    placement.look(60)
    assert placement.told() is None
    placement.outlook = Outlook(yuan("0.1"), yuan("2"))
    placement.look(60)
    assert placement.told() == (BALANCE, True, pytest.approx(placement.now + 180))
    assert placement.emitted == [(BALANCE, False), (BALANCE, True)]


def test_a_balance_that_runs_low_again_is_another_hint(placement):
    """The node may not have looked in between: what it hears once is this hint, not all of its kind."""
    marks = []
    for amount in ("1", "50", "1"):
        placement.outlook = Outlook(yuan(amount), yuan("2"))
        placement.look(60)
        data = placement.store.get(layout.hint(1))
        marks.append(json.loads(data)["told"] if data is not None else None)
    assert marks == [START + 60, None, START + 180]
    assert placement.emitted == [(BALANCE, False)] * 2


def test_the_wallet_goes_by_its_own_fall_where_other_machines_share_it():
    wallet = Wallet()
    hints = [wallet.hint(yuan(str(10 - minute * 0.2)), yuan("2"), START + minute * 60) for minute in range(16)]
    assert hints[9] is None
    assert hints[15] is not None
    assert "for 35 min at 12 CNY an hour" in hints[15].detail
    assert Wallet().hint(yuan("0.1"), None, START) is None, "without a price nothing is known at first"


def test_an_empty_stock_is_advice_that_does_not_come_and_go_by_the_minute(placement):
    for minute in range(10):
        placement.outlook = Outlook(idle=minute % 2, kind="RTX 4090 in westDC2")
        placement.look(60)
    assert placement.emitted == [(STOCK, False)]
    placement.look(CALM_S)
    assert placement.told() is None


def test_a_machine_that_its_cloud_shuts_down_is_told_at_once(placement):
    placement.look(state=NodeState.STOPPING)
    assert placement.told() == (SHUT_DOWN, True, None)


def test_the_hint_of_somebody_else_stays_and_one_of_an_earlier_controller_goes(placement):
    others = json.dumps({"kind": OPERATOR, "deadline": START + 60, "final": True}).encode()
    placement.store.put(layout.hint(1), others)
    placement.outlook = Outlook(yuan("0.1"), yuan("2"))
    placement.look()
    assert placement.store.get(layout.hint(1)) == others
    assert placement.look(beat={**BEAT, "end": {"reason": f"notice: {OPERATOR}"}}) == TAKEN_DOWN
    placement.store.put(layout.hint(1), json.dumps({"kind": BALANCE, "final": False}).encode())
    placement.outlook = None
    placement.hints = placement.controller()
    placement.look()
    assert placement.told() is None


@pytest.mark.parametrize("mode", ["pro", "elastic"])
def test_autodl_foretells_by_wallet_price_and_the_stock_of_elastic_machines(mode):
    setting = Setting(mode)
    assert isinstance(setting.cloud, Foretells)
    node = setting.claim()
    setting.sleep(60)
    setting.emulator.set_account(assets=12_500)
    setting.emulator.set_stock(node.offer.region or "*", "*", 0)
    outlook = setting.cloud.outlook(node)
    assert outlook.balance is not None
    assert float(outlook.balance.amount) == pytest.approx(12.5, abs=0.2)
    assert outlook.price_per_hour is not None
    assert outlook.idle == (0 if mode == "elastic" else None)
