"""Bring the job to this machine: its working directory, and the newest checkpoint that is whole."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from provisioner.checkpoint import workdir
from provisioner.checkpoint.restore import Restored, restore
from provisioner.checkpoint.store import Store
from provisioner.errors import CorruptCheckpoint, DiskFull, JobFailed
from provisioner.node.rooms import Rooms
from provisioner.node.stores import Stores

T = TypeVar("T")


class Patiently(Protocol):
    """Asks the store again and again, for as long as it is worth it."""

    def __call__(self, call: Callable[[], T], /) -> T:
        """Return what ``call`` returns. Raises CloudError, Abandoned."""
        ...


class Arrival:
    """``note`` takes a kind of event, a line for the log, and fields; ``cancel`` cuts a restore short."""

    def __init__(
        self,
        store: Store,
        stores: Stores,
        rooms: Rooms,
        *,
        patiently: Patiently,
        note: Callable[..., object],
        cancel: threading.Event,
    ) -> None:
        """Bring nothing yet."""
        self.distrust: set[str] = set()
        """Keys of data that turned out to be damaged: the next save writes them anew."""
        self.progress: dict[str, int] | None = None
        """How many bytes of the checkpoint are here, and of how many; None before the first."""
        self._store = store
        self._stores = stores
        self._rooms = rooms
        self._patiently = patiently
        self._note = note
        self._cancel = cancel

    def bring_in(self) -> Restored | None:
        """Unpack the working directory and restore; None where the job has no checkpoint yet.

        Raises JobFailed for a working directory that cannot be used, DiskFull, CloudError, Abandoned.
        """
        self._unpack()
        try:
            found = self._patiently(self._restore)
        except DiskFull as full:
            self._note("disk", f"{full}; removing what earlier runs left here")
            self._rooms.forget_earlier(keep_last=False)
            found = self._patiently(self._restore)
        self._rooms.forget_prefetched()
        if found is None:
            self._note("restored", "no checkpoint of this job in the store: training starts from nothing", step=None)
            return None
        source = self._stores.name_of(found.store_uri)
        self._note(
            "restored",
            f"restored step {found.position.step} of epoch {found.position.epoch} "
            f"({found.total_bytes / 2**20:.1f} MiB in {found.seconds:.1f} s, {found.fetched_bytes / 2**20:.1f} MiB of "
            f"it fetched from {source})",
            step=found.position.step,
            key=found.key,
            uri=source,
            fetched_bytes=found.fetched_bytes,
        )
        return found

    def _unpack(self) -> None:
        key = self._stores.boot.workdir_key
        if key is None:
            return
        try:
            self._patiently(lambda: workdir.unpack(self._store, key, self._rooms.work, report=self._say))
        except CorruptCheckpoint as error:
            raise JobFailed(f"the working directory cannot be used: {error}") from error

    def _restore(self) -> Restored | None:
        return restore(
            self._store,
            self._stores.boot.job,
            self._rooms.restored,
            replicas=self._stores.nearest_first(self._store, self._say),
            seeds=self._rooms.seeds(),
            report=self._say,
            cancel=self._cancel,
            distrust=self.distrust,
            progress=self._on_bytes,
        )

    def _on_bytes(self, done: int, total: int) -> None:
        self.progress = {"bytes": done, "of": total}

    def _say(self, line: str) -> None:
        self._note("line", line)
