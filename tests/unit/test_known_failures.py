"""What clouds refused, kept for all jobs: how long, for whom, shown and forgotten."""

from __future__ import annotations

import base64
import json
import pickle
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from provisioner.cli.status import status
from provisioner.controller.failures import FILE, KnownFailures
from provisioner.controller.records import Asked, Claimed
from provisioner.controller.refusals import Refusals, words
from provisioner.errors import ConfigError
from provisioner.model import Failure, FailureKind, Gpu, Market, Offer, Scope
from provisioner.planner.memory import FailureMemory, quota_family
from provisioner.telemetry.events import EventLog, read
from tests import sweeps


def offer(zone="us-east-1a", machine="g4dn.xlarge", market=Market.SPOT, cloud="aws"):
    return Offer(cloud, zone[:-1], zone, machine, Gpu("T4", 1, 16), market, None)


def refusal(kind=FailureKind.NO_CAPACITY, scope=Scope.OFFER, code="InsufficientInstanceCapacity", ttl_s=180.0):
    return Failure(kind, scope, code, "no", "wait a little", ttl_s)


QUOTA = refusal(FailureKind.QUOTA, Scope.FAMILY, "MaxSpotInstanceCountExceeded", 1800)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def known(tmp_path, clock):
    return KnownFailures(tmp_path, clock)


def blocked(known, one, *, account="mine", job="other", since=0.0):
    return known.memory({"aws": account}, job, since=since).blocks(one, known._now()) is not None


def test_a_refusal_is_known_to_all_jobs_until_its_time_is_over(known, clock):
    known.remember(refusal(), offer(), account="mine", job="digits")
    assert blocked(known, offer())
    assert not blocked(known, offer("us-east-1b"))
    clock.now += 180
    assert not blocked(known, offer())
    assert known.entries() == []


def test_another_account_of_the_same_cloud_is_asked(known):
    known.remember(QUOTA, offer(), account="mine", job="digits")
    assert blocked(known, offer("us-east-1b"))
    assert not blocked(known, offer("us-east-1b"), account="theirs")
    assert not blocked(known, offer("us-east-1b", "p4d.24xlarge"))


@pytest.mark.parametrize(
    "own",
    [
        refusal(FailureKind.INVALID, Scope.REGION, "InvalidAMIID.NotFound"),
        refusal(FailureKind.PRICE_TOO_LOW, Scope.OFFER, "SpotMaxPriceTooLow"),
        refusal(FailureKind.UNKNOWN, Scope.OFFER, "BrandNew"),
        refusal(FailureKind.NOT_OFFERED, Scope.ZONE, "NoSubnet"),
    ],
    ids=lambda one: one.code,
)
def test_what_a_jobs_own_settings_caused_counts_for_that_job(known, own):
    known.remember(own, offer(), account="mine", job="digits")
    assert blocked(known, offer(), job="digits")
    assert not blocked(known, offer(), job="other")


def test_what_a_person_mends_does_not_count_for_a_run_that_begins_later(known, clock):
    denied = refusal(FailureKind.UNAUTHORIZED, Scope.ACCOUNT, "UnauthorizedOperation", 600)
    known.remember(denied, offer(), account="mine", job="digits")
    assert blocked(known, offer(), since=clock.now - 5)
    assert not blocked(known, offer(), since=clock.now + 5)


def test_the_same_again_counts_up_and_the_longer_end_stays(known, clock):
    known.remember(refusal(ttl_s=600), offer(), account="mine", job="digits")
    clock.now += 10
    known.remember(refusal(ttl_s=60), offer(), account="mine", job="other")
    (entry,) = known.entries()
    assert (entry.count, entry.remembered.until, entry.last - entry.first) == (2, 1_000_600.0, 10)
    clock.now += 600
    known.remember(refusal(), offer(), account="mine", job="digits")
    assert [entry.count for entry in known.entries()] == [1]


def test_only_its_owner_reads_it(known, tmp_path):
    known.remember(refusal(), offer(), account="mine", job="digits")
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob(f"{FILE}*")} == {0o600}


def test_a_damaged_file_is_made_anew(known, tmp_path):
    (tmp_path / FILE).write_bytes(b"not a database " * 500)
    assert known.entries() == []
    known.remember(refusal(), offer(), account="mine", job="digits")
    assert len(known.entries()) == 1


