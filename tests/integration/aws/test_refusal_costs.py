"""What an answer of EC2 costs: how many calls until the job is elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from provisioner.clouds.aws.claim import CLAIM_TRIES
from provisioner.controller.failures import KnownFailures
from provisioner.model import Market
from tests import sweeps

ONE_TYPE = ["g4dn.xlarge"]
TWO_FAMILIES = ["g4dn.xlarge", "g6.xlarge", "p4d.24xlarge"]


@dataclass
class Swept:
    """One run of one job in the box, and the launches that it asked for."""

    report: dict[str, Any]
    events: list[dict[str, Any]]
    launches: list[dict[str, Any]]

    def calls(self, *by: str) -> Counter[Any]:
        return Counter(tuple(launch[name] for name in by) for launch in self.launches)


@pytest.fixture
def sweep(make_room: Callable[..., Any], aws_box: Any, tmp_path: Path) -> Callable[..., Swept]:
    """Run a job whose only place is AWS. Two runs in one test share their state directory."""

    def run(*faults: dict[str, Any], policy: dict[str, Any] | None = None, **aws: Any) -> Swept:
        settings = {"regions": ["us-east-1"], "instance_types": [*ONE_TYPE], **aws}
        aws_box.emulator.faults.clear()
        aws_box.emulator.faults.set([{"action": "RunInstances", **fault} for fault in faults])
        clouds = {"aws": sweeps.with_shared_clients(make_room(**settings).cloud)}
        done = sweeps.run(clouds, sweeps.aws(**settings), tmp_path / "state", policy)
        return Swept(done.report, done.events, aws_box.emulator.faults.log())

    return run


def refusals(report: dict[str, Any]) -> set[tuple[str, str]]:
    return {(one["failure"], one["scope"]) for one in report["refused"]}


def test_no_capacity_costs_one_call_a_zone_in_each_market(sweep: Callable[..., Swept]) -> None:
    done = sweep({"code": "InsufficientInstanceCapacity"})
    assert len(done.calls("az")) >= 5
    assert set(done.calls("az", "market").values()) == {1}
    assert refusals(done.report) == {("no_capacity", "offer")}
    assert done.report["exit_code"] == 3


def test_quota_costs_one_call_a_region_market_and_family(sweep: Callable[..., Swept]) -> None:
    done = sweep(
        {"code": "MaxSpotInstanceCountExceeded", "market": "spot"},
        {"code": "VcpuLimitExceeded", "market": "on-demand"},
        instance_types=TWO_FAMILIES,
        regions=["us-east-1", "us-west-2"],
    )
    calls = Counter((one["region"], one["market"], one["itype"][0]) for one in done.launches)
    assert set(calls) == set(product(("us-east-1", "us-west-2"), ("spot", "on-demand"), "gp"))
    assert set(calls.values()) == {1}
    assert refusals(done.report) == {("quota", "family")}
    page = "https://us-west-2.console.aws.amazon.com/servicequotas/home/services/ec2/quotas/L-3819A6DF"
    assert page in {one["advice"].rpartition(" ")[2] for one in done.report["refused"]}


def test_a_used_up_quota_of_p_does_not_hide_g(sweep: Callable[..., Swept]) -> None:
    done = sweep(
        {"code": "VcpuLimitExceeded", "itype": "p4d.24xlarge"},
        {"code": "MaxSpotInstanceCountExceeded", "itype": "p4d.24xlarge"},
        {"code": "InsufficientInstanceCapacity", "az": "us-east-1a"},
        instance_types=TWO_FAMILIES,
    )
    assert done.report["result"] == "completed"
    assert done.report["placements"][0]["instance_type"].startswith("g")


def test_a_price_over_the_limit_ends_the_spot_market_of_the_zone(sweep: Callable[..., Swept]) -> None:
    done = sweep({"code": "SpotMaxPriceTooLow"}, market="spot", max_price="0.01 USD")
    assert len(done.calls("az")) >= 5
    assert set(done.calls("az").values()) == {1}
    assert refusals(done.report) == {("price_too_low", "offer")}
    assert {one["advice"].split(",")[0] for one in done.report["refused"]} == {"raise fallback.aws.max_price"}


def test_not_offered_ends_type_and_zone_in_both_markets_for_a_day(sweep: Callable[..., Swept], tmp_path: Path) -> None:
    done = sweep({"code": "Unsupported"})
    assert set(done.calls("az", "itype").values()) == {1}
    assert refusals(done.report) == {("not_offered", "type")}
    left = [entry.remembered.until - entry.last for entry in KnownFailures(tmp_path / "state").entries()]
    assert set(map(round, left)) == {86400}


def test_throttled_backs_off_and_tries_the_very_same_again(sweep: Callable[..., Swept]) -> None:
    done = sweep({"code": "RequestLimitExceeded", "times": 3})
    assert len(done.launches) == 4
    assert len(done.calls("token", "az", "market")) == 1
    assert done.report["result"] == "completed"


def test_throttled_without_end_is_a_bounded_number_of_tries_in_each_region(sweep: Callable[..., Swept]) -> None:
    done = sweep({"code": "RequestLimitExceeded"}, regions=["us-east-1", "us-west-2"])
    calls = done.calls("region")
    assert set(calls) == {("us-east-1",), ("us-west-2",)}
    assert 2 <= max(calls.values()) <= CLAIM_TRIES
    assert refusals(done.report) == {("throttled", "region")}


def test_unauthorized_is_one_call_in_all_and_the_permission_is_named(sweep: Callable[..., Swept]) -> None:
    done = sweep({"code": "UnauthorizedOperation"}, instance_types=TWO_FAMILIES, regions=["us-east-1", "us-west-2"])
    assert len(done.launches) == 1
    assert (done.report["result"], done.report["exit_code"]) == ("refused", 5)
    (refused,) = done.report["refused"]
    assert (refused["failure"], refused["scope"]) == ("unauthorized", "account")
    assert "the permission ec2:RunInstances is missing" in refused["message"]


def test_an_unknown_code_is_narrow_and_counted(sweep: Callable[..., Swept], tmp_path: Path) -> None:
    done = sweep({"code": "BrandNewIn2031", "az": "us-east-1a"})
    assert done.report["result"] == "completed"
    calls = [one for one in done.launches if one["az"] == "us-east-1a"]
    (unknown,) = done.report["unknown_codes"]
    assert (unknown["cloud"], unknown["code"], unknown["count"]) == ("aws", "BrandNewIn2031", len(calls))
    (kept,) = KnownFailures(tmp_path / "state").unknown_codes()
    assert (kept.code, kept.count) == ("BrandNewIn2031", len(calls))


def test_the_next_run_leaves_alone_what_the_last_one_met(sweep: Callable[..., Swept], tmp_path: Path) -> None:
    sweep({"code": "MaxSpotInstanceCountExceeded"}, market="spot")
    second = sweep(market="spot")
    assert second.launches == []
    assert [event["what"] for event in second.events if event["kind"] == "left_alone"] == ["aws/us-east-1/spot/G"]
    KnownFailures(tmp_path / "state").forget(["aws/us-east-1/spot"])
    assert sweep(market="spot").report["result"] == "completed"


def test_who_has_mended_a_permission_starts_again_at_once(sweep: Callable[..., Swept]) -> None:
    assert sweep({"code": "UnauthorizedOperation"}).report["exit_code"] == 5
    assert sweep().report["result"] == "completed"


# -- quotas, before any try --------------------------------------------------------------------------------------------


def test_a_machine_over_its_quota_is_not_asked_for(sweep: Callable[..., Swept], aws_box: Any) -> None:
    aws_box.emulator.set_quotas({"L-3819A6DF": 0, "L-DB2E81BA": 4})
    done = sweep(instance_types=["g4dn.2xlarge", "g4dn.xlarge"])
    placed = done.report["placements"][0]
    assert (placed["instance_type"], placed["market"], len(done.launches)) == ("g4dn.xlarge", "on-demand", 1)
    told = {row["quota"]: row for row in done.report["over_quota"]}
    assert set(told) == {"L-3819A6DF", "L-DB2E81BA"}
    row = told["L-DB2E81BA"]
    assert row["message"] == "Running On-Demand G and VT instances in us-east-1: 4 vCPU, 0 in use, g4dn.2xlarge needs 8"
    assert row["advice"].endswith("/servicequotas/home/services/ec2/quotas/L-DB2E81BA")
    assert {offer.split("/")[3] for offer in row["offers"]} == {"g4dn.2xlarge"}
    assert {event["quota"] for event in done.events if event["kind"] == "over_quota"} == set(told)


def test_what_runs_counts_and_what_ends_is_free_again(room: Any, aws_box: Any, eventually: Any) -> None:
    aws_box.emulator.set_quotas({"L-3819A6DF": 4, "L-DB2E81BA": 64})
    spot = room.offer("us-east-1a")
    assert room.cloud.over_quota([spot]) == {}
    node = room.cloud.claim(spot, room.launch(spot))
    refused = room.cloud.over_quota([spot, room.offer("us-east-1b"), room.offer(market=Market.ON_DEMAND)])
    assert set(refused) == {spot.key, room.offer("us-east-1b").key}
    assert "4 vCPU, 4 in use, g4dn.xlarge needs 4" in refused[spot.key].message
    room.cloud.release(node)
    assert room.cloud.over_quota([spot]) == {}


def test_without_the_permission_quotas_are_silent_after_one_word(sweep: Callable[..., Swept], aws_box: Any) -> None:
    aws_box.emulator.set_quotas({"L-3819A6DF": 0})
    denied = {"action": "*", "service": "servicequotas", "code": "AccessDeniedException"}
    done = sweep({"code": "InsufficientInstanceCapacity", "az": "us-east-1a"}, denied)
    assert done.report["result"] == "completed"
    assert [event["region"] for event in done.events if event["kind"] == "quotas_unknown"] == ["us-east-1"]
    assert done.report["over_quota"] == []
