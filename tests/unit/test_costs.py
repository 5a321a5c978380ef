"""What jobs have cost: by the report, by the ledger, and by the clouds' own rules of billing."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from provisioner.cli.command import cli
from provisioner.cli.cost import _lines, _row
from provisioner.cli.report import print_report
from provisioner.controller.costs import costs
from provisioner.controller.directory import JobDirectory, JobRecord
from provisioner.controller.ledger import Bill, Ledger, Terms, all_bills, bills
from provisioner.controller.records import Begun, Claimed, Finished, Placement, Released, Surplus, Watched
from provisioner.controller.report import build_report
from provisioner.model import Ending, Gpu, JobRef, Market, Money, Node, Offer, Owned
from tests.sweeps import world

JOB = JobRef("digits", "00000001")
SOME = Money(Decimal("0.5"), "USD")


def bill(node: str = "i-1", *, epoch: int = 1, cloud: str = "aws", price: Money | None = SOME, **more) -> Bill:
    values = {"at_most": None, "begun": 1000.0, "ends_by": 1000.0 + 43200.0, **more}
    return Bill("digits", 0, epoch, node, cloud, "us-east-1", "us-east-1a", "g4dn.xlarge", "spot", price, **values)


@pytest.mark.parametrize(
    ("cloud", "seconds", "billed"), [("aws", 10, 60), ("aws", 61, 61), ("gcp", 1, 60), ("autodl", 10, 10)]
)
def test_a_machine_costs_its_seconds_and_no_less_than_its_clouds_minimum(tmp_path, cloud, seconds, billed):
    ledger = Ledger(tmp_path)
    ledger.machine(bill(cloud=cloud, price=Money(Decimal(3600), "USD")))
    ledger.gone(cloud, "i-1", 1000.0 + seconds)
    assert costs(bills(tmp_path), 1e6)["total"] == {"amount": float(billed), "currency": "USD"}


prices = st.one_of(st.none(), st.builds(Money, st.decimals("0.01", 50, places=4), st.sampled_from(["USD", "CNY"])))
machines = st.tuples(
    st.sampled_from(["autodl", "aws", "gcp", "local"]),
    prices,
    prices,
    st.floats(0, 1e5).map(lambda seconds: round(seconds, 3)),
    st.booleans(),
)


@given(found=st.lists(machines, min_size=1, max_size=6))
def test_the_report_and_the_ledger_agree(found):
    """Every placement, and every machine that went back, comes to the same amount in both."""
    placements, tries, at = [], [], 1e6
    with TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder))
        for epoch, (cloud, price, at_most, seconds, kept) in enumerate(found, 1):
            offer = Offer(cloud, "r", "z", "t", Gpu("T4", 1, 16), Market.SPOT, price)
            node = Node(f"i-{epoch}", offer, JOB, epoch, "token", claimed_at=at)
            ended, entry = at + seconds, bill(node.id, epoch=epoch, cloud=cloud, price=price, at_most=at_most, begun=at)
            ledger.machine(entry)
            if kept:
                ledger.watched(entry)
                watched = Watched(Ending.LOST, "", ended, ended, ended, None, 1)
                released = Released(ended)
                claimed = Claimed(offer, at, node, None, at_most)
                placements.append(Placement(epoch, tuple(tries), claimed, node, watched, released))
                tries = []
            else:
                tries.append(Claimed(offer, at, None, None, at_most, surplus=Surplus(node, ended)))
            ledger.gone(cloud, node.id, ended)
            at = ended + 1
        seen = costs(bills(Path(folder)), at)
        report = build_report(JOB, Begun(0, 1), placements, [], Ending.LIMIT, "", Finished(at, ()))
    estimate = report["cost_estimate"]
    assert isinstance(estimate, dict)
    given_back = {one.surplus.node.id for one in tries if one.surplus}
    of_report = [one for one in seen["jobs"][0]["machines"] if one["node"] not in given_back]
    for currency in ("USD", "CNY"):
        costed = [one["cost"]["amount"] for one in of_report if one["cost"] and one["cost"]["currency"] == currency]
        assert sum(costed) == pytest.approx(estimate["by_currency"].get(currency, 0.0), abs=1e-4)
    own = {one["node"]: one["cost"] for one in seen["jobs"][0]["machines"]}
    placed = report["placements"]
    assert isinstance(placed, list)
    for placement in placed:
        assert placement["cost"] == pytest.approx(own[placement["node"]], abs=1e-6)


def test_a_running_machine_counts_until_now_and_one_that_nobody_saw_go_until_it_ends_itself(tmp_path):
    Ledger(tmp_path).machine(bill())
    assert costs(bills(tmp_path), 1000.0 + 3600)["total"]["amount"] == 0.5
    assert costs(bills(tmp_path), 1000.0 + 3600)["jobs"][0]["machines"][0]["running"]
    assert costs(bills(tmp_path), 1000.0 + 90000)["total"]["amount"] == 6.0


def test_a_clock_that_was_set_back_makes_no_time_negative(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.machine(bill(cloud="autodl"))
    ledger.gone("autodl", "i-1", 400.0)
    ledger.machine(bill("i-2", cloud="autodl", epoch=2, begun=5000.0, ends_by=None))
    machines = costs(bills(tmp_path), 4000.0)["jobs"][0]["machines"]
    assert [(one["seconds"], one["cost"]["amount"], one["overlap_seconds"]) for one in machines] == [
        (0.0, 0.0, 0.0)
    ] * 2


def test_since_counts_only_what_came_after(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.machine(bill())
    ledger.gone("aws", "i-1", 1000.0 + 7200)
    ledger.machine(bill("i-2", epoch=2, begun=10000.0))
    seen = costs(bills(tmp_path), 13600.0, since=1000.0 + 3600)
    assert [one["cost"]["amount"] for one in seen["jobs"][0]["machines"]] == [0.5, 0.5]
    assert [one["node"] for one in costs(bills(tmp_path), 13600.0, since=9999.0)["jobs"][0]["machines"]] == ["i-2"]


def test_a_claim_that_was_repeated_after_a_crash_is_one_machine_and_a_torn_line_is_none(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.begin(1, 999.0, Terms())
    ledger.machine(bill())
    ledger.machine(bill(begun=1003.0))
    ledger.watched(bill(begun=1003.0))
    with (tmp_path / "spending.jsonl").open("a") as file:
        file.write('{"kind": "machine", "epoch": 2}\n{"kind": "gone", "cl')
    assert [(one.begun, one.watched, one.run) for one in bills(tmp_path)] == [(1003.0, True, 1)]


def test_what_is_entered_after_a_torn_line_counts_wherever_it_was_torn(tmp_path):
    Ledger(tmp_path).machine(bill())
    path = tmp_path / "spending.jsonl"
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        Ledger(tmp_path).machine(bill("i-2", epoch=2))
        Ledger(tmp_path).gone("aws", "i-2", 2000.0)
        assert [(one.node, one.ended) for one in bills(tmp_path)][-1] == ("i-2", 2000.0)


odd = st.one_of(
    st.none(), st.just(10**400), st.floats(), st.text(max_size=3), st.sampled_from(["NaN", "1e999"]),
    st.fixed_dictionaries({"amount": st.sampled_from(["NaN", "Infinity", "-3", 3]), "currency": st.just("USD")}),
    st.just({"amount": "3", "currency": "EUR"}),
)  # fmt: skip


@given(at=st.integers(0, 3), field=st.integers(0, 20), value=odd)
def test_a_line_that_says_what_cannot_be_is_passed_over(at, field, value):
    with TemporaryDirectory() as folder:
        path = Path(folder) / "digits"
        path.mkdir()
        ledger = Ledger(path)
        ledger.begin(1, 999.0, Terms(SOME))
        ledger.machine(bill(expected=SOME, expected_h=1.0))
        ledger.gone("aws", "i-1", 2000.0)
        ledger.machine(bill("i-2", epoch=2))
        lines = [json.loads(line) for line in (path / "spending.jsonl").read_text().splitlines()]
        lines[at][sorted(lines[at])[field % len(lines[at])]] = value
        (path / "spending.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        document = costs(bills(path), 5000.0, 1500.0)
        assert list(_lines(document))
        assert [_row(job["job"], machine) for job in document["jobs"] for machine in job["machines"]]


def test_each_run_has_its_own_budget(tmp_path):
    ledger = Ledger(tmp_path)
    for run, left in ((1, "5"), (2, "3")):
        ledger.begin(run, 999.0, Terms(Money(Decimal(left), "USD")))
        ledger.machine(bill(f"i-{run}", epoch=run))
        ledger.gone("aws", f"i-{run}", 1000.0 + 7200)
    first, *runs = _lines(costs(bills(tmp_path), 1e6))
    assert "budget" not in first
    assert [line.partition("h, ")[2] for line in runs] == ["of a budget of 5 USD", "of a budget of 3 USD"]


def test_a_release_that_was_not_confirmed_counts_until_it_is(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.machine(bill())
    ledger.gone("aws", "i-1", 2000.0, "no answer")
    assert [(one.ended, one.problem) for one in bills(tmp_path)] == [(2000.0, "no answer")]
    for at in (5000.0, 9000.0):  # a sweep finds it; another one says so again
        ledger.gone("aws", "i-1", at)
    assert [(one.ended, one.problem) for one in bills(tmp_path)] == [(5000.0, "")]


def test_a_claim_that_is_made_again_after_a_crash_counts_from_the_first(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.machine(bill(begun=1000.0))
    offer = Offer("aws", "us-east-1", "us-east-1a", "g4dn.xlarge", Gpu("T4", 1, 16), Market.SPOT, SOME)
    again = Node("i-1", offer, JOB, 1, "token", claimed_at=1600.0)
    assert ledger.ours_since(again).claimed_at == 1000.0
    assert ledger.ours_since(replace(again, id="i-2")).claimed_at == 1600.0
    assert ledger.ours_since(replace(again, epoch=2)).claimed_at == 1600.0
    ledger.gone("aws", "i-1", 1500.0)
    assert ledger.ours_since(again).claimed_at == 1600.0, "a machine that was given back and stopped is another one"


def test_a_machine_that_an_earlier_release_claimed_is_entered_when_it_is_watched(tmp_path):
    Ledger(tmp_path).watched(bill())
    assert [(one.node, one.watched) for one in bills(tmp_path)] == [("i-1", True)]


@pytest.fixture
def two_jobs(tmp_path, monkeypatch):
    """One job that went from AutoDL to a spot machine, and one on this machine, without a price."""
    monkeypatch.setenv("FAILOVER_STATE_DIR", str(tmp_path))
    now = time.time()
    for name in ("digits", "small"):
        directory = JobDirectory(tmp_path, name)
        directory.create()
        directory.remember(JobRecord(name, "0000000a", 1, open=True, config_path="failover.yaml", started_at=now))
    ledger = Ledger(tmp_path / "jobs/digits")
    ledger.begin(1, now - 9000, Terms(Money(Decimal(20), "USD"), None, Decimal("7.2")))
    home = bill("pro-1", cloud="autodl", price=Money(Decimal("7.2"), "CNY"), begun=now - 9000, ends_by=now + 1e5,
                expected=Money(Decimal("3.5"), "USD"), expected_h=3.4)  # fmt: skip
    ledger.machine(home)
    ledger.watched(home)
    ledger.gone("autodl", "pro-1", now - 5400)
    away = bill("i-2", epoch=2, price=None, at_most=SOME, likely=Money(Decimal("0.2"), "USD"), begun=now - 5460,
                ends_by=now + 1e5)  # fmt: skip
    ledger.machine(away)
    ledger.watched(away)
    ledger.moved("aws", "i-2", 2, [{"uri": "s3://far", "bytes": 10**9, "egress": {"amount": 0.09, "currency": "USD"}}])
    ledger.gone("aws", "i-2", now - 5460 + 7200)
    small = Ledger(tmp_path / "jobs/small")
    small.begin(1, now - 100, Terms())
    small.machine(bill("123", cloud="local", price=None, begun=now - 100, ends_by=now + 1e5))
    return tmp_path


def test_cost_shows_each_machine_the_plan_and_the_sums_and_calls_unknown_unknown(two_jobs):
    shown = CliRunner().invoke(cli, ["cost"])
    assert shown.exit_code == 0
    text = " ".join(shown.output.split())
    assert "at most 1.0000 USD" in text
    assert "about 0.4000 USD by the plan's price" in text
    assert "60 s beside the one before" in text
    assert "digits: at most 7.2000 CNY, 1.0000 USD = 2.0000 USD + egress about 0.09 USD of the budget of 20 USD" in text
    assert "run 1: planned 3.5000 USD in 3.40 h, came to 2.0000 USD in 2.98 h" in text
    assert "small: no known cost + unknown: local/us-east-1/us-east-1a/g4dn.xlarge/spot" in text


def test_cost_of_named_jobs_as_json(two_jobs):
    document = json.loads(CliRunner().invoke(cli, ["cost", "digits", "--json", "--since", "1h"]).output)
    assert [job["job"] for job in document["jobs"]] == ["digits"]
    assert [one["node"] for one in document["jobs"][0]["machines"]] == ["i-2"]
    assert document["jobs"][0]["machines"][0]["price_per_hour"] is None
    assert sorted({bill.job for bill in all_bills(two_jobs)}) == ["digits", "small"]


def test_cost_starts_quickly_it_reads_no_configuration_and_no_catalog(two_jobs):
    code = (
        "import sys; from provisioner.cli.command import run; run(['cost', '--json']);"
        "print(sorted({'pydantic', 'yaml', 'dbos', 'provisioner.catalog'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["jobs"]
    assert done.stderr == "[]\n"


@pytest.mark.parametrize("words", ["yesterday", "3"])
def test_a_time_that_is_none_is_said_in_one_line(two_jobs, words):
    shown = CliRunner().invoke(cli, ["cost", "--since", words])
    assert shown.exit_code == 2
    assert "is no time: write a duration (12h, 7d) or a day" in shown.output


class Unheard:
    """A cloud with a machine whose claim was never answered; other things are gone by now."""

    left: tuple[Owned, ...] = (
        Owned("aws", "us-east-1", "machine", "i-1", "running", "digits", 2, "t", Money(Decimal("0.5"), "USD")),
    )

    def owned(self) -> tuple[Owned, ...]:
        return self.left

    def release(self, _node: object) -> None:
        self.left = ()

    def dismantle(self) -> None:
        pass


@pytest.mark.parametrize("when", ["finish", "begin"])
def test_a_machine_whose_claim_was_never_answered_is_in_the_bill_since_it_was_asked_for(
    tmp_path: Path, when: str
) -> None:
    """An earlier run had an epoch 2, too; and a limit that counts the ledger sees what it has cost."""
    made = world({"aws": Unheard()}, {"fallback": [{"aws": {"regions": ["us-east-1"]}}]}, tmp_path)
    begin, claims = (
        {"time": 50, "kind": "begin"},
        [{"time": at, "kind": "claim", "epoch": 2} for at in (100, 1000, 1060)],
    )
    told = [begin, claims[0], begin, {"time": 900, "kind": "claim", "epoch": 1}, claims[1], claims[2]]
    (made.directory.path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in told))
    made.now = lambda: 4600.0
    assert (made.finish().leaked if when == "finish" else made.begin().first_epoch) == (() if when == "finish" else 1)
    (bill,) = bills(made.directory.path)
    assert (bill.node, bill.epoch, bill.begun, bill.ended, bill.watched) == ("i-1", 2, 1000.0, 4600.0, False)
    assert (bill.price, bill.cost(9999)) == (None, Decimal("0.5"))
    Ledger(made.directory.path).removed(Unheard.left[0], 1.0, 5000.0)
    assert bills(made.directory.path) == [bill], "it has been seen to go"


def test_the_report_has_the_machine_whose_claim_was_never_answered_and_comes_to_what_failover_cost_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """So it does where a machine that could not be given back at first is given back at the end."""
    made = world({"aws": Unheard()}, {"fallback": [{"aws": {"regions": ["us-east-1"]}}]}, tmp_path)
    made.now = lambda: 4600.0
    made.events.emit("claim", epoch=2, offer="x")
    price = Money(Decimal(2), "USD")
    offer = Offer("aws", "r", "z", "t", Gpu("T4", 1, 16), Market.ON_DEMAND, price)
    node = Node("i-0", offer, JOB, 1, "token", claimed_at=1000.0)
    made.ledger.machine(bill("i-0", cloud="aws", price=price, at_most=None, begun=1000.0))
    made.ledger.gone("aws", "i-0", 2800.0)
    watched = Watched(Ending.COMPLETED, "", 2800.0, 2800.0, 1100.0, None, 1)
    placement = Placement(1, (), Claimed(offer, 1000.0, node, None), node, watched, Released(2800.0))
    events = made.directory.path / "events.jsonl"
    events.write_text(json.dumps({"time": 1000, "kind": "claim", "epoch": 2}) + "\n")
    finished = pickle.loads(pickle.dumps(made.finish()))  # noqa: S301 - what was recorded here a moment ago
    report: Any = build_report(JOB, Begun(0, 1), [placement], [], Ending.COMPLETED, "", finished)
    told = costs(bills(made.directory.path), 9999.0)
    assert report["cost_estimate"]["by_currency"] == told["by_currency"] == {"USD": 1.5}
    (unanswered,) = report["unanswered"]
    assert (unanswered["node"], unanswered["seconds"], unanswered["cost"]["amount"]) == ("i-1", 3600.0, 0.5)
    print_report(json.loads(json.dumps(report)))
    text = " ".join(capsys.readouterr().out.split())
    assert "cost at most 1.5000 USD" in text
    assert "i-1: its claim had no answer, given back after 3600 s, at most 0.5000 USD" in text
