"""``failover plan`` as a person and a program meet it: offline, without credentials."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
from click.testing import CliRunner

from provisioner import assets, catalog
from provisioner.catalog import tables
from provisioner.cli import main
from provisioner.cli.plan import plan as plan_command
from provisioner.cli.plan_passed import passed_rows
from provisioner.config import parse
from provisioner.controller.distances import measure, regions_of
from provisioner.model import Gpu, Market, Money, Offer
from provisioner.planner import PassedOver, plan

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


def test_regions_that_do_not_answer_are_named(monkeypatch):
    monkeypatch.setattr("provisioner.controller.distances.measure", lambda _: {("aws", "us-east-1"): 80.0})
    told = CliRunner().invoke(plan_command, [EXAMPLE, "--round-trips", "--json"])
    assert told.stderr == "no answer from aws/us-east-2, gcp/us-central1, gcp/us-east1\n"
    near = {one["region"]: one["distance_ms"] for one in json.loads(told.stdout)["offers"]}
    assert (near["us-east-1"], near["us-east1"]) == (80.0, None)
    monkeypatch.setattr("provisioner.controller.distances.measure", lambda _: {})
    told = CliRunner().invoke(plan_command, [EXAMPLE, "--round-trips", "--json"])
    assert told.stderr.endswith("; the distance to the store counts instead\n")


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


def passed(text):
    """Return the lines of what is passed over, each reason in one line."""
    told = text.partition("passed over\n")[2].partition("\n\n")[0]
    return told.replace("\n    ", " ").splitlines()


def test_what_shares_a_reason_shares_a_line_and_verbs_agree(tmp_path):
    file = tmp_path / "failover.yaml"
    regions = "regions: [us-east-1, us-east-2]"
    file.write_text(Path(EXAMPLE).read_text("utf-8").replace(regions, f"{regions}\n      zones: [us-east-1b]"), "utf-8")
    lines = passed(run(str(file), "--all"))
    assert (
        "  aws/us-east-1, us-east-2: g4dn.12xlarge, p3.8xlarge have 4 GPUs, the job asks for 1; name them under "
        "instance_types to take them all the same"
    ) in lines
    assert "  aws: p3.2xlarge is not offered in any zone of us-east-1, us-east-2 (catalog of 2026-11)" in lines
    (zones,) = [line for line in lines if "does not name" in line]
    assert zones.endswith(
        "fallback[0].aws does not name the zones us-east-1a, us-east-1c, us-east-1d, us-east-1f, us-east-2a, "
        "us-east-2b, us-east-2c"
    )
    entries = json.loads(run(str(file), "--json"))["passed_over"]
    assert sum("does not name the zone us-east-1a" in one["reason"] for one in entries) == 10  # 5 types, 2 markets


def over(subject, reason, offer=None):
    return PassedOver(subject, reason, offer)


@pytest.mark.parametrize(
    ("reasons", "line"),
    [
        (["g6f.large holds a slice of one L4 (3 GB), not a whole one"], "aws/r1: g6f.large holds a slice"),
        (
            ["g6f.a holds a slice of one L4", "g6f.b holds a slice of one L4"],
            "aws/r1: g6f.a, g6f.b hold a slice of",
        ),
        (["g5g.a is arm64, and", "g5g.b is arm64, and"], "aws/r1: g5g.a, g5g.b are arm64, and"),
        (["p2.a: K80 needs CUDA 11", "p2.b: K80 needs CUDA 11"], "aws/r1: p2.a, p2.b: K80 needs CUDA 11"),
    ],
)
def test_reasons_of_machine_types_read_as_sentences(reasons, line):
    found = [over(f"aws/r1/{reason.partition(' ')[0].removesuffix(':')}", reason) for reason in reasons]
    (row,) = passed_rows(found, whole=False)
    assert row.startswith(line)


def test_a_long_list_of_names_is_cut_and_two_markets_are_one_name():
    offers = [
        Offer("aws", "r1", "r1a", f"g{number}", Gpu("T4", 1, 16), market, None)
        for number in range(10)
        for market in Market
    ]
    found = [over(one.key, "has T4, the job asks for V100", one) for one in offers]
    assert list(passed_rows(found, whole=False)) == [
        "aws/r1: g0, g1, g2, g3, g4, g5, g6, g7 and 2 more (--all): have T4, the job asks for V100"
    ]
    assert "g8, g9: have T4" in next(passed_rows(found, whole=True))


def test_nothing_to_try_is_exit_code_3_with_the_whole_plan(capsys, tmp_path):
    file = tmp_path / "failover.yaml"
    file.write_text(Path(EXAMPLE).read_text("utf-8").replace("gpus: [T4, V100]", "gpus: [H800]"), "utf-8")
    assert main(["plan", str(file), "--json"]) == 3
    captured = capsys.readouterr()
    assert json.loads(captured.out)["offers"] == []
    assert "nothing to try" in captured.err
    assert main(["plan", EXAMPLE, "--why", "aws/us-east-1/p3.2xlarge"]) == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["plan", EXAMPLE, "--terraform", "there", "--why", "aws"],
            "--terraform takes the best offer: leave out",
        ),
        (["plan", EXAMPLE, "--terraform", "there", "--round-trips"], "leave out --why, --all and --round-trips"),
        (["plan", EXAMPLE, "--why", "aws", "--all"], "--why explains one offer: leave out --all"),
        (["catalog", "refresh", "--offline", "--region", "us-east-1"], "--offline asks nobody: leave out --region"),
        (["catalog", "refresh", "--cloud", "gcp", "--region", "us-east-1"], "--region is for aws, and --cloud leaves"),
        (["catalog", "refresh", "--cloud", "aws", "--project", "mine"], "--project is for gcp, and --cloud leaves"),
        (["status", "--failures", "--forget"], "--failures shows and --forget forgets: give one of them"),
    ],
)
def test_options_that_would_be_ignored_are_refused(capsys, monkeypatch, tmp_path, options, words):
    monkeypatch.chdir(tmp_path)
    assert main(options) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not (tmp_path / "there").exists()


def test_a_damaged_refresh_is_named_by_every_command_that_does_without_it(capsys, monkeypatch, tmp_path):
    (tmp_path / "catalog.json").write_text("{", "utf-8")
    monkeypatch.setenv("FAILOVER_CACHE_DIR", str(tmp_path))
    tables.forget()
    try:
        for command in (["catalog", "ls"], ["plan", EXAMPLE, "--json"], ["catalog", "refresh", "--offline"]):
            assert main(command) == 0
            line = f"the last refresh is not used: {tmp_path / 'catalog.json'} is damaged: refresh it, or remove it\n"
            assert line in capsys.readouterr().err
    finally:
        tables.forget()
