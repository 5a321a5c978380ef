"""Move the Terraform states of a job from one place to another. The same command again finishes what was begun."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from provisioner.clouds.states import Place, States
from provisioner.config import Config
from provisioner.config.terraform import terraform_findings
from provisioner.controller.directory import JobDirectory, JobRecord, state_root
from provisioner.controller.run import reopened_config
from provisioner.errors import ConfigError, TerraformError
from provisioner.terraform import moving, statefile
from provisioner.terraform.backend import MOVED, Remote, replace
from provisioner.terraform.locks import Host, Owner, StateLock
from provisioner.terraform.provider import Toolchain, discover
from provisioner.terraform.runner import LOGS, STATE_FILE

BACKUPS: Final = "state-backups"
_PROVIDERS: Final = {"aws": "aws", "gcp": "google"}
Outcome = Literal["moved", "there", "nothing"]


@dataclass(frozen=True, slots=True)
class Found:
    """A stack's state as it is. ``lock`` says who holds it; both are empty for nobody and for a file."""

    stack: str
    where: str
    serial: int
    resources: tuple[str, ...]
    lock: str = ""
    lock_id: str = ""


@dataclass(frozen=True, slots=True)
class Moved:
    """What became of a stack's state: moved, there already, or there was nothing. ``backup`` is the copy here."""

    stack: str
    outcome: Outcome
    where: str
    serial: int
    resources: int
    backup: str = ""


