"""Random schedules of what goes wrong, each a function of its seed alone."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from typing import Any

OFFICIAL_EVERY = 20
"""One in so many schedules has the official AWS provider; the others have the quick stand-in."""
ATTRITION = ("controller", "node", "terraform", "machine", "plug", "clouds")
_STRUCK = ("controller", "controller", "controller", "node", "terraform", "machine", "clouds")
_JUMPS_S = (90.0, 600.0, 3600.0, 18000.0)
_AWS_CODES = ("InsufficientInstanceCapacity", "RequestLimitExceeded", "InternalError", "Unavailable")
_AUTODL_KINDS = ("status", "slow", "truncated", "not_json", "lost_answer", "dropped", "no_stock", "power_off_lost")
_GCP_CODES = ("ZONE_RESOURCE_POOL_EXHAUSTED", "backendError", "rateLimitExceeded")


@dataclass(frozen=True, slots=True)
class Blow:
    """One thing that goes wrong ``at`` seconds after the ``base``: the start, or the first commit."""

    base: str
    at: float
    kind: str
    what: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stroke:
    """A kill with -9 right after the ``step``-th recorded step of one life of the controller."""

    step: int
    victim: str


@dataclass(frozen=True, slots=True)
class Schedule:
    """``strokes``: one for each of the controller's first lives. ``blows``: by the clock."""

    seed: int
    home: str
    fallback: str
    provider: str
    failback: bool
    strokes: tuple[Stroke, ...]
    blows: tuple[Blow, ...]

    def __str__(self) -> str:
        """One line a blow."""
        head = {name: value for name, value in asdict(self).items() if name != "blows"}
        return "\n".join([json.dumps(head), *(f"  {json.dumps(asdict(blow))}" for blow in self.blows)])


def draw(seed: int) -> Schedule:
    """Return the schedule of a seed."""
    dice = random.Random(seed)
    official = seed % OFFICIAL_EVERY == 7
    fallback = "gcp" if not official and seed % 4 == 3 else "aws"
    blows = [_blow(dice, fallback) for _ in range(dice.randint(2, 5))]
    blows.sort(key=lambda blow: (blow.base == "commit", blow.at))
    return Schedule(
        seed=seed,
        home=dice.choice(["pro", "pro", "elastic", "none"]),
        fallback=fallback,
        provider="official" if official else "stand-in",
        failback=dice.random() < 0.3,
        strokes=tuple(Stroke(dice.randint(1, 7), dice.choice(_STRUCK)) for _ in range(dice.choice([0, 1, 1, 2, 3]))),
        blows=tuple(blows),
    )


def _blow(dice: random.Random, fallback: str) -> Blow:
    base = dice.choice(["start", "commit", "commit"])
    at = round(dice.uniform(0.0, 8.0), 2)
    kind = dice.choice(["kill", "kill", "kill", "stop", "stop", "cut", "cut", "api", "api", "full", "clock", "clock"])
    makers = {"kill": _kill, "stop": _stop, "cut": _cut, "full": _full, "clock": _clock}
    return Blow(base, at, kind, _api(dice, fallback) if kind == "api" else makers[kind](dice))


def _kill(dice: random.Random) -> dict[str, Any]:
    victim = dice.choice(ATTRITION)
    return {"victim": victim, **({"seconds": round(dice.uniform(0.5, 6.0), 2)} if victim == "clouds" else {})}


def _stop(dice: random.Random) -> dict[str, Any]:
    victim = dice.choice(["controller", "machine", "machine", "terraform", "clouds"])
    longest = 4.0 if victim == "clouds" else 14.0  # a machine may be stopped for longer than it is waited for
    return {"victim": victim, "seconds": round(dice.uniform(0.5, longest), 2)}


def _cut(dice: random.Random) -> dict[str, Any]:
    sides = dice.choice([["node"], ["node"], ["controller"], ["controller", "node"]])
    return {"sides": sides, "how": dice.choice(["black", "deaf"]), "seconds": round(dice.uniform(1.0, 14.0), 2)}


def _full(dice: random.Random) -> dict[str, Any]:
    """The disk with the controller's state, or that of the machine."""
    return {"whose": dice.choice(["controller", "machine"]), "seconds": round(dice.uniform(1.0, 14.0), 2)}


def _clock(dice: random.Random) -> dict[str, Any]:
    """The clock is set, and stays so."""
    return {"whose": dice.choice(["controller", "machine"]), "by": dice.choice(_JUMPS_S) * dice.choice([1, -1])}


def _api(dice: random.Random, fallback: str) -> dict[str, Any]:
    cloud = dice.choice(["autodl", fallback])
    times = dice.randint(1, 3)
    if cloud == "autodl":
        kind = dice.choice(_AUTODL_KINDS)
        return {"cloud": cloud, "rule": {"kind": kind, "count": times, "seconds": round(dice.uniform(0.5, 3.0), 2)}}
    how = dice.choice(["refused", "slow", "lost"])
    delay: dict[str, Any] = {"delay": round(dice.uniform(0.5, 3.0), 2)}
    lost: dict[str, Any] = {"lost": True}
    if cloud == "gcp":
        method = dice.choice(["instances.insert", "instances.delete", "instances.get", "*"])
        rule = {"refused": {"code": dice.choice(_GCP_CODES)}, "slow": delay, "lost": lost}[how]
        return {"cloud": cloud, "rule": {"method": method, "times": times, **rule}}
    action = dice.choice(["RunInstances", "TerminateInstances", "DescribeInstances", "*"])
    rule = {"refused": {"code": dice.choice(_AWS_CODES)}, "slow": delay, "lost": lost}[how]
    return {"cloud": cloud, "rule": {"service": "ec2", "action": action, "times": times, **rule}}
