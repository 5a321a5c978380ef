"""``done.json``: the node's last word on the job, read by the controller."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from provisioner.checkpoint import layout
from provisioner.checkpoint.store import Store


@dataclass(frozen=True, slots=True)
class Done:
    """``exit_code`` is the command's, negative for a signal; ``result`` is ``completed`` or ``failed``.

    ``cause`` is one of ``verdict.Cause``.
    """

    epoch: int
    exit_code: int
    final_step: int | None
    time: float
    result: str
    reason: str
    cause: str = ""


def write(store: Store, done: Done) -> None:
    """Write it. Raises CloudError."""
    store.put(layout.DONE, json.dumps(asdict(done)).encode())


def read(store: Store) -> Done | None:
    """Read it; None when there is none, or one that this release cannot read. Raises CloudError."""
    data = store.get(layout.DONE)
    if data is None:
        return None
    try:
        raw = json.loads(data)
        return Done(
            epoch=int(raw["epoch"]),
            exit_code=int(raw["exit_code"]),
            final_step=None if raw["final_step"] is None else int(raw["final_step"]),
            time=float(raw["time"]),
            result=str(raw["result"]),
            reason=str(raw["reason"]),
            cause=str(raw.get("cause") or ""),
        )
    except (ValueError, KeyError, TypeError):
        return None
