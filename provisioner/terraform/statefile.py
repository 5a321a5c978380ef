"""A state of Terraform as bytes: what is in it, and whether two are the same."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from provisioner.errors import TerraformError

_VERSION: Final = 4


@dataclass(frozen=True, slots=True)
class State:
    """What a state says of itself. ``resources`` maps address to id, without what was only looked up."""

    serial: int
    lineage: str
    resources: Mapping[str, str]

    @property
    def empty(self) -> bool:
        """Say whether nothing is in it."""
        return not self.resources


NONE: Final = State(0, "", {})
"""There is no state."""


def read(content: bytes | None, where: str, hint: str = "") -> State:
    """Read a state; ``where`` is its name in errors. None or nothing is ``NONE``. Raises TerraformError."""
    if not content:
        return NONE
    try:
        data = json.loads(content)
        if not data:
            return NONE
        if data.get("version") == _VERSION:
            return State(int(data.get("serial") or 0), str(data.get("lineage") or ""), dict(_resources(data)))
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        message = f"{where}: not a state file of Terraform"
        raise TerraformError(message, hint=hint) from error
    message = f"{where}: state format {data.get('version')} is not known"
    raise TerraformError(message)


def blank(version: str) -> bytes:
    """Return a state with nothing in it, as Terraform of this version would begin one."""
    data = {"version": _VERSION, "terraform_version": version, "serial": 0, "lineage": str(uuid.uuid4())}
    return json.dumps({**data, "outputs": {}, "resources": []}).encode()


def _resources(content: Mapping[str, Any]) -> list[tuple[str, str]]:
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
