"""What `policy.py` plays in: traces of spot availability, a job on its way, and a machine from sample to sample.

All that a policy may do is here, and ``policy_best.py`` finds the cheapest way through the same rules: a change of one
is a change of both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from provisioner.hazard import Seen, life
from provisioner.planner.deadline import Course

SHARE = 0.3
"""Price of spot as a share of that on demand: p3.2xlarge cost 0.918 and 3.06 USD an hour."""
ENOUGH = 1e-9
GIVEN_UP = 3
"""A job is given up at so many times its deadline."""


class Trace(NamedTuple):
    """Zones that were watched together. ``gap`` is the time between two samples in hours."""

    zones: tuple[str, ...]
    gap: float
    free: tuple[tuple[bool, ...], ...]
    """By sample, whether a spot machine is to be had in each zone."""

    def begun(self, first: int) -> Trace:
        """Return it from a sample on; what was before comes behind its end."""
        return self._replace(free=self.free[first:] + self.free[:first])

    def zone(self, index: int) -> Trace:
        """Return one zone alone."""
        return Trace((self.zones[index],), self.gap, tuple((free[index],) for free in self.free))


class Have(NamedTuple):
    """What to have until the next sample: nothing, ``spot`` in a zone, or ``od`` (on demand).

    ``beside`` is the zone of a spot machine that gets ready beside one on demand that trains.
    """

    mode: str = ""
    zone: int = -1
    beside: int = -1


NOTHING, ON_DEMAND = Have(), Have("od")


@dataclass(slots=True)
class Job:
    """A job on its way, in hours. ``boot``: what the start of its machine lacks; ``ready``: that of one beside it."""

    work: float
    deadline: float
    start: float
    gap: float
    regions: tuple[str, ...] = ("",)
    """Of each zone."""
    at: float = 0.0
    done: float = 0.0
    have: Have = NOTHING
    boot: float = 0.0
    ready: float = 0.0
    netted: bool = False
    way_back: bool = True
    free: tuple[bool, ...] = ()
    """Whether a spot machine is to be had, by zone."""
    lost: int = -1
    """The zone that took the last one back."""
    seen: dict[int, Seen] = field(default_factory=dict)
    since: float = 0.0

    @property
    def there(self) -> bool:
        """Say whether a spot machine is to be had anywhere."""
        return any(self.free)

    @property
    def course(self) -> Course:
        """Where it stands, as the product sees it."""
        need = self.work - self.done + (self.boot if self.have.mode == "od" else 0.0)
        return Course(self.deadline - self.at, need, self.start, self.gap, way_back=self.way_back)

    def look(self, free: tuple[bool, ...]) -> None:
        """Take what the next sample shows: machines that are gone are lost without a step."""
        self.free = free
        if self.have.mode == "spot" and not free[self.have.zone]:
            self.lost = self.have.zone
            self._learn(lost=True)
            self.have = NOTHING
        elif self.have.beside >= 0 and not free[self.have.beside]:
            self.have = ON_DEMAND

    def take(self, wanted: Have) -> None:
        """Have what the policy wants; another machine starts anew."""
        assert wanted.mode != "spot" or self.free[wanted.zone]
        assert wanted.beside < 0 or (self.free[wanted.beside] and self.have.mode == "od" and self.boot <= ENOUGH)
        if wanted[:2] != self.have[:2]:
            if self.have.mode == "spot":
                self._learn(lost=False)
            self.boot, self.since = (self.start if wanted.mode else 0.0), self.at
        if wanted.beside != self.have.beside:
            self.ready = self.start
        self.have = wanted

    def advance(self) -> float:
        """Go on until the next sample, or the job's end. Return what that costs, in hours on demand."""
        span = self.gap
        if self.have.mode:
            booting = min(self.boot, span)
            span = booting + min(span - booting, self.work - self.done)
            self.boot -= booting
            self.done += span - booting
        cost = span * {"": 0.0, "spot": SHARE, "od": 1.0}[self.have.mode]
        if self.have.beside >= 0:
            cost += span * SHARE
            self.ready -= span
            if self.ready <= ENOUGH:
                self.have, self.boot, self.since = Have("spot", self.have.beside), 0.0, self.at + span
        self.at += span
        return cost

    def _learn(self, *, lost: bool) -> None:
        zone = self.have.zone
        self.seen[zone] = self.seen.get(zone, Seen()) + life(max(0.0, self.at - self.since), lost=lost)


Policy = Callable[[Job], Have]


def play(policy: Policy, job: Job, free: Sequence[tuple[bool, ...]]) -> tuple[float, bool]:
    """Return (cost in hours on demand, whether it was done in time)."""
    cost, sample = 0.0, 0
    while job.done < job.work - ENOUGH and job.at < GIVEN_UP * job.deadline:
        job.look(free[sample % len(free)])
        job.take(policy(job))
        cost += job.advance()
        sample += 1
    return cost, job.done >= job.work - ENOUGH and job.at <= job.deadline + ENOUGH


def read(folder: Path) -> list[Trace]:
    """Read every trace of availability, each zone by itself. Where 16 machines are counted all must be there."""
    found = []
    for path in sorted(folder.rglob("*.json")):
        if "preemption" in path.parts:
            continue
        raw = json.loads(path.read_text(encoding="utf-8"))
        most = max(raw["data"], default=0)
        if most:
            free = tuple((sample >= most,) for sample in raw["data"])
            found.append(Trace((str(path.relative_to(folder)),), raw["metadata"]["gap_seconds"] / 3600.0, free))
    return found


def together(traces: Sequence[Trace]) -> Trace:
    """Return the largest set of zones that were watched together: one folder, one card, one length."""
    sets: dict[tuple[object, ...], list[Trace]] = {}
    for trace in traces:
        path = Path(trace.zones[0])
        sets.setdefault((path.parent, path.stem.partition("_")[2], trace.gap, len(trace.free)), []).append(trace)
    largest = max(sets.values(), key=len)
    names = tuple(Path(trace.zones[0]).stem.partition("_")[0] for trace in largest)
    samples = zip(*(trace.free for trace in largest), strict=True)
    return Trace(names, largest[0].gap, tuple(tuple(zone[0] for zone in sample) for sample in samples))
