"""What a node says of its own end, in ``done.json``: it comes before all that others think of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from provisioner.controller.records import Watched
from provisioner.model import Ending


def settled(watched: Watched, done: Mapping[str, object] | None) -> Watched:
    """Return how a placement ended, when its machine is gone: its node may have been done since it was judged."""
    if done is None or watched.ending in {Ending.COMPLETED, Ending.FAILED}:
        return watched
    ending, reason = by_its_word(done)
    step, cause = _integer(done.get("final_step")), str(done.get("cause") or "")
    return replace(
        watched,
        ending=ending,
        reason=reason,
        last_step=watched.last_step if step is None else step,
        exit_code=_integer(done.get("exit_code")),
        cause=cause,
    )


def by_its_word(done: Mapping[str, object]) -> tuple[Ending, str]:
    """Return how a placement ended by the ``done.json`` of its node."""
    completed = done.get("result") == "completed"
    return (Ending.COMPLETED if completed else Ending.FAILED), str(done.get("reason") or "")


def _integer(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) else None
