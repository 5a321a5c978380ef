"""What costs money when a cloud does not answer: a machine of a claim that broke off, and one beside a stuck one."""

from __future__ import annotations

import json
import time
from contextlib import nullcontext
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from botocore import exceptions as botocore_errors
from click.testing import CliRunner
from google.auth import exceptions as google_errors

from provisioner.cli.command import cli
from provisioner.clouds.meaning import never_sent
from provisioner.controller.costs import costs
from provisioner.controller.course import WorldCourse
from provisioner.controller.directory import JobRecord
from provisioner.controller.ledger import Bill, Terms, bills
from provisioner.controller.records import Begun, Choice, Published
from provisioner.controller.serving.database import Database
from provisioner.controller.serving.jobs import JobStore
from provisioner.errors import CloudError, Unauthorized, Unreachable
from provisioner.model import Failure, FailureKind, Gpu, Launch, Market, Money, Node, Offer, Owned, Scope, claim_token
from tests.sweeps import JOB, aws, world

OFFER = Offer("aws", "us-east-1", "us-east-1a", "g4dn.xlarge", Gpu("T4", 1, 16), Market.SPOT, None)
NOTHING = Failure(FailureKind.NO_CAPACITY, Scope.OFFER, "NoCapacity", "none", "", 60.0)


class Room:
    """A cloud that accepts a machine and then says no more, or says no."""

    def __init__(self, answer: Failure | CloudError) -> None:
        self.answer = answer

    def prepare(self, region: str) -> None:
        del region

    def claim(self, offer: Offer, launch: Launch) -> Node | Failure:
        if isinstance(self.answer, CloudError):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("answer", [NOTHING, Unauthorized("the token has ended"), Unreachable("no answer")])
def test_no_start_is_left(tmp_path: Path, answer: Failure | CloudError) -> None:
    """The machine that there may be all the same stays idle, and ends."""
    made: Any = world({"aws": Room(answer)}, aws(regions=["us-east-1"]), tmp_path)
    removed: set[str] = set()
    made.launcher.remove_bootstrap = lambda _epoch, token: removed.add(token)
    claimed = made.claim(Choice(OFFER, None, ""), 1, 0, Published((), None))
    assert claimed.node is None
    assert removed == made.launcher.started != set()


class Stuck:
    """A cloud with two machines, one of which does not go."""

    def __init__(self) -> None:
        self.left = ["i-stuck", "i-other"]

    def owned(self) -> list[Owned]:
        return [Owned("aws", "us-east-1", "machine", name, "running", "digits") for name in self.left]

    def release(self, node: Node) -> None:
        if node.id == "i-stuck":
            raise CloudError("i-stuck is still there")
        self.left.remove(node.id)

    def dismantle(self) -> None:
        raise AssertionError


def test_a_machine_that_does_not_go_keeps_no_other_and_is_named(tmp_path: Path) -> None:
    made: Any = world({"aws": Stuck()}, aws(regions=["us-east-1"]), tmp_path)
    assert made.finish().leaked == ("aws/us-east-1/machine/i-stuck",)


@pytest.mark.parametrize(
    ("launched", "counted"),
    [(1003.0, 1003.0), (400.0, 1000.0), (9000.0, 4600.0)],
    ids=["its cloud tells", "its cloud's clock is behind", "its cloud's clock is ahead"],
)
def test_a_claim_that_was_killed_before_its_line_counts_from_the_clouds_own_launch(
    tmp_path: Path, launched: float, counted: float
) -> None:
    token = claim_token(JOB, 2, OFFER, 7)

    class Again(Room):
        def claim(self, offer: Offer, launch: Launch) -> Node:
            return Node("i-1", offer, launch.job, launch.epoch, launch.token, launched)

    made: Any = world({"aws": Again(NOTHING)}, aws(regions=["us-east-1"]), tmp_path)
    claims = [{"time": 500, "kind": "claim", "epoch": 2}, {"time": 1000, "kind": "claim", "epoch": 2, "token": token}]
    (made.directory.path / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in claims))
    made.now = lambda: 4600.0
    claimed = made.claim(Choice(OFFER, Money(Decimal(1), "USD"), ""), 2, 7, Published((), None))
    assert claimed.node.claimed_at == counted
    (bill,) = bills(made.directory.path)
    assert (bill.begun, bill.cost(4600.0)) == (counted, max(60, 4600 - int(counted)) / Decimal(3600))


LOST = Failure(FailureKind.NETWORK, Scope.REGION, "ReadTimeoutError", "no answer", doubtful=True)
FLAT = Money(Decimal(2), "USD")
SECOND = replace(OFFER, zone="us-east-1b", price_per_hour=FLAT)


