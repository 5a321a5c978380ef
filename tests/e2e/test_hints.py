"""What the controller knows reaches a real node, which saves before it has to go."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from provisioner.sandbox.autodl.box import Box
from provisioner.sandbox.machines import Machines
from tests.e2e.test_run_local import TRAIN, Place, wait

SAVES = """
import signal
def last(*_):
    draft = kept / ".draft"
    draft.write_text(str(step))
    draft.rename(kept / f"step-{step}")
    sys.exit(0)
signal.signal(signal.SIGTERM, last)
step = 0
"""


IMAGE = "base-image-l2t43iu6uk"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    before, loop, after = TRAIN.partition("for step in")
    (tmp_path / "code/train.py").write_text(before + SAVES + loop + after.replace("% 5 ", "% 1000 "))
    return place


def newest(place: Place) -> int:
    """Return the step of the newest checkpoint in the store."""
    return max((int(path.name[:12]) for path in place.folder.glob("store/small/checkpoints/*.json")), default=0)


@pytest.mark.slow
def test_before_the_deadline_the_last_step_is_saved(place: Place) -> None:
    config = place.config(steps=900, pace=0.1, policy={"deadline": "60s"})  # told a tenth of that before
    code, out, err = place.call("run", str(config), "--json")
    report = json.loads(out)
    assert (code, report["result"]) == (4, "limit_reached"), err
    assert "deadline of 60 s is near" in report["reason"]
    assert "the node is told: the job's deadline: deadline of 60 s" in err
    assert newest(place) >= report["final_step"] > 100, "the trainer counts a step from its begin"
    assert len(report["placements"]) == 1
    assert place.nodes() == []


@pytest.mark.parametrize("controller_lives", [True, False])
def test_down_gently_waits_for_a_last_checkpoint(place: Place, *, controller_lives: bool) -> None:
    with place.start("run", str(place.config(steps=900, pace=0.1)), "--json") as controller:
        place.wait_for_step(10)
        if not controller_lives:
            controller.kill()
        code, _, err = place.call("down", "small", "--gently", "--json")
        assert code == 0, err
        out, words = controller.communicate(timeout=60)
    if controller_lives:
        assert controller.returncode == 130, words
        report = json.loads(out)
        assert (report["result"], len(report["placements"])) == ("taken_down", 1)
    assert newest(place) >= 10
    assert place.nodes() == []


def test_an_autodl_wallet_that_runs_out_moves_the_job_without_losing_a_step(place: Place, tmp_path: Path) -> None:
    machines = Machines(tmp_path / "machines")
    box = Box(machines)
    place.environ["AUTODL_TOKEN"] = box.token
    try:
        box.emulator.set_account(assets=2_500)  # an hour and a bit, in 1/1000 yuan
        home = {"autodl": {"base_url": box.url, "mode": "pro", "gpus": ["4090D"], "image_uuid": IMAGE, "wait": "0s"}}
        config = place.config(steps=250, pace=0.1, primary=home, resources={"gpus": ["RTX 4090"]})
        with place.start("run", str(config), "--json") as controller:
            place.wait_for_step(3)
            box.emulator.set_account(assets=1_000)
            said = tmp_path.glob
            wait(lambda: any("runs out" in log.read_text() for log in said("machines/**/node/log.txt")), "the advice")
            place.wait_for_step(newest(place) + 1)
            box.emulator.set_account(assets=60)
            out, err = controller.communicate(timeout=110)
    finally:
        box.stop()
        machines.stop_all()
    report = json.loads(out)
    assert (controller.returncode, report["result"]) == (0, "completed"), err
    first, second = report["placements"]
    assert (first["cloud"], first["reason"], first["cause"]) == ("autodl", "notice: the balance runs out", "notice")
    assert second["cloud"] == "local"
    assert (report["steps_lost"], report["leaked"]) == (0, [])
    assert [attempt["failure"] for attempt in second["attempts"]] == ["quota"]