def test_several_processes_write_at_once(tmp_path):
    script = (
        "import sys; from pathlib import Path; from provisioner.model import *\n"
        "from provisioner.controller.failures import KnownFailures\n"
        "known = KnownFailures(Path(sys.argv[1]))\n"
        "one = Offer('aws', 'r', 'ra', 'g4dn.xlarge', Gpu('T4', 1, 16), Market.SPOT, None)\n"
        "for _ in range(30):\n"
        "    known.remember(Failure(FailureKind.UNKNOWN, Scope.OFFER, 'New', 'no'), one, account='', job='j')\n"
    )
    argv = [sys.executable, "-c", script, str(tmp_path)]
    for process in [subprocess.Popen(argv) for _ in range(2)]:
        assert process.wait(60) == 0
    known = KnownFailures(tmp_path)
    assert [entry.count for entry in known.entries()] == [60]
    assert [(code.code, code.count) for code in known.unknown_codes()] == [("New", 60)]


def test_a_file_that_cannot_be_written_costs_no_job(tmp_path):
    (tmp_path / FILE).mkdir()
    log = EventLog(tmp_path / "events.jsonl")
    nowhere: Any = sweeps.Nowhere()
    refusals = Refusals(KnownFailures(tmp_path), "digits", lambda _: nowhere, log)
    refusals.remember(refusal(), offer())
    assert refusals.memory(["aws"], 0.0) is None  # the run counts its own claims then
    assert [event["what"] for event in read(tmp_path / "events.jsonl")] == ["the memory of refusals"]


# -- failover status ---------------------------------------------------------------------------------------------------


@pytest.fixture
def said(tmp_path, monkeypatch):
    monkeypatch.setenv("FAILOVER_STATE_DIR", str(tmp_path))

    def call(*arguments):
        done = CliRunner().invoke(status, [*arguments], standalone_mode=False)
        assert done.exception is None, done.output
        return done

    return call


def test_status_shows_what_is_left_alone_and_forgets_it(tmp_path, said):
    known = KnownFailures(tmp_path)
    known.remember(QUOTA, offer(), account="profile default", job="digits")
    known.remember(refusal(), offer("us-west-2a"), account="profile default", job="digits")
    known.remember(refusal(FailureKind.UNKNOWN, code="New"), offer("us-west-2b"), account="", job="digits")
    table = said("--failures").stdout
    assert "aws/us-east-1/spot/G" in table
    assert "quota (MaxSpotInstanceCountExceeded) for this family" in table
    data = json.loads(said("--failures", "--json").stdout)
    rows = {row["what"]: row for row in data["failures"]}
    row = rows["aws/us-east-1/spot/G"]
    assert (row["scope"], row["code"], row["count"], row["advice"]) == ("family", QUOTA.code, 1, "wait a little")
    assert 1700 < row["seconds_left"] <= 1800
    assert [(one["code"], one["count"]) for one in data["unknown_codes"]] == [("New", 1)]
    gone = json.loads(said("--forget", "aws/us-west-2", "--json").stdout)
    assert {one["code"] for one in gone["forgotten"]} == {"InsufficientInstanceCapacity", "New"}
    assert "forgotten: aws/us-east-1/spot/G" in said("--forget", "quota").stdout
    assert json.loads(said("--failures", "--json").stdout)["failures"] == []
    said("--forget")
    assert json.loads(said("--failures", "--json").stdout) == {"failures": [], "unknown_codes": []}
    assert "nothing to forget" in said("--forget", "aws").stderr


