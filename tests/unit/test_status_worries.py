"""What ``failover status`` says of a job whose machine is suspected, or whose next one waits; and when no longer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from provisioner.cli.status import status
from provisioner.controller.directory import JobDirectory, JobRecord

SUSPECTED = ("suspected", {"reason": "no heartbeat for 50 s"})
HELD = ("held_back", {"reason": "12 new machines within an hour", "seconds": 900})
BEAT = ("heartbeat", {"epoch": 1, "step": 5})


@pytest.mark.parametrize(
    ("events", "suspected", "held"),
    [
        ([BEAT], None, None),
        ([BEAT, SUSPECTED], "no heartbeat for 50 s", None),
        ([SUSPECTED, BEAT], None, None),
        ([BEAT, SUSPECTED, ("ended", {})], None, None),
        ([SUSPECTED, ("ended", {}), HELD], None, "12 new machines within an hour"),
        ([HELD, ("asked", {})], None, None),
        ([BEAT, SUSPECTED, HELD, ("begin", {})], None, None),
    ],
)
def test_a_worry_is_shown_until_it_is_over(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    events: list[tuple[str, dict[str, object]]],
    suspected: str | None,
    held: str | None,
) -> None:
    monkeypatch.setenv("FAILOVER_STATE_DIR", str(tmp_path))
    directory = JobDirectory(tmp_path, "digits")
    directory.create()
    directory.remember(JobRecord("digits", "1a2b3c4d", 1, open=True, config_path="f.yaml", started_at=0.0))
    lines = [json.dumps({"time": 100.0 + at, "kind": kind, **more}) for at, (kind, more) in enumerate(events)]
    (directory.path / "events.jsonl").write_text("\n".join(lines) + "\n")
    shown = CliRunner().invoke(status, ["--json"], standalone_mode=False)
    (row,) = json.loads(shown.stdout)
    assert (row["suspected"], row["held_back"]) == (suspected, held)
    words = CliRunner().invoke(status, [], standalone_mode=False).stderr
    assert ("digits: its machine is suspected: no heartbeat for 50 s" in words) is (suspected is not None)
    assert ("digits: its next machine waits: 12 new machines" in words) is (held is not None)
