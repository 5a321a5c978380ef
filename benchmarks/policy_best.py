"""The cheapest way through a trace for one who knows it all: exact, under the very rules of ``policy_world.py``.

Dynamic programming backwards over the samples. All times are whole numbers of one unit, the greatest common divisor of
sample, start and work, so nothing is rounded. What a job can be in: no machine; one on demand, or spot in a zone, with
so much of its start left; on demand with a spot machine beside it, with so much of that one's start left. Beside that
counts its slack, time left less work left, which a machine that trains keeps, and a start and waiting use up. For each
of these the least cost to the end within the deadline is kept, and at each sample every change is tried that a policy
could make. What comes out can be reached, and no policy can go below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.policy_world import SHARE, Job

Costs = NDArray[np.float64]
SECONDS = 3600


def best(job: Job, free: Sequence[tuple[bool, ...]]) -> float:
    """Return the least cost, in hours on demand, of a job that has not begun; infinite where none is in time."""
    gap, start, work = (round(hours * SECONDS) for hours in (job.gap, job.start, job.work))
    unit = math.gcd(gap, start, work)
    whole = math.floor((job.deadline * SECONDS + 1e-3) / unit)
    if whole < work // unit:
        return math.inf
    table = _Table(gap // unit, start // unit, whole - work // unit, len(free[0]))
    for sample in range(-(-whole // table.gap) - 1, -1, -1):
        table.back(whole - sample * table.gap, np.array(free[sample % len(free)]))
    return float(table.idle[-1]) * unit / SECONDS


class _Table:
    """The least costs from one sample on, by slack. ``gap`` and ``start`` in units."""

    def __init__(self, gap: int, start: int, slack: int, zones: int) -> None:
        self.gap = gap
        self.boots = [*range(start, 0, -gap), 0]
        """What a start can lack at a sample."""
        never = np.full(slack + 1, np.inf)
        self.slack = np.arange(slack + 1)
        self.idle = never
        self.od = [never for _ in self.boots]
        self.spot = [np.full((zones, slack + 1), np.inf) for _ in self.boots]
        self.beside = [np.full((zones, slack + 1), np.inf) for _ in self.boots]

    def back(self, left: int, free: NDArray[np.bool_]) -> None:
        """Go back by one sample, at which ``left`` units are left until the deadline."""
        kept = free[:, None]
        od = [self._go(self.od, number, 1.0, left) for number in range(len(self.boots))]
        spot = [np.where(kept, self._go(self.spot, number, SHARE, left), np.inf) for number in range(len(self.boots))]
        beside = [np.where(kept, self._wait_beside(number, left), np.inf) for number in range(len(self.boots))]
        idle = np.minimum(np.minimum(_later(self.idle, self.gap), od[0]), spot[0].min(axis=0))
        od[-1] = np.minimum(od[-1], beside[0].min(axis=0))
        self.od = [np.minimum(one, idle) for one in od]
        self.spot = [np.minimum(one, idle) for one in spot]
        self.beside = [np.minimum(one, self.od[-1]) for one in beside]
        self.idle = idle

    def _go(self, then: list[Costs], number: int, price: float, left: int) -> Costs:
        """Have a machine until the next sample, or the job's end."""
        boot = self.boots[number]
        used = min(boot, self.gap)
        after = then[min(number + 1, len(self.boots) - 1)]
        work = left - self.slack
        over = (work <= self.gap - boot) & (work >= 0) & (self.slack >= boot)
        return np.where(over, price * (boot + work), price * self.gap + _later(after, used))

    def _wait_beside(self, number: int, left: int) -> Costs:
        """Train on demand while a spot machine gets ready; at its end it takes over."""
        last = self.boots[number] <= self.gap
        after = self.spot[-1] if last else self.beside[number + 1]
        work = left - self.slack
        price = 1.0 + SHARE
        return np.where((work <= self.gap) & (work >= 0), price * work, price * self.gap + after)


def _later(costs: Costs, used: int) -> Costs:
    """Return the costs for who has used up so much slack."""
    if used == 0:
        return costs
    late = np.full_like(costs, np.inf)
    late[..., used:] = costs[..., : max(0, costs.shape[-1] - used)]
    return late