class StateMoves:
    """The states of one job."""

    def __init__(
        self,
        config: Config,
        environ: Mapping[str, str],
        *,
        toolchain: Callable[[str], Toolchain] | None = None,
        after_step: Callable[[str], None] = lambda _step: None,
    ) -> None:
        """Find the job of a configuration. ``toolchain(provider)`` finds Terraform; ``after_step`` is for tests.

        A run that is open counts by the configuration that it was started with. Raises ConfigError.
        """
        self.directory = JobDirectory(state_root(environ), config.job.name)
        self.environ = environ
        self.wanted = config.terraform.state
        self.record = self._known(config)
        self.config = reopened_config(self.directory, self.record, environ) if self.record.open else config
        self.states = States(self.config, self.record.ref, self.directory.path, environ)
        self._toolchain = toolchain or (lambda provider: discover(self.directory.path, environ, provider))
        self._after_step = after_step

    def stacks(self) -> list[str]:
        """Name the stacks: those in the job's directory, and those that the configuration may have elsewhere."""
        here = [path.name for path in sorted((self.directory.path / "terraform").glob("*-*")) if path.is_dir()]
        blocks = [(cloud, getattr(entry, cloud)) for entry in self.config.fallback for cloud in _PROVIDERS]
        named = [f"{cloud}-{region}" for cloud, block in blocks if block is not None for region in block.regions]
        known = [name for name in here if name.partition("-")[0] in _PROVIDERS]
        return list(dict.fromkeys([*known, *named]))

    def ls(self) -> list[Found]:
        """List the states that there are. Raises CloudError."""
        found = []
        for stack in self.stacks():
            place = self._at(stack, self.states.place(stack).state)
            state = statefile.read(self._read(place), _where(place))
            lock = place.objects.get(place.lock_key) if isinstance(place, Remote) else None
            owner = Owner.of(lock) if lock is not None else None
            if state != statefile.NONE or owner is not None:
                said = (str(owner), owner.id) if owner is not None else ("", "")
                found.append(Found(stack, _where(place), state.serial, tuple(state.resources), *said))
        return found

    def unlock(self, lock_id: str) -> str:
        """Remove a lock by its id, whoever made it; return whose state it was. Raises ConfigError where none has it."""
        for stack in self.stacks():
            place = self._at(stack, self.states.place(stack).state)
            lock = place.objects.get(place.lock_key) if isinstance(place, Remote) else None
            if isinstance(place, Remote) and lock is not None and lock_id and Owner.of(lock).id == lock_id:
                place.objects.delete([place.lock_key])
                return place.uri
        message = f"no state of job {self.directory.name} has a lock {lock_id!r}"
        raise ConfigError(message, hint="failover state ls lists the locks")

    def migrate(self, to: str) -> Iterator[Moved]:
        """Move every state to ``to``: ``local``, ``store`` or a URI. Raises ConfigError (Held), CloudError.

        No controller may run the job. What is not moved yet when it breaks off is moved by the next call.
        """
        wanted = self.config.terraform.model_copy(update={"state": to})
        for _, message, hint in terraform_findings(wanted, self.config.checkpoint, self.directory.name, self.environ):
            raise ConfigError(f"{to}: {message}", hint=hint)
        with self.directory.lock():
            if self.record.open:
                self.states.note_run(self.record.run, to)
            for stack in self.stacks():
                yield self._move(stack, to)

    # --- parts --------------------------------------------------------------------------------------------------------

    def _move(self, stack: str, to: str) -> Moved:
        place = self.states.place(stack)
        if place.was:  # it broke off when the copy was whole
            with self._held(stack, self._at(stack, place.was), self._at(stack, place.state)):
                place = self._finish(stack, place)
        source, target = self._at(stack, place.state), self._at(stack, to)
        if place.state == to or _where(source) == _where(target):
            state = statefile.read(self._read(source), _where(source))
            if self._is_known(stack):
                self.states.note(stack, Place(to, left=place.left))
            return Moved(
                stack, "nothing" if state.empty else "there", _where(target), state.serial, len(state.resources)
            )
        with self._held(stack, source, target) as lock_id:
            content = self._read(source)
            state = statefile.read(content, _where(source))
            backup = ""
            if content is not None and not state.empty:
                backup = str(self._backup(stack, state, content))
                self._after_step("backed up")
                self._copy(stack, state, source, target, lock_id)
            if self._is_known(stack) or not state.empty:
                self.states.note(stack, Place(to, place.state, place.left))
                self._after_step("noted")
                self._finish(stack, self.states.place(stack), moved=not state.empty)
            outcome: Outcome = "nothing" if state.empty else "moved"
            return Moved(stack, outcome, _where(target), state.serial, len(state.resources), backup)

    def _copy(
        self, stack: str, state: statefile.State, source: Remote | Path, target: Remote | Path, lock_id: str
    ) -> None:
        """Copy a state, unless it is there already, and make sure that it is. Raises TerraformError."""
        there = statefile.read(self._read(target), _where(target))
        if not _same(state, there):
            if not there.empty and (there.lineage != state.lineage or there.serial > state.serial):
                message = f"{_where(target)}: another state is there, with {len(there.resources)} resources"
                raise TerraformError(
                    message, hint=f"look at both; nothing was changed, {_where(source)} is still in use"
                )
            if isinstance(target, Remote):
                if there == statefile.NONE:
                    # Over a state, Terraform keeps the lineage of what it copies and counts one serial more. Where
                    # there is none it draws another lineage, at Google under a lock of its own.
                    target.objects.put(target.state_key, statefile.blank("1.10.0"))
            else:
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder = self.directory.path / "terraform" / f".move-{stack}"
            provider = _PROVIDERS[stack.partition("-")[0]]
            moving.copy(self._toolchain(provider), folder, source, target, self.environ, lock_id)
            self._after_step("copied")
        there = statefile.read(self._read(target), _where(target))
        if not _same(state, there):
            message = f"{stack}: the copy at {_where(target)} is not the state at {_where(source)}"
            raise TerraformError(message, hint=f"nothing was removed: {_where(source)} is still in use")

    def _finish(self, stack: str, place: Place, *, moved: bool = True) -> Place:
        """Remove the state from where it was; leave a sign for other machines. Its copy was verified before."""
        old = self._at(stack, place.was)
        left = place.left
        if isinstance(old, Path):
            for path in (old, old.with_name(f"{old.name}.backup")):
                path.unlink(missing_ok=True)
        else:
            if moved:
                sign = {"to": place.state, "host": Host.here().name, "at": time.time()}  # noqa: TID251 - a note for people
                old.objects.put(old.state_key + MOVED, json.dumps(sign).encode())
                left = tuple(dict.fromkeys([*left, place.was]))
            old.objects.delete([old.state_key])
        self._after_step("removed")
        new = self._at(stack, place.state)
        if isinstance(new, Remote):
            new.objects.delete([new.state_key + MOVED])
        finished = Place(place.state, left=tuple(one for one in left if one != place.state))
        self.states.note(stack, finished)
        return finished

    @contextmanager
    def _held(self, stack: str, *places: Remote | Path) -> Iterator[str]:
        """Hold the locks of buckets, and the stack's turn on this machine. Give the id of the last lock."""
        folder = self.states.stack_directory(stack) / LOGS
        remotes = [place for place in places if isinstance(place, Remote)]
        fresh = not self._is_known(stack)
        lock_id = ""
        with ExitStack() as held:
            if fresh:  # only looked for here: leave no directory behind
                held.callback(self._remove_if_bare, stack)
            locks = [StateLock.of(remote, folder) for remote in remotes]
            for remote in remotes:
                remote.ready()
            for number, (lock, remote) in enumerate(zip(locks, remotes, strict=True)):
                until = time.monotonic() + remote.waits.timeout_s
                if not number:
                    held.enter_context(lock.turn(until))
                lock_id = held.enter_context(lock.held_in_turn("migrate", until))
            yield lock_id

    def _remove_if_bare(self, stack: str) -> None:
        if not self._is_known(stack):
            shutil.rmtree(self.states.stack_directory(stack), ignore_errors=True)

    def _is_known(self, stack: str) -> bool:
        """Say whether this machine has the stack, not only a lock's note in its place."""
        folder = self.states.stack_directory(stack)
        return folder.is_dir() and any(path.name != LOGS for path in folder.iterdir())

    def _backup(self, stack: str, state: statefile.State, content: bytes) -> Path:
        folder = self.directory.path / BACKUPS
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / f"{stack}-{state.lineage[:8]}-{state.serial}.tfstate"
        replace(path, content.decode())
        return path

    def _at(self, stack: str, state: str) -> Remote | Path:
        return self.states.at(stack, state) or self.states.stack_directory(stack) / STATE_FILE

    def _read(self, place: Remote | Path) -> bytes | None:
        if isinstance(place, Remote):
            return place.objects.get(place.state_key)
        try:
            return place.read_bytes()
        except FileNotFoundError:
            return None

    def _known(self, config: Config) -> JobRecord:
        record = self.directory.record()
        if record is None:
            message = f"no job {config.job.name!r} in {self.directory.path.parent}"
            raise ConfigError(message, hint="failover status lists the jobs")
        return record


def _same(one: statefile.State, other: statefile.State) -> bool:
    """Say whether a copy is whole. Terraform counts its own write of a copy over an empty state as one more."""
    return (
        one.lineage == other.lineage
        and dict(one.resources) == dict(other.resources)
        and other.serial in {one.serial, one.serial + 1}
    )


def _where(place: Remote | Path) -> str:
    return place.uri if isinstance(place, Remote) else str(place)
