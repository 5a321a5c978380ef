"""How much time a signal leaves. Pure: the handlers are set where the process starts."""

from __future__ import annotations

from collections.abc import Mapping
from signal import Signals

STOPPING = (Signals.SIGTERM, Signals.SIGINT, Signals.SIGUSR1)
"""What asks the node for its end. Schedulers send SIGUSR1 ahead of time, as Slurm does with ``--signal``."""
GRACE_S = 25.0
"""What a signal leaves when nobody says how much, in seconds. ``FAILOVER_GRACE_S`` sets another."""
AHEAD_S = 900.0
"""A SIGUSR1 that comes earlier than this before the end of a Slurm job is about something else: a preemption."""


def grace_s(environ: Mapping[str, str]) -> float:
    """Return ``FAILOVER_GRACE_S``, or the default where it is no positive number."""
    return _number(environ, "FAILOVER_GRACE_S") or GRACE_S


def seconds_left(number: Signals, environ: Mapping[str, str], now: float) -> float:
    """Return how long the machine or the allocation stays after a signal, in seconds. ``now`` is Unix time.

    ``FAILOVER_GRACE_S`` counts first; then, for SIGUSR1, the end of the Slurm job, if it is near.
    """
    end = _number(environ, "SLURM_JOB_END_TIME")
    if number == Signals.SIGUSR1 and end is not None and _number(environ, "FAILOVER_GRACE_S") is None:
        left = end - now
        if 0 < left <= AHEAD_S:
            return left
    return grace_s(environ)


def _number(environ: Mapping[str, str], name: str) -> float | None:
    try:
        value = float(environ[name])
    except (KeyError, ValueError):
        return None
    return value if 0 < value < float("inf") else None
