"""How long a job stands still when its machine goes: `python benchmarks/recovery.py [runs]` prints one JSON object.

It holds drills: the real controller, templates, start script and node against the cloud in a box. Each machine of a job
at EC2 (spot) is taken in turn, `runs` (5) times: `lost` terminates it without a word, `notice` announces the end 10 s
before. The time counts from that moment to the first step that is trained after the restore, so it holds one step of
0.2 s. Where it goes, in seconds, medians:

    detect   until the controller knows (notice: the node hears, saves, commits and says so)
    release  until the cloud has confirmed the release
    claim    until another machine is ours; the sandbox's EC2 takes a second to start one
    boot     until the new node has taken its epoch: the start script and Python are real, the machine is a process
    restore  until the checkpoint and the working directory are on the disk
    start    until the command has trained its first step: Python and numpy, in the example
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from provisioner.sandbox.client import open_box
from provisioner.sandbox.drill import JOB, Drill
from provisioner.sandbox.drill_controller import run_controller
from provisioner.telemetry import events

WAYS: Mapping[str, dict[str, Any]] = {
    "lost": {"take_machine": {"cloud": "aws"}},
    "notice": {"notice": {"seconds": "10s"}},
}
STEP_S = 0.2
STEPS_BETWEEN = 13
PHASES = ("detect", "release", "claim", "boot", "restore", "start")


def main() -> int:
    """Hold a drill for each way and print."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    found = {way: _summary(_drill(do, runs)) for way, do in WAYS.items()}
    print(json.dumps({"runs": runs, "step_s": STEP_S, "ways": found}, indent=2))
    return 0


def _summary(recoveries: list[dict[str, float]]) -> dict[str, Any]:
    whole = sorted(sum(one.values()) for one in recoveries)
    phases = {phase: round(statistics.median(one[phase] for one in recoveries), 2) for phase in PHASES}
    return {"median_s": round(statistics.median(whole), 2), "slowest_s": round(whole[-1], 2), "phases_s": phases}


def _drill(do: dict[str, Any], runs: int) -> list[dict[str, float]]:
    """Let it happen ``runs`` times to one job, and return the phases of each."""
    with tempfile.TemporaryDirectory(prefix="failover-bench-") as scratch:
        folder = Path(scratch)
        scenario = folder / "scenario.yaml"
        happens = [
            {"when": {"epoch": number, "step": number * STEPS_BETWEEN, "committed": 1}, "do": do}
            for number in range(1, runs + 1)
        ]
        content = {
            "name": "recovery",
            "step_seconds": STEP_S,
            "autodl": {"stock": []},
            "events": happens,
            "config": {"policy": {"failback": "never"}},
        }
        scenario.write_text(yaml.safe_dump(content), encoding="utf-8")
        drill = Drill(scenario, say=lambda line: print(line, file=sys.stderr))
        with open_box(folder / "cloud", scenario) as box:
            environ = box.environ(os.environ, state=folder / "state")
            report = run_controller(drill.write_config(folder, box), environ, drill.say)
            state = box.state()
        if report["result"] != "completed" or len(report["placements"]) != runs + 1:
            raise SystemExit(f"the drill ended otherwise: {report['result']}, {len(report['placements'])} placements")
        begins = [event["time"] for event in state["events"]]
        said = list(events.read(folder / "state/jobs" / JOB / "events.jsonl"))
        machines = folder / "cloud/machines"
        nodes = [_node(machines / placement["node"]) for placement in report["placements"]]
        return [_phases(begins[number - 1], number, report, said, nodes[number]) for number in range(1, runs + 1)]


def _node(machine: Path) -> list[dict[str, Any]]:
    """Return the events of a machine's node."""
    (path,) = machine.rglob("node/events.jsonl")
    return list(events.read(path))


def _phases(
    begin: float, epoch: int, report: dict[str, Any], said: list[dict[str, Any]], node: list[dict[str, Any]]
) -> dict[str, float]:
    """Return how long each phase of the change from ``epoch`` to the next took."""
    own = {event["kind"]: event["time"] for event in reversed(node)}
    after = report["placements"][epoch]
    moments = [
        begin,
        _time(said, "ended", epoch),
        next(event["time"] for event in said if event["kind"] == "released" and event["epoch"] == epoch),
        _time(said, "claimed", epoch + 1),
        own["owner"],
        own["restored"],
        after["first_step_at"],
    ]
    return {phase: moments[place + 1] - moments[place] for place, phase in enumerate(PHASES)}


def _time(said: list[dict[str, Any]], kind: str, epoch: int) -> float:
    return float(next(event["time"] for event in said if event["kind"] == kind and event.get("epoch") == epoch))


if __name__ == "__main__":
    sys.exit(main())
