"""Run Terraform in one stack: init, plan, checked apply, outputs.

python-terraform builds the command lines. Its own way of running them has no deadline, no stream and no end in some
cases, so :mod:`.process` runs them.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from python_terraform import IsFlagged, Terraform

from provisioner.errors import StateLocked, TerraformError, Unreachable
from provisioner.terraform import backend, events, locks, process, statefile
from provisioner.terraform.plan import Allow, Plan, check, from_json
from provisioner.terraform.provider import Toolchain
from provisioner.terraform.waits import Waits

if TYPE_CHECKING:
    from provisioner.terraform.backend import Remote

STATE_FILE: Final = "terraform.tfstate"
LOGS: Final = ".runs"
_INIT_PAUSES_S: Final = (2.0, 5.0)
_OLDEST_FOR_S3: Final = (1, 10)
# Variables of the environment that would change what our command lines mean.
FOREIGN: Final = ("TF_CLI_ARGS", "TF_WORKSPACE", "TF_DATA_DIR", "TF_INPUT", "TF_VAR_")


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds that a run may take before it is interrupted, and the grace before it is killed."""

    init_s: float = 600.0
    plan_s: float = 300.0
    apply_s: float = 900.0
    show_s: float = 120.0
    grace_s: float = 20.0
    lock_s: float | None = None
    """How long a run waits for another one that works on the same state file; None: by ``Runner.waits``."""