class Silent(Room):
    """A cloud that has made a machine, or none, and does not answer the claim; then it lists what it has."""

    def __init__(self, *, made: bool, lists: bool = True) -> None:
        super().__init__(LOST)
        self.made, self.lists = made, lists
        self.there: list[Owned] = [Owned("aws", "us-east-1", "vpc", "vpc-1", "available", "digits")]

    def claim(self, offer: Offer, launch: Launch) -> Node | Failure:
        if self.made:
            token = launch.token
            self.there.append(Owned("aws", "us-east-1", "machine", "i-1", "running", "digits", launch.epoch, token))
        return super().claim(offer, launch)

    def owned(self) -> list[Owned]:
        if not self.lists:
            raise Unreachable("no answer")
        return list(self.there)

    def release(self, node: Node) -> None:
        self.there = [thing for thing in self.there if thing.id != node.id]

    def dismantle(self) -> None:
        self.there = []


class Doubt:
    """A job with a budget, at a cloud that has not answered a claim at 1000 s."""

    def __init__(self, folder: Path, room: Silent, budget: str = "2 USD") -> None:
        self.room, self.at = room, 1000.0
        self.world: Any = world({"aws": room}, aws(regions=["us-east-1"]), folder, {"budget": budget})
        self.world.now = self.world.limits._now = self.world.daily._now = lambda: self.at
        self.world.events._clock = lambda: self.at
        self.world.ledger.begin(0, 1000.0, Terms(Money(Decimal(2), "USD")))
        self.world.claim(Choice(SECOND, None, ""), 1, 0, Published((), None))

    def after(self, seconds: float) -> str:
        """Say why the job must end so much later; what was looked for meanwhile is done."""
        self.at += seconds
        why = str(self.world.why_stop(Begun(1000.0, 1), (), None))
        if (search := self.world.unanswered._search) is not None:
            search.join()
        return why

    @property
    def bills(self) -> list[Bill]:
        return bills(self.world.directory.path)


def test_a_claim_without_an_answer_counts_for_the_budget_until_it_is_known(tmp_path: Path) -> None:
    job = Doubt(tmp_path, Silent(made=True, lists=False))
    assert job.after(3599) == ""
    assert job.after(1) == "budget of 2 USD reached"
    assert job.world.standing(Begun(1000.0, 1), ()).spent == Money(Decimal(2), "USD")
    assert [(one.node, one.begun, one.unanswered) for one in job.bills] == [("", 1000.0, True)]


def test_each_claim_of_a_search_counts_for_itself(tmp_path: Path) -> None:
    job = Doubt(tmp_path, Silent(made=True, lists=False))
    job.world.claim(Choice(replace(SECOND, zone="us-east-1c"), None, ""), 1, 0, Published((), None))
    assert [one.zone for one in job.bills] == ["us-east-1b", "us-east-1c"]
    assert [job.after(1799), job.after(1)] == ["", "budget of 2 USD reached"]


def test_its_machine_is_given_back_while_the_job_goes_on_and_counts_for_as_long_as_it_was_there(tmp_path: Path) -> None:
    job = Doubt(tmp_path, Silent(made=True, lists=False))
    assert job.after(600) == ""
    job.room.lists = True
    assert job.after(600) == ""
    assert [thing.kind for thing in job.room.there] == ["vpc"]
    (bill,) = job.bills
    assert (bill.node, bill.instance_type, bill.price) == ("i-1", "g4dn.xlarge", FLAT)
    assert (bill.begun, bill.ended, bill.unanswered) == (1000.0, 2200.0, False)
    assert job.after(1e6) == "", "it costs no more"
    assert job.world.limits.elsewhere(()) == Decimal(2) * 1200 / 3600


def test_one_that_was_never_made_costs_nothing_once_its_cloud_has_not_listed_it_for_a_while(tmp_path: Path) -> None:
    job = Doubt(tmp_path, Silent(made=False))
    assert job.after(60) == ""
    assert [one.unanswered for one in job.bills] == [True], "a list may lag behind"
    assert job.after(120) == ""
    assert job.bills == []
    assert job.after(1e6) == ""


def test_a_list_without_its_region_proves_nothing(tmp_path: Path) -> None:
    room: Any = Silent(made=False)
    room.heard = lambda region: region != "us-east-1"
    job = Doubt(tmp_path, room)
    assert [job.after(3000), job.after(3000)] == ["", "budget of 2 USD reached"]


