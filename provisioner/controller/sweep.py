"""Find what nobody holds at the clouds and in the stores, and remove it: machines first, then all else."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from provisioner.checkpoint import layout
from provisioner.clock import now as unix_now
from provisioner.clouds.base import Tagged
from provisioner.controller import orphans
from provisioner.controller.billing import charge
from provisioner.controller.clocks import age_s
from provisioner.controller.directory import state_root
from provisioner.controller.launch import open_job_store
from provisioner.controller.ledger import Ledger
from provisioner.controller.orphans import (
    MACHINE,
    RUNTIME,
    START,
    UNFINISHED,
    Judge,
    Known,
    KnownJob,
    Standing,
    Verdict,
)
from provisioner.controller.patience import SILENT_S
from provisioner.controller.strays import ALIVE_S, asked_at
from provisioner.controller.sweep_litter import judged
from provisioner.controller.sweep_rooms import Room, Rooms
from provisioner.errors import ConfigError, FailoverError, Unauthorized
from provisioner.model import Money

SETTLE_S: Final = 90.0
"""How long things are asked to go away while what used them ends, in seconds."""
_PAUSE_S: Final = 2.0
_ORDER: Final = (
    (MACHINE,),
    (START,),
    ("spot_request", "volume", "address", "launch_template"),
    ("security_group", "firewall"),
    ("subnetwork",),
    ("vpc", "network"),
    ("instance_profile",),
    ("role", "service_account"),
    (UNFINISHED,),
    (RUNTIME,),
)
"""What goes before what: nothing can go while something uses it."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for. ``older`` in seconds; an empty ``job`` means all."""

    job: str = ""
    older: float = 600.0
    foreign: bool = False


@dataclass(slots=True)
class Outcome:
    """What was thought of a thing, and what became of it. ``ended`` is the Unix time at which a machine was gone."""

    verdict: Verdict
    removed: bool = False
    problem: str = ""
    hopeless: bool = False
    """To ask again would be answered the same."""
    ended: float | None = None

    @property
    def kind(self) -> str:
        """What it is."""
        return self.verdict.tagged.thing.kind

    def seconds(self, now: float) -> float | None:
        """Return how long it has been there, or was; None where that is not known."""
        since = self.verdict.tagged.since
        return None if since is None else max(0.0, (now if self.ended is None else self.ended) - since)

    def cost(self, now: float) -> Money | None:
        """Return what that has cost by its price an hour; None where one of them is not known."""
        price, seconds = self.verdict.tagged.thing.price_per_hour, self.seconds(now)
        if price is None or seconds is None:
            return None
        cost = charge(self.verdict.tagged.thing.cloud, price, seconds)
        return Money(cost.quantize(Decimal("0.000001")), price.currency)


@dataclass(slots=True)
class Swept:
    """All that was found and is not held, and what could not be asked or told, by place."""

    outcomes: list[Outcome]
    silent: dict[str, str] = field(default_factory=dict)

    def orphans(self) -> list[Outcome]:
        """Return what is to be removed, or was."""
        return [one for one in self.outcomes if one.verdict.standing is Standing.ORPHAN]


