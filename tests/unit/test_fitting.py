"""What fits a card, and how: arithmetic on measured numbers; the planner and ``failover fit`` go by it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from provisioner import catalog
from provisioner.cli.command import run as failover
from provisioner.cli.fit import fit as fit_command
from provisioner.config import parse
from provisioner.errors import ConfigError
from provisioner.fitting import CONTEXT, GIB, Card, Measured, Passes, choose, envelope, need, seconds
from provisioner.planner import catalog_offers, plan, terms
from provisioner.planner.work import speed

PLAIN = Passes(((0.0, 1.0 * GIB),), moved=(1e9, 1e9), kernels=100, flops=1e12)
LEAN = Passes(((0.0, 0.25 * GIB),), moved=(1e9, 1e9), kernels=150, flops=1.3e12)
NEEDS = Measured(
    batch=48,
    weights=int(3 * GIB),
    gradients=int(2 * GIB),
    optimizer=int(4 * GIB),
    inputs=0,
    ways={"half": PLAIN, "half+checkpointing": LEAN, "float32": PLAIN},
)
T4 = Card("T4", 14.56 * GIB, (7, 5), 65.0, 320.0)


def test_the_largest_part_of_the_batch_that_fits_is_taken():
    # 9 GiB are there all the time, 0.75 are allowed for: 4.81 are left, and a sample takes 1.1 with its allowance
    found = choose(NEEDS, T4)
    assert (found.micro_batch, found.accumulate, found.dtype, found.checkpointing) == (4, 12, "float16", False)
    assert found.need == pytest.approx((9 + 4.4) * GIB + CONTEXT)
    assert found.why == "micro-batch 6 would need 16.4 GiB of 14.6 GiB"
    # 48 x 1e12 / (65e12 x 0.5) + (12 x 1e9 + 48 x 1e9 + 6 GiB + 8 GiB) / (320e9 x 0.7)
    assert found.seconds == pytest.approx(1.47692 + (60e9 + 14 * GIB) / 224e9, rel=1e-4)


def test_activation_checkpointing_comes_where_nothing_else_fits_and_what_lacks_is_said():
    small = replace(NEEDS, gradients=0)  # 7 GiB are there all the time
    found = choose(small, replace(T4, memory=8.5 * GIB))
    assert (found.micro_batch, found.checkpointing, found.fits) == (2, True, True)
    assert found.why.startswith(
        "micro-batch 3 would need 8.6 GiB of 8.5 GiB; without activation checkpointing one sample"
    )
    assert found.why.endswith(" needs 8.8 GiB")
    none = choose(small, replace(T4, memory=7.5 * GIB))
    assert not none.fits
    assert none.why == "needs 8.0 GiB at micro-batch 1 with activation checkpointing, has 7.5 GiB"


@pytest.mark.parametrize(
    ("capability", "dtype"),
    [((6, 1), "float32"), ((7, 0), "float16"), ((7, 5), "float16"), ((8, 0), "bfloat16"), (None, "float32")],
)
def test_the_dtype_is_what_the_card_can(capability, dtype):
    assert choose(NEEDS, Card("any", capability=capability)).dtype == dtype


lines = st.tuples(st.integers(-(10**9), 10**9), st.integers(0, 10**7))


@given(st.lists(lines, min_size=1, max_size=30), st.integers(1, 10**5))
def test_the_envelope_is_the_highest_line_everywhere(found, samples):
    assert Passes(envelope(found)).peak_bytes(samples) == max(fixed + samples * each for fixed, each in found)
    assert set(envelope(found)) <= set(found)


@given(
    st.integers(1, 5000),
    st.lists(lines, min_size=1, max_size=5),
    st.lists(lines, min_size=1, max_size=5),
    st.integers(10**6, 10**12),
    st.integers(0, 10**10),
)
def test_a_choice_keeps_the_batch_and_the_memory_and_no_larger_part_would_fit(batch, plain, lean, memory, weights):
    ways = {"half": Passes(tuple(plain)), "half+checkpointing": Passes(tuple(lean))}
    measured = Measured(batch, weights, weights // 2, weights, 100, ways)
    card = replace(T4, memory=float(memory))
    found = choose(measured, card)
    parts = [size for size in range(1, batch + 1) if batch % size == 0]
    fitting = {
        name: [size for size in parts if need(measured, one, size, card) <= memory] for name, one in ways.items()
    }
    if found.fits:
        assert found.micro_batch * found.accumulate == batch
        assert found.need <= memory
        assert found.micro_batch == max(fitting["half+checkpointing" if found.checkpointing else "half"])
        assert found.checkpointing is not bool(fitting["half"])
    else:
        assert not any(fitting.values())


def test_without_flops_or_figures_no_time_is_told():
    assert seconds(NEEDS, replace(PLAIN, flops=None), T4, 1) is None
    assert seconds(NEEDS, PLAIN, replace(T4, tflops=0.0), 1) is None


def test_pytorch_finds_less_than_a_card_is_sold_with():
    assert catalog.found_gib("Tesla T4", 16) == pytest.approx(14.56)
    assert catalog.found_gib("A100-80GB", 80) <= 79.1


FILE = """
job: {name: digits, command: python train.py, estimate: {time: 10h, "on": T4}}
resources: {gpus: [T4, L4, A10G]}
checkpoint: {store: s3://bucket/jobs, region: us-east-1}
fallback: [{aws: {regions: [us-east-1]}}]
"""


def config(measured=None, **job):
    data = yaml.safe_load(FILE)
    data["job"].update(job)
    if measured is not None:
        data["job"]["fit"] = measured.as_json()
    environ = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    return parse(yaml.safe_dump(data).encode(), "failover.yaml", Path(), environ)


def ranked(made):
    found = plan(made, catalog_offers(made))
    return {one.offer.gpu.name for one in found.ranked}, found


def test_the_planner_passes_over_a_card_that_cannot_hold_the_job():
    large = replace(NEEDS, weights=int(10.5 * GIB), gradients=0)
    without, _ = ranked(config())
    names, found = ranked(config(large))
    assert "T4" in without  # take the section away, and it is there again
    assert names == without - {"T4"}
    reasons = {one.reason for one in found.passed_over if one.offer and one.offer.gpu.name == "T4"}
    assert "T4: needs 15.5 GiB at micro-batch 1 with activation checkpointing, has 14.6 GiB (job.fit)" in reasons


def test_the_planner_compares_cards_by_what_was_measured_and_measured_speeds_come_first():
    heavy = replace(NEEDS, gradients=0, optimizer=0, ways={"half": replace(PLAIN, moved=(0.0, 1.0))})
    work = terms(config(heavy)).work
    assert speed(work, "L4") == pytest.approx(121 / 65)  # nothing but arithmetic
    assert speed(terms(config()).work, "L4") != pytest.approx(121 / 65)
    mine = terms(config(heavy, estimate={"time": "10h", "on": "T4", "speeds": {"L4": 1.5}})).work
    assert speed(mine, "L4") == 1.5


def test_what_was_measured_survives_its_way_through_the_file():
    assert config(NEEDS).job.fit.measured() == NEEDS


@pytest.fixture
def desk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def script(folder, body):
    """Write a script that does what ``fit`` does under the command, without torch."""
    path = folder / "train.py"
    path.write_text(f"import os, sys, json  # fit\n{body}\n")
    return str(path)


MEASURES = f"open(os.environ['FAILOVER_FIT_FILE'], 'w').write({json.dumps(NEEDS.as_json())!r})"


def test_failover_fit_tells_of_each_card_what_fits_and_what_it_costs(desk):
    path = script(desk, f"print('hello', sys.argv[1:])\n{MEASURES}")
    options = ["--python", sys.executable, "--gpu", "T4", "--gpu", "K80", "--steps", "1000", path, "--", "--width", "9"]
    answer = CliRunner().invoke(fit_command, ["--json", *options])
    assert answer.exit_code == 0, answer.output
    cards = {one["gpu"]: one for one in json.loads(answer.stdout)["cards"]}
    one = cards["T4"]
    assert (one["fits"], one["micro_batch"], one["accumulate"], one["dtype"]) == (True, 4, 12, "float16")
    assert one["hours"] == pytest.approx(1000 * one["seconds_per_step"] / 3600)
    assert float(one["cost"]["amount"]) == pytest.approx(one["hours"] * float(one["price_per_hour"]["amount"]))
    assert one["cost"]["currency"] == one["price_per_hour"]["currency"]
    assert (cards["K80"]["fits"], cards["K80"]["hours"]) == (False, None)

    table = CliRunner().invoke(fit_command, options)
    assert "12 x 4" in table.stdout
    assert "needs 11.9 GiB at micro-batch 1, has 10.9 GiB" in table.stdout
    assert CliRunner().invoke(fit_command, ["--python", sys.executable, "--gpu", "K80", path]).exit_code == 3


def test_the_section_that_it_prints_is_one_for_failover_yaml_which_then_needs_no_script(desk):
    path = script(desk, MEASURES)
    answer = CliRunner().invoke(fit_command, [path, "--gpu", "T4", "--python", sys.executable, "--yaml"])
    data = yaml.safe_load(FILE)
    data["job"].update(yaml.safe_load(answer.stdout)["job"])
    (desk / "failover.yaml").write_text(yaml.safe_dump(data))
    environ = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    answer = CliRunner().invoke(fit_command, ["--json"], env=environ)
    assert {one["gpu"] for one in json.loads(answer.stdout)["cards"]} == {"T4", "L4", "A10G"}


@pytest.mark.parametrize(
    ("body", "options", "words"),
    [
        ("pass", (), "train.py ended without a call of fit()"),
        ("sys.exit(3)", (), "train.py ended with 3 before it called fit()"),
        ("import time; time.sleep(60)", ("--timeout", "1"), "train.py did not come to fit() within 1 s"),
        ("open(os.environ['FAILOVER_FIT_FILE'], 'w').write('{}')", (), "measured what makes no sense: batch"),
        ("pass", ("--python", "/no/python"), "/no/python: No such file"),
        ("pass", ("--gpu", "T5"), "no card is called 'T5'"),
        ("pass", ("--gpu", "A100"), "write A100-40GB or A100-80GB"),
    ],
)
def test_what_goes_wrong_is_one_line(desk, capfd, body, options, words):
    path = script(desk, body)
    assert failover(["fit", path, "--gpu", "T4", "--python", sys.executable, *options]) == 2
    said = capfd.readouterr()
    assert words in said.err
    assert "Traceback" not in said.err
    assert not said.out


def test_a_script_may_leave_fit_to_a_module_beside_it(desk):
    script(desk, MEASURES)
    (desk / "main.py").write_text("from train import *\n")
    answer = CliRunner().invoke(fit_command, ["--json", "main.py", "--gpu", "T4", "--python", sys.executable])
    assert answer.exit_code == 0, answer.output


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"weights": float("nan")}, "job.fit.weights"),
        ({"batch": 0}, "job.fit.batch"),
        ({"batch": True}, "job.fit.batch"),
        ({"inputs": "many"}, "job.fit.inputs"),
        ({"optimizer": -1}, "job.fit.optimizer"),
        ({"gradients": 1e30}, "job.fit.gradients"),
        ({"ways": {}}, "job.fit.ways"),
        ({"ways": {"quarter": {}}}, "job.fit.ways.quarter"),
        ({"ways": {"half": {"peak": []}}}, "job.fit.ways.half.peak"),
        ({"ways": {"half": {"peak": [{"fixed": 1, "each": -1}]}}}, "job.fit.ways.half.peak[0].each"),
        ({"ways": {"half": {"kernels": 10**400}}}, "job.fit.ways.half.kernels"),
        ({"ways": {"half": {"flops": float("inf")}}}, "job.fit.ways.half.flops"),
        ({"card": "T4"}, "job.fit.card"),
    ],
)
def test_nonsense_in_job_fit_is_named_with_its_line(change, where):
    measured = replace(NEEDS, ways={"half": PLAIN}).as_json()
    for way, more in change.get("ways", {}).items():
        change = {"ways": {way: {**measured["ways"]["half"], **more} if way == "half" else more}}
    data = yaml.safe_load(FILE)
    data["job"]["fit"] = {**measured, **change}
    text = yaml.safe_dump(data)
    with pytest.raises(ConfigError) as error:
        parse(text.encode(), "failover.yaml", Path(), {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"})
    assert str(error.value).startswith("failover.yaml:"), error.value
    assert f"{where}: " in str(error.value), error.value


def test_a_script_that_never_fits_is_not_even_started(desk, capfd):
    path = desk / "plain.py"
    path.write_text("open('started', 'w')\n")
    assert failover(["fit", str(path), "--gpu", "T4"]) == 2
    assert "plan = fit(model, batch" in capfd.readouterr().err
    assert not (desk / "started").exists()
