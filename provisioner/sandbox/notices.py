"""What became of the notices that a drill gave: when the node heard of each, and what it committed in time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_LEAVES = re.compile(r"^rank (\d+) leaves at step (\d+)$", re.MULTILINE)


def heard(machines: Path, given: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each notice among a scenario's events; times are Unix seconds of this host.

    ``deadline`` is when the machine was to go, ``heard_at`` when its node had the notice or a signal, ``committed_at``
    and ``step`` the last commit before the deadline; None where there was none. ``ranks`` says at which step each
    process of the training left, where the training says it.
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
                "ranks": _ranks(machines / str(event["machine"])),
            }
        )
    return rows


def _ranks(machine: Path) -> dict[str, int]:
    """Read at which step each process left; empty where a training does not say so."""
    found: dict[str, int] = {}
    for path in machine.rglob("node/log.txt"):
        found.update((rank, int(step)) for rank, step in _LEAVES.findall(path.read_text("utf-8", "replace")))
    return found


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
