"""An operator's desk: a state directory with one job's run in it, and the command ``failover sweep``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from provisioner.cli.command import run as failover
from provisioner.controller.directory import JobDirectory, JobRecord
from provisioner.telemetry.events import EventLog
from tests import rooms


class Desk:
    """The job's first run is open, and has begun epoch 1. ``root / "job"`` is its folder, where rooms keep stacks."""

    def __init__(self, root: Path, file: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys
        self.directory = JobDirectory(root / "state", rooms.JOB.name)
        self.directory.create()
        (root / "job").symlink_to(self.directory.path)
        self.file = self.directory.path / "failover.1.yaml"
        self.file.write_text(file)
        self.events = EventLog(self.directory.path / "events.jsonl")
        self.events.emit("begin", job=rooms.JOB.name, uid=rooms.JOB.uid, epoch=1)
        self.remember(is_open=True)

    def remember(self, *, is_open: bool) -> None:
        self.directory.remember(JobRecord(rooms.JOB.name, rooms.JOB.uid, 1, is_open, str(self.file), 0.0))

    def sweep(self, *options: str) -> tuple[int, dict[str, Any], str]:
        """Run the command; return its exit code, its report and its words."""
        code = failover(["sweep", "--json", "--older", "0s", *options])
        said = self.capsys.readouterr()
        return code, json.loads(said.out or "{}"), said.err

    def kinds(self, *options: str) -> set[str]:
        """Return the kinds of the orphans."""
        return {one["kind"] for one in self.sweep(*options)[1]["things"] if one["standing"] == "orphan"}
