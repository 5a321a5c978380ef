"""Quotas before tries: which offers the project's limits rule out, without asking for a machine.

One call a region and one for the project, kept for ten minutes. What Google does not list here (cards of H100 and newer
on demand have their limits elsewhere) is not judged: the claim will tell.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Final

from provisioner import catalog
from provisioner.catalog import Machine
from provisioner.clouds.clock import Clock
from provisioner.clouds.gcp.compute import Compute, Quota
from provisioner.clouds.gcp.reading import quota_link, quota_scope
from provisioner.errors import CloudError
from provisioner.model import Failure, FailureKind, Market, Offer, Scope

FRESH_S: Final = 600.0
"""How old an answer may be, in seconds."""
PATIENCE_S: Final = 10.0
"""How long answers are waited for: a job must not wait for facts that only save it a call."""
_AT_ONCE: Final = 8
CARD_METRICS: Final[Mapping[str, str]] = {
    "nvidia-tesla-k80": "NVIDIA_K80_GPUS",
    "nvidia-tesla-p4": "NVIDIA_P4_GPUS",
    "nvidia-tesla-p100": "NVIDIA_P100_GPUS",
    "nvidia-tesla-t4": "NVIDIA_T4_GPUS",
    "nvidia-tesla-v100": "NVIDIA_V100_GPUS",
    "nvidia-l4": "NVIDIA_L4_GPUS",
    "nvidia-tesla-a100": "NVIDIA_A100_GPUS",
    "nvidia-a100-80gb": "NVIDIA_A100_80GB_GPUS",
    "nvidia-h100-80gb": "NVIDIA_H100_GPUS",
    "nvidia-h100-mega-80gb": "NVIDIA_H100_MEGA_GPUS",
    "nvidia-h200-141gb": "NVIDIA_H200_GPUS",
    "nvidia-b200": "NVIDIA_B200_GPUS",
}
"""Regional metrics of cards; spot machines have the same with ``PREEMPTIBLE_`` before (H100 has only that one)."""
_SPOT: Final = "PREEMPTIBLE_"


@dataclass(frozen=True, slots=True)
class Need:
    """What a machine takes of a limit: the first of ``metrics``, or where that was never granted the next."""

    metrics: tuple[str, ...]
    amount: float


class QuotaBook:
    """The limits of one project, read when they are needed. Thread-safe."""

    def __init__(self, compute: Compute, clock: Clock, unread: Callable[[str, CloudError], None]) -> None:
        """Take the project's calls. ``unread`` hears what could not be read: a region's name, or ``project``."""
        self._compute = compute
        self._clock = clock
        self._unread = unread
        self._kept: dict[str, tuple[float, Mapping[str, Quota]]] = {}
        """Region (empty: the project) -> (when it was read, its quotas; empty where nobody could tell)."""
        self._told: set[str] = set()
        self._lock = threading.Lock()

    def over_quota(self, offers: Sequence[Offer]) -> dict[str, Failure]:
        """Return why offers cannot be had, by their keys. What cannot be told is not among them. Never raises."""
        if not offers:
            return {}
        with self._lock:
            self._learn({"", *(offer.region for offer in offers)})
            judged = ((offer, self._judge(offer)) for offer in offers)
            return {offer.key: failure for offer, failure in judged if failure is not None}

    def forget(self) -> None:
        """Read anew next time: a machine came or went."""
        with self._lock:
            self._kept.clear()

    def _judge(self, offer: Offer) -> Failure | None:
        machine = catalog.machine("gcp", offer.instance_type)
        if machine is None:
            return None
        for place, needs in (("", _project_needs(machine)), (offer.region, _needs(machine, offer.market))):
            quotas = self._kept[place][1]
            for need in needs:
                known = _drawn_on([quotas[metric] for metric in need.metrics if metric in quotas])
                if known and all(quota.limit - quota.usage < need.amount for quota in known):
                    return self._failure(known, need, place)
        return None

    def _failure(self, known: Sequence[Quota], need: Need, place: str) -> Failure:
        told = " and ".join(f"{one.metric} is {one.limit:g}, {one.usage:g} in use" for one in known)
        metric = known[0].metric
        text = f"{place or 'all regions together'}: {told}; this machine needs {need.amount:g}"
        advice = f"ask for more: {quota_link(metric, self._compute.account.project)}"
        full = all(one.limit - one.usage < 1 for one in known)
        scope = quota_scope(metric) if full else Scope.OFFER  # a smaller machine may still fit
        return Failure(FailureKind.QUOTA, scope, metric, text, advice, FRESH_S)

    def _learn(self, places: set[str]) -> None:
        """Read what is not known, or too old, all at the same time."""
        now = self._clock.tick()
        wanted = [place for place in sorted(places) if now - self._kept.get(place, (float("-inf"),))[0] >= FRESH_S]
        if not wanted:
            return
        pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="quotas")
        asked = {place: pool.submit(self._read, place) for place in wanted}
        wait(asked.values(), timeout=PATIENCE_S)
        pool.shutdown(wait=False, cancel_futures=True)
        for place, answer in asked.items():
            self._kept[place] = (now, answer.result() if answer.done() and not answer.cancelled() else {})

    def _read(self, place: str) -> Mapping[str, Quota]:
        try:
            return self._compute.region_quotas(place) if place else self._compute.project_quotas()
        except LookupError:
            return {}
        except CloudError as error:
            if str(error) not in self._told:  # every region of a project says the same
                self._told.add(str(error))
                self._unread(place or "project", error)
            return {}


def _drawn_on(known: list[Quota]) -> list[Quota]:
    """Leave out what is not drawn on: spot machines take from the ordinary quota only while spot has none itself."""
    return known[:1] if known and known[0].limit > 0 else known


def _project_needs(machine: Machine) -> Iterator[Need]:
    if machine.gpu_count:
        yield Need(("GPUS_ALL_REGIONS",), machine.gpu_count)
    yield Need(("CPUS_ALL_REGIONS",), machine.vcpus)


def _needs(machine: Machine, market: Market) -> Iterator[Need]:
    """Yield what a machine takes in its region."""
    spot = market is Market.SPOT
    card = CARD_METRICS.get(machine.accelerator)
    if card and machine.gpu_count:
        yield Need((f"{_SPOT}{card}", card) if spot else (card,), machine.gpu_count)
    family = machine.instance_type.partition("-")[0].upper()
    own = "CPUS" if family == "N1" else f"{family}_CPUS"  # where Google lists no such metric, nothing is judged
    yield Need((f"{_SPOT}CPUS", own) if spot else (own,), machine.vcpus)
