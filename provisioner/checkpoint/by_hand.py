"""Saves that nobody's controller has asked for: which job and step they belong to, and when they must not be."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from provisioner.checkpoint import epochs, inputs, layout, usage
from provisioner.checkpoint.commit import StepTakenError
from provisioner.checkpoint.layout import Position
from provisioner.checkpoint.save import Commit, Saver
from provisioner.checkpoint.store import Store
from provisioner.model import JobRef

TRIES = 5


class ByHand:
    """Saves one checkpoint at a time, and remembers what the store holds.

    With ``job`` and ``epoch`` the caller owns the job and answers for its steps. Otherwise a save into the place of a
    job is one that the job restores next, and only while none of its machines is at work.
    """

    def __init__(self, job: JobRef | None, epoch: int | None) -> None:
        self.distrust: set[str] = set()
        """Ids of packs that were seen damaged."""
        self.in_doubt = False
        """Whether the last save has begun to write a manifest: broken off then, it may be there or not."""
        self._job = job
        self._epoch = epoch
        self._owned = job is not None and epoch is not None
        self._saver: Saver | None = None
        self._saving = threading.Lock()

    def forget(self) -> None:
        """Forget what the last save has learned about the store."""
        self._saver = None

    def save(
        self,
        store: Store,
        entry: Path,
        step: int | None,
        metadata: Mapping[str, Any],
        progress: Callable[[int, int], None] | None,
        *,
        replace: bool,
        force: bool,
        resend: bool,
        cancel: threading.Event,
    ) -> Commit:
        """Save; see ``CheckpointStore.save``. A step that is not given is one that nobody else has taken."""
        with self._saving:
            self.in_doubt = False
            if resend:
                packs = (layout.pack_of(stored.key) for stored in store.objects(layout.PACKS))
                self.distrust.update(identity for identity in packs if identity)
            for attempt in range(TRIES):
                used = self._used(store)
                epoch = used.epoch if self._epoch is None else self._epoch
                free = self._owned or used.job is None or force
                number = inputs.step(store.uri, entry, step, used, free=free)
                taken = Position(epoch, number) in used.positions
                if taken and not replace:
                    raise StepTakenError(store, number)
                if not free:
                    usage.refuse_running(store)
                fence = self._fence(store, epoch, free=free)
                saver = self._prepared(store, used.job, epoch, fence)
                saver.cancel = cancel
                saver.only_new = not replace
                try:
                    return saver.save(entry, number, metadata, progress)
                except StepTakenError:
                    if step is not None or attempt == TRIES - 1:
                        raise
            raise AssertionError  # the last attempt returns or raises

    def _used(self, store: Store) -> usage.Usage:
        if self._saver is not None:
            return usage.usage(store, self._saver.job, known=True)
        return usage.usage(store, self._job)

    def _fence(self, store: Store, epoch: int, *, free: bool) -> Callable[[], None]:
        """Return what looks, right before each manifest is written, whether it still may be."""

        def fence() -> None:
            if self._owned:
                epochs.check_newer(store, epoch)
            elif not free:
                usage.refuse_newer(store, epoch)
                usage.refuse_running(store)
            self.in_doubt = True

        return fence

    def _prepared(self, store: Store, job: JobRef | None, epoch: int, fence: Callable[[], None]) -> Saver:
        inputs.check_epoch(epoch)
        saver = self._saver
        wanted = job, epoch, frozenset(self.distrust)
        if saver is None or (saver.job, saver.epoch, saver.distrust) != wanted:
            saver = Saver(store, job, epoch, fence, distrust=wanted[2])
        saver.fence = fence
        self._saver = saver
        return saver