class Sweep:
    """One look at everything that is ours, and the end of what nobody holds."""

    def __init__(
        self,
        file: Path | None,
        options: Options,
        environ: Mapping[str, str],
        *,
        now: Callable[[], float] = unix_now,
        sleep: Callable[[float], None] = time.sleep,
        settle_s: float = SETTLE_S,
    ) -> None:
        """Take a configuration file, if there is one, besides those that the jobs were started with."""
        self._file = file
        self._options = options
        self._environ = environ
        self._root = state_root(environ)
        self._now, self._sleep, self._settle_s = now, sleep, settle_s
        self._rooms = Rooms(self._root, environ)
        self._found_in: dict[tuple[str, ...], Room] = {}
        self._known = Known((), {})

    def look(self) -> Swept:
        """Ask everywhere and judge what is there. Removes nothing. Raises ConfigError."""
        known = self._known = orphans.read(self._root)
        if self._file is None and not known.jobs and not known.damaged:
            message = f"no failover.yaml here, and no job in {self._root}: nothing says which clouds to ask"
            raise ConfigError(message, hint="name a file: failover sweep FILE")
        self._rooms.open(known, self._file)
        silent = {f"{self._root}/jobs/{name}": why for name, why in known.damaged.items()} | self._rooms.silent
        things: dict[tuple[str, ...], Tagged] = {}  # two accounts may have a project in common
        for room in self._rooms:
            found = room.listed()
            silent |= found.silent
            things |= {one.key: one for one in found.found}
            self._found_in |= dict.fromkeys((one.key for one in found.found), room)
        judge = Judge(known, self._keeps, now=self._now(), older=self._options.older)
        verdicts = judge.judge([*things.values()], foreign=self._options.foreign) + self._litter(silent)
        wanted = [one for one in verdicts if self._options.job in {"", one.tagged.thing.job}]
        self._check_name(wanted)
        silent |= {f"{one.tagged.thing.kind} {one.tagged.thing.id}": one.why for one in wanted if _unsure(one)}
        return Swept([Outcome(one) for one in wanted if one.standing is not Standing.HELD], silent)

    def _litter(self, silent: dict[str, str]) -> list[Verdict]:
        """Look for what lies in the stores and is nobody's; tell ``silent`` what could not be asked."""
        verdicts: list[Verdict] = []
        for room in self._rooms.litter.values():
            found = room.listed()
            silent |= found.silent
            verdicts += judged(room, found.found, now=self._now(), older=self._options.older)
            self._found_in |= dict.fromkeys((one.key for one in found.found), room)
        return verdicts

    def remove(self, swept: Swept, *, say: Callable[[str], None]) -> None:
        """Remove the orphans, machines first. What is left says why in its ``problem``."""
        for kinds in _ORDER:
            pending = [one for one in swept.orphans() if one.kind in kinds and not _machine_left(one, swept)]
            until = self._now() + self._settle_s
            while pending:
                for one in pending:
                    self._ask_to_go(one)
                self._confirm(pending, swept.silent)
                for one in pending:
                    if one.removed:
                        say(farewell(one, self._now()))
                pending = [one for one in pending if not one.removed and not one.hopeless]
                if not pending or self._now() >= until:
                    break
                self._sleep(_PAUSE_S)
        for one in swept.orphans():
            if not one.removed and not one.problem:
                one.problem = "it is still listed"

    def _keeps(self, job: KnownJob, tagged: Tagged) -> str:
        """Say why a machine is left alone that the open run has no record of: it trains. ``?``: it cannot be told."""
        config, epoch = self._rooms.configs.get(job.record.name), tagged.thing.epoch
        if config is None or epoch is None:
            return "? whether it trains cannot be told: its configuration or epoch is not known"
        try:
            store = open_job_store(config, self._environ)
            owner, beat = _object(store.get(layout.owner(epoch))), _object(store.get(layout.heartbeat(epoch)))
            age = age_s(store, epoch, self._now())
        except FailoverError as error:
            return f"? whether it trains cannot be told: {error}"
        token = str(owner.get("token", ""))
        if token and not token.startswith(tagged.thing.token):
            return ""
        if beat.get("end") or age is None or age > max(config.policy.lost_after or SILENT_S, ALIVE_S):
            return ""
        return "it trains for the open run, which `failover run` takes up"

    def _check_name(self, wanted: Sequence[Verdict]) -> None:
        name = self._options.job
        names = {job.record.name for job in self._known.jobs} | set(self._known.damaged)
        if name and not wanted and name not in names:
            message = f"no job {name!r} in {self._root}, and nothing of it where could be asked"
            raise ConfigError(message, hint="failover status lists the jobs; without --job, all are swept")

    # --- what is removed ----------------------------------------------------------------------------------------------

    def _ask_to_go(self, one: Outcome) -> None:
        tagged = one.verdict.tagged
        one.problem = ""
        try:
            with self._unheld(tagged):
                self._found_in[tagged.key].remove(tagged)
        except FailoverError as error:
            one.problem = str(error)
            one.hopeless = one.kind == MACHINE or isinstance(error, Unauthorized | ConfigError)
        else:
            one.ended = self._now()
            one.removed = one.kind == MACHINE  # it has the cloud's word already
            if one.removed and (job := self._known.of(tagged.uid)) is not None:
                since = tagged.since or asked_at(job.directory, tagged.thing.epoch, tagged.thing.token)
                Ledger(job.directory.path).removed(tagged.thing, since, one.ended)

    @contextmanager
    def _unheld(self, tagged: Tagged) -> Iterator[None]:
        """Keep a controller from taking the job up meanwhile; one that runs already goes on. Raises ConfigError."""
        job = self._known.of(tagged.uid)
        if job is None:
            yield
            return
        with ExitStack() as stack:
            with suppress(ConfigError):
                stack.enter_context(job.directory.lock())
            fresh = orphans.read_job(job.directory)
            begun = fresh is None or (fresh.record.open and (not job.record.open or fresh.record.run != job.record.run))
            if begun or (fresh is not None and tagged.thing.id in fresh.held):
                message = f"job {job.record.name} was taken up meanwhile"
                raise ConfigError(message, hint="look again: failover sweep")
            yield

    def _confirm(self, pending: Sequence[Outcome], silent: Mapping[str, str]) -> None:
        """Look whether things are gone. What cannot be asked any more may still be there."""
        asked = [one for one in pending if one.kind != MACHINE and not one.hopeless]
        rooms = [self._found_in[one.verdict.tagged.key] for one in asked]
        answers = {key: room.listed() for key, room in {id(room): room for room in rooms}.items()}
        for one in asked:
            key = one.verdict.tagged.key
            answer = answers[id(self._found_in[key])]
            unheard = {place: why for place, why in answer.silent.items() if place not in silent}
            if key in {there.key for there in answer.found}:
                continue
            if unheard:
                one.problem = f"whether it is gone cannot be told: {'; '.join(unheard.values())}"
            else:
                one.removed, one.problem = True, ""


def farewell(one: Outcome, now: float) -> str:
    """Return one line on what was removed; of a machine also what it has cost."""
    thing = one.verdict.tagged.thing
    where = "/".join(part for part in (thing.cloud, thing.region) if part)
    words = f"removed {thing.kind} {thing.id} ({where})"
    if one.kind != MACHINE:
        return words
    cost, seconds = one.cost(now), one.seconds(now)
    if cost is None or seconds is None:
        return f"{words}: what it has cost is not known"
    return f"{words}: it has cost about {cost} in {seconds:.0f} s"


def _machine_left(one: Outcome, swept: Swept) -> bool:
    """Say whether a thing's machine did not go, or was taken up: then what it needs stays, too."""
    token = one.verdict.tagged.thing.token
    left = [other for other in swept.orphans() if other.kind == MACHINE and other.problem]
    if one.kind == MACHINE or not any(token and other.verdict.tagged.thing.token.startswith(token) for other in left):
        return False
    one.problem = "its machine is still there"
    return True


def _unsure(verdict: Verdict) -> bool:
    return verdict.standing is Standing.UNSURE


def _object(data: bytes | None) -> dict[str, Any]:
    try:
        value = json.loads(data or b"{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
