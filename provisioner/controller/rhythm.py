"""How long may a heartbeat stay away before that means something? Learned from its own intervals.

The phi accrual failure detector (Hayashibara et al., 2004), as Akka has it: intervals are taken as normally
distributed, and a silence is suspicious when only one in 10**PHI intervals is longer. Intervals are those that the
controller sees, so its own pause between two looks and the store's slowness are in them.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist, fmean, pstdev
from typing import Final

WINDOW: Final = 60
"""So many intervals count, the newest: a rhythm changes when the training starts, or the store slows down."""
ENOUGH: Final = 8
"""With fewer, nothing is known yet."""
PHI: Final = 8.0
"""Akka's and Cassandra's default: one false suspicion in a hundred million beats, were they normally distributed."""
LEAST_SPREAD: Final = 0.25
"""No rhythm is steadier than this share of its interval: the node's beat and our look drift past each other."""
_SPREADS: Final = NormalDist().inv_cdf(1.0 - 10.0**-PHI)
"""How many standard deviations above the mean that is: 5.6."""


@dataclass(frozen=True, slots=True)
class Rhythm:
    """The newest intervals between two changes of a heartbeat, in seconds, the oldest first."""

    intervals: tuple[float, ...] = ()

    def heard(self, after_s: float) -> Rhythm:
        """Return the rhythm with one more interval."""
        return Rhythm((*self.intervals, max(0.0, after_s))[-WINDOW:])

    @property
    def mean_s(self) -> float | None:
        """The usual interval; None where too little is known."""
        return fmean(self.intervals) if len(self.intervals) >= ENOUGH else None

    def suspicious_s(self, pause_s: float) -> float | None:
        """Return the silence that is suspicious, None where too little is known.

        ``pause_s`` is what a write that has to be tried again may add at any time.
        """
        mean = self.mean_s
        if mean is None:
            return None
        return mean + _SPREADS * max(pstdev(self.intervals, mean), LEAST_SPREAD * mean) + pause_s
