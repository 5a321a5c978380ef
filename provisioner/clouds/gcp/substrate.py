"""The prepared region: Terraform's stack of a job, and a note of what it made. A claim reads the note alone."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from provisioner import assets

NOTE = "prepared.json"
NEW_S = 180.0
"""How long a new service account may take to be known everywhere, in seconds."""


class Made(Protocol):
    """What a stack made: ``provisioner.terraform.stack.GcpSubstrate`` is one."""

    @property
    def network(self) -> str:
        """Link of the network."""
        ...

    @property
    def subnetwork(self) -> str:
        """Link of its subnet in the region; empty where the network needs none."""
        ...

    @property
    def service_account(self) -> str:
        """E-mail of the account that machines run as; empty: none."""
        ...

    @property
    def network_tag(self) -> str:
        """Tag that the firewall rules ask for."""
        ...

    @property
    def image(self) -> str:
        """Link of the machine image."""
        ...


class Stack(Protocol):
    """What the room asks of Terraform: ``provisioner.terraform.stack.GcpRegionStack`` is one. All raise CloudError."""

    def prepare(self) -> Made:
        """Make or update the substrate."""
        ...

    def adopt(self, import_id: str) -> None:
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

    network: str
    subnetwork: str
    service_account: str
    network_tag: str
    image: str


class Substrate:
    """One region of one job. Its lock keeps two Terraform runs out of one stack."""

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, Any],
        make: Callable[[], Stack],
        now: Callable[[], float] = time.time,
    ) -> None:
        """Take the stack's directory and what the stack is made from.

        ``settings`` decides whether a prepared region is still right; ``make`` opens the stack, when it is needed.
        """
        self.directory = directory
        self._now = now
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

        ``gone(import_id)`` tells whether a machine that Terraform still holds has ended: then it is let go first. What
        was removed behind our back shows when a claim is refused for it, and the note is forgotten then.
        """
        with self.lock:
            noted = self.noted()
            if noted is not None:
                return noted
            held = self.stack.node_id()
            if held and gone(held):
                self.stack.release()
            made = self.stack.prepare()
            prepared = Prepared(made.network, made.subnetwork, made.service_account, made.network_tag, made.image)
            self._note(prepared)
            return prepared

    def noted(self) -> Prepared | None:
        """Return what was prepared last, if it was made from the same settings. Asks nobody."""
        try:
            note = json.loads((self.directory / NOTE).read_text("utf-8"))
            if note["digest"] == self._digest:
                return Prepared(**note["prepared"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return None

    @property
    def new(self) -> bool:
        """Whether the region was prepared a moment ago: Google may not have heard everywhere of what was made."""
        try:
            return self._now() - float(json.loads((self.directory / NOTE).read_text("utf-8"))["at"]) < NEW_S
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def forget(self) -> None:
        """Forget the note: the region is not as it was noted."""
        (self.directory / NOTE).unlink(missing_ok=True)

    def _note(self, prepared: Prepared) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        draft = self.directory / f".{NOTE}.{os.getpid()}"
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump({"digest": self._digest, "at": self._now(), "prepared": asdict(prepared)}, file)
        draft.replace(self.directory / NOTE)


def _digest(settings: Mapping[str, Any]) -> str:
    """Return a digest of the settings and of the module's own text: a new version of either is prepared anew."""
    found = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
    for file in sorted(assets.path("terraform/modules/gcp_region").glob("*.tf")):
        found.update(file.read_bytes())
    return found.hexdigest()
