"""What `failover status` says while a machine is on its way to its first step."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from provisioner.cli.status import status
from provisioner.controller.directory import JobDirectory, JobRecord
from provisioner.telemetry.events import EventLog

MIB = 2**20


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, dict[str, Any]]]:
    """Let a heartbeat of the running job be heard, and ask for its status twice: as text and as JSON."""
    monkeypatch.setenv("FAILOVER_STATE_DIR", str(tmp_path))
    directory = JobDirectory(tmp_path, "digits")
    directory.create()
    directory.remember(JobRecord(name="digits", uid="1a2b3c4d", run=1, config_path="", started_at=0.0, open=True))
    events = EventLog(directory.path / "events.jsonl")
    events.emit("begin", job="digits", uid="1a2b3c4d", epoch=1)
    events.emit("claimed", epoch=1, node="i-1", offer="aws/us-east-1a")

    def ask(epoch: int = 1, **heartbeat: Any) -> tuple[str, dict[str, Any]]:
        events.emit("heartbeat", epoch=epoch, **heartbeat)
        with directory.lock():
            text, found = (CliRunner().invoke(status, options, catch_exceptions=False) for options in ([], ["--json"]))
        return text.stdout, json.loads(found.stdout)[0]

    return ask


def test_the_pull_of_an_image_is_told_by_its_layers(say: Callable[..., Any]) -> None:
    text, found = say(phase="pulling", image={"layers": 3, "of": 12})
    assert "digits: the image is being pulled: 3 of 12 layers\n" in text
    assert (found["phase"], found["progress"]) == ("pulling", {"image": {"layers": 3, "of": 12}})
    text, _ = say(phase="pulling", image={"layers": 0, "of": 0})
    assert "digits: the image is being pulled\n" in text


def test_checkpoint_and_data_are_told_until_the_command_runs(say: Callable[..., Any]) -> None:
    here = {"restore": {"bytes": 3 * MIB, "of": 12 * MIB}, "data": {"bytes": MIB // 2, "of": 4096 * MIB}}
    text, found = say(phase="restoring", **here)
    assert "digits: 3.0 of 12.0 MiB of the checkpoint are here\n" in text
    assert "digits: 0.5 of 4096.0 MiB of the data are here\n" in text
    assert found["progress"] == here
    text, _ = say(phase="training", **here)
    assert "are here" not in text


def test_a_heartbeat_of_the_machine_before_says_nothing_of_this_one(say: Callable[..., Any]) -> None:
    text, found = say(epoch=0, phase="restoring", restore={"bytes": 1, "of": 2})
    assert "are here" not in text
    assert (found["phase"], found["progress"]) == (None, {})
