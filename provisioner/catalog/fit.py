"""Whether a machine type can run a job, and if not, why. One set of rules for every cloud."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from provisioner.catalog import tables
from provisioner.catalog.gpus import cuda_problem, matches
from provisioner.catalog.tables import Machine


class Wanted(Protocol):
    """What a job asks of a machine: ``provisioner.clouds.base.Request`` and the ``resources`` section both are one."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """Names of cards; empty means any."""
        ...

    @property
    def count(self) -> int:
        """Cards in one machine."""
        ...

    @property
    def min_vram_gb(self) -> float:
        """GiB a card, as it is sold."""
        ...

    @property
    def cuda(self) -> tuple[int, int] | None:
        """CUDA toolkit of the job."""
        ...


@dataclass(frozen=True, slots=True)
class Absent:
    """A machine type that is no offer in a region, and why. ``instance_type`` is empty for a whole region."""

    region: str
    instance_type: str
    reason: str


def candidates(cloud: str, request: Wanted, instance_types: Sequence[str]) -> Iterator[Machine]:
    """Yield the machine types that were named; with none named, those with a card that the job asks for."""
    known = tables.machines(cloud)
    if instance_types:
        yield from (known[name] for name in dict.fromkeys(instance_types) if name in known)
        return
    right: dict[str, bool] = {}
    for machine in known.values():
        gpu = machine.gpu
        if gpu not in right:
            right[gpu] = matches(request.gpus, gpu)
        if right[gpu]:
            yield machine


def unfit(machine: Machine, request: Wanted, *, named: bool) -> str:
    """Say why a machine type cannot run this job, or nothing."""
    name = machine.instance_type
    if reason := unusable(machine):
        return reason
    if not matches(request.gpus, machine.gpu):
        return f"{name} has {machine.gpu}, the job asks for {' or '.join(request.gpus)}"
    if machine.gpu_count < request.count:
        return f"{name} has {_cards(machine)}, the job asks for {request.count}"
    if vram_gb(machine) < request.min_vram_gb:
        return f"{name} has {vram_gb(machine):g} GB a card, the job asks for {request.min_vram_gb:g}"
    if problem := cuda_problem(machine.gpu, request.cuda):
        return f"{name}: {problem}"
    if not named and machine.gpu_count > right_size(machine, request.count):
        more = f"{name} has {_cards(machine)}, the job asks for {request.count}"
        where = "instance_types" if machine.cloud == "aws" else "machine_types"
        return f"{more}; name it under {where} to take it all the same"
    return ""


def absent_in(
    region: str,
    machines: Iterable[tuple[Machine, str]],
    offered: Mapping[str, Sequence[str]],
    request: Wanted,
    *,
    named: bool,
) -> Iterator[Absent]:
    """Yield what is no offer in a region although it was named, or has the right card. ``offered``: type -> zones.

    ``machines`` come with what ``unfit`` says of them, which is the same in every region.
    """
    for machine, problem in machines:
        name, reason = machine.instance_type, problem
        if not named and not request.gpus and (reason or not offered.get(name)):
            continue  # any card will do: a list of all that a cloud has elsewhere tells nobody anything
        if not offered.get(name) and (named or not reason):
            reason = f"{name} is not offered in any zone of {region} (catalog of {tables.snapshot(machine.cloud)})"
        if reason:
            yield Absent(region, name, reason)


def vram_gb(machine: Machine) -> float:
    """Return GiB a card as it is sold: 24 for an L4, of which the driver reports 22.4. A slice has what it reports."""
    known = tables.cards().get(machine.gpu)
    if machine.gpu_count and known and known.vram_gb:
        return known.vram_gb
    return round(machine.gpu_memory_mib / 1024, 1)


def right_size(machine: Machine, count: int) -> int:
    """Return the smallest number of these cards, at least ``count``, that any machine type of the cloud has.

    A job that asks for one V100 must not end up with eight at 31 USD an hour because the small type is sold no more.
    """
    sizes = tables.sizes(machine.cloud)
    name = _group(machine.gpu) or machine.gpu
    return min((size for size in sizes.get(name, ()) if size >= count), default=count)


def unusable(machine: Machine) -> str:
    """Say why a machine type can run no job of ours, or nothing."""
    name, card = machine.instance_type, tables.cards().get(machine.gpu)
    if card is not None and card.driver == "amd":
        return f"{name} has a {machine.gpu}, which runs no CUDA"
    if machine.architecture != "x86_64":
        return f"{name} is {machine.architecture}, and the machine image is x86_64"
    if machine.gpu_count == 0:
        return f"{name} holds a slice of one {machine.gpu} ({vram_gb(machine):g} GB), not a whole one"
    return ""


def _cards(machine: Machine) -> str:
    return f"{machine.gpu_count} GPU{'' if machine.gpu_count == 1 else 's'}"


def _group(gpu: str) -> str:
    known = tables.cards().get(gpu)
    return known.group if known else ""
