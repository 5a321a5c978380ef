"""A day's budget: of a job and of all jobs, warned at 80 %, a pause at 100 %, and on with the next day."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.checkpoint.store import open_store
from provisioner.cli.command import cli
from provisioner.controller.daily import DAY, DAY_OF_ALL, Daily, is_daily, local_day, read_limit
from provisioner.controller.directory import JobDirectory, JobRecord
from provisioner.controller.hints import Hints
from provisioner.controller.ledger import Ledger, Terms
from provisioner.controller.limits import Limits
from provisioner.controller.patience import Patience
from provisioner.controller.records import Asked, Begun, Watched
from provisioner.controller.warnings import Warnings
from provisioner.controller.watch import Signs, judge
from provisioner.errors import ConfigError
from provisioner.model import Ending, Money, NodeState
from provisioner.telemetry.events import EventLog, read
from tests.sweeps import world
from tests.unit.test_costs import bill
from tests.unit.test_flow import Killed, Recorder, World, run
from tests.unit.test_limits_report import HALF_HOUR_OF_DOLLARS, Policy

DAY_S = 86400.0
MACHINE = HALF_HOUR_OF_DOLLARS.claimed
"""0.5 USD an hour."""


def usd(amount: str) -> Money:
    return Money(Decimal(amount), "USD")


class House:
    """A state directory with machines in its ledgers, and a clock. Days begin at multiples of 86400 s."""

    def __init__(self, root) -> None:
        self.root = root
        self.now = 10 * DAY_S
        self.told: list[str] = []

    def job(self, name: str, *, price: str = "0.5", node: str = "i-1") -> Ledger:
        """Let a machine of a job begin now."""
        folder = self.root / "jobs" / name
        folder.mkdir(parents=True, exist_ok=True)
        ledger = Ledger(folder)
        ledger.begin(1, self.now, Terms())
        ledger.machine(bill(node, price=usd(price), begun=self.now, ends_by=self.now + 10 * DAY_S))
        return ledger

    def daily(self, budget: str = "") -> Daily:
        return Daily(
            self.root,
            "digits",
            usd(budget) if budget else None,
            Decimal(7),
            now=lambda: self.now,
            day=lambda at: (at // DAY_S * DAY_S, (at // DAY_S + 1) * DAY_S),
            tell=self.told.append,
        )

    def limits(self, per_day: str = "", /, **policy) -> Limits:
        return Limits(Policy(usd_cny=Decimal(7), **policy), self.daily(per_day), lambda: self.now)

    def limit_all(self, text: str) -> None:
        (self.root / "limits.yaml").write_text(f"budget_per_day: {text}\n")


@pytest.fixture
def house(tmp_path) -> House:
    return House(tmp_path)


def test_a_day_counts_what_fell_into_it_and_begins_anew(house):
    house.now += 23 * 3600
    house.job("digits")
    limits = house.limits("0.75")
    assert limits.first(Begun(0, 1), (), MACHINE) is None, "the day ends before its budget"
    house.now += 3600 + 1800
    found = limits.first(Begun(0, 1), (), MACHINE)
    assert found is not None
    assert (found.kind, found.at) == (DAY, 11 * DAY_S + 5400), "what yesterday cost does not count"
    assert limits.reached(Begun(0, 1), (), MACHINE, found.at - 1) == ""
    assert limits.reached(Begun(0, 1), (), MACHINE, found.at) == "budget of 0.75 USD a day reached"


def test_the_budget_of_all_jobs_counts_all_jobs_in_every_currency_and_may_change_at_any_time(house):
    house.job("digits")
    other = house.job("other", price="1.5")
    house.limit_all("70 CNY")
    limits = house.limits()
    found = limits.first(Begun(0, 1), (), MACHINE)
    assert found is not None
    assert (found.kind, found.line) == (DAY_OF_ALL, "budget of 70 CNY a day for all jobs reached")
    assert found.at == pytest.approx(10 * DAY_S + 5 * 3600), "10 USD at 2 USD an hour"
    house.now += 2
    other.gone("aws", "i-1", house.now)
    found = limits.first(Begun(0, 1), (), MACHINE)
    assert found is not None
    assert found.at == pytest.approx(10 * DAY_S + 20 * 3600, abs=300)
    house.now += 2
    (house.root / "limits.yaml").unlink()
    assert limits.first(Begun(0, 1), (), MACHINE) is None


def test_a_budget_that_is_lowered_below_what_was_spent_leaves_two_minutes_to_save(house):
    house.job("digits")
    house.limit_all("50 USD")
    limits = house.limits()
    house.now += 4 * 3600
    assert limits.reached(Begun(0, 1), (), MACHINE, house.now) == ""
    house.limit_all("1 USD")
    house.now += 10
    at = house.now
    for seconds, line in ((0, ""), (60, ""), (119, ""), (120, "budget of 1 USD a day for all jobs reached")):
        house.now = at + seconds
        assert limits.reached(Begun(0, 1), (), MACHINE, house.now) == line


def test_a_budget_that_was_foreseen_is_reached_while_the_clock_goes_on(house):
    """Each question takes time: the moment must not move on with it."""
    house.job("digits")
    limits = house.limits("1")
    assert limits.reached(Begun(0, 1), (), MACHINE, house.now) == ""
    house.now += 7200
    now, house.now = house.now, house.now + 0.001
    assert limits.reached(Begun(0, 1), (), MACHINE, now) == "budget of 1 USD a day reached"


def test_without_a_machine_a_day_is_no_limit_but_a_rest_also_for_what_would_not_last_half_an_hour(house):
    ledger = house.job("digits")
    house.now += 3600
    ledger.gone("aws", "i-1", house.now)
    assert house.limits("0.5").first(Begun(0, 1), (), None) is None
    rest = house.daily("0.5").rest_until(None)
    assert rest == (11 * DAY_S, "the job has used 0.50 of 0.5 USD of the day's budget")
    assert house.daily("0.7").rest_until(usd("0.5")) is not None, "0.2 USD are 24 minutes"
    assert house.daily("0.75").rest_until(usd("0.5")) is None
    assert house.daily("0.7").rest_until(None) is None
    house.now = 11 * DAY_S
    assert house.daily("0.5").rest_until(usd("0.5")) is None


def test_before_the_day_is_spent_the_node_saves_and_its_end_is_a_pause_and_not_the_jobs(house):
    house.job("digits")
    limits = house.limits("1")
    store = open_store("memory://").at("digits")
    hints = Hints(
        store, 1, claimed_at=house.now, limit=lambda: limits.first(Begun(0, 1), (), MACHINE), outlook=lambda: None,
        emit=lambda *_, **__: None, poll_s=10, heartbeat_s=5, now=lambda: house.now,
    )  # fmt: skip
    beat: dict[str, object] = {"step": 5, "end": None}
    house.now += 7200 - 140
    assert hints.look(NodeState.RUNNING, beat) == ""
    assert store.get("epochs/1/hint.json") is None
    house.now += 20
    assert hints.look(NodeState.RUNNING, beat) == ""
    assert json.loads(store.get("epochs/1/hint.json") or b"")["kind"] == DAY
    ended = {**beat, "end": {"reason": f"notice: {DAY}"}}
    assert hints.look(NodeState.RUNNING, ended) == "", "no reason to end the job"
    signs = Signs(house.now, 0.0, NodeState.RUNNING, heartbeat=ended)
    assert judge(signs, Patience(10, 60, 900)) == (Ending.STOPPED, f"notice: {DAY}")
    assert is_daily(f"notice: {DAY}")
    assert not is_daily("budget of 5 USD reached")


def test_each_limit_is_warned_of_once_also_over_a_restart_and_status_shows_it(house, monkeypatch):
    monkeypatch.setenv("FAILOVER_STATE_DIR", str(house.root))
    directory = JobDirectory(house.root, "digits")
    house.now = time.time() // DAY_S * DAY_S
    house.job("digits")
    directory.remember(JobRecord("digits", "0000000a", 1, open=True, config_path="x", started_at=house.now))
    begun, limits = Begun(house.now, 1), house.limits("1", budget=usd("100"), deadline=2 * DAY_S)
    log = EventLog(directory.path / "events.jsonl", clock=lambda: house.now)
    log.emit("begin")
    told = []
    for hour in range(46):
        house.now += 3600
        Warnings(log).look(limits.shares(begun, (), None))
        told = [event["words"] for event in read(log.path) if event["kind"] == "warned"]
        if hour == 1:
            shown = CliRunner().invoke(cli, ["status"])
            assert "digits: 100% of the day's budget, 1 USD, are used" in shown.output
    assert [words.partition("%")[0] for words in told] == ["100", "100", "81"], "two days, and the deadline"


def test_a_file_of_limits_that_says_something_else_is_named(house):
    for text in ("5", "5 EUR", "[a]", "'5 USD'\nmore: 1", "{", "2026-99-99", "!!bool x", "!!int x", "[" * 3000):
        house.limit_all(text)
        with pytest.raises(ConfigError, match=r"limits\.yaml"):
            read_limit(house.root)
    house.limit_all("5 USD")
    daily = house.daily()
    assert [day.budget for day in daily.days()] == [usd("5")]
    house.limit_all("nonsense")
    for _ in range(3):
        house.now += 2
        assert [day.budget for day in daily.days()] == [usd("5")], "a running controller keeps the limit that it had"
    assert len(house.told) == 1
    assert "limits.yaml" in house.told[0]


ZONES = ["America/Havana", "America/St_Johns", "America/Sao_Paulo", "Asia/Gaza", "Pacific/Apia", "Australia/Lord_Howe"]


@pytest.mark.parametrize("zone", ZONES)
def test_days_follow_one_another_also_where_clocks_change_at_midnight(zone, monkeypatch):
    """In Havana one midnight comes twice: money that was spent after the first one counts for the new day."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        begins, ends = local_day(1_285_000_000.0)  # in autumn 2010, until spring 2012
        while ends < 1_330_000_000.0:
            days = {local_day(begins + (ends - begins) * part / 50) for part in range(50)}
            assert days == {(begins, ends)}
            assert 82_000 <= ends - begins <= 91_000
            begins, before = ends, ends
            begins, ends = local_day(begins)
            assert begins == before
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_local_day_holds_its_moment():
    begins, ends = local_day(1_796_047_306.0)
    assert begins <= 1_796_047_306.0 < ends
    assert 23 * 3600 <= ends - begins <= 25 * 3600


