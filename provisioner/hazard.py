"""How often spot machines are taken back: by what was seen of a pool, what is usual, and how old the machine is.

A young machine is taken back far more often than an old one. In the traces of "Can't Be Late" (NSDI 2024) the rate
falls from 1.6 losses an hour in the first quarter of an hour to 0.05 after 16 h. So the hazard of a pool is a
Gamma-Poisson mix times a power of the age; ``benchmarks/hazard.py`` scores it on the traces. The hour of the day was
tried too: it made the score 0.4 % better, which is not worth its code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

PRIOR_LOSSES: Final = 1.0
PRIOR_HOURS: Final = 6.0
"""With nothing seen, one loss in six hours: the traces' p3.2xlarge machines lived 0.7 to 10.4 h on average."""
PRIOR_WEIGHT: Final = 3.0
"""The same for the rate by age: one loss in three hours of a machine that is 45 min old."""
AGING: Final = 0.6
YOUTH_H: Final = 0.25
"""The rate goes with ``(age + YOUTH_H) ** -AGING``, age in hours. Both were fitted on one half of the traces, and are
the best on the other half too."""
STEADY: Final = 0.01
"""Losses an hour of a machine that no cloud takes back: hosts break, and a balance runs out. A judgement."""
WARNED: Final = 10.0
"""How much likelier a loss is after a rebalance recommendation. A judgement: AWS publishes no figure."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen in one pool: hours that spot machines ran there, and how many of them were taken back.

    ``weight`` counts the hours of a young machine more than those of an old one, as its risk does.
    """

    hours: float = 0.0
    losses: int = 0
    weight: float = 0.0

    def __add__(self, other: Seen) -> Seen:
        return Seen(self.hours + other.hours, self.losses + other.losses, self.weight + other.weight)

    @property
    def rate(self) -> float:
        """Losses an hour, over machines of all ages."""
        return (PRIOR_LOSSES + self.losses) / (PRIOR_HOURS + self.hours)

    def rate_at(self, age_h: float, *, warned: bool = False) -> float:
        """Losses an hour for a machine of this age in hours. ``warned``: the cloud has recommended to leave it."""
        young = math.pow(max(0.0, age_h) + YOUTH_H, -AGING)
        rate = (PRIOR_LOSSES + self.losses) / (PRIOR_WEIGHT + self.weight) * young
        return rate * WARNED if warned else rate


def life(hours: float, *, lost: bool) -> Seen:
    """Return what one machine's life says: it ran for ``hours``, and was taken back or not."""
    rest = 1.0 - AGING
    return Seen(hours, int(lost), (math.pow(hours + YOUTH_H, rest) - math.pow(YOUTH_H, rest)) / rest)
