"""What follows when a machine has come to its end: another one, at once, later, or none. Pure, from what is recorded.

The rules are in docs/operations.md. What an earlier release recorded is judged by its own rules (``Watched.rules``), so
that a run which is taken up after an upgrade goes the way that it went.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from provisioner.controller.daily import is_daily
from provisioner.controller.records import Placement, Watched
from provisioner.model import Ending, Offer

RULES: Final = 1
"""What this release records in ``Watched.rules``."""
MOST_IN_VAIN: Final = 3
MOST_SILENT: Final = 6
"""Silence may be the network's fault, or the cloud's, so it counts for less."""
HUNG: Final = "hung"
"""What a node calls the end of a command that made no step any more."""
HOME: Final = "home"
"""What a node calls its end when its successor at home takes over."""
TAKEN_BY_NOTICE: Final = frozenset({"notice", "lost_gpu"})
"""What a node calls an end that is its cloud's doing."""
AVOIDED_S: Final = 3600.0
"""How long a place that a machine was lost in comes after all others, in seconds: what took one machine takes the next,
and spot capacity that runs short in a zone stays so for longer than a machine needs to start."""
QUICK_S: Final = 600.0
"""A machine that ends sooner, and got the job no further, makes the next one wait."""
FIRST_HOLD_S, MOST_HOLD_S = 30.0, 900.0
HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Hold:
    """The next machine is not asked for before ``until``, in Unix seconds."""

    until: float
    why: str


def hopeless(past: Sequence[Placement]) -> str:
    """Say why no further machine is tried, or nothing: it is the job, not the machines."""
    reason = past[-1].watched.reason
    if _fruitless(past) >= MOST_IN_VAIN:
        return f"{MOST_IN_VAIN} machines in a row trained no step: {reason}"
    if _stuck(past, MOST_IN_VAIN, lambda one: one.cause == HUNG, committed=True):
        return f"{MOST_IN_VAIN} machines in a row hung and got no further: {reason}"
    if _stuck(past, MOST_IN_VAIN, lambda one: _blamed(one) and one.ending is not Ending.LOST):
        return f"{MOST_IN_VAIN} machines in a row ended and got no further: {reason}"
    if _stuck(past, MOST_SILENT, _blamed):
        return f"{MOST_SILENT} machines in a row were lost and got no further: {reason}"
    return ""


def _stuck(past: Sequence[Placement], count: int, like: Callable[[Watched], bool], *, committed: bool = False) -> bool:
    """Say whether the last machines ended alike, none got further than the first of them, and none saved anything new.

    ``committed``: they may have saved. What strikes at random also leaves a machine behind the one before it, but not
    without a commit for long.
    """
    last = [placement.watched for placement in past[-count:]]
    steps = [watched.last_step or 0 for watched in last]
    saved = len({watched.restored_step for watched in last[1:]}) > 1
    return len(last) == count and all(map(like, last)) and max(steps) <= steps[0] and (committed or not saved)


def _fruitless(past: Sequence[Placement]) -> int:
    """Count the machines at the end of the list that trained no step, without those that their cloud took."""
    count = 0
    for placement in reversed(past):
        if placement.watched.first_step_at is not None:
            break
        count += not (placement.watched.taken or given_back(placement.watched))
    return count


def _blamed(watched: Watched) -> bool:
    """Say whether the job itself may be the reason: its cloud did not take the machine."""
    return watched.cause == HUNG or (watched.rules >= 1 and not watched.taken and not given_back(watched))


def given_back(watched: Watched) -> bool:
    """Say whether we gave the machine back while it trained: the job went home, or rests until the next day."""
    return watched.cause == HOME or is_daily(watched.reason)


def taken(ending: Ending, cause: str, *, over: bool) -> bool:
    """Say whether a cloud took the machine. ``over``: it says itself that the machine is gone, or on its way out."""
    return (ending is Ending.LOST and over) or (ending is Ending.STOPPED and cause in TAKEN_BY_NOTICE)


def lost_lately(past: Sequence[Placement], now: float) -> tuple[Offer, ...]:
    """Return what was lost within the last hour, the newest first: it comes last in the next search."""
    found: list[Offer] = []
    for number, placement in enumerate(reversed(past)):
        watched = placement.watched
        known = watched.rules >= 1 and not given_back(watched) and now - watched.at < AVOIDED_S
        if known or (number == 0 and watched.rules < 1):
            found.append(placement.node.offer)
    return tuple(dict.fromkeys(found))


def hold(past: Sequence[Placement], per_hour: int) -> Hold | None:
    """Say until when the next machine waits; None: it need not. ``per_hour``: most new machines within an hour."""
    found = [one for one in (_limit(past, per_hour), _back_off(past)) if one is not None]
    return max(found, key=lambda one: one.until, default=None)


def _limit(past: Sequence[Placement], per_hour: int) -> Hold | None:
    begun = [after.node.claimed_at for before, after in pairwise(past) if not given_back(before.watched)]
    if len(begun) < per_hour:
        return None
    return Hold(begun[-per_hour] + HOUR_S, f"{per_hour} new machines within an hour (policy.recoveries_per_hour)")


def _back_off(past: Sequence[Placement]) -> Hold | None:
    count = 0
    while count < len(past) and _quick(past[: len(past) - count]):
        count += 1
    if count < 2:
        return None
    wait = min(FIRST_HOLD_S * 2.0 ** min(count - 2, 16), MOST_HOLD_S)
    return Hold(past[-1].released.at + wait, f"{count} machines in a row ended soon and got the job no further")


def _quick(past: Sequence[Placement]) -> bool:
    """Say whether the last of these machines ended soon, and with no step beyond those of the others."""
    *before, last = past
    best = max((one.watched.last_step or 0 for one in before), default=0)
    soon = last.watched.at - last.node.claimed_at < QUICK_S
    return soon and (last.watched.last_step or 0) <= best and not given_back(last.watched)
