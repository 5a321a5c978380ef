"""What the command says of how well it uses the machine, and what it would change: a file that it may write."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

LONGEST = 16 * 1024
NUMBERS = (
    "loader_wait",
    "step_s",
    "gpu_busy",
    "gpu_memory_used_bytes",
    "gpu_memory_total_bytes",
    "cores_used",
    "cores",
    "memory_used_bytes",
    "memory_limit_bytes",
    "disk_read_bytes_per_s",
)
"""What goes on into the heartbeat, the events and the metrics. Shares are from 0 to 1."""
_LONGEST_TEXT = 400


def read(path: Path) -> dict[str, Any] | None:
    """Return ``advice``, ``rule``, ``change`` and the numbers, as far as they are what they should be. Never raises."""
    try:
        with path.open("rb") as file:
            raw = json.loads(file.read(LONGEST))
        advice, change = _text(raw.get("advice")), raw.get("change")
        found: dict[str, Any] = {name: raw[name] for name in NUMBERS if _is_number(raw.get(name))}
        rule = _text(raw.get("rule"))
    except (OSError, ValueError, AttributeError, RecursionError):  # not there, half written, or no object
        return None
    if isinstance(change, dict):
        found["change"] = {_text(name): new for name, new in list(change.items())[:8] if _is_number(new)}
    return {"rule": rule, "advice": advice, **found} if advice else found or None


def _text(value: object) -> str:
    """Return a text on one line, of a length that a heartbeat can bear."""
    text = value if isinstance(value, str) else ""
    return "".join(letter if letter.isprintable() else " " for letter in text)[:_LONGEST_TEXT]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