@dataclass
class Thrifty(World):
    """A world in which each machine uses a day up."""

    rested: list[float] = field(default_factory=list)
    day: int = 1

    def ask_primary(self, begun: Begun, past: tuple, since: float | None) -> Asked:
        asked = super().ask_primary(begun, past, since)
        used = len(past) >= self.day
        return Asked(asked.offers, asked.at, until=self.clock + 10 if used else None)

    def rest(self, begun: Begun, past: tuple, until: float) -> float:
        assert self.machines == {}, "a job that rests costs nothing"
        self.rested.append(until)
        self.day = len(past) + 1
        self.clock = until
        return until

    def watch(self, claimed, node, begun, past) -> Watched:
        watched = super().watch(claimed, node, begun, past)
        return watched if watched.ending is Ending.COMPLETED else Watched(Ending.STOPPED, f"notice: {DAY}", *(
            watched.at, watched.at, watched.at, watched.restored_step, watched.last_step))  # fmt: skip


@settings(max_examples=100)
@given(days=st.integers(1, 4), die_after=st.integers(0, 40), home=st.booleans())
def test_a_job_that_rests_goes_on_the_next_day_killed_anywhere(days, die_after, home):
    world = Thrifty(home=[home], refusals={}, endings=[Ending.STOPPED] * (days - 1) + [Ending.COMPLETED])
    recorder = Recorder()
    recorder.die_after = die_after
    try:
        report = run(world, recorder)
    except Killed:
        recorder.die_after = None
        report = run(world, recorder)
    assert (report["result"], report["leaked"], report["steps_lost"]) == ("completed", [], 0)
    assert len(report["placements"]) == days
    assert len(world.rested) in {days - 1, days}, "one that was repeated after a crash returns at once"


