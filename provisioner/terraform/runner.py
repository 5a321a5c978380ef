"""Run Terraform in one stack: init, plan, checked apply, outputs.

python-terraform builds the command lines. Its own way of running them has no deadline, no stream and no end in some
cases, so :mod:`.process` runs them.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from python_terraform import IsFlagged, Terraform

from provisioner.errors import TerraformError, Unreachable
from provisioner.terraform import events, process
from provisioner.terraform.plan import Allow, Plan, check, from_json
from provisioner.terraform.provider import Toolchain

_LOGS: Final = ".runs"
# Variables of the environment that would change what our command lines mean.
_FOREIGN: Final = ("TF_CLI_ARGS", "TF_WORKSPACE", "TF_DATA_DIR", "TF_INPUT", "TF_VAR_")


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds that a run may take before it is interrupted, and the grace before it is killed."""

    init_s: float = 600.0
    plan_s: float = 300.0
    apply_s: float = 900.0
    show_s: float = 120.0
    grace_s: float = 20.0
    lock_s: int = 120
    """How long a run waits for another one that works on the same stack."""


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

    @property
    def _plan_file(self) -> Path:
        return self.directory / "plan.tfplan"

    @property
    def _hint(self) -> str:
        return f"all that Terraform said is in {self.directory / _LOGS}"

    def init(self) -> None:
        """Install the provider and the modules. Does nothing when neither has changed since the last time."""
        mark = self.directory / ".terraform" / "initialized"
        wanted = self._init_key()
        installed = (self.directory / ".terraform" / "providers").glob("*/*/*/*/*")
        if mark.is_file() and mark.read_text(encoding="utf-8") == wanted and all(path.exists() for path in installed):
            return
        # The lock file pins a provider for repeatable runs; a different toolchain brings a provider of its own.
        (self.directory / ".terraform.lock.hcl").unlink(missing_ok=True)
        argv = self._argv("init", input=False, no_color=IsFlagged)
        with _alone(self.toolchain.env.get("TF_PLUGIN_CACHE_DIR")):
            self._run("init", argv, self.deadlines.init_s)
        mark.parent.mkdir(exist_ok=True)
        mark.write_text(wanted, encoding="utf-8")

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
            lock_timeout=f"{self.deadlines.lock_s}s",
            destroy=IsFlagged if destroy else None,
            refresh=None if refresh else False,
            refresh_only=IsFlagged if refresh_only else None,
            target=list(targets),
        )
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
            argv = self._argv(
                "apply", plan.file.name, input=False, json=IsFlagged, lock_timeout=f"{self.deadlines.lock_s}s"
            )
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
        except Unreachable:
            raise
        except TerraformError:
            plan = self.plan(destroy=True, refresh=False)
        self.apply(plan, Allow.DESTROY)

    def state(self) -> dict[str, str]:
        """Return what the state file knows, address to id. Asks neither Terraform nor the cloud."""
        path = self.directory / "terraform.tfstate"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            message = f"{path}: not a state file of Terraform"
            raise TerraformError(message, hint=f"Terraform's own copy is {path}.backup") from error
        if not content:
            return {}
        if content.get("version") != _STATE_VERSION:
            message = f"{path}: state format {content.get('version')} is not known"
            raise TerraformError(message)
        return dict(_addresses(content))

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
            if not events.locked(str(error)) or not process.end_orphans(self.directory / _LOGS, self.deadlines.grace_s):
                raise
            return self._run_once(verb, argv, deadline_s)

    def _run_once(self, verb: str, argv: list[str], deadline_s: float) -> process.Finished:
        logs = self.directory / _LOGS
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
        kept = {name: value for name, value in inherited.items() if not name.startswith(_FOREIGN)}
        return {**kept, **self.toolchain.env, "CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1"}

    def _init_key(self) -> str:
        modules = sorted(str(path.relative_to(self.directory)) for path in self.directory.glob("modules/*/*.tf"))
        return json.dumps([self.toolchain.identity, modules])


_STATE_VERSION: Final = 4


@contextmanager
def _alone(cache: str | None) -> Iterator[None]:
    """Let one init at a time fill Terraform's provider cache, which does not guard itself."""
    if cache is None:
        yield
        return
    with Path(cache, ".lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _addresses(content: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = []
    for resource in content.get("resources") or ():
        if resource.get("mode") != "managed":
            continue
        prefix = f"{resource['module']}." if resource.get("module") else ""
        for instance in resource.get("instances") or ():
            key = instance.get("index_key")
            index = "" if key is None else f"[{json.dumps(key)}]"
            identity = (instance.get("attributes") or {}).get("id") or ""
            found.append((f"{prefix}{resource['type']}.{resource['name']}{index}", str(identity)))
    return found