@dataclass(slots=True)
class Runner:
    """Terraform in the stack at ``directory``. Every method raises TerraformError, Unauthorized or Unreachable.

    ``on_event`` gets compact events (see :func:`.events.compact`) as they happen. ``environ`` is what Terraform
    inherits: the cloud's credentials are in it, and nowhere else.
    """

    toolchain: Toolchain
    directory: Path
    on_event: Callable[[events.Event], None] | None = None
    deadlines: Deadlines = field(default_factory=Deadlines)
    environ: Mapping[str, str] | None = None
    remote: Remote | None = None
    """The bucket that the state is in; None: a file in ``directory``."""
    sleep: Callable[[float], None] = time.sleep
    waits: Waits = field(default_factory=Waits)
    """How long a run waits for another one that works on the same state file."""
    _lock_id: str = field(default="", init=False)

    @property
    def _plan_file(self) -> Path:
        return self.directory / "plan.tfplan"

    @property
    def _hint(self) -> str:
        return f"all that Terraform said is in {self.directory / LOGS}"

    @contextmanager
    def hold(self, operation: str) -> Iterator[None]:
        """Hold the state's lock over several runs. Not for a file: Terraform itself locks it, run by run.

        Raises StateLocked when others do not let go of it in time.
        """
        remote = self.remote
        if remote is None or self._lock_id:
            yield
            return
        remote.ready()
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        logs = self.directory / LOGS
        lock = locks.StateLock.of(remote, logs, grace_s=self.deadlines.grace_s, on_wait=self._waiting)
        with lock.held(operation) as lock_id:
            self._lock_id = lock_id
            try:
                if remote.objects.get(remote.state_key) is None:
                    self._begin(remote)
                self._bring_errored(remote)
                yield
            finally:
                self._lock_id = ""

    def _begin(self, remote: Remote) -> None:
        """Begin a state, unless it was moved away while this controller knew another place for it."""
        if remote.objects.get(remote.state_key + backend.MOVED) is not None:
            message = f"{remote.uri}: this state was moved to another place"
            raise TerraformError(message, hint="start this controller again: it finds the place then")
        if remote.kind == "gcs":  # Terraform would begin one under a lock of its own, whatever it is told of locks
            remote.objects.put(remote.state_key, statefile.blank(self.toolchain.version or "1.10.0"))

    def _bring_errored(self, remote: Remote) -> None:
        """Write to the bucket what Terraform could not: it then leaves its newest state beside the stack."""
        path = self.directory / "errored.tfstate"
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return
        left, there = statefile.read(content, str(path)), self.whole_state()
        if there.lineage in {"", left.lineage} and left.serial > there.serial:
            remote.objects.put(remote.state_key, content)
            path.unlink()

    def init(self) -> None:
        """Install the provider and the modules. Does nothing when neither has changed since the last time.

        The state stays where it is: a run never moves one. What only the line is to blame for is tried again.
        """
        backend.write(self.directory, self.remote)
        mark = self.directory / ".terraform" / "initialized"
        wanted = self._init_key()
        installed = (self.directory / ".terraform" / "providers").glob("*/*/*/*/*")
        if mark.is_file() and mark.read_text(encoding="utf-8") == wanted and all(path.exists() for path in installed):
            return
        self._check_version()
        # The lock file pins a provider for repeatable runs; a different toolchain brings a provider of its own.
        (self.directory / ".terraform.lock.hcl").unlink(missing_ok=True)
        argv = self._argv("init", input=False, no_color=IsFlagged, reconfigure=IsFlagged)
        with self.hold("init"), _alone(self.toolchain.env.get("TF_PLUGIN_CACHE_DIR")):
            self._init(argv)
        mark.parent.mkdir(exist_ok=True)
        mark.write_text(wanted, encoding="utf-8")

    def _init(self, argv: list[str]) -> None:
        for pause_s in (*_INIT_PAUSES_S, None):
            try:
                self._run("init", argv, self.deadlines.init_s)
                return
            except Unreachable:
                if pause_s is None:
                    raise
                self.sleep(pause_s)

    def _check_version(self) -> None:
        found = re.match(r"(\d+)\.(\d+)", self.toolchain.version)
        if self.remote is None or self.remote.kind != "s3" or found is None:
            return
        if (int(found[1]), int(found[2])) < _OLDEST_FOR_S3:
            message = f"Terraform {self.toolchain.version} cannot lock a state in S3, 1.10 can"
            raise TerraformError(message, hint="set TERRAFORM_BIN to a newer one, or terraform.state to local")

    def plan(
        self,
        *,
        destroy: bool = False,
        targets: Sequence[str] = (),
        refresh: bool = True,
        refresh_only: bool = False,
    ) -> Plan:
        """Plan, save the plan (0600) and read it back. Nothing is changed."""
        argv = self._argv(
            "plan",
            input=False,
            json=IsFlagged,
            out=self._plan_file.name,
            **self._locking(),
            destroy=IsFlagged if destroy else None,
            refresh=None if refresh else False,
            refresh_only=IsFlagged if refresh_only else None,
            target=list(targets),
        )
        with self.hold("plan"):
            self._run("plan", argv, self.deadlines.plan_s)
        shown = self._run("show", self._argv("show", self._plan_file.name, json=IsFlagged), self.deadlines.show_s)
        try:
            return from_json(self._plan_file, json.loads(shown.stdout_text()))
        except (ValueError, KeyError, TypeError) as error:
            message = f"{self.directory.name}: the saved plan cannot be read back"
            raise TerraformError(message, hint=self._hint) from error
        finally:
            shown.stdout.unlink(missing_ok=True)

    def apply(self, plan: Plan, allow: Allow) -> None:
        """Apply a saved plan after it was checked against ``allow``. The plan file is used up.

        A plan that changes nothing is not run, except to release: what is gone has to leave the state.
        """
        try:
            check(plan, allow)
            if plan.empty and allow is not Allow.RELEASE:
                return
            argv = self._argv("apply", plan.file.name, input=False, json=IsFlagged, **self._locking())
            with self.hold("apply"):
                self._run("apply", argv, self.deadlines.apply_s)
        finally:
            plan.file.unlink(missing_ok=True)

    def outputs(self) -> dict[str, Any]:
        """Return the outputs of the last apply; empty before the first."""
        shown = self._run("output", self._argv("output", json=IsFlagged), self.deadlines.show_s)
        try:
            return {name: output["value"] for name, output in json.loads(shown.stdout_text()).items()}
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            message = f"{self.directory.name}: Terraform's outputs cannot be read"
            raise TerraformError(message, hint=self._hint) from error

    def destroy(self) -> None:
        """Delete all that the stack made. Works too when the cloud refuses the look-ups of a refresh."""
        try:
            plan = self.plan(destroy=True)
        except (Unreachable, StateLocked):
            raise
        except TerraformError:
            plan = self.plan(destroy=True, refresh=False)
        self.apply(plan, Allow.DESTROY)

    def state(self) -> dict[str, str]:
        """Return what the state knows, address to id. Asks neither Terraform nor the cloud."""
        return dict(self.whole_state().resources)

    def whole_state(self) -> statefile.State:
        """Return the state with its lineage and serial. Raises TerraformError, and CloudError for a bucket."""
        if self.remote is not None:
            return statefile.read(self.remote.objects.get(self.remote.state_key), self.remote.uri)
        path = self.directory / STATE_FILE
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return statefile.NONE
        return statefile.read(content, str(path), hint=f"Terraform's own copy is {path}.backup")

    def discard(self) -> None:
        """Remove the state from its bucket, where everything that it names is gone. One that is gone is fine."""
        if self.remote is None or self.remote.objects.get(self.remote.state_key) is None:
            return
        with self.hold("discard"):
            self.remote.objects.delete([self.remote.state_key])

    def _locking(self) -> dict[str, object]:
        """Return the options for the lock: a state in a bucket is locked before Terraform is started."""
        if self.remote is not None:
            return {"lock": False}
        wait_s = self.waits.left_s() if self.deadlines.lock_s is None else self.deadlines.lock_s
        return {"lock_timeout": f"{wait_s:.0f}s"}

    def _waiting(self, owner: locks.Owner) -> None:
        if self.on_event is not None:
            self.on_event({"kind": "state_locked", "owner": str(owner), "lock": owner.id})

    def _argv(self, command: str, *arguments: str, **options: object) -> list[str]:
        """Let python-terraform build a command line. Values of variables never get into it: they have their file."""
        builder = Terraform(working_dir=os.devnull)
        built: list[str] = builder.generate_cmd_string(command, *arguments, **options)
        return [*self.toolchain.terraform, *built[1:]]

    def _run(self, verb: str, argv: list[str], deadline_s: float) -> process.Finished:
        """Run one command; once more if what held the stack's lock was a run that nobody watches any more."""
        try:
            return self._run_once(verb, argv, deadline_s)
        except TerraformError as error:
            if not events.locked(str(error)) or not process.end_orphans(self.directory / LOGS, self.deadlines.grace_s):
                raise
            return self._run_once(verb, argv, deadline_s)

    def _run_once(self, verb: str, argv: list[str], deadline_s: float) -> process.Finished:
        logs = self.directory / LOGS
        logs.mkdir(mode=0o700, exist_ok=True)
        diagnostics: list[Mapping[str, Any]] = []
        finished = process.run(
            argv,
            cwd=self.directory,
            env=self._environment(),
            log=logs / verb,
            deadline_s=deadline_s,
            grace_s=self.deadlines.grace_s,
            on_line=partial(self._line, diagnostics) if verb in {"plan", "apply"} else None,
        )
        what = f"terraform {verb} in {self.directory.name}"
        if finished.timed_out:
            message = f"{what}: stopped after {deadline_s:g} s without an end"
            raise TerraformError(message, hint=self._hint)
        if finished.returncode:
            raise events.failure(what, diagnostics, finished.stderr_tail(), finished.returncode, self._hint)
        return finished

    def _line(self, diagnostics: list[Mapping[str, Any]], line: str) -> None:
        event = events.parse(line)
        if event is None:
            return
        if event.get("type") == "diagnostic" and event.get("@level") == "error":
            diagnostics.append(event.get("diagnostic") or {})
        if self.on_event is not None and (shown := events.compact(event)) is not None:
            self.on_event(shown)

    def _environment(self) -> dict[str, str]:
        inherited = os.environ if self.environ is None else self.environ
        kept = {name: value for name, value in inherited.items() if not name.startswith(FOREIGN)}
        marks = {"CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1"}
        if self._lock_id:
            marks[locks.TOKEN] = self._lock_id
        return {**kept, **self.toolchain.env, **(self.remote.env if self.remote else {}), **marks}

    def _init_key(self) -> str:
        modules = sorted(str(path.relative_to(self.directory)) for path in self.directory.glob("modules/*/*.tf"))
        block = self.remote.block(self.directory) if self.remote is not None else None
        return json.dumps([self.toolchain.identity, modules, *([block] if block else [])], sort_keys=True)


@contextmanager
def _alone(cache: str | None) -> Iterator[None]:
    """Let one init at a time fill Terraform's provider cache, which does not guard itself."""
    if cache is None:
        yield
        return
    with Path(cache, ".lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
