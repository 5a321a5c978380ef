"""The main job, as an operator sees it: ``failover drill`` from the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from provisioner.errors import ConfigError
from provisioner.sandbox import training
from provisioner.sandbox.machines import MARKER
from provisioner.sandbox.scenario import load
from tests.torch_scripts import PYTHON


def drill(*arguments: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "provisioner.cli", "drill", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, **(environ or {})},
    )


def played(scenario: str, folder: Path, *, exit_code: int = 0) -> dict[str, Any]:
    """Play a scenario with the stand-in provider and return its report."""
    path = f"examples/drills/{scenario}.yaml"
    done = drill(path, "--json", "--provider", "stand-in", "--directory", str(folder))
    assert done.returncode == exit_code, done.stderr
    assert "rehearsing an outage on this machine" in done.stderr.splitlines()[0]
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def processes_of(folder: Path) -> list[str]:
    """List the command lines of processes that belong to a drill in ``folder``."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            environ = (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(folder) in command or (MARKER.encode() in environ and str(folder).encode() in environ):
            found.append(command)
    return found


def assert_the_story(report: dict[str, Any]) -> None:
    """The acceptance of the main job."""
    assert report["result"] == "completed"
    first, second = report["placements"]
    assert (first["epoch"], first["cloud"], first["ended"]) == (1, "autodl", "lost")
    assert (second["epoch"], second["cloud"], second["zone"]) == (2, "aws", "us-east-1b")
    refused = [(attempt["zone"], attempt["failure"]) for attempt in second["attempts"] if attempt["cloud"] == "aws"]
    assert refused == [("us-east-1a", "no_capacity")]
    assert second["market"] in {"spot", "on-demand"}
    assert second["instance_type"]
    assert report["restored_step"] == second["restored_step"] == 40
    assert report["final_step"] == 100
    assert report["steps_lost"] == first["last_step"] - second["restored_step"]
    assert 0 <= report["steps_lost"] <= 10, "at most what lies between two checkpoints"
    assert report["recovery_seconds"] > 0
    assert report["cost_estimate"]["by_currency"]["CNY"] > 0
    assert report["cost_estimate"]["by_currency"]["USD"] > 0
    assert report["leaked"] == []
    assert report["model_identical"] is True


@pytest.mark.slow
def test_a_job_loses_autodl_finds_zone_a_sold_out_and_finishes_in_zone_b(tmp_path: Path) -> None:
    done = drill("--json", "--directory", str(tmp_path / "drill"))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)  # stdout is the report and nothing else
    assert "nothing costs money" in done.stderr.splitlines()[0]
    assert_the_story(report)
    assert processes_of(tmp_path) == []
    state = json.loads((tmp_path / "drill/state/jobs/digits/report.json").read_text())
    assert state["result"] == "completed"


@pytest.mark.slow
def test_everything_sold_out_is_exit_code_3_and_names_every_place(tmp_path: Path) -> None:
    report = played("sold-out", tmp_path / "d", exit_code=3)
    assert report["result"] == "no_offer"
    assert {attempt["failure"] for attempt in report["refused"]} == {"no_capacity"}
    assert report["leaked"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "cloud"), [("spot-notice", "aws"), pytest.param("spot-notice-gcp", "gcp", marks=pytest.mark.long)]
)
def test_a_spot_notice_costs_no_step_and_the_last_commit_comes_before_the_deadline(
    tmp_path: Path, scenario: str, cloud: str
) -> None:
    report = played(scenario, tmp_path / "d")
    assert report["result"] == "completed"
    first, second = report["placements"]
    assert first["cloud"] == second["cloud"] == cloud
    (notice,) = report["drill"]["notices"]
    assert notice["given_at"] <= notice["heard_at"] < notice["given_at"] + 5
    assert notice["heard_at"] < notice["committed_at"] < notice["deadline"]
    assert second["restored_step"] == notice["step"] >= first["last_step"]
    assert report["steps_lost"] == 0
    assert report["leaked"] == []
    assert report["model_identical"] is True


