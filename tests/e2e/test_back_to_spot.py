"""A drill in which a job trains on demand under a deadline, and goes back to spot beside the machine that trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.sandbox.drill import Drill
from provisioner.telemetry.events import read

SCENARIO = """
name: back-to-spot
description: No card at AutoDL. The job begins on demand, and its deadline leaves the time to go to spot.
autodl:
  stock: []
config:
  job: {estimate: {time: 10h}}
  fallback:
    - {aws: {regions: [us-east-1], market: on-demand}}
    - {aws: {regions: [us-west-2], market: spot, max_price: 0.3 USD}}
  policy: {deadline: 11h, failback: {again: 5s}}
expect: {exit_code: 0}
"""


@pytest.mark.slow
@pytest.mark.long
def test_a_job_on_demand_goes_to_spot_where_the_deadline_bears_it_without_losing_a_step(tmp_path: Path) -> None:
    scenario = tmp_path / "spot.yaml"
    scenario.write_text(SCENARIO)
    report = Drill(scenario, directory=tmp_path / "drill", provider="stand-in", step_seconds=1.0).run()
    first, second = report["placements"]
    assert (first["region"], first["market"], first["ended"]) == ("us-east-1", "on-demand", "stopped")
    assert (second["region"], second["market"], second["ended"]) == ("us-west-2", "spot", "completed")
    assert second["claimed_at"] < first["ended_at"], "the one on demand trains on until spot is ready"
    assert (report["result"], report["steps_lost"], report["model_identical"]) == ("completed", 0, True)
    assert report["leaked"] == []
    told = [event for event in read(tmp_path / "drill/state/jobs/digits/events.jsonl") if event["kind"] == "homeward"]
    assert told[0]["reason"].startswith("back to spot (aws/us-west-2/")
