"""The event log: what listens to it, and what it survives."""

from __future__ import annotations

from provisioner.telemetry.events import EventLog, read


def test_a_listener_that_has_gone_away_ends_nothing(tmp_path):
    def gone(_event):
        raise BrokenPipeError

    log = EventLog(tmp_path / "events.jsonl", also=gone)
    log.emit("begin")
    log.emit("claim")
    assert [event["kind"] for event in read(log.path)] == ["begin", "claim"]
    assert log.lost == 2
