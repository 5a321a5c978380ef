"""A saved plan, and the rules by which it may be applied. A plan that breaks its rule is never applied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from provisioner.errors import TerraformError
from provisioner.terraform.render import GCP_NODE_ADDRESS, NODE_ADDRESS


class Allow(StrEnum):
    """What a plan is allowed to do.

    PREPARE: anything but touch a machine. ADOPT: import the node; besides that, updates in place of other things.
    RELEASE: delete the node and nothing else. DESTROY: delete, nothing else.
    """

    PREPARE = "prepare"
    ADOPT = "adopt"
    RELEASE = "release"
    DESTROY = "destroy"


@dataclass(frozen=True, slots=True)
class Change:
    """What a plan does to one address: ``actions`` of create, update, delete, forget; both create and delete: replace.

    ``importing`` is the id of a thing that is taken over; empty otherwise.
    """

    address: str
    type: str
    actions: frozenset[str]
    importing: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """A saved plan: its file, and what it changes. Reading data and doing nothing are left out.

    ``outputs`` says whether an output changes; ``drift`` is how the cloud differs from what the state remembers, a
    delete being a thing that is gone. An apply writes both down, even where it changes nothing.
    """

    file: Path
    changes: tuple[Change, ...]
    outputs: bool = False
    drift: tuple[Change, ...] = ()

    @property
    def adds(self) -> int:
        """How many things are created; a replacement counts here and in ``destroys``."""
        return sum("create" in change.actions for change in self.changes)

    @property
    def updates(self) -> int:
        """How many things are changed in place."""
        return sum("update" in change.actions for change in self.changes)

    @property
    def destroys(self) -> int:
        """How many things are deleted, or dropped from the state without being deleted."""
        return sum(bool(change.actions & {"delete", "forget"}) for change in self.changes)

    @property
    def imports(self) -> int:
        """How many things are taken over."""
        return sum(bool(change.importing) for change in self.changes)

    @property
    def empty(self) -> bool:
        """Say whether an apply would do nothing, not even to the state."""
        return not (self.changes or self.outputs or self.drift)


_ACTIONS: Final = frozenset({"create", "update", "delete", "forget"})
_IDLE: Final = frozenset({"no-op", "read"})
_MACHINES: Final = frozenset({"aws_instance", "google_compute_instance"})
_NODES: Final = frozenset({NODE_ADDRESS, GCP_NODE_ADDRESS})


def from_json(file: Path, shown: Mapping[str, Any]) -> Plan:
    """Read ``terraform show -json`` of a saved plan. Raises TerraformError for what it does not understand."""
    if not str(shown.get("format_version", "")).startswith("1.") or shown.get("errored"):
        message = f"{file.parent.name}: the plan is in a form this version does not know, or is incomplete"
        raise TerraformError(message)
    if shown.get("deferred_changes"):
        message = f"{file.parent.name}: the plan puts changes off for later, so it cannot be checked"
        raise TerraformError(message)
    outputs = any(set(change["actions"]) - _IDLE for change in (shown.get("output_changes") or {}).values())
    return Plan(
        file,
        tuple(_changes(file.parent.name, shown.get("resource_changes") or ())),
        outputs,
        tuple(_changes(file.parent.name, shown.get("resource_drift") or ())),
    )


def _changes(stack: str, resources: Iterable[Mapping[str, Any]]) -> Iterator[Change]:
    for resource in resources:
        change = resource["change"]
        actions = frozenset(change["actions"])
        importing = str((change.get("importing") or {}).get("id", ""))
        if unknown := actions - _ACTIONS - _IDLE:
            message = f"{stack}: {resource['address']}: unknown planned action {', '.join(sorted(unknown))}"
            raise TerraformError(message)
        if (actions & _ACTIONS) or importing:
            yield Change(resource["address"], resource["type"], actions & _ACTIONS, importing)


def check(plan: Plan, allow: Allow) -> None:
    """Raise TerraformError, naming the addresses, when the plan does what ``allow`` does not permit."""
    forbidden = [change for change in plan.changes if not _permitted(change, allow)]
    stack = plan.file.parent.name
    if forbidden:
        named = "; ".join(f"{_verb(change)} {change.address}" for change in forbidden)
        message = f"{stack}: refused to {allow} by a plan that would {named}"
        raise TerraformError(message, hint=_HINTS[allow])
    if allow is Allow.ADOPT and plan.imports != 1:
        message = f"{stack}: refused to adopt by a plan that imports {plan.imports} machines instead of one"
        raise TerraformError(message, hint=_HINTS[allow])


_HINTS: Final = {
    Allow.PREPARE: "release the machine of this region first",
    Allow.ADOPT: "the machine was left as it is; it runs on and is released through its cloud",
    Allow.RELEASE: "nothing was changed",
    Allow.DESTROY: "nothing was changed",
}


def _permitted(change: Change, allow: Allow) -> bool:
    machine = change.type in _MACHINES
    if allow is Allow.PREPARE:
        return not machine
    if allow is Allow.ADOPT:
        if change.importing:
            return change.address in _NODES and not change.actions
        return not machine and change.actions == {"update"}
    if allow is Allow.RELEASE:
        return change.address in _NODES and change.actions == {"delete"}
    return change.actions == {"delete"}


def _verb(change: Change) -> str:
    if change.actions >= {"create", "delete"}:
        return "replace"
    if change.importing:
        return "import and " + " and ".join(sorted(change.actions)) if change.actions else "import"
    return " and ".join(sorted(change.actions))
