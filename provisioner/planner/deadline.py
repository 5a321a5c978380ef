"""Spot or on demand for a job that has a deadline: as much spot as the deadline allows, and never too late. Pure.

What a job can lose without being late is its slack:

    slack = time left - training left - start of a machine on demand - margin

It shrinks while the job has no machine and at each start, and stays as it is while a machine trains, be it spot or
on demand. Three rules follow:

1. The net. A spot machine may be lost before it makes a step, and then a machine on demand must still make it: with
   less slack than one start the job goes on demand.
2. Thrift. While there is no spot machine the job waits, as waiting costs nothing, but keeps one start for every loss
   that is to come (``CYCLE_H``): slack that is spent to wait early would be missed for spot machines later. With less
   than that it goes on demand while there is no spot.
3. The way back. On demand it looks for a spot machine that gets ready beside the one that trains, so that the way
   back costs no slack unless that spot machine is lost, too.

The net, and that slack should be spread over the whole job, are ideas of "Can't Be Late" (Wu et al., NSDI 2024), whose
Uniform Progress goes by a straight line from nothing to all of the work. ``benchmarks/policy.py`` compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

CYCLE_H: Final = 2.0
"""Hours of training for which one start is kept. From 1 to 4 it makes little difference on the traces of that paper."""
WORTH_STARTS: Final = 2.0
"""A spot machine beside one on demand pays only while the training that is left takes more starts than this."""


class Markets(StrEnum):
    """Where a job that has no machine looks for one."""

    SPOT = "spot"
    """Spot alone; while there is none it waits."""
    EITHER = "either"
    """Spot, and on demand where there is none."""
    ON_DEMAND = "on-demand"
    """On demand; spot only where nothing else is to be had."""


@dataclass(frozen=True, slots=True)
class Course:
    """Where a job stands against its deadline, in hours.

    ``left`` until the deadline; ``work``: training left, at the pace of the machine on demand that would bring the job
    there soonest; ``start``: from a claim to its first step. ``margin``: how long a loss may go unnoticed, plus steps
    that are trained again after it, plus the time between two rounds of claims.
    """

    left: float
    work: float
    start: float
    margin: float = 0.0
    way_back: bool = True
    """Whether the third rule can be followed. If not, slack that is kept for it would be wasted."""

    @property
    def slack(self) -> float:
        """How long the job can do nothing until it must claim a machine on demand."""
        return self.left - self.work - self.start - self.margin

    @property
    def reserve(self) -> float:
        """How much slack is kept for the losses to come."""
        return self.start * (1.0 + (self.work / CYCLE_H if self.way_back else 0.0))

    @property
    def markets(self) -> Markets:
        """Where to look for a machine now."""
        if self.slack < self.start:
            return Markets.ON_DEMAND
        return Markets.SPOT if self.slack > self.reserve else Markets.EITHER

    @property
    def back_to_spot(self) -> bool:
        """Say whether a job that trains on demand should look for a spot machine beside it."""
        return self.slack > 0.0 and self.work > WORTH_STARTS * self.start

    def __str__(self) -> str:
        """Say where the job looks, and why."""
        need = f"the deadline leaves {self.left:.1f} h, and on demand the job needs {self.work + self.start:.1f} h"
        if self.markets is Markets.ON_DEMAND:
            return f"{need}: a lost spot machine could make it late, so it goes on demand"
        if self.markets is Markets.EITHER:
            return f"{need}: spot first, and on demand where there is none"
        until = self.slack - self.reserve
        return f"{need}: spot only; on demand is held back for {until:.1f} h more"
