"""Twenty jobs as people ask for them. Cards by the catalog's names; no regions: every region of the rows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Job:
    """What is asked for. ``spot`` False: on demand."""

    gpus: tuple[str, ...]
    count: int = 1
    spot: bool = False
    regions: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return ``8 x A100-40GB, spot, eu-west-1``."""
        words = [f"{self.count} x {' or '.join(self.gpus)}", "spot" if self.spot else "on demand", *self.regions]
        return ", ".join(words)


EUROPE = ("eu-west-1", "eu-central-1")
JOBS = (
    Job(("T4",), spot=True),
    Job(("T4",)),
    Job(("T4",), 4, spot=True),
    Job(("T4",), regions=EUROPE),
    Job(("L4",), spot=True),
    Job(("L4",)),
    Job(("L4",), 4),
    Job(("H100",)),
    Job(("A10G",), spot=True),
    Job(("A10G",)),
    Job(("A100-80GB", "H100"), 8),
    Job(("A10G",), 8, regions=EUROPE),
    Job(("L40S",), spot=True),
    Job(("L40S",), 4),
    Job(("V100-32GB",), 8),
    Job(("A100-40GB",), 8, spot=True),
    Job(("A100-80GB",), 8),
    Job(("H100",), 8, spot=True),
    Job(("T4", "L4"), spot=True),
    Job(("T4", "L4", "A10G")),
)
WARM = (JOBS[0], JOBS[1])
"""Timed: one on the spot market, one on demand, both over all regions."""
