"""Bytes that nodes report, and about what they cost: in the events, the report, the status and the plan."""

from __future__ import annotations

import json
from decimal import Decimal
from types import SimpleNamespace

from click.testing import CliRunner

from provisioner.cli.plan import plan as plan_command
from provisioner.cli.report import print_report
from provisioner.cli.status import status as status_command
from provisioner.cli.timeline import line
from provisioner.cli.traffic import copy_lines, egress_words, size_words
from provisioner.config import StoreConfig
from provisioner.controller import traffic
from provisioner.controller.directory import JobDirectory, JobRecord, state_root
from provisioner.controller.records import Begun, Claimed, Finished, Placement, Released, Transfer, Watched
from provisioner.controller.report import build_report
from provisioner.controller.view import PlacementView
from provisioner.model import Ending, Gpu, JobRef, Market, Money, Node, Offer
from provisioner.telemetry.events import EventLog

JOB = JobRef("digits", "1a2b3c4d")
OWN = StoreConfig(uri="s3://own-bucket/p", region="us-east-1")
GOOGLE = StoreConfig(uri="gs://bucket/p", region="us-central1")
OSS = StoreConfig(uri="s3://oss/p", endpoint="https://oss-cn-hangzhou.aliyuncs.com")
STORES = [OWN, GOOGLE, OSS]


def offer(cloud: str, region: str) -> Offer:
    return Offer(cloud, region, "", "g4dn.xlarge", Gpu("T4", 1, 16), Market.SPOT, None)


def usd(amount: str) -> Money:
    return Money(Decimal(amount), "USD")


BEAT = {
    "restored_step": 30,
    "restored_from": {"uri": "gs://bucket/p", "bytes": 2_000_000_000},
    "replicas": [
        {"uri": "gs://bucket/p", "step": 40, "bytes": 1_200_000_000, "behind": 0, "error": None},
        {"uri": "s3://oss/p", "step": None, "bytes": 0, "behind": 3, "error": "no answer"},
    ],
}


def test_a_machine_pays_for_what_leaves_it_and_the_store_for_what_is_restored():
    google, oss = traffic.copies(STORES, offer("aws", "us-east-1"), BEAT)
    assert google == Transfer("gs://bucket/p", 1_200_000_000, 40, usd("0.108"))
    assert oss == Transfer("s3://oss/p", 0, None, usd("0"), 3, "no answer")
    assert traffic.restored(STORES, offer("aws", "us-east-1"), BEAT) == Transfer(
        "gs://bucket/p", 2_000_000_000, 30, usd("0.24")
    )
    assert [copy.cost for copy in traffic.copies(STORES, offer("autodl", "westDC3"), BEAT)] == [usd("0")] * 2


def test_what_has_no_list_price_stays_unknown_and_is_not_called_free():
    beat = {"restored_from": {"uri": "s3://oss/p", "bytes": 1}, "replicas": [{"uri": "gs://gone", "bytes": 5}]}
    assert traffic.copies(STORES, offer("aws", "us-east-1"), beat)[0].cost is None
    found = traffic.restored(STORES, offer("aws", "us-east-1"), beat)
    assert found is not None
    assert found.cost is None
    total = traffic.summed([Transfer("a", 1, 1, usd("0.1")), Transfer("a", 2, None, None, 1, "away")])
    assert total == [Transfer("a", 3, 1, None, 1, "away")]


def test_heartbeats_of_any_form_are_read():
    for beat in ({}, {"replicas": 7, "restored_from": []}, {"replicas": ["x", {"uri": 1, "bytes": "2", "step": True}]}):
        assert all(copy.bytes == 0 for copy in traffic.copies(STORES, offer("aws", "r"), beat))
        assert traffic.restored(STORES, offer("aws", "r"), beat) is None


def test_a_transfer_survives_json():
    for one in (*traffic.copies(STORES, offer("aws", "us-east-1"), BEAT), Transfer("a", 1, None, None)):
        assert traffic.from_json(json.loads(json.dumps(traffic.as_json(one)))) == one


def placement(epoch: int, cloud: str, region: str) -> Placement:
    where = offer(cloud, region)
    node = Node(f"i-{epoch}", where, JOB, epoch, "token", claimed_at=0.0)
    watched = Watched(
        Ending.COMPLETED,
        "",
        9.0,
        9.0,
        1.0,
        30,
        40,
        copies=traffic.copies(STORES, where, BEAT),
        restored_from=traffic.restored(STORES, where, BEAT),
    )
    return Placement(epoch, (), Claimed(where, 0.0, node, None), node, watched, Released(9.0))


def test_the_report_adds_up_over_all_machines_and_says_it_in_words(capsys):
    placements = [placement(1, "autodl", "westDC3"), placement(2, "aws", "us-east-1")]
    report = json.loads(
        json.dumps(build_report(JOB, Begun(0, 1), placements, [], Ending.COMPLETED, "", Finished(10, ())))
    )
    assert report["replicas"][0] == {
        "uri": "gs://bucket/p",
        "step": 40,
        "bytes": 2_400_000_000,
        "behind": 0,
        "problem": "",
        "egress": {"amount": 0.108, "currency": "USD"},
    }
    assert report["egress_prices_of"] == "2026-05"
    print_report(report)
    text = " ".join(capsys.readouterr().out.split())
    assert "gs://bucket/p: step 40, 2.40 GB sent, about $0.11 egress, list prices of 2026-05" in text
    assert "s3://oss/p: no copy yet, 0 B sent, no egress to pay, behind by 3 (no answer)" in text
    assert "gs://bucket/p: 2.00 GB fetched, about $0.24 egress, list prices of 2026-05" in text