@pytest.mark.parametrize("option", ["--failures", "--forget"])
def test_a_file_that_cannot_be_read_is_this_machines_problem(tmp_path, monkeypatch, option):
    (tmp_path / FILE).mkdir()
    monkeypatch.setenv("FAILOVER_STATE_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match=FILE) as caught:
        CliRunner().invoke(status, [option], standalone_mode=False, catch_exceptions=False)
    assert "may be removed" in caught.value.hint


def test_looking_makes_no_file(tmp_path, said):
    assert "nothing is left alone" in said("--failures").stderr
    said("--forget")
    assert not list(tmp_path.iterdir())


def test_what_is_forgotten_is_tried_again_by_a_run_that_goes_on(tmp_path):
    """A question's memory has the claims from before it, as far as they still count; only later ones are added."""
    world = sweeps.world({"aws": sweeps.Nowhere()}, sweeps.aws(regions=["us-east-1"]), tmp_path)
    refused = Claimed(offer(), 50.0, None, refusal(ttl_s=1000.0))
    known = FailureMemory().remember(refused.failure, offer(), now=50.0)

    def ranked(memory, claim):
        return [choice.offer for choice in world.rank(Asked((offer(),), 100.0, memory=memory), (claim,), ())]

    assert ranked(known, refused) == []
    assert ranked(FailureMemory(), refused) == [offer()]
    assert ranked(FailureMemory(), replace(refused, at=101.0)) == []
    assert ranked(None, refused) == []


# -- scopes ------------------------------------------------------------------------------------------------------------

OFFERS = st.builds(
    offer,
    zone=st.sampled_from(["us-east-1a", "us-east-1b", "us-west-2a"]),
    machine=st.sampled_from(["g4dn.xlarge", "gr6.4xlarge", "p4d.24xlarge", "p5.48xlarge", "vt1.3xlarge"]),
    market=st.sampled_from(Market),
    cloud=st.sampled_from(["aws", "gcp"]),
)
COVERS = {
    Scope.ACCOUNT: lambda o: (o.cloud,),
    Scope.REGION: lambda o: (o.cloud, o.region),
    Scope.MARKET: lambda o: (o.cloud, o.region, o.market),
    Scope.FAMILY: lambda o: (o.cloud, o.region, o.market, quota_family(o)),
    Scope.ZONE: lambda o: (o.cloud, o.zone),
    Scope.TYPE: lambda o: (o.cloud, o.zone, o.instance_type),
    Scope.OFFER: lambda o: o,
}


@given(OFFERS, OFFERS, st.sampled_from(Scope), st.floats(1, 1e5))
def test_a_refusal_removes_exactly_its_scope_and_comes_back_after_its_time(refused, other, scope, ttl_s):
    memory = FailureMemory().remember(refusal(scope=scope, ttl_s=ttl_s), refused, now=0.0)
    within = COVERS[scope](refused) == COVERS[scope](other)
    assert (memory.blocks(other, ttl_s * 0.999) is not None) == within
    assert memory.blocks(other, ttl_s) is None


def test_what_one_quota_of_aws_counts_together():
    machines = ("g4dn.xlarge", "gr6.4xlarge", "vt1.3xlarge", "p4d.24xlarge", "p5en.48xlarge", "p6-b200.48xlarge")
    families = {market: [quota_family(offer(machine=one, market=market)) for one in machines] for market in Market}
    assert families[Market.ON_DEMAND] == ["G", "G", "G", "P", "P", "P"]
    assert families[Market.SPOT] == ["G", "G", "G", "P", "P5", "P6"]


# -- words, and records of an earlier version --------------------------------------------------------------------------


def test_a_code_that_speaks_for_itself_needs_no_words():
    assert words(Failure(FailureKind.NO_CAPACITY, Scope.OFFER, "InsufficientInstanceCapacity", "We currently do")) == ""
    sold_out = Failure(FailureKind.NO_CAPACITY, Scope.OFFER, "InternalError", "当前算力规格暂无库存", "sold out")
    assert words(sold_out) == "sold out"
    denied = Failure(FailureKind.UNAUTHORIZED, Scope.ACCOUNT, "AccessDenied", "ec2:RunInstances is missing", "add it")
    assert words(denied) == "ec2:RunInstances is missing; add it"


OLD = (
    "gASVcAEAAAAAAACMHnByb3Zpc2lvbmVyLmNvbnRyb2xsZXIucmVjb3Jkc5SMBUFza2VklJOUKYGUXZQojBFwcm92aXNpb25lci5tb2RlbJSMBU9mZmVy"
    "lJOUKYGUXZQojANhd3OUjAl1cy1lYXN0LTGUjAp1cy1lYXN0LTFhlIwLZzRkbi54bGFyZ2WUaAWMA0dwdZSTlCmBlF2UKIwCVDSUSwFLEGViaAWMBk1h"
    "cmtldJSTlIwEc3BvdJSFlFKUTk5lYoWUR0AUAAAAAAAAKYiMAJRlYmgAjAdDbGFpbWVklJOUKYGUXZQoaAhHQBgAAAAAAABOaAWMB0ZhaWx1cmWUk5Qp"
    "gZRdlChoBYwLRmFpbHVyZUtpbmSUk5SMBXF1b3RhlIWUUpRoBYwFU2NvcGWUk5SMBm1hcmtldJSFlFKUjBxNYXhTcG90SW5zdGFuY2VDb3VudEV4Y2Vl"
    "ZGVklIwCbm+UaBlHQGaAAAAAAAApZWJOaBllYoaULg=="
)
"""An ``Asked`` and a ``Claimed`` as version 1 of the flow wrote them into its database, before refusals were shared."""


def test_a_run_that_an_older_version_began_is_still_readable():
    asked, claimed = pickle.loads(base64.b64decode(OLD))  # noqa: S301 - our own
    assert (asked.offers, asked.again, asked.memory, asked.passed) == ((offer(),), True, None, ())
    assert (claimed.failure.code, claimed.failure.elsewhere) == ("MaxSpotInstanceCountExceeded", ())
    assert pickle.loads(pickle.dumps(asked)) == asked  # noqa: S301
