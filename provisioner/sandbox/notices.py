"""What became of the notices that a drill gave: when the node heard of each, and what it committed in time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def heard(machines: Path, given: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each notice among a scenario's events; times are Unix seconds of this host.

    ``deadline`` is when the machine was to go, ``heard_at`` when its node had the notice or a signal, ``committed_at``
    and ``step`` the last commit before the deadline; None where there was none.
    """
    rows = []
    for event in given:
        if (seconds := event.get("notice_s")) is None:
            continue
        begin = float(event["time"])
        deadline = begin + float(seconds)
        told = [entry for entry in _events(machines / str(event["machine"])) if float(entry["time"]) <= deadline]
        heard_at = [entry["time"] for entry in told if entry["kind"] == "stopping" and float(entry["time"]) >= begin]
        commits = [entry for entry in told if entry["kind"] == "committed"]
        last = commits[-1] if commits else {}
        rows.append(
            {
                "machine": event["machine"],
                "given_at": begin,
                "deadline": deadline,
                "heard_at": heard_at[0] if heard_at else None,
                "committed_at": last.get("time"),
                "step": last.get("step"),
            }
        )
    return rows


def _events(machine: Path) -> list[dict[str, Any]]:
    """Read what the node of a machine wrote down; a line that was cut off by the end is left out."""
    found = []
    for path in machine.rglob("node/events.jsonl"):
        for line in path.read_text("utf-8", "replace").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return sorted(found, key=lambda entry: float(entry["time"]))
