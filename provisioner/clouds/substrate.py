"""The prepared region: Terraform's stack of a job, and a note of what it made. A claim reads the note alone."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from provisioner import assets
from provisioner.clock import now as unix_now

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

NOTE = "prepared.json"
Made_co = TypeVar("Made_co", covariant=True)
Made = TypeVar("Made")
Prepared = TypeVar("Prepared", bound="DataclassInstance")


class Stack(Protocol[Made_co]):
    """What a room asks of Terraform: ``provisioner.terraform.stack.CloudStack`` is one. All raise CloudError."""

    def prepare(self) -> Made_co:
        """Make or update the substrate."""
        ...

    def adopt(self, instance_id: str, /) -> None:
        """Take over a running machine, by its import id."""
        ...

    def release(self) -> None:
        """Delete the adopted machine, or forget one that died."""
        ...

    def destroy(self) -> None:
        """Delete everything that the stack made."""
        ...

    def discard(self) -> None:
        """Remove the state from where other machines see it: everything that it names is gone."""
        ...

    def node_id(self) -> str:
        """Return the machine that the state holds, or an empty string."""
        ...


class PreparedRegion(ABC, Generic[Made, Prepared]):
    """One region of one job. Its lock keeps two Terraform runs out of one stack."""

    module: ClassVar[str]
    """Folder of the module that makes a region."""

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, Any],
        make: Callable[[], Stack[Made]],
        now: Callable[[], float] = unix_now,
    ) -> None:
        """Take the stack's directory and what the stack is made from.

        ``settings`` decides whether a prepared region is still right; ``make`` opens the stack, when it is needed.
        """
        self.directory = directory
        self.lock = threading.RLock()
        self._now = now
        self._digest = self._digest_of(settings)
        self._make = make
        self._stack: Stack[Made] | None = None

    @property
    def stack(self) -> Stack[Made]:
        """Return Terraform's stack."""
        if self._stack is None:
            self._stack = self._make()
        return self._stack

    def prepare(self, gone: Callable[[str], bool]) -> Prepared:
        """Return the prepared region; let Terraform make it where it is not, or not as wanted. Raises CloudError.

        ``gone(import_id)`` tells whether a machine that Terraform still holds has ended: then it is let go first. A
        machine that lives keeps the region as it is: nothing is applied around it. Where the note is enough, Terraform
        is not waited for: it may be adopting the machine that was lost just now.
        """
        noted = self.noted()
        if noted is not None and self._stands(noted):
            return noted
        with self.lock:
            noted = self.noted()
            if noted is not None and self._stands(noted):
                return noted
            held = self.stack.node_id()
            if held and gone(held):
                self.stack.release()
            prepared = self._of(self.stack.prepare())
            self._write(prepared)
            return prepared

    def noted(self) -> Prepared | None:
        """Return what was prepared last, if it was made from the same settings. Asks nobody."""
        note = self._note()
        try:
            return self._read(note["prepared"]) if note["digest"] == self._digest else None
        except (ValueError, KeyError, TypeError):
            return None

    def forget(self) -> None:
        """Forget the note: the region is not as it was noted."""
        (self.directory / NOTE).unlink(missing_ok=True)

    def _stands(self, _prepared: Prepared) -> bool:
        """Say whether the cloud still has what was noted, where that can be asked for cheaply."""
        return True

    @abstractmethod
    def _of(self, made: Made) -> Prepared:
        """Take from what the stack made what a claim needs."""

    @abstractmethod
    def _read(self, note: Mapping[str, Any]) -> Prepared:
        """Make it of its noted fields. Raises KeyError, TypeError or ValueError for anything else."""

    def _note(self) -> dict[str, Any]:
        try:
            note = json.loads((self.directory / NOTE).read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return note if isinstance(note, dict) else {}

    def _write(self, prepared: Prepared) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        note = {"digest": self._digest, "at": self._now(), "prepared": asdict(prepared)}
        draft = self.directory / f".{NOTE}.{os.getpid()}"
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(note, file)
        draft.replace(self.directory / NOTE)

    def _digest_of(self, settings: Mapping[str, Any]) -> str:
        """Return a digest of the settings and of the module's own text: a new version of either is prepared anew."""
        found = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
        for file in sorted(assets.path(f"terraform/modules/{self.module}").glob("*.tf")):
            found.update(file.read_bytes())
        return found.hexdigest()
