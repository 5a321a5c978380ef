"""A drill whose job is in the queue: AutoDL and AWS in a box, Terraform, and servers that are killed with -9."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from provisioner.sandbox.drill import Drill
from provisioner.telemetry.events import read

DEADLY_CLAIMS = (1, 2)
"""After so many machines a server is killed."""


def claimed(environ: Mapping[str, str]) -> int:
    logs = Path(environ["FAILOVER_STATE_DIR"]).glob("jobs/*/events.jsonl")
    return sum(event["kind"] == "claimed" for log in logs for event in read(log))


def served(config: Path, environ: Mapping[str, str], say: Callable[[str], None]) -> dict[str, Any]:
    """Submit the job and serve it to its end, over the death of two controllers."""

    def call(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "provisioner.cli", *arguments]
        return subprocess.Popen(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    with call("submit", str(config)) as submit:
        assert submit.wait() == 0
    for claims in DEADLY_CLAIMS:
        with call("serve", "--once") as server:
            while claimed(environ) < claims:
                assert server.poll() is None
                time.sleep(0.05)
            server.kill()
            say(server.communicate()[0])
    with call("serve", "--once") as server:
        say(server.communicate(timeout=240)[0])
    assert server.returncode == 0
    (report,) = Path(environ["FAILOVER_STATE_DIR"]).glob("jobs/*/report.json")
    found: dict[str, Any] = json.loads(report.read_text())
    return found


@pytest.mark.slow
@pytest.mark.long
def test_a_drill_in_the_queue_ends_as_any_other_over_two_dead_servers(tmp_path: Path) -> None:
    words: list[str] = []
    drill = Drill(
        Path("examples/drills/default.yaml"),
        directory=tmp_path,
        provider="stand-in",
        step_seconds=0.2,
        say=words.append,
        controller=served,
    )
    report = drill.run()
    story = "\n".join(words)
    assert (report["result"], report["leaked"]) == ("completed", []), story
    assert report["model_identical"], story
    epochs = [placement["epoch"] for placement in report["placements"]]
    assert epochs == sorted(set(epochs)), story
    assert {placement["cloud"] for placement in report["placements"]} >= {"aws"}, story
    assert "taken over from" in story
