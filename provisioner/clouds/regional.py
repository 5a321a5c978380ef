"""A cloud in regions: Terraform prepares each, the cloud's own library claims machines there, Terraform adopts them."""

from __future__ import annotations

import contextlib
import json
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Protocol, Self, TypeAlias, TypeVar

from provisioner.clouds.base import Findings, Tagged
from provisioner.clouds.clock import Clock
from provisioner.clouds.meaning import with_failure
from provisioner.clouds.states import States
from provisioner.clouds.substrate import PreparedRegion, Stack
from provisioner.errors import CloudError, StateLocked, TerraformError, Unauthorized, Unreachable, advised
from provisioner.model import Failure, FailureKind, JobRef, Node, Offer, Owned
from provisioner.terraform.provider import Toolchain, discover
from provisioner.terraform.render import remove_stack
from provisioner.terraform.runner import Runner
from provisioner.terraform.stack import CloudStack

SECOND_LOOK_S: Final = 2.0
"""How long after a look that did not show a machine the next one comes, in seconds."""
SWEPT_S: Final = 60.0
"""How long ``dismantle`` waits for the last things to vanish from the cloud's lists, in seconds."""

Inquiry: TypeAlias = tuple[str, str, Callable[[], Sequence[Tagged]]]


class Events(Protocol):
    """Where a room tells what happens: ``telemetry.events.EventLog`` is one."""

    def emit(self, kind: str, /, **fields: Any) -> None:
        """Take one event."""
        ...


class Block(Protocol):
    """An entry of ``fallback`` in failover.yaml."""

    @property
    def regions(self) -> Sequence[str]:
        """The regions that it names."""
        ...


Config = TypeVar("Config", bound=Block)
Spec = TypeVar("Spec")
Found = TypeVar("Found")
Region = TypeVar("Region", bound=PreparedRegion[Any, Any])


