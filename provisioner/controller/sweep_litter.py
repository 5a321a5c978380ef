"""What a sweep finds in the stores that is nobody's: versions of the runtime, and files that were never finished."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable
from typing import Final, TypeAlias

from provisioner.checkpoint.staging import unfinished
from provisioner.checkpoint.store import Store
from provisioner.clock import now as unix_now
from provisioner.clouds.base import Findings, Tagged
from provisioner.controller.orphans import RUNTIME, UNFINISHED, Standing, Verdict
from provisioner.controller.shared_runtime import UNUSED_S, unused
from provisioner.errors import CloudError
from provisioner.model import JobRef, Owned

LEFT_S: Final = 3600.0
"""A file that was not written to for so long, in seconds, is written by nobody any more."""


class RuntimeRoom:
    """The runtime's versions in a store that no job uses."""

    def __init__(self, store: Store, going_on: Collection[str], now: Callable[[], float] = unix_now) -> None:
        """Take the store above the jobs, and the names of those whose run goes on; ask nothing yet."""
        self._store, self._going_on, self._now = store, going_on, now

    def listed(self) -> Findings:
        """List them, and the notes of jobs that are no more."""
        try:
            parts = unused(self._store, self._going_on, self._now())
        except CloudError as error:
            return Findings((), {f"{self._store.uri}/.runtime": str(error)})
        return Findings(
            tuple(
                Tagged(Owned("store", "", RUNTIME, part.key, "there"), "", part.since, self._store.uri)
                for part in parts
            ),
            {},
        )

    def remove(self, tagged: Tagged) -> None:
        """Remove one, if nobody has begun to use it meanwhile."""
        if tagged.thing.id in {one.thing.id for one in self.listed().found}:
            self._store.delete([tagged.thing.id])

    def why(self, tagged: Tagged) -> str:
        """Say why it is nobody's."""
        del tagged
        return f"no job that goes on uses it, nor has any for {UNUSED_S / 86400:.0f} days"


class UnfinishedRoom:
    """Files of a directory store that a killed writer has left; nothing in an object store."""

    def __init__(self, store: Store, job: JobRef | None) -> None:
        """Take a job's store, or with ``job`` None the one above the jobs; ask nothing yet."""
        self._store, self._job = store, job

    def listed(self) -> Findings:
        """List them."""
        now, name = unix_now(), self._job.name if self._job is not None else ""
        return Findings(
            tuple(
                Tagged(Owned("store", "", UNFINISHED, one.key, "there", name), "", one.written, self._store.uri)
                for one in unfinished(self._store, shared=self._job is None)
                if now - one.written >= LEFT_S
            ),
            {},
        )

    def remove(self, tagged: Tagged) -> None:
        """Remove one. A writer whose file is removed under its hands writes it once more. Raises CloudError."""
        for one in unfinished(self._store, shared=self._job is None):
            if one.key == tagged.thing.id:
                try:
                    with contextlib.suppress(FileNotFoundError):
                        one.path.unlink()
                except OSError as error:
                    raise CloudError(f"{one.path}: {error.strerror or error}") from None

    def why(self, tagged: Tagged) -> str:
        """Say why it is nobody's."""
        del tagged
        return "its writer was killed before it was whole"


Litter: TypeAlias = RuntimeRoom | UnfinishedRoom


def judged(room: Litter, things: Iterable[Tagged], *, now: float, older: float) -> list[Verdict]:
    """Return what is thought of what a room lists: nobody's, but for what is younger than ``older`` seconds."""
    old = [one for one in things if one.since is None or now - one.since >= older]
    return [Verdict(one, Standing.ORPHAN, room.why(one)) for one in old]