def test_the_controller_tells_each_copy_and_a_replica_that_breaks_once():
    told: list[tuple[str, dict]] = []
    world = SimpleNamespace(
        stores=lambda: STORES,
        events=SimpleNamespace(emit=lambda kind, **fields: told.append((kind, fields))),
        heard=set(),
        forget_start=lambda _epoch, _token: None,
        launcher=SimpleNamespace(store=None),
        config=SimpleNamespace(policy=SimpleNamespace(poll=10.0, heartbeat=5.0)),
        now=lambda: 0.0,
    )
    where = offer("aws", "us-east-1")
    node = Node("i-1", where, JOB, 1, "token", claimed_at=0.0)
    view = PlacementView(world, Claimed(where, 0.0, node, None), Begun(0, 1), ())
    view.changed(node, {"step": 1}, first=True, ahead_s=0.0)
    for _ in range(3):
        view.changed(node, BEAT, first=False, ahead_s=0.0)
    assert [(kind, fields["uri"]) for kind, fields in told if kind != "heartbeat"] == [
        ("copied", "gs://bucket/p"),
        ("copy_failed", "s3://oss/p"),
    ]
    words = [line({"kind": kind, **fields}) for kind, fields in told]
    assert "epoch 1: no copies at s3://oss/p for now: no answer" in words


def test_a_report_of_an_older_version_still_prints(capsys):
    report = json.loads(
        json.dumps(build_report(JOB, Begun(0, 1), [placement(1, "local", "")], [], Ending.LIMIT, "", Finished(10, ())))
    )
    del report["replicas"], report["egress_prices_of"], report["placements"][0]["restored_from"]
    print_report(report)
    assert "copies" not in capsys.readouterr().out


def test_the_status_shows_the_copies_of_this_run(monkeypatch, tmp_path):
    monkeypatch.setenv("FAILOVER_STATE_DIR", str(tmp_path))
    directory = JobDirectory(state_root({"FAILOVER_STATE_DIR": str(tmp_path)}), "digits")
    directory.create()
    directory.remember(JobRecord("digits", "1a2b3c4d", 1, open=True, config_path="/f.yaml", started_at=0.0))
    log = EventLog(directory.path / "events.jsonl")
    copies = [traffic.as_json(copy) for copy in traffic.copies(STORES, offer("aws", "us-east-1"), BEAT)]
    log.emit("heartbeat", epoch=9, step=1, replicas=copies)
    log.emit("begin", job="digits", uid="1a2b3c4d", epoch=1)
    for epoch, times in ((1, 3), (2, 2)):  # a heartbeat counts from the start of its machine
        for _ in range(times):
            log.emit("heartbeat", epoch=epoch, step=40, replicas=copies)
    answer = CliRunner().invoke(status_command, ["digits"])
    assert answer.exit_code == 0, answer.output
    assert "copies: gs://bucket/p: step 40, 2.40 GB sent, about $0.22 egress, list prices of 2026-05" in answer.output
    data = json.loads(CliRunner().invoke(status_command, ["digits", "--json"]).stdout)
    assert data["replicas"][0]["bytes"] == 2_400_000_000


def test_the_plan_tells_the_price_of_a_gb_for_each_replica(tmp_path):
    file = tmp_path / "failover.yaml"
    file.write_text(
        "job: {name: digits, command: 'true'}\n"
        "checkpoint:\n"
        "  store: s3://own-bucket/p\n"
        "  region: us-east-1\n"
        "  replicas: [{uri: s3://other-bucket/p, region: us-west-2}, {uri: s3://third, endpoint: https://x.example}]\n"
        "fallback: [{aws: {regions: [us-east-1], instance_types: [g4dn.xlarge]}}]\n"
    )
    answer = CliRunner().invoke(plan_command, [str(file)])
    assert answer.exit_code == 0, answer.output
    said = " ".join(answer.stdout.split())
    assert "to s3://other-bucket/p from aws/us-east-1: 0.02 USD a GB, list price of 2026-05" in said
    data = json.loads(CliRunner().invoke(plan_command, [str(file), "--json"]).stdout)
    assert data["replicas"] == [
        {
            "uri": uri,
            "cloud": "aws",
            "region": "us-east-1",
            "per_gb": {"amount": price, "currency": "USD"},
        }
        for uri, price in (("s3://other-bucket/p", "0.02"), ("s3://third", "0.09"))
    ]


def test_words():
    assert [size_words(size) for size in (0, 999, 1500, 10**9, 5 * 10**12)] == [
        "0 B", "999 B", "1.50 kB", "1.00 GB", "5.00 TB",
    ]  # fmt: skip
    assert egress_words({"amount": 0.0004, "currency": "USD"}, "2026-05").startswith("less than $0.01")
    assert egress_words(None, "2026-05") == "egress of unknown price"
    assert list(copy_lines([], "")) == []