class RegionalCloud(ABC, Generic[Config, Spec, Region]):
    """What a cloud of this kind does the same way as the others. A room says how its own cloud is asked."""

    name: ClassVar[str]
    title: ClassVar[str]
    """The cloud's name in a sentence."""
    provider: ClassVar[str]
    """Terraform's name for its provider."""
    toolchain_note: ClassVar[str]
    """File in the job's directory that says, for reports, which Terraform was found."""
    terraform_stack: ClassVar[type[CloudStack[Any, Any]]]

    def __init__(
        self,
        configs: Sequence[Config],
        job: JobRef,
        directory: Path,
        toolchain: Callable[[], Toolchain],
        environ: Mapping[str, str],
        *,
        bucket: str | None = None,
        prefix: str = "",
        events: Events | None = None,
        clock: Clock | None = None,
        stack: Callable[[Spec, Path], Stack[Any]] | None = None,
        states: States | None = None,
    ) -> None:
        """Hold the parts; ask nothing yet.

        Args:
            configs: Every entry of this cloud under ``fallback``, in the file's order. A region belongs to the first
                that names it: its network, image and disk are that entry's.
            job: Whose machines these are.
            directory: The job's state directory; stacks are in ``terraform/<cloud>-<region>``.
            toolchain: Finds Terraform, when it is first needed. Raises TerraformError.
            environ: Where credentials and endpoints are read from.
            bucket: The job's bucket, if machines reach it by an identity of their own.
            prefix: The job's prefix in it.
            events: Gets what Terraform does, and unknown codes.
            clock: Time.
            stack: Opens a stack; by default Terraform's.
            states: Where Terraform's states are; by default beside each stack.
        """
        self.unknown_codes: Counter[str] = Counter()
        self._configs = tuple(configs)
        self._regions = tuple(dict.fromkeys(name for config in configs for name in config.regions))
        self._job = job
        self._directory = directory
        self._toolchain = toolchain
        self._environ = environ
        self._bucket, self._prefix = bucket, prefix
        self._events = events
        self._clock = clock or Clock()
        self._stack = stack or self._terraform_stack
        self._states = states
        self._substrates: dict[str, Region] = {}
        self._unheard: frozenset[str] = frozenset()
        self._lock = threading.Lock()
        self._connect()

    @classmethod
    def open(
        cls, *, job: JobRef, config: Any, directory: Path, environ: Mapping[str, str], events: Events | None = None
    ) -> Self:
        """Open the room for a whole ``Config``, which must name this cloud under ``fallback``."""
        configs = [block for entry in config.fallback if (block := getattr(entry, cls.name)) is not None]
        bucket, prefix = cls._own_store(config, environ)
        toolchain = partial(cls._discover, directory, environ)
        states = States(config, job, directory, environ, events.emit if events is not None else lambda *_, **__: None)
        own = {"bucket": bucket, "prefix": prefix, "events": events, "states": states}
        return cls(configs, job, directory, toolchain, environ, **own)  # type: ignore[arg-type]

    def prepare(self, region: str) -> None:
        """Make what a claim in the region needs. Returns at once where it is there. Raises CloudError."""
        self._prepared(region)

    def adopt(self, node: Node) -> None:
        """Let Terraform take the machine over. Never replaces it: the plan is checked before it is applied."""
        substrate = self._substrate(node.offer.region)
        with substrate.lock:
            substrate.stack.adopt(self._import_id(node))
        self._emit("adopted", node=node.id)

    def owned(self) -> Sequence[Owned]:
        """List everything of the job, whatever any state file says, also what ``prepare`` made, which costs nothing.

        A place that cannot be asked keeps none of the others from being listed: it is told as ``owned_partly``. An
        empty list means that every place has answered. Raises CloudError.
        """
        found, silent = self._survey()
        self._unheard = frozenset(silent)
        for place, error in silent.items():
            self._emit("owned_partly", cloud=self.name, place=place, problem=str(error))
        if silent and not found:
            raise _could_not_ask(silent)
        return found

    def heard(self, region: str) -> bool:
        """Say whether the last ``owned`` has heard of everything in a region; no for one that is not configured."""
        return region in self._regions and self._place_of(region) not in self._unheard

    def tagged(self, regions: Sequence[str]) -> Findings:
        """List everything that carries our owner tag, in these regions too. What is silent hides nothing else."""
        found: list[Tagged] = []
        silent: dict[str, str] = {}
        unreached: dict[str, str] = {}
        for place, what, ask in self._inquiries(tuple(dict.fromkeys([*self._regions, *regions]))):
            if place in unreached:  # each question would wait as long again
                silent[f"{place} {what}"] = unreached[place]
                continue
            try:
                found += ask()
            except CloudError as error:
                silent[f"{place} {what}"] = str(error)
                if isinstance(error, Unreachable):
                    unreached[place] = str(error)
        return Findings(tuple({one.key: one for one in found}.values()), silent)

    @abstractmethod
    def remove(self, tagged: Tagged) -> None:
        """Ask that one thing goes away; a machine is gone when this returns. Raises CloudError."""

    def dismantle(self) -> None:
        """Destroy every region's stack; then remove what Terraform does not know. Idempotent. Raises CloudError.

        A run that was killed between the cloud's answer and Terraform's note leaves things that no state file names.
        Locks of others are waited for once, all together.
        """
        with self._states.waits.together() if self._states is not None else contextlib.nullcontext():
            self._dismantle()

    def _dismantle(self) -> None:
        problems: dict[str, CloudError] = {}
        for name in self._regions:
            try:
                self._take_apart(name)
            except CloudError as error:
                problems[name] = error
        self._confirm_nothing_left(problems)
        locked = {name: error for name, error in problems.items() if isinstance(error, StateLocked)}
        for name in self._regions:
            if name in locked:
                continue
            if self._has_remote_state(name):
                self._substrate(name).stack.discard()
            if self._states is not None:
                self._states.forget(self._stack_directory(name).name)
            remove_stack(self._stack_directory(name))
        if locked:
            raise StateLocked("; ".join(map(advised, locked.values())))

    @abstractmethod
    def spec(self, region: str) -> Spec:
        """Describe the stack of a region. Raises CloudError."""

    # --- what a room fills in -----------------------------------------------------------------------------------------

    @abstractmethod
    def _connect(self) -> None:
        """Make what the cloud is asked through; ask nothing yet. Called once, when all else is there."""

    @classmethod
    @abstractmethod
    def _own_store(cls, config: Any, environ: Mapping[str, str]) -> tuple[str | None, str]:
        """Return bucket and prefix of the job's store, if machines reach it by an identity of their own; else none."""

    @abstractmethod
    def _open_region(self, region: str, directory: Path, make: Callable[[], Stack[Any]]) -> Region:
        """Return the region as Terraform prepares it; ``make`` opens its stack."""

    @abstractmethod
    def _import_id(self, node: Node) -> str:
        """Return what Terraform imports the machine by."""

    @abstractmethod
    def _ended(self, region: str, import_id: str) -> bool:
        """Say whether a machine that Terraform holds has ended. Raises CloudError."""

    @abstractmethod
    def _refusal_in(self, region: str, text: str) -> Failure | None:
        """Type what Terraform says of a refusal by the cloud; None where it says something else."""

    @abstractmethod
    def _is_stale(self, failure: Failure) -> bool:
        """Say whether a refusal means that the region is not as it was noted."""

    @abstractmethod
    def _places(self) -> Sequence[str]:
        """Name the places that are asked, one by one, for what is there of the job."""

    @abstractmethod
    def _place_of(self, region: str) -> str:
        """Return the one of them that has a region."""

    @abstractmethod
    def _owned_in(self, place: str) -> Sequence[Owned]:
        """List what is there of the job in one place. Raises CloudError."""

    @abstractmethod
    def _inquiries(self, regions: Sequence[str]) -> Iterable[Inquiry]:
        """Return the questions whose answers are all that carries our owner tag: place, what is asked for, the call."""

    @abstractmethod
    def _sweep(self, place: str) -> None:
        """Ask that substrate goes away which Terraform does not know. Raises CloudError for what does not go."""

    # --- parts --------------------------------------------------------------------------------------------------------

    def _twice(self, find: Callable[[], Found | None]) -> Found | None:
        """Look for a machine, and again if it is not listed: a list may lag behind."""
        found = find()
        if found is None:
            self._clock.sleep(SECOND_LOOK_S)
            found = find()
        return found

    def _prepared(self, region: str) -> Any:
        try:
            return self._substrate(region).prepare(lambda import_id: self._ended(region, import_id))
        except TerraformError as error:
            refused = self._refusal_in(region, str(error))
            if refused is not None:
                with_failure(error, refused)
            raise

    def _substrate(self, region: str) -> Region:
        with self._lock:
            if region not in self._substrates:
                directory = self._stack_directory(region)
                make = lambda: self._stack(self.spec(region), directory)  # noqa: E731 - one line, two values
                self._substrates[region] = self._open_region(region, directory, make)
            return self._substrates[region]

    def _stack_directory(self, region: str) -> Path:
        return self._directory / "terraform" / f"{self.name}-{region}"

    def _terraform_stack(self, spec: Any, directory: Path) -> Stack[Any]:
        def tell(event: dict[str, Any]) -> None:
            self._emit("terraform", region=spec.region, **{("what" if k == "kind" else k): v for k, v in event.items()})

        remote = self._states.remote(directory.name) if self._states is not None else None
        runner = Runner(self._toolchain(), directory, on_event=tell, environ=self._environ, remote=remote)
        if self._states is not None:
            runner.waits = self._states.waits
        return self.terraform_stack(spec, runner)

    def _take_apart(self, region: str) -> None:
        substrate = self._substrate(region)
        with substrate.lock:
            substrate.forget()
            if substrate.directory.exists() or self._has_remote_state(region):
                substrate.stack.destroy()

    def _has_remote_state(self, region: str) -> bool:
        """Say whether a bucket has a state of the region, whoever prepared it. Raises CloudError."""
        return self._states is not None and self._states.exists(self._stack_directory(region).name)

    def _survey(self) -> tuple[list[Owned], dict[str, CloudError]]:
        """Return what is there of the job, and the places that could not be asked, each with the reason."""
        found: list[Owned] = []
        silent: dict[str, CloudError] = {}
        for place in self._places():
            try:
                found += self._owned_in(place)
            except CloudError as error:
                silent[place] = error
        return found, silent

    def _confirm_nothing_left(self, problems: Mapping[str, CloudError]) -> None:
        """Sweep until every place says that nothing is there. ``problems`` are Terraform's. Raises CloudError."""
        until = self._clock.tick() + SWEPT_S
        unswept: dict[str, CloudError] = {}
        while True:
            found, silent = self._survey()
            if not found:
                break
            if self._clock.tick() >= until:
                reasons = [*problems.values(), *unswept.values(), *([_could_not_ask(silent)] if silent else [])]
                raise self._still_there(found, reasons)
            unswept = self._swept()
            self._clock.sleep(2.0)
        if silent:
            raise _could_not_ask(silent)
        for name, error in problems.items():  # everything is gone, so its note means nothing any more
            self._emit("terraform_failed", region=name, problem=str(error))

    def _swept(self) -> dict[str, CloudError]:
        """Sweep every place; return what did not go, by place. What is still in use goes the next time."""
        problems: dict[str, CloudError] = {}
        for place in self._places():
            try:
                self._sweep(place)
            except CloudError as error:
                problems[place] = error
        return problems

    def _still_there(self, found: Sequence[Owned], reasons: Sequence[CloudError]) -> CloudError:
        named = ", ".join(f"{thing.region} {thing.kind} {thing.id}" for thing in found)
        told = "; ".join(dict.fromkeys(map(advised, reasons)))
        message = f"{self.title} still lists {named}" + (f" ({told})" if told else "")
        return CloudError(message, hint="release the machines, then dismantle again")

    def _learn(self, offer: Offer, failure: Failure) -> None:
        """Take from a refusal what concerns the room itself."""
        if self._is_stale(failure):
            self._substrate(offer.region).forget()
        if failure.kind is FailureKind.UNKNOWN:
            self.unknown_codes[failure.code] += 1
            self._emit("unknown_code", cloud=self.name, code=failure.code, message=failure.message)

    def _emit(self, kind: str, **fields: Any) -> None:
        if self._events is not None:
            self._events.emit(kind, **fields)

    @classmethod
    def _discover(cls, directory: Path, environ: Mapping[str, str]) -> Toolchain:
        """Find Terraform; leave a note of what was found in the job's directory, for reports."""
        found = discover(directory, environ, cls.provider)
        (directory / cls.toolchain_note).write_text(json.dumps(found.describe()) + "\n", encoding="utf-8")
        return found


def _could_not_ask(silent: Mapping[str, CloudError]) -> CloudError:
    """Return the error for places that could not be asked. Its kind is theirs, where they agree."""
    places: dict[str, list[str]] = {}
    for place, error in silent.items():
        places.setdefault(str(error), []).append(place)
    told = "; ".join(f"{', '.join(named)} could not be asked: {reason}" for reason, named in places.items())
    kinds = (Unauthorized, Unreachable)
    kind = next((one for one in kinds if all(isinstance(error, one) for error in silent.values())), CloudError)
    return kind(told, hint=next(iter(silent.values())).hint)