def test_at_the_end_of_a_run_nothing_of_it_is_left_in_doubt_that_could_be_asked(tmp_path: Path) -> None:
    job = Doubt(tmp_path, Silent(made=False))
    assert job.world.finish().leaked == ()
    assert job.bills == []
    other = Doubt(tmp_path / "other", Silent(made=True))
    other.at = 4600.0
    (machine,) = other.world.finish().money["machines"]
    assert (machine["node"], machine["cost"]["amount"], machine["role"]) == ("i-1", 2.0, "surplus")


def test_a_claim_that_is_made_again_after_a_crash_and_then_answered_is_one_machine(tmp_path: Path) -> None:
    job = Doubt(tmp_path, Silent(made=True, lists=False))
    node = Node("i-1", SECOND, JOB, 1, claim_token(JOB, 1, SECOND, 0), 1000.0)
    job.room.claim = lambda *_: node  # type: ignore[method-assign,assignment]
    job.at = 1900.0
    job.world.claim(Choice(SECOND, None, ""), 1, 0, Published((), None))
    assert [(one.node, one.begun, one.unanswered) for one in job.bills] == [("i-1", 1000.0, False)]
    assert job.world.ledger.unanswered() == []


def test_cost_says_that_it_may_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Doubt(tmp_path, Silent(made=True, lists=False))
    job.world.directory.remember(JobRecord("digits", JOB.uid, 1, True, "failover.yaml", 0.0))
    monkeypatch.setenv("FAILOVER_STATE_DIR", str(tmp_path))
    shown = " ".join(CliRunner().invoke(cli, ["cost"]).output.split())
    assert "its claim had no answer: it may be there" in shown
    assert "digits: at most" in shown
    job.at += 60
    job.world.ledger.machine(replace(job.bills[0], node="i-2", token="u" * 32, unanswered=False, begun=1060.0))
    assert [one["overlap_seconds"] for one in costs(job.bills, job.at)["jobs"][0]["machines"]] == [0.0, 0.0]
    store = JobStore(Database())
    store.submit("digits", "failover.yaml", b"")
    monkeypatch.setattr(store, "jobs", lambda **_: [replace(one, submitted_at=0.0) for one in JobStore.jobs(store)])
    monkeypatch.setattr("provisioner.cli.queue._store", lambda: nullcontext(store))
    now = time.time()
    job.world.ledger.asked(replace(job.bills[0], token="v" * 32, begun=now, ends_by=now + 600))
    job.world.ledger.gone("aws", "i-2", job.at)
    assert json.loads(CliRunner().invoke(cli, ["list", "--json"]).stdout)[0]["machine"] == "", "it is not its machine"


def test_a_race_that_is_run_again_enters_the_machine_that_it_finds_and_gives_back(tmp_path: Path) -> None:
    """The controller was killed before the claim was entered, or the claim was not answered."""
    job = Doubt(tmp_path, Silent(made=True))
    course = WorldCourse(job.world, 1, 0, Published((), None))
    (found,) = course.made([Choice(SECOND, None, "")])
    job.at = 2800.0
    course.give_back(found.node)
    assert [(one.node, one.begun, one.ended, one.unanswered) for one in job.bills] == [("i-1", 1000.0, 2800.0, False)]


def test_a_claim_of_an_earlier_run_at_a_cloud_that_the_file_has_no_more_is_left_as_it_is(tmp_path: Path) -> None:
    job = Doubt(tmp_path, Silent(made=False))
    elsewhere = replace(job.bills[0], cloud="autodl", token="t" * 32)
    job.world.ledger.asked(elsewhere)
    assert [job.after(60), job.after(120)] == ["", ""]
    assert [one.cloud for one in job.bills] == ["autodl"]


@pytest.mark.parametrize(
    ("error", "not_sent"),
    [
        (httpx.ConnectError("refused"), True),
        (httpx.ConnectTimeout("slow"), True),
        (httpx.ReadTimeout("slow"), False),
        (httpx.WriteTimeout("slow"), False),
        (httpx.ReadError("reset"), False),
        (httpx.RemoteProtocolError("closed"), False),
        (google_errors.TransportError("no key"), True),
        (google_errors.RefreshError("no key"), True),
        (botocore_errors.EndpointConnectionError(endpoint_url="https://ec2"), True),
        (botocore_errors.ReadTimeoutError(endpoint_url="https://ec2"), False),
        (botocore_errors.ConnectionClosedError(endpoint_url="https://ec2"), False),
    ],
)
def test_only_what_never_reached_its_cloud_is_beyond_doubt(error: Exception, not_sent: bool) -> None:
    told = CloudError("no answer")
    told.__context__ = error  # as `raise .. from None` leaves it
    assert never_sent(told) is not_sent