@pytest.mark.slow
@pytest.mark.long
def test_a_machine_that_goes_without_a_word_costs_one_interval_at_most(tmp_path: Path) -> None:
    report = played("no-notice", tmp_path / "d")
    first, second = report["placements"]
    assert (first["ended"], first["last_step"] >= 47) == ("lost", True)
    assert second["restored_step"] == 40 or second["restored_step"] == 50
    assert 0 <= report["steps_lost"] <= 10
    assert report["drill"]["notices"] == []
    assert report["leaked"] == []
    assert report["model_identical"] is True


@pytest.mark.slow
@pytest.mark.long
def test_a_machine_that_is_promised_and_dies_before_it_runs_is_a_refusal(tmp_path: Path) -> None:
    report = played("dies-at-boot", tmp_path / "d")
    (placement,) = report["placements"]
    assert placement["ended"] == "completed"
    refused = [attempt["code"] for attempt in placement["attempts"] if attempt["cloud"] == "aws"]
    assert refused == ["Server.InsufficientInstanceCapacity"]
    assert report["leaked"] == []


@pytest.mark.slow
def test_a_job_comes_home_without_losing_a_step_and_says_what_the_way_cost(tmp_path: Path) -> None:
    report = played("come-home", tmp_path / "d")
    assert report["result"] == "completed"
    placements = report["placements"]
    assert [(one["cloud"], one["ended"], one["cause"]) for one in placements] == [
        ("autodl", "lost", ""),
        ("aws", "stopped", "home"),
        ("autodl", "completed", "done"),
    ]
    (move,) = report["moves"]
    assert (move["from"].split("/")[0], move["to"].split("/")[0], move["steps_lost"]) == ("aws", "autodl", 0)
    assert placements[2]["restored_step"] == placements[1]["last_step"] > 45
    assert move["overlap_cost"]["amount"] == pytest.approx(1.88 * move["overlap_seconds"] / 3600, abs=1e-6)
    assert placements[2]["claimed_at"] < placements[1]["ended_at"], "home was ready before the fallback stopped"
    events = tmp_path / "d/state/jobs/digits/events.jsonl"
    told = [event["epoch"] for event in map(json.loads, events.read_text().splitlines()) if event.get("first")]
    assert told == [1, 2, 3], "the first heartbeat of a machine is told once, however often it is watched anew"
    assert report["leaked"] == []
    assert report["model_identical"] is True
    assert processes_of(tmp_path) == []