def test_a_job_whose_machines_are_too_dear_for_a_day_rests_and_does_not_ask_again_and_again(tmp_path):
    """40 USD an hour against 3 USD a day; somebody raises the budget of all jobs while it rests."""

    class Dear:
        def offers(self, _request: object) -> list:
            return [replace(HALF_HOUR_OF_DOLLARS.node.offer, region="us-east-1", price_per_hour=usd("40"))]

    (tmp_path / "limits.yaml").write_text("budget_per_day: 3 USD\n")
    made: Any = world({"aws": Dear()}, {"fallback": [{"aws": {"regions": ["us-east-1"]}}]}, tmp_path)
    clock = iter(range(10**6))
    made.now = made.daily._now = made.limits._now = lambda: 1_796_047_306.0 + next(clock)
    asked = made.ask_fallback(Begun(0.0, 1), ())
    assert asked.until is not None
    waits: list[float] = []

    class Waiting:
        def is_set(self) -> bool:
            return False

        def wait(self, seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 5:
                (tmp_path / "limits.yaml").write_text("budget_per_day: 100 USD\n")

    made.take_down = Waiting()
    made.rest(Begun(0.0, 1), (), asked.until)
    assert len(waits) == 5
    assert made.ask_fallback(Begun(0.0, 1), ()).until is None
    kinds = [event["kind"] for event in read(made.directory.path / "events.jsonl")]
    assert kinds.count("resting") == 1
