"""The checkpoint store for code on an event loop. The work is done in threads."""

from __future__ import annotations

import asyncio
import builtins
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeVar

from provisioner.checkpoint.api import CheckpointStore
from provisioner.checkpoint.copying import Copied
from provisioner.checkpoint.credentials import Credentials
from provisioner.checkpoint.inputs import Where
from provisioner.checkpoint.listing import Checkpoint, Verified
from provisioner.checkpoint.restore import Progress, Restored
from provisioner.checkpoint.save import Commit
from provisioner.checkpoint.store import Store
from provisioner.checkpoint.sweep import GRACE_S, Swept
from provisioner.model import JobRef

T = TypeVar("T")


class AsyncCheckpointStore:
    """``CheckpointStore`` with coroutines: same names, arguments, results and errors.

    A coroutine that is cancelled, by a time-out too, ends when its requests under way are done, which may take some
    seconds, and nothing half-done stays; one that is cancelled twice does not wait for that. ``progress`` and
    ``report`` are called from other threads.
    """

    def __init__(
        self,
        uri: str | Store,
        *,
        endpoint: str | None = None,
        region: str | None = None,
        credentials: Credentials | None = None,
        job: JobRef | None = None,
        epoch: int | None = None,
        report: Callable[[str], None] | None = None,
    ) -> None:
        """Take what ``CheckpointStore`` takes. Raises ConfigError."""
        more: dict[str, Any] = {"report": report} if report else {}
        self.sync = CheckpointStore(
            uri, endpoint=endpoint, region=region, credentials=credentials, job=job, epoch=epoch, **more
        )
        self.uri = self.sync.uri

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Forget what the last save knows of the store."""
        self.sync.close()

    async def save(
        self,
        path: Where,
        step: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
        *,
        replace: bool = True,
        force: bool = False,
        resend: bool = False,
    ) -> Commit:
        """Save a file or directory."""
        return await _cancellable(
            self.sync.save, path, step, metadata, progress, replace=replace, force=force, resend=resend
        )

    async def latest(self) -> Checkpoint | None:
        """Return the newest checkpoint whose manifest is whole."""
        return await asyncio.to_thread(self.sync.latest)

    async def list(self) -> builtins.list[Checkpoint]:
        """Return all checkpoints, newest first."""
        return await asyncio.to_thread(self.sync.list)

    async def restore(
        self,
        target: Where,
        step: int | None = None,
        epoch: int | None = None,
        seeds: Sequence[Where] = (),
        progress: Progress | None = None,
    ) -> Restored:
        """Bring a checkpoint to ``target``."""
        return await _cancellable(self.sync.restore, target, step, epoch, seeds, progress)

    async def verify(
        self,
        step: int | None = None,
        epoch: int | None = None,
        *,
        everything: bool = False,
        quick: bool = False,
        progress: Progress | None = None,
    ) -> builtins.list[Verified]:
        """Read checkpoints and check every hash."""
        return await _cancellable(self.sync.verify, step, epoch, everything=everything, quick=quick, progress=progress)

    async def find(self, step: int | None = None, epoch: int | None = None) -> Checkpoint:
        """Return one checkpoint."""
        return await asyncio.to_thread(self.sync.find, step, epoch)

    async def remove(
        self, step: int, epoch: int | None = None, *, force: bool = False, dry_run: bool = False
    ) -> Checkpoint:
        """Remove a checkpoint."""
        return await asyncio.to_thread(self.sync.remove, step, epoch, force=force, dry_run=dry_run)

    async def sweep(self, grace_s: float = GRACE_S, *, dry_run: bool = False) -> Swept:
        """Remove what no checkpoint names."""
        return await asyncio.to_thread(self.sync.sweep, grace_s, dry_run=dry_run)

    async def copy_to(
        self,
        other: AsyncCheckpointStore | CheckpointStore | str,
        step: int | None = None,
        epoch: int | None = None,
        *,
        replace: bool = False,
        progress: Progress | None = None,
    ) -> Copied:
        """Copy a checkpoint to another store."""
        target = other.sync if isinstance(other, AsyncCheckpointStore) else other
        return await _cancellable(self.sync.copy_to, target, step, epoch, replace=replace, progress=progress)


async def _cancellable(call: Callable[..., T], *arguments: object, **options: object) -> T:
    """Run ``call`` in a thread, and let it go when this coroutine is cancelled."""
    cancel = threading.Event()
    running = asyncio.ensure_future(asyncio.to_thread(call, *arguments, **options, cancel=cancel))
    running.add_done_callback(lambda done: done.cancelled() or done.exception())  # somebody has looked at it
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        cancel.set()
        await asyncio.wait([running])
        raise
