"""Where the sandbox's Google Cloud has what: regions, zones, machine types, cards, quotas. A part of the real ones.

Shapes of machine types and names of quota metrics are Google's; which zone has which card follows its list of GPU
locations for the regions named here. It is scenery: what a real zone offers, the catalog knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

REGIONS: Mapping[str, str] = {
    "us-central1": "abcf",
    "us-east1": "bcd",
    "us-east4": "abc",
    "us-west1": "abc",
    "us-west4": "abc",
    "europe-west1": "bcd",
    "europe-west4": "abc",
    "asia-east1": "abc",
    "asia-northeast1": "abc",
    "asia-southeast1": "abc",
}
"""Region → the letters of its zones."""

_CARDS: Mapping[str, tuple[str, str]] = {
    "nvidia-tesla-t4": (
        "NVIDIA_T4_GPUS",
        (
            "us-central1:abcf us-east1:cd us-east4:abc us-west1:ab us-west4:ab europe-west1:bcd europe-west4:abc "
            "asia-east1:ac asia-northeast1:ac asia-southeast1:abc"
        ),
    ),
    "nvidia-l4": (
        "NVIDIA_L4_GPUS",
        (
            "us-central1:abc us-east1:bcd us-east4:ac us-west1:abc us-west4:ac europe-west1:bc europe-west4:abc "
            "asia-east1:abc asia-northeast1:abc asia-southeast1:abc"
        ),
    ),
    "nvidia-tesla-v100": (
        "NVIDIA_V100_GPUS",
        "us-central1:abcf us-east1:c us-west1:ab europe-west4:abc asia-east1:c",
    ),
    "nvidia-tesla-p100": (
        "NVIDIA_P100_GPUS",
        "us-central1:cf us-east1:bc us-west1:ab europe-west1:bd europe-west4:a asia-east1:ac",
    ),
    "nvidia-tesla-p4": ("NVIDIA_P4_GPUS", "us-central1:ac us-east4:abc europe-west4:bc asia-southeast1:bc"),
    "nvidia-tesla-a100": (
        "NVIDIA_A100_GPUS",
        "us-central1:abcf us-east1:b us-west1:b us-west4:b europe-west4:ab asia-northeast1:ac asia-southeast1:bc",
    ),
    "nvidia-a100-80gb": ("NVIDIA_A100_80GB_GPUS", "us-central1:ac us-east4:c europe-west4:a asia-southeast1:c"),
    "nvidia-h100-80gb": (
        "NVIDIA_H100_GPUS",
        (
            "us-central1:abc us-east4:abc us-west1:ab us-west4:a europe-west1:bc europe-west4:bc asia-east1:c "
            "asia-northeast1:b asia-southeast1:bc"
        ),
    ),
    "nvidia-h100-mega-80gb": (
        "NVIDIA_H100_MEGA_GPUS",
        "us-central1:abc us-east4:abc us-west1:ab us-west4:a europe-west4:bc asia-northeast1:b asia-southeast1:bc",
    ),
}
_PREEMPTIBLE = "PREEMPTIBLE_"


@dataclass(frozen=True, slots=True)
class MachineType:
    """One machine type. ``memory`` in MB. ``card`` is built in, ``count`` of them; an n1 takes cards beside."""

    name: str
    cpus: int
    memory: int
    card: str = ""
    count: int = 0

    @property
    def family(self) -> str:
        """The part of the name that says what it is: ``n1``, ``g2``."""
        return self.name.partition("-")[0]


def _machine_types() -> dict[str, MachineType]:
    made = [MachineType("e2-small", 2, 2048), MachineType("e2-medium", 2, 4096)]
    made += [MachineType(f"e2-standard-{n}", n, 4096 * n) for n in (2, 4, 8, 16)]
    for n in (1, 2, 4, 8, 16, 32, 64, 96):
        made.append(MachineType(f"n1-standard-{n}", n, 3840 * n))
        if n > 1:
            made += [MachineType(f"n1-highmem-{n}", n, 6656 * n), MachineType(f"n1-highcpu-{n}", n, 921 * n)]
    l4 = {4: 1, 8: 1, 12: 1, 16: 1, 24: 2, 32: 1, 48: 4, 96: 8}
    made += [MachineType(f"g2-standard-{n}", n, 4096 * n, "nvidia-l4", cards) for n, cards in l4.items()]
    for n in (1, 2, 4, 8):
        made.append(MachineType(f"a2-highgpu-{n}g", 12 * n, 87040 * n, "nvidia-tesla-a100", n))
        made.append(MachineType(f"a2-ultragpu-{n}g", 12 * n, 174080 * n, "nvidia-a100-80gb", n))
        made.append(MachineType(f"a3-highgpu-{n}g", 26 * n, 239616 * n, "nvidia-h100-80gb", n))
    made.append(MachineType("a2-megagpu-16g", 96, 1392640, "nvidia-tesla-a100", 16))
    made.append(MachineType("a3-megagpu-8g", 208, 1916928, "nvidia-h100-mega-80gb", 8))
    return {one.name: one for one in made}


MACHINE_TYPES = _machine_types()


def region_of(zone: str) -> str:
    """Return the region of a zone, ``us-central1`` of ``us-central1-a``."""
    return zone.rpartition("-")[0]


def zones(region: str) -> list[str]:
    """Return the zones of a region."""
    return [f"{region}-{letter}" for letter in REGIONS.get(region, "")]


def all_zones() -> list[str]:
    """Return every zone."""
    return [zone for region in REGIONS for zone in zones(region)]


def cards_in(zone: str) -> list[str]:
    """Return the accelerator types of a zone."""
    region, _, letter = zone.rpartition("-")
    found = []
    for card, (_, where) in _CARDS.items():
        letters = dict(place.split(":") for place in where.split()).get(region, "")
        if letter in letters and letter:
            found.append(card)
    return found


def machine_types_in(zone: str) -> list[MachineType]:
    """Return the machine types of a zone: those with built-in cards only where the cards are."""
    there = cards_in(zone)
    return [one for one in MACHINE_TYPES.values() if not one.card or one.card in there]


def metric_of(card: str, market: str) -> str:
    """Return the regional quota that limits a card. Spot has one of its own."""
    metric = _CARDS[card][0] if card in _CARDS else f"{card.upper().replace('-', '_')}_GPUS"
    return _PREEMPTIBLE + metric if market == "spot" else metric


def cpu_metric(machine: MachineType) -> str:
    """Return the regional quota that limits a machine type's CPUs."""
    return "CPUS" if machine.family in {"n1", "e2"} else f"{machine.family.upper()}_CPUS"


def default_quotas() -> dict[str, float]:
    """Return the limits of every regional metric: plenty."""
    gpus = [metric for metric, _ in _CARDS.values()]
    limits: dict[str, float] = dict.fromkeys([*gpus, *(_PREEMPTIBLE + metric for metric in gpus)], 16.0)
    families = sorted({cpu_metric(one) for one in MACHINE_TYPES.values()})
    return {**dict.fromkeys(families, 500.0), "PREEMPTIBLE_CPUS": 0.0, "DISKS_TOTAL_GB": 40960.0, **limits}
