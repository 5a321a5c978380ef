"""A day's budget in a drill: the job saves, gives its machine back, rests, and goes on when there is money again."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from provisioner.sandbox.drill import Drill
from provisioner.telemetry.events import read

SCENARIO = """
name: day-budget
description: A day's budget over all jobs is lowered to a minute more of the machine, and raised when the job rests.
autodl:
  stock:
    - {region: westDC3, gpu: RTX 4090D, idle: 1}
config:
  primary:
    autodl: {mode: elastic, regions: [westDC3]}
expect: {exit_code: 0}
"""
PRICE = 1.88
"""Yuan an hour of that card in the sandbox."""
SECONDS = 60
"""For how long the lowered budget lasts."""


@pytest.mark.thorough
def test_at_a_day_budget_the_job_saves_rests_without_a_machine_and_goes_on_without_losing_a_step(tmp_path: Path):
    scenario = tmp_path / "day.yaml"
    scenario.write_text(SCENARIO)
    folder = tmp_path / "drill"
    limits = folder / "state/limits.yaml"
    limits.parent.mkdir(parents=True)
    limits.write_text("budget_per_day: 100 CNY\n")
    log, done = folder / "state/jobs/digits/events.jsonl", threading.Event()

    def when(kind: str) -> float | None:
        """Wait for the first such event and return its time; None when the drill is over."""
        while not done.wait(0.2):
            if (found := next((event for event in read(log) if event["kind"] == kind), None)) is not None:
                return float(found["time"])
        return None

    def lower_it_and_raise_it() -> None:
        claimed, trains = when("claimed"), when("heartbeat")
        if claimed is not None and trains is not None:
            limits.write_text(f"budget_per_day: {PRICE * (trains - claimed + SECONDS) / 3600:.6f} CNY\n")
        if when("resting") is not None:
            limits.write_text("budget_per_day: 100 CNY\n")

    thread = threading.Thread(target=lower_it_and_raise_it)
    thread.start()
    try:
        report: dict[str, Any] = Drill(scenario, directory=folder, provider="stand-in", step_seconds=2.0).run()
    finally:
        done.set()
        thread.join()
    first, second = report["placements"]
    assert (first["ended"], first["reason"]) == ("stopped", "notice: the day's budget of all jobs")
    assert second["restored_step"] == first["last_step"], "the last commit holds every step"
    assert (report["result"], report["steps_lost"], report["model_identical"]) == ("completed", 0, True)
    kinds = ["final" if event.get("final") else event["kind"] for event in read(log)]
    assert kinds.index("warned") < kinds.index("final") < kinds.index("released") < kinds.index("resting")
    assert kinds.count("resting") == 1
    assert json.dumps(report["leaked"]) == "[]"
