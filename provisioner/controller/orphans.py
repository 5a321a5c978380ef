"""Which of the things that carry our tags nobody holds: the records of this state directory against what clouds list.

No cloud is asked here. What is not certain is not an orphan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from provisioner.clouds.base import Tagged
from provisioner.controller.directory import JobDirectory, JobRecord
from provisioner.errors import ConfigError
from provisioner.telemetry import events

MACHINE: Final = "machine"
START: Final = "start_object"
"""What the machine of one claim reads first. It holds secrets."""
RUNTIME: Final = "runtime"
UNFINISHED: Final = "unfinished_file"
"""What no record tells of: the room that lists it knows that nobody uses it."""
_OF_A_MACHINE: Final = frozenset({MACHINE, START, "volume", "spot_request"})
"""Kinds that belong to one claim; all others are what a region was prepared with."""


class Standing(StrEnum):
    """What a thing is to this state directory. YOUNG: a claim may be on its way. UNSURE: it cannot be told."""

    ORPHAN = "orphan"
    HELD = "held"
    YOUNG = "young"
    FOREIGN = "foreign"
    UNSURE = "unsure"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is thought of one thing, and why."""

    tagged: Tagged
    standing: Standing
    why: str


@dataclass(frozen=True, slots=True)
class KnownJob:
    """A job of this state directory. ``uids`` are all that it ever had; ``highest`` the newest epoch that it began.

    ``held`` has the machines of the open run, by id, each with its epoch.
    """

    directory: JobDirectory
    record: JobRecord
    uids: frozenset[str]
    highest: int
    held: Mapping[str, int]

    def is_open(self, uid: str) -> bool:
        """Say whether an open run has this uid."""
        return self.record.open and self.record.uid == uid


@dataclass(frozen=True, slots=True)
class Known:
    """All jobs of a state directory. ``damaged`` names those whose record cannot be read."""

    jobs: tuple[KnownJob, ...]
    damaged: Mapping[str, str]

    def of(self, uid: str) -> KnownJob | None:
        """Return the job that has, or had, this uid."""
        return next((job for job in self.jobs if uid in job.uids), None)


def read(root: Path) -> Known:
    """Read the records and events of every job."""
    jobs: list[KnownJob] = []
    damaged: dict[str, str] = {}
    for path in sorted(root.glob("jobs/*/job.json")):
        directory = JobDirectory(root, path.parent.name)
        try:
            job = read_job(directory)
        except ConfigError as error:
            damaged[directory.name] = str(error)
        else:
            jobs += [job] if job is not None else []
    return Known(tuple(jobs), damaged)


def read_job(directory: JobDirectory) -> KnownJob | None:
    """Read one job; None where no run was ever begun. Raises ConfigError for a damaged record."""
    record = directory.record()
    if record is None or record.run == 0:
        return None
    uids, highest, held = {record.uid}, 0, dict[str, int]()
    for event in events.read(directory.path / "events.jsonl"):
        kind, node, epoch = event["kind"], str(event.get("node")), event.get("epoch")
        if kind == "begin":
            held.clear()  # an earlier run is over
            uids.add(str(event.get("uid")))
        if isinstance(epoch, int) and kind in {"begin", "claim", "claimed"}:
            highest = max(highest, epoch)
            if kind == "claimed":
                held[node] = epoch
        if kind in {"released", "release_failed", "surplus"}:  # what did not go is nobody's any more
            held.pop(node, None)
    return KnownJob(directory, record, frozenset(uids), highest, held if record.open else {})


