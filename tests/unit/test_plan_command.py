"""``failover plan`` as a person and a program meet it: offline, without credentials."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
from click.testing import CliRunner

from provisioner import assets, catalog
from provisioner.cli import main
from provisioner.cli.plan import plan as plan_command
from provisioner.config import parse
from provisioner.controller.distances import measure, regions_of
from provisioner.model import Gpu, Market, Money, Offer
from provisioner.planner import plan

EXAMPLE = str(assets.path("examples/t4-or-v100.yaml"))


@pytest.fixture(autouse=True)
def _no_account(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AUTODL_TOKEN", "GOOGLE_OAUTH_ACCESS_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FAILOVER_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))


def run(*arguments):
    answer = CliRunner().invoke(plan_command, list(arguments))
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def made(text, **environ):
    return parse(text.encode(), "failover.yaml", Path(), environ)


def test_the_example_lists_offers_of_both_clouds_by_what_they_cost_to_the_end():
    data = json.loads(run("-f", EXAMPLE, "--json"))
    offers = data["offers"]
    assert {one["cloud"] for one in offers} == {"aws", "gcp"}
    costs = [Decimal(one["expected_cost"]["amount"]) for one in offers if one["expected_cost"]]
    assert costs == sorted(costs)
    first = offers[0]
    assert (first["instance_type"], first["market"], first["price_per_hour"]) == ("g4dn.xlarge", "spot", None)
    assert (first["price_basis"], first["at_most"]) == ("ceiling", {"amount": "0.526", "currency": "USD"})
    assert {"region", "zone", "gpu", "expected_hours", "reason"} <= first.keys()
    assert all(one["reason"] for one in data["passed_over"])
    assert any(one["offer"] and one["offer"]["instance_type"] == "g4dn.16xlarge" for one in data["passed_over"])


def test_the_table_fits_80_columns_and_names_cost_time_and_reasons():
    text = run(EXAMPLE, "--all")
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "4.47 USD   21.3 h" in text
    assert "4.352 USD an hour is over max_price 4 USD" in " ".join(text.split())


def test_why_shows_the_numbers_behind_one_offer():
    text = " ".join(run(EXAMPLE, "--why", "aws/us-east-1a/g4dn.xlarge/spot").split())
    assert text.startswith("aws/us-east-1/us-east-1a/g4dn.xlarge/spot: 1st of ")
    assert "losses: 0.167 an hour, each costs 15.0 min of training" in text
    assert "price: 0.2104 USD an hour, reckoned: 40% of 0.526 USD on demand" in text
    assert "cost: 21.27 h x 0.2104 USD + 0.00 USD egress = 4.47 USD" in text
    gone = run(EXAMPLE, "--why", "aws/us-east-1a/p3.2xlarge")
    assert "passed over\n  p3.2xlarge is not offered in any zone of us-east-1" in gone
    data = json.loads(run(EXAMPLE, "--why", "gcp/us-central1-a/n1-standard-8+1xT4/spot", "--json"))
    assert [one["zone"] for one in data["offers"]] == ["us-central1-a"]
    assert data["offers"][0]["account"][0] == "job: 20 h on T4"


def test_an_offer_or_a_gpu_typed_wrong_gets_a_suggestion(capsys, tmp_path):
    assert main(["plan", EXAMPLE, "--why", "aws/us-east-1a/g4dn.xlarg/spot"]) == 2
    assert "did you mean `aws/us-east-1a/g4dn.xlarge/spot`?" in capsys.readouterr().err
    file = tmp_path / "wrong.yaml"
    file.write_text(Path(EXAMPLE).read_text("utf-8").replace("gpus: [T4, V100]", "gpus: [T4, VI00]"), "utf-8")
    assert main(["plan", "-f", str(file)]) == 2
    assert "did you mean `V100`?" in capsys.readouterr().err


HOME = """\
job: {name: a, command: 'true', estimate: {time: 400h, on: RTX 4090}}
checkpoint: {store: s3://bucket/prefix}
primary: {autodl: {mode: elastic, gpus: [RTX 4090], image_uuid: image-1, prepaid: {month: 1000 CNY}}}
fallback: [{aws: {regions: [us-east-1], instance_types: [g6.xlarge]}},
           {aws: {regions: [us-east-1], instance_types: [g4dn.xlarge]}}]
"""


def test_notes_compare_prepaid_plans_and_tell_of_a_cheaper_fallback_further_down():
    price = Money(Decimal(2), "CNY")
    home = Offer("autodl", "westDC3", "", "RTX 4090", Gpu("RTX 4090", 1, 24), Market.ON_DEMAND, price, 1)
    ranked = plan(made(HOME), [home])
    # 400 h and 90 s at 2 CNY; a month is 720 h.
    assert "400 h pay as you go cost 800 CNY, 1 prepaid month 1000 CNY: pay as you go is cheapest" in ranked.notes[0]
    long = plan(made(HOME.replace("400h", "700h")), [home])
    assert "1 prepaid month 1000 CNY: 1 prepaid month saves 400 CNY; only AutoDL's console sells it" in long.notes[0]
    bare = plan(made(HOME.replace(", prepaid: {month: 1000 CNY}", "")), [home])
    assert "a week costs less than 267 or a month less than 800 CNY" in bare.notes[0]  # 400 h are three weeks

    l4, t4 = (
        Offer("aws", "us-east-1", "us-east-1a", kind, Gpu(gpu, 1, 16), Market.ON_DEMAND, Money(Decimal(price), "USD"))
        for kind, gpu, price in (("g6.xlarge", "L4", "3"), ("g4dn.xlarge", "T4", "0.5"))
    )
    listed = plan(made(HOME), [t4, l4])
    assert [one.offer for one in listed.ranked] == [l4, t4]
    assert any("policy.order: cost tries the cheaper one first" in note for note in listed.notes)
    by_cost = plan(made(HOME + "policy: {order: cost}\n"), [t4, l4, home])
    assert [one.offer for one in by_cost.ranked] == [home, t4, l4]


def test_only_zones_and_drivers_that_the_file_names():
    text = HOME.replace("instance_types: [g6.xlarge]}", "instance_types: [g6.xlarge], zones: [us-east-1b]}")
    config = made(text)
    offers = catalog.aws_offers(["us-east-1"], config.resources, ["g6.xlarge"])
    assert {one.offer.zone for one in plan(config, offers).ranked} == {"us-east-1b"}
    v100 = Offer("aws", "us-east-1", "us-east-1a", "g6.xlarge", Gpu("V100", 1, 16), Market.ON_DEMAND, None)
    new = plan(made(HOME + "resources: {driver: 590}\n"), [v100])
    assert new.passed_over[0].reason == "V100 ends with driver 580, the job has 590"


def test_a_region_that_does_not_answer_has_no_round_trip():
    asked = []

    def connect(host):
        asked.append(host)
        if "us-east-1" in host:
            raise OSError
        return float(len(asked))

    regions = regions_of(
        made(HOME.replace("regions: [us-east-1], instance_types: [g6", "regions: [cn-north-1], instance_types: [g6"))
    )
    found = measure(regions, connect)
    assert found.keys() == {("aws", "cn-north-1")}
    assert "ec2.cn-north-1.amazonaws.com.cn" in asked


def test_a_zone_that_is_nowhere_is_named(tmp_path):
    file = tmp_path / "failover.yaml"
    text = Path(EXAMPLE).read_text("utf-8")
    regions = "regions: [us-central1, us-east1]"
    assert regions in text
    file.write_text(text.replace(regions, "regions: [us-central1]\n      zones: [us-central1-z]"), "utf-8")
    data = json.loads(run(str(file), "--json"))
    passed = {one["subject"]: one["reason"] for one in data["passed_over"]}
    assert passed["gcp/us-central1-z"] == "the catalog has no machine for this job in this zone"
    assert not any(one["cloud"] == "gcp" for one in data["offers"])
