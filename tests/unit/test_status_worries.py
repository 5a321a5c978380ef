"""What ``failover status`` says of a job whose machine is suspected, or whose next one waits; and when no longer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from provisioner.cli.status import status
from provisioner.controller.directory import JobDirectory, JobRecord

SUSPECTED = ("suspected", {"epoch": 1, "reason": "no heartbeat for 50 s"})
HELD = ("held_back", {"reason": "12 new machines within an hour", "seconds": 900})
GOT = ("claimed", {"epoch": 1, "node": "i-1", "offer": "aws/b"})
BEAT = ("heartbeat", {"epoch": 1, "step": 5})
ENDED = ("ended", {"epoch": 1, "node": "i-1"})


@pytest.mark.parametrize(
    ("events", "suspected", "held"),
    [
        ([GOT, BEAT], None, None),
        ([GOT, BEAT, SUSPECTED], "no heartbeat for 50 s", None),
        ([GOT, SUSPECTED, BEAT], None, None),
        ([GOT, BEAT, SUSPECTED, ENDED], None, None),
        ([GOT, SUSPECTED, ENDED, HELD], None, "12 new machines within an hour"),
        ([GOT, HELD, ("asked", {})], None, None),
        ([GOT, BEAT, SUSPECTED, HELD, ("begin", {})], None, None),
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
    assert "digits: no controller runs, and this is how it was at " in words
    assert ("digits: its machine is suspected: no heartbeat for 50 s" in words) is (suspected is not None)
    assert ("digits: its next machine waits: 12 new machines" in words) is (held is not None)


AWAY, HOME = {"epoch": 2, "node": "i-2", "offer": "aws/b"}, {"epoch": 3, "node": "pro-3", "offer": "autodl/a"}
WAY_HOME = [
    *(("claimed", AWAY), ("heartbeat", {"epoch": 2, "step": 50, "phase": "training"}), ("claimed", HOME)),
    ("heartbeat", {"epoch": 3, "step": 41, "phase": "restoring"}),
]


@pytest.mark.parametrize(
    ("more", "where", "step"),
    [
        ([], "aws/b", 50),  # the fallback trains, and the machine at home stands by
        ([("heartbeat", {"epoch": 2, "step": 51}), ("heartbeat", {"epoch": 3, "step": 42})], "aws/b", 51),
        ([("stood_by", HOME), ("released", HOME), ("heartbeat", {"epoch": 2, "step": 60})], "aws/b", 60),  # of no use
        ([("stood_by", HOME), ("surplus", HOME), ("ended", AWAY), ("released", AWAY), ("finished", {})], "aws/b", 50),
        ([("hand_over", {}), ("ended", AWAY)], "autodl/a", 41),
        ([("ended", AWAY), ("released", AWAY), ("ended", HOME), ("released", HOME)], "autodl/a", 41),
    ],
)
@pytest.mark.parametrize("back", [0.0, 3600.0])
def test_with_two_machines_that_one_is_shown_which_trains_also_when_the_clock_was_put_back(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    more: list[tuple[str, dict[str, object]]],
    where: str,
    step: int,
    back: float,
) -> None:
    monkeypatch.setenv("FAILOVER_STATE_DIR", str(tmp_path))
    directory = JobDirectory(tmp_path, "digits")
    directory.create()
    directory.remember(JobRecord("digits", "1a2b3c4d", 1, open=True, config_path="f.yaml", started_at=0.0))
    events = [HELD, *WAY_HOME, *more]
    lines = [json.dumps({"time": 9000.0 - back * (at > 0), "kind": kind, **of}) for at, (kind, of) in enumerate(events)]
    (directory.path / "events.jsonl").write_text("\n".join([*lines, json.dumps({"time": 0, "kind": "asked"})]) + "\n")
    (row,) = json.loads(CliRunner().invoke(status, ["--json"], standalone_mode=False).stdout)
    assert (row["where"], row["step"], row["held_back"]) == (where, step, None)
