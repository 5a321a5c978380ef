"""What an answer of AutoDL costs: how many calls until the job is elsewhere, through the real flow and room."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.controller.failures import KnownFailures
from provisioner.sandbox.autodl import Fault
from tests import sweeps
from tests.unit.test_autodl_cloud import CREATE, Setting

REGIONS = ("westDC3", "beijingDC2")


@pytest.fixture
def sweep(tmp_path):
    """Run a job at AutoDL, which answers every order with one fault; there is no other place."""

    def run(setting, fault=None):
        if fault is not None:
            setting.emulator.add_fault(replace(fault, path=CREATE["pro"], method="POST"))
        autodl = {"mode": "pro", "gpus": ["4090D"], "regions": [*REGIONS], "image_uuid": "image-1", "wait": "0s"}
        places = {"primary": {"autodl": autodl}, "fallback": [{"local": {}}]}
        clouds = {"autodl": setting.cloud, "local": sweeps.Nowhere()}
        return sweeps.run(clouds, places, tmp_path / "state").report

    return run


def test_sold_out_is_one_call_a_region_and_says_so(sweep, tmp_path):
    setting = Setting(regions=REGIONS)
    report = sweep(setting, Fault("no_stock", count=99))
    assert len(setting.sent(CREATE["pro"])) == len(REGIONS)
    assert {(one["failure"], one["code"]) for one in report["refused"]} == {("no_capacity", "InternalError")}
    assert {one["advice"] for one in report["refused"]} == {"sold out: AutoDL has no free card of this kind now"}
    assert {entry.remembered.failure.ttl_s for entry in KnownFailures(tmp_path / "state").entries()} == {15.0}
    assert report["exit_code"] == 3


def test_too_little_money_is_one_question_and_no_order(sweep):
    setting = Setting(regions=REGIONS, account={"assets": 10})
    report = sweep(setting)
    assert setting.sent(CREATE["pro"]) == []
    assert [(one["failure"], one["scope"], one["code"]) for one in report["refused"]] == [
        ("quota", "account", "balance")
    ]


def test_an_unverified_account_is_one_order_in_all_and_exit_5(sweep):
    setting = Setting(regions=REGIONS, account={"profile": "unverified"})
    report = sweep(setting)
    assert len(setting.sent(CREATE["pro"])) == 1
    assert report["exit_code"] == 5
    assert "real-name verification" in report["refused"][0]["advice"]


def test_a_busy_autodl_gets_the_very_same_order_again(sweep):
    setting = Setting(regions=REGIONS)
    before = setting.now
    report = sweep(setting, Fault("status", status=429, count=2))
    assert setting.emulator.state()["faults"] == []  # both were met
    assert (len(setting.sent(CREATE["pro"])), report["result"]) == (1, "completed")
    assert setting.now - before >= 6


def test_a_busy_autodl_is_left_alone_after_a_few_tries(sweep):
    setting = Setting(regions=REGIONS)
    report = sweep(setting, Fault("status", status=429, count=99))
    (fault,) = setting.emulator.state()["faults"]
    assert fault["count"] == 99 - 4
    assert [(one["failure"], one["scope"]) for one in report["refused"]] == [("throttled", "account")]
