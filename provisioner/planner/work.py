"""How long a job takes on a card: the hours on one card that the operator knows, and how cards compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from provisioner import catalog
from provisioner.fitting import Measured
from provisioner.planner import fits

ASSUMED_HOURS = 10.0
"""Length of a job whose operator gave none: long enough that starting is not all, short enough to be usual."""
ASSUMED_EVERY_S = 600.0
"""Time between two checkpoints where the job decides itself (``checkpoint.every: auto``)."""


@dataclass(frozen=True, slots=True)
class Work:
    """What is left to train.

    ``hours`` of training on the card ``on``; ``known`` says that the operator gave them. ``speeds`` are measured ones,
    by card or group, as multiples of ``on``. ``checkpoint_gb`` None: nobody said. ``done``: the share that is trained.
    """

    hours: float = ASSUMED_HOURS
    known: bool = False
    on: str = "T4"
    speeds: Mapping[str, float] = field(default_factory=dict)
    compute_share: float = 0.5
    checkpoint_gb: float | None = None
    every_s: float = ASSUMED_EVERY_S
    done: float = 0.0
    fit: Measured | None = None
    """What ``failover fit`` measured; None: nobody did."""

    @property
    def left(self) -> float:
        """Hours of training on the reference card that are left."""
        return self.hours * (1.0 - self.done)


def speed(work: Work, gpu: str) -> float | None:
    """Return how many times as fast as on its reference card the job trains on another; None where nobody knows.

    A measured speed counts before all, then what ``job.fit`` makes of both cards. Else a step on the reference card is
    taken to wait for arithmetic during ``compute_share`` of its time and for memory during the rest, and each part
    shrinks with the figure of the card:

        1 / speed = share * TFLOPS(on) / TFLOPS(gpu) + (1 - share) * bandwidth(on) / bandwidth(gpu)
    """
    card, reference = catalog.card(gpu), catalog.card(work.on)
    names = (gpu,) if card is None else (card.name, card.group)
    measured = next((work.speeds[name] for name in names if name in work.speeds), None)
    if measured is not None:
        return measured
    if card is not None and reference is not None and card.name == reference.name:
        return 1.0
    if work.fit is not None and (times := fits.speedup(work.fit, work.on, gpu)):
        return times
    if card is None or reference is None or not _figures(card) or not _figures(reference):
        return None
    arithmetic = work.compute_share * reference.fp16_tflops / card.fp16_tflops
    memory = (1.0 - work.compute_share) * reference.bandwidth_gbs / card.bandwidth_gbs
    return 1.0 / (arithmetic + memory)


def _figures(card: catalog.Card) -> bool:
    return bool(card.fp16_tflops and card.bandwidth_gbs)
