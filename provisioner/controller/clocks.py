"""How far a machine's clock is ahead of ours. Its heartbeats carry its own time, and a read comes after the write.

Our time of the read less the heartbeat's own time is the delay less what the clock is ahead. No delay is negative, so
the least of several such lags comes near to the truth, and never claims more than that the machine is ahead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from provisioner.checkpoint import layout
from provisioner.checkpoint.store import Store

WINDOW: Final = 12
"""So many heartbeats count, the newest: a machine's clock may be put right while it runs."""
ENOUGH: Final = 2
SLACK_S: Final = 2.0
"""What write and read may take beyond the pause between two heartbeats, in seconds. A clock that is behind by less than
both cannot be told from that delay, and counts as right."""
TOLD_S: Final = 5.0
"""An operator is told of a clock that is wrong by more, in seconds."""
STORE_SLACK_S: Final = 10.0
"""A heartbeat whose own time is so near to the store's is not corrected: the write took it, or the store rounds."""


@dataclass(frozen=True, slots=True)
class NodeClock:
    """The newest lags, in seconds."""

    lags: tuple[float, ...] = ()

    def heard(self, lag_s: float, *, fresh: bool) -> NodeClock:
        """Return the clock with one more lag. One that is not ``fresh`` may have lain there for any time."""
        if not fresh and lag_s >= 0:
            return self
        return NodeClock((*self.lags, lag_s)[-WINDOW:])

    def ahead_s(self, heartbeat_s: float) -> float | None:
        """Return by how many seconds the machine is ahead; negative: behind; None: not known yet."""
        ahead = -min(self.lags, default=0.0)
        if ahead > 0:
            return ahead
        if len(self.lags) < ENOUGH:
            return None
        return ahead if -ahead > heartbeat_s + SLACK_S else 0.0


def age_s(store: Store, epoch: int, now: float) -> float | None:
    """Return how long ago an epoch's heartbeat was written, None where there is none. Raises CloudError.

    It goes by the store's clock, not the machine's. Ours agrees with that: stores refuse who is 15 minutes off.
    """
    found = store.look(layout.heartbeat(epoch))
    return None if found is None else now - found.modified


def ahead_of_store(store: Store, epoch: int) -> float:
    """Return by how many seconds the machine of an epoch is ahead of the store's clock. Raises CloudError."""
    found, beat = store.look(layout.heartbeat(epoch)), _object(store.get(layout.heartbeat(epoch)))
    at = beat.get("time")
    if found is None or not isinstance(at, int | float):
        return 0.0
    ahead = float(at) - found.modified
    return ahead if abs(ahead) > STORE_SLACK_S else 0.0


def _object(data: bytes | None) -> Mapping[str, object]:
    try:
        value = json.loads(data or b"{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