@pytest.mark.slow
def test_autodl_and_aws_have_nothing_google_cloud_says_yes_then_no_and_zone_b_finishes(tmp_path: Path) -> None:
    report = played("cross-cloud", tmp_path / "d")
    assert report["result"] == "completed"
    (placement,) = report["placements"]
    assert (placement["cloud"], placement["zone"], placement["ended"]) == ("gcp", "us-central1-b", "completed")
    refused = {
        (a["cloud"], a["zone"], a["market"]): (a["failure"], a["code"]) for a in placement["attempts"] if a["code"]
    }
    aws = {key: why for key, why in refused.items() if key[0] == "aws"}
    assert set(aws.values()) == {
        ("no_capacity", "InsufficientInstanceCapacity"),
        ("no_capacity", "InsufficientHostCapacity"),
        ("no_capacity", "InsufficientFreeAddressesInSubnet"),
        ("not_offered", "Unsupported"),
        ("price_too_low", "SpotMaxPriceTooLow"),
        ("quota", "VcpuLimitExceeded"),
    }
    assert [key[2] for key, (kind, _) in aws.items() if kind == "quota"] == ["on-demand"], "a quota costs one call"
    assert refused["gcp", "us-central1-a", "spot"] == ("no_capacity", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS")
    assert [a["failure"] for a in placement["attempts"] if a["cloud"] == "autodl"] == ["no_capacity"]
    assert "unknown" not in {attempt["failure"] for attempt in placement["attempts"]}
    launches = [launch for launch in report["drill"]["launches"] if launch["cloud"] == "gcp"]
    assert [launch["az"] for launch in launches] == ["us-central1-a", "us-central1-b"], (
        "the zone that GCP named is next"
    )
    assert len({launch["name"] for launch in launches}) == 2, "a name that was refused is not used again"
    assert report["final_step"] == 100
    assert report["model_identical"] is True
    assert report["leaked"] == []
    assert processes_of(tmp_path) == []


@pytest.mark.slow
def test_a_job_whose_controller_is_dead_ends_by_itself_and_the_next_run_tells_all_of_it(tmp_path: Path) -> None:
    report = played("controller-dead", tmp_path / "d")
    (absence,) = report["drill"]["absences"]
    status, at_the_end = absence["status"], absence["left"]
    (placement,) = report["placements"]
    assert (status["state"], status["controller"], status["node"]) == ("left", None, placement["node"])
    assert status["step"] < 100, "it died long before the job ended"
    off = f"autodl/instance/{placement['node']}"  # nobody but a controller can give it back; off it costs nothing
    free = ("aws/launch-template/", "aws/role/", "aws/instance-profile/", "aws/security-group/")
    assert [thing for thing in at_the_end if not thing.startswith(free)] == [off]
    assert (report["result"], report["final_step"], report["steps_lost"]) == ("completed", 100, 0)
    assert placement["claimed_at"] < absence["killed_at"] < absence["back_at"] < placement["ended_at"]
    assert report["cost_estimate"]["by_currency"]["CNY"] > 0
    assert report["leaked"] == []
    assert report["model_identical"] is True
    assert processes_of(tmp_path) == []


def until_first_heartbeat(folder: Path) -> subprocess.Popen[str]:
    """Start a drill and return when its job's machine lives: Terraform adopts it at that moment."""
    process = subprocess.Popen(
        [sys.executable, "-m", "provisioner.cli", "drill", "--provider", "stand-in", "--directory", str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "first heartbeat" in line:
            break
    return process


@pytest.mark.slow
def test_a_drill_that_is_killed_takes_its_controller_clouds_machines_and_terraform_with_it(tmp_path: Path) -> None:
    with until_first_heartbeat(tmp_path / "d") as process:
        assert len(processes_of(tmp_path)) > 4, "the drill, its cloud, controller, machine and node"
        process.kill()
    until = time.monotonic() + 60
    while processes_of(tmp_path) and time.monotonic() < until:
        time.sleep(0.1)
    assert processes_of(tmp_path) == []


@pytest.mark.slow
def test_an_interrupted_drill_leaves_nothing_and_promises_nothing(tmp_path: Path) -> None:
    process = until_first_heartbeat(tmp_path / "d")
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (out, said.split()[-1:]) == ("", ["interrupted"])
    assert "goes on" not in said
    assert processes_of(tmp_path) == []


def test_a_wrong_scenario_is_one_line_with_its_place(tmp_path: Path) -> None:
    scenario = tmp_path / "wrong.yaml"
    scenario.write_text("name: wrong\nevents:\n  - when: {epoch: 1}\n    do: {take_machine: {cloud: azure}}\n")
    done = drill(str(scenario))
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert "wrong.yaml:4" in done.stderr


@pytest.mark.thorough
@pytest.mark.torch
@pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-torch: make torch")
def test_two_processes_of_lightning_lose_their_machine_in_mid_epoch_and_no_step(tmp_path: Path) -> None:
    report = played("lightning-ddp", tmp_path / "d")
    assert report["result"] == "completed"
    assert report["steps_lost"] == 0
    (notice,) = report["drill"]["notices"]
    step = notice["step"]
    assert step % 25 != 0, "in the middle of an epoch"
    assert notice["ranks"] == {"0": step, "1": step}
    assert report["placements"][1]["restored_step"] == step
    assert report["model_identical"] is True
    assert report["leaked"] == []


def test_a_drill_that_trains_with_pytorch_says_in_one_line_how_to_get_it(tmp_path: Path) -> None:
    scenario = load(Path("examples/drills/lightning-ddp.yaml"))
    with pytest.raises(ConfigError, match=r"lightning-ddp trains with PyTorch, which is not here: make torch$"):
        training.of(scenario, python=tmp_path / "python")