class Judge:
    """Tells orphans from the rest. ``now`` is Unix time; ``older``: what is younger is left alone, in seconds."""

    def __init__(self, known: Known, trains: Callable[[KnownJob, Tagged], str], *, now: float, older: float) -> None:
        """Take what is known. ``trains`` returns why a machine is left alone that the records do not name, or nothing.

        It starts with ``?`` where that cannot be told.
        """
        self._known = known
        self._trains = trains
        self._now = now
        self._older = older

    def judge(self, things: Sequence[Tagged], *, foreign: bool = False) -> list[Verdict]:
        """Judge all that was found. ``foreign``: what belongs to another controller is an orphan, too."""
        things = [self._named(one) for one in things]
        elsewhere = {one.uid for one in things if one.thing.kind == MACHINE and self._foreign(one)}
        machines = [self._machine(one, foreign=foreign) for one in things if one.thing.kind == MACHINE]
        by_token = {one.tagged.thing.token: one for one in machines if one.tagged.thing.token}
        others = [self._other(one, by_token, elsewhere, foreign=foreign) for one in things if one.thing.kind != MACHINE]
        return machines + others

    def _named(self, tagged: Tagged) -> Tagged:
        """Give a thing the name of its job, where its own name has no room for it."""
        job = self._known.of(tagged.uid)
        if job is None or tagged.thing.job == job.record.name:
            return tagged
        return replace(tagged, thing=replace(tagged.thing, job=job.record.name))

    def _foreign(self, tagged: Tagged) -> str:
        job, epoch = self._known.of(tagged.uid), tagged.thing.epoch
        if job is None:
            return "no record of its job here: another controller's"
        if epoch is not None and epoch > job.highest:
            return f"epoch {epoch} was not begun here: another controller's"
        return ""

    def _stranger(self, tagged: Tagged, why: str, *, foreign: bool) -> Verdict:
        thing = tagged.thing
        if self._known.of(tagged.uid) is None and thing.job in self._known.damaged:
            return Verdict(tagged, Standing.UNSURE, "the record of its job is damaged")
        if foreign:
            return self._left(tagged) or Verdict(tagged, Standing.ORPHAN, why)
        return Verdict(tagged, Standing.FOREIGN, why)

    def _left(self, tagged: Tagged) -> Verdict | None:
        """Leave alone what is too young."""
        if tagged.since is not None and self._now - tagged.since < self._older:
            return Verdict(tagged, Standing.YOUNG, "young: a claim may be on its way")
        return None

    def _machine(self, tagged: Tagged, *, foreign: bool) -> Verdict:
        if why := self._foreign(tagged):
            return self._stranger(tagged, why, foreign=foreign)
        job = self._job(tagged)
        if tagged.thing.id in job.held and job.is_open(tagged.uid):
            return Verdict(tagged, Standing.HELD, "the open run holds it")
        if (left := self._left(tagged)) is not None:
            return left
        if not job.is_open(tagged.uid):
            return Verdict(tagged, Standing.ORPHAN, _ended(job, tagged.uid))
        if tagged.since is None:
            return Verdict(tagged, Standing.YOUNG, "its age is not known: a claim may be on its way")
        if kept := self._trains(job, tagged):
            standing = Standing.UNSURE if kept.startswith("?") else Standing.HELD
            return Verdict(tagged, standing, kept.lstrip("? "))
        return Verdict(tagged, Standing.ORPHAN, _unheld(job, tagged.thing.epoch))

    def _other(
        self, tagged: Tagged, by_token: Mapping[str, Verdict], elsewhere: Iterable[str], *, foreign: bool
    ) -> Verdict:
        thing = tagged.thing
        why = self._foreign(tagged)
        if not why and thing.kind not in _OF_A_MACHINE and tagged.uid in elsewhere:
            why = "a machine of another controller uses it"
        if why:
            return self._stranger(tagged, why, foreign=foreign)
        job = self._job(tagged)
        machine = _of_machine(thing.token, by_token)
        if machine is not None and (machine.standing is not Standing.ORPHAN or thing.kind == START):
            return Verdict(tagged, machine.standing, f"its machine: {machine.why}")
        if job.is_open(tagged.uid) and self._needed(job, tagged):
            return Verdict(tagged, Standing.HELD, "the open run needs it")
        if (left := self._left(tagged)) is not None:
            return left
        if not job.is_open(tagged.uid):
            return Verdict(tagged, Standing.ORPHAN, _ended(job, tagged.uid))
        return Verdict(tagged, Standing.ORPHAN, _unheld(job, thing.epoch))

    @staticmethod
    def _needed(job: KnownJob, tagged: Tagged) -> bool:
        """Say whether an open run needs what was prepared for it, or the start object of an epoch that is not over."""
        thing = tagged.thing
        if thing.kind not in _OF_A_MACHINE:
            return True
        current = min(job.held.values(), default=job.highest)
        return thing.kind == START and (thing.epoch is None or thing.epoch >= current)

    def _job(self, tagged: Tagged) -> KnownJob:
        job = self._known.of(tagged.uid)
        assert job is not None  # noqa: S101 - what has no record is a stranger's
        return job


def _of_machine(token: str, by_token: Mapping[str, Verdict]) -> Verdict | None:
    """Find the machine of a token; names of objects have room for the token's beginning only."""
    return next((one for whole, one in by_token.items() if token and whole.startswith(token)), None)


def _ended(job: KnownJob, uid: str) -> str:
    return "the job has ended" if uid == job.record.uid else "an earlier start of the job is over"


def _unheld(job: KnownJob, epoch: int | None) -> str:
    current = max(job.held.values(), default=job.highest)
    if epoch is not None and epoch < current:
        return f"epoch {epoch} is over"
    return "not the machine that the open run holds"
