"""The prepared region: Terraform's stack of a job, and a note of what it made. A claim reads the note alone."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from provisioner import assets
from provisioner.clouds.aws.api import Region

NOTE = "prepared.json"


class Made(Protocol):
    """What a stack made: ``provisioner.terraform.stack.Substrate`` is one."""

    @property
    def launch_template_id(self) -> str:
        """Launch template that a claim starts machines from."""
        ...

    @property
    def launch_template_version(self) -> int:
        """Its newest version."""
        ...

    @property
    def subnet_ids(self) -> Mapping[str, str]:
        """Subnet of each usable zone."""
        ...


class Stack(Protocol):
    """What the room asks of Terraform: ``provisioner.terraform.stack.RegionStack`` is one. All raise CloudError."""

    def prepare(self) -> Made:
        """Make or update the substrate."""
        ...

    def adopt(self, instance_id: str) -> None:
        """Take over a running machine."""
        ...

    def release(self) -> None:
        """Delete the adopted machine, or forget one that died."""
        ...

    def destroy(self) -> None:
        """Delete everything that the stack made."""
        ...

    def node_id(self) -> str:
        """Return the machine that the state holds, or an empty string."""
        ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared region."""

    template_id: str
    template_version: int
    subnets: Mapping[str, str]


class Substrate:
    """One region of one job. Its lock keeps two Terraform runs out of one stack."""

    def __init__(self, directory: Path, region: Region, settings: Mapping[str, Any], make: Callable[[], Stack]) -> None:
        """Take the stack's directory, the region's calls, and what the stack is made from.

        ``settings`` decides whether a prepared region is still right; ``make`` opens the stack, when it is needed.
        """
        self.directory = directory
        self.region = region
        self.lock = threading.RLock()
        self._digest = _digest(settings)
        self._make = make
        self._stack: Stack | None = None

    @property
    def stack(self) -> Stack:
        """Return Terraform's stack."""
        if self._stack is None:
            self._stack = self._make()
        return self._stack

    def prepare(self, gone: Callable[[str], bool]) -> Prepared:
        """Return the prepared region; let Terraform make it where it is not, or not as wanted. Raises CloudError.

        ``gone(instance_id)`` tells whether a machine that Terraform still holds has ended: then it is let go first.
        A machine that lives keeps the region as it is: nothing is applied around it.
        """
        with self.lock:
            noted = self.noted()
            if noted is not None and self.region.has_template(noted.template_id):
                return noted
            held = self.stack.node_id()
            if held and gone(held):
                self.stack.release()
            made = self.stack.prepare()
            prepared = Prepared(made.launch_template_id, made.launch_template_version, dict(made.subnet_ids))
            self._note(prepared)
            return prepared

    def noted(self) -> Prepared | None:
        """Return what was prepared last, if it was made from the same settings. Asks nobody."""
        try:
            note = json.loads((self.directory / NOTE).read_text("utf-8"))
            if note["digest"] == self._digest:
                return Prepared(note["template_id"], int(note["template_version"]), dict(note["subnets"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return None

    def forget(self) -> None:
        """Forget the note: the region is not as it was noted."""
        (self.directory / NOTE).unlink(missing_ok=True)

    def _note(self, prepared: Prepared) -> None:
        note = {
            "digest": self._digest,
            "template_id": prepared.template_id,
            "template_version": prepared.template_version,
            "subnets": dict(prepared.subnets),
        }
        draft = self.directory / f".{NOTE}.{os.getpid()}"
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(note, file)
        draft.replace(self.directory / NOTE)


def _digest(settings: Mapping[str, Any]) -> str:
    """Return a digest of the settings and of the module's own text: a new version of either is prepared anew."""
    found = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for file in sorted(assets.path("terraform/modules/aws_region").glob("*.tf")):
        found.update(file.read_bytes())
    return found.hexdigest()
