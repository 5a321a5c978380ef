"""Checkpoints for everybody's code: save a file or directory to a store, list, restore, verify, remove, copy.

    with CheckpointStore("s3://bucket/my-run") as store:
        store.save("out/step-400", metadata={"val_loss": 0.31})
        store.restore("resume-from")

The URI is the root itself. That of a job of failover.yaml is ``<checkpoint.store>/<job.name>``.
"""

from __future__ import annotations

import builtins
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from provisioner.checkpoint import accounts, copying, inputs, layout, sweep
from provisioner.checkpoint.by_hand import ByHand
from provisioner.checkpoint.copying import Copied
from provisioner.checkpoint.credentials import Credentials
from provisioner.checkpoint.inputs import Where
from provisioner.checkpoint.layout import Position
from provisioner.checkpoint.listing import Checkpoint, Verified, below, described, listed, refuse_other, verified
from provisioner.checkpoint.restore import Progress, Restored, committed, load, pull, refuse_taken
from provisioner.checkpoint.save import Commit
from provisioner.checkpoint.store import Store, open_store
from provisioner.checkpoint.sweep import Swept
from provisioner.errors import ConfigError, CorruptCheckpoint, StoreError
from provisioner.model import JobRef

if TYPE_CHECKING:
    from provisioner.checkpoint.credentials import Renewed

FOREIGN = "it is gone, or belongs to another job"
_LOG = logging.getLogger("provisioner.checkpoint")


class CheckpointStore:
    """The checkpoints below one URI. Safe to use from several threads; saves take turns.

    Every method may raise Unauthorized, Unreachable or StoreError, when the store refuses, does not answer, or holds
    no such checkpoint. Sizes are bytes, times seconds; a point in time is in Unix seconds. ``cancel``, an event set
    from another thread, ends a method with Abandoned, once the requests under way are done; nothing half-done stays.
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
        report: Callable[[str], None] = _LOG.warning,
    ) -> None:
        """Make no request yet.

        Args:
            uri: ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``file:///directory``, or an open store.
            endpoint: URL of a service that speaks S3; None for the cloud's own.
            region: Region of the bucket.
            credentials: A key; None for the ordinary places (environment, profile, role of the machine).
            job: Save for this job, and see only its checkpoints. None: see all; save for the job that uses the place,
                if one does.
            epoch: Save as this placement of ``job``, which the caller owns. None: the newest that there is.
            report: Takes a line when something had to be passed over.

        Raises:
            ConfigError: There is no such store, or an account's file cannot be read.
        """
        self.uri = uri.uri if isinstance(uri, Store) else inputs.address(uri)
        self.job = job
        self.report = report
        self._endpoint = endpoint
        self._region = region
        self._credentials: Credentials | Renewed | None = credentials
        self._store: Store | None = uri if isinstance(uri, Store) else None
        self._hand = ByHand(job, inputs.whole_or_none("epoch", epoch))
        if not inputs.is_absent(self.uri):
            self._opened()

    def __repr__(self) -> str:
        """Name the place, not the key."""
        return f"{type(self).__name__}({self.uri!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget what the last save knows of the store. Nothing needs to be closed, and more may follow."""
        self._hand.forget()

    @property
    def store(self) -> Store:
        """The object store below. A directory that is not there is made."""
        return self._opened()

    @property
    def retries(self) -> int:
        """How many requests had to be repeated so far."""
        return self._store.retries if self._store else 0

    def save(
        self,
        path: Where,
        step: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
        *,
        replace: bool = True,
        force: bool = False,
        resend: bool = False,
        cancel: threading.Event | None = None,
    ) -> Commit:
        """Save a file or directory; what the newest checkpoint holds already is not sent again.

        When it returns, the checkpoint is in the store for good. A step that is there already is replaced, unless a
        job uses the place: then only a newer step is taken, and only while no machine trains there, so that the job
        restores this checkpoint next.

        Args:
            path: What to save. A link is followed; links inside are saved as links.
            step: None: the number at the end of the name, if it is newer than the newest step; else the next one.
            metadata: JSON values, e.g. metrics. Numbers of numpy and torch will do.
            progress: Told of the bytes that were read.
            replace: Take a step that is there already, as when training went back to an older checkpoint.
            force: Save for the job although the step is not newer, or a machine trains there.
            resend: Send everything again: for a store that holds damaged packs.
            cancel: See above.

        Returns:
            What was saved, with ``uploaded_bytes``: those that the store did not have.

        Raises:
            ConfigError: Nothing is at the path, or step or metadata will not do.
            Unstable: The files changed while they were read; nothing was saved.
            Fenced: A newer epoch owns the job (only with ``job`` and ``epoch``).
            OSError: A file cannot be read.
        """
        step, cancel = inputs.whole_or_none("step", step), inputs.event(cancel)
        entry = inputs.entry(path, self.uri)
        values = inputs.plain(metadata or {})
        return self._hand.save(
            self.store,
            entry,
            step,
            values,
            progress,
            replace=replace if step is not None else False,
            force=force,
            resend=resend,
            cancel=cancel or threading.Event(),
        )

    @property
    def in_doubt(self) -> bool:
        """Whether the last save came to write its manifest: one that was broken off since may have been saved."""
        return self._hand.in_doubt

    def latest(self) -> Checkpoint | None:
        """Return the newest checkpoint whose manifest is whole; None where there is none."""
        for position in self._positions():
            try:
                manifest = load(self.store, position, self.job)
            except CorruptCheckpoint:
                continue
            if manifest is not None:
                return described(manifest)
        return None

    def list(self) -> builtins.list[Checkpoint]:
        """Return all checkpoints, newest first. A damaged manifest is among them, with its ``problem``."""
        return [] if inputs.is_absent(self.uri) else listed(self.store, self.job)

    def find(self, step: int | None = None, epoch: int | None = None) -> Checkpoint:
        """Return one checkpoint: the newest whose manifest is whole, or that of a step, which may have a ``problem``.

        Raises:
            StoreError: There is no such checkpoint.
        """
        found = self._found(step, epoch)
        if step is not None:
            return self._described(found[0])
        for position in found:
            one = self._described(position)
            if not one.problem:
                return one
        raise StoreError(f"{self.uri}: no checkpoint whose manifest is whole")

    def restore(
        self,
        target: Where,
        step: int | None = None,
        epoch: int | None = None,
        seeds: Sequence[Where] = (),
        progress: Progress | None = None,
        *,
        cancel: threading.Event | None = None,
    ) -> Restored:
        """Bring a checkpoint to ``target``: what was saved gets that name when it is whole, with every hash checked.

        Without a step the newest is restored, or an older one when that is damaged: ``report`` is told so.

        Args:
            target: Not there yet, or an empty directory.
            step: This one and no other.
            epoch: Of this placement only; None: of the newest that has the step.
            seeds: Local directories or files: what they hold already need not be fetched.
            progress: Told of the bytes that are in place.
            cancel: See above.

        Raises:
            ConfigError: Something is at the target.
            StoreError: There is no such checkpoint, or (CorruptCheckpoint) it is damaged.
            DiskFull: The disk has no room.
            OSError: A file cannot be written.
        """
        place, local, cancel = inputs.place(target), inputs.seeds(seeds), inputs.event(cancel)
        refuse_taken(place)
        for position in self._found(step, epoch):
            key = layout.manifest(position)
            manifest = None
            try:
                manifest = load(self.store, position, self.job)
                if manifest is None:
                    self.report(f"{key} belongs to another job; passed over")
                    continue
                return pull(self.store, manifest, place, seeds=local, cancel=cancel, progress=progress)
            except CorruptCheckpoint as error:
                if manifest is not None:
                    self._hand.distrust.update(manifest.packs)  # one is damaged, and nobody has looked at the others
                if step is not None:
                    raise CorruptCheckpoint(f"{self.uri}/{key}: {error}", hint=error.hint) from None
                self.report(f"{key} is not usable ({error}); taking the next one")
        raise StoreError(f"{self.uri}: no checkpoint that can be restored", hint="`verify --all` shows what is whole")

    def verify(
        self,
        step: int | None = None,
        epoch: int | None = None,
        *,
        everything: bool = False,
        quick: bool = False,
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
    ) -> builtins.list[Verified]:
        """Read checkpoints and check every hash, without writing anything; newest first.

        Args:
            step: This one; None: the newest.
            epoch: As in ``restore``.
            everything: All checkpoints; what they share is read once.
            quick: Only look whether everything is there at its size.
            progress: Told of the bytes that were read, for each checkpoint anew.
            cancel: See above.

        Raises:
            StoreError: There is no such checkpoint.
        """
        cancel = inputs.event(cancel)
        positions = self._found(step, epoch)
        found = verified(
            self.store,
            positions if everything else positions[:1],
            self.job,
            quick=quick,
            progress=progress,
            cancel=cancel,
        )
        self._hand.distrust.update(identity for one in found for identity in one.damaged)
        return found

    def remove(self, step: int, epoch: int | None = None, *, force: bool = False, dry_run: bool = False) -> Checkpoint:
        """Remove a checkpoint: its manifest. What nobody else names is removed by ``sweep``. Return what it was.

        Raises:
            ConfigError: The step is there in several epochs, or it is the newest and ``force`` is not given.
            StoreError: There is no such checkpoint.
        """
        found = self._found(inputs.whole("step", step), epoch)
        if len(found) > 1:
            numbers = " and ".join(str(position.epoch) for position in sorted(found))
            raise ConfigError(f"step {step} is there in the epochs {numbers}", hint="say which epoch")
        newest = self.latest()
        if newest is not None and newest.position == found[0] and not force:
            raise ConfigError(
                f"step {step} is the newest checkpoint; it is not removed", hint="--force (force=True) removes it"
            )
        one = self._described(found[0])
        if one.problem == FOREIGN:
            raise StoreError(f"{self.uri}/{one.key}: {one.problem}")
        if not dry_run:
            self.store.delete([one.key])
        return one

    def sweep(self, grace_s: float = sweep.GRACE_S, *, dry_run: bool = False) -> Swept:
        """Condemn what no checkpoint names for ``grace_s`` seconds, and remove what was condemned as long ago.

        So it takes two runs until something is gone, or one with a grace of 0. Safe beside saves and other sweeps, also
        then; the grace spares them work, and keeps what a restore is reading. ``dry_run`` changes nothing.

        Raises:
            StoreError: A manifest is damaged: what it names is not known, so nothing is removed.
        """
        grace_s = inputs.grace(grace_s)
        self._there()
        return sweep.sweep(self.store, grace_s=grace_s, dry_run=dry_run)

    def copy_to(
        self,
        other: CheckpointStore | str,
        step: int | None = None,
        epoch: int | None = None,
        *,
        replace: bool = False,
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
    ) -> Copied:
        """Copy a checkpoint (None: the newest) to another store, with every hash checked on its way.

        ``replace``: also where another checkpoint of the same step and epoch is there already.

        Raises:
            ConfigError: Another one is there already.
            StoreError: There is no such checkpoint, or (CorruptCheckpoint) it is damaged.
        """
        target = other if isinstance(other, CheckpointStore) else CheckpointStore(inputs.address(other))
        cancel = inputs.event(cancel)
        one = self.find(step, epoch)
        if not replace and not inputs.is_absent(target.uri):
            refuse_other(self.store, target.store, one.position)
        return copying.copy(self.store, target.store, one.position, job=self.job, progress=progress, cancel=cancel)

    def outstanding(self, other: CheckpointStore, checkpoint: Checkpoint) -> int:
        """Return how many bytes of a checkpoint the other store does not have: those that a copy would send."""
        manifest = load(self.store, checkpoint.position, self.job)
        if manifest is None or inputs.is_absent(other.uri):
            return sum(manifest.packs.values()) if manifest else 0
        return copying.outstanding(other.store, manifest)

    def inside(self) -> str:
        """Return a line that names the places with checkpoints below this one; nothing where there are none."""
        names = [] if inputs.is_absent(self.uri) else below(self.store)
        return f"below it there are {', '.join(names)}: name one, as {self.uri}/{names[0]}" if names else ""

    def _opened(self) -> Store:
        if self._store is None:
            key = self._credentials or accounts.own(self.uri, os.environ)
            self._store = open_store(self.uri, endpoint=self._endpoint, region=self._region, credentials=key)
        return self._store

    def _there(self) -> None:
        """Raise StoreError for a directory that is not there: to look at it does not make it."""
        if inputs.is_absent(self.uri):
            raise StoreError(f"{self.uri}: no such directory")

    def _positions(self) -> builtins.list[Position]:
        return [] if inputs.is_absent(self.uri) else committed(self.store)

    def _found(self, step: int | None, epoch: int | None) -> builtins.list[Position]:
        """Return the checkpoints that are meant, newest first. Raises StoreError when there is none."""
        step, epoch = inputs.whole_or_none("step", step), inputs.whole_or_none("epoch", epoch)
        self._there()
        positions = self._positions()
        found = [
            position
            for position in positions
            if (step is None or position.step == step) and (epoch is None or position.epoch == epoch)
        ]
        if found:
            return found
        wanted = f" of step {step}" if step is not None else ""
        wanted += f" of epoch {epoch}" if epoch is not None else ""
        steps = ", ".join(str(position.step) for position in positions[:5])
        hint = f"the newest steps are {steps}" if positions else self.inside()
        raise StoreError(f"{self.uri}: no checkpoint{wanted}", hint=hint)

    def _described(self, position: Position) -> Checkpoint:
        try:
            manifest = load(self.store, position, self.job)
        except CorruptCheckpoint as error:
            return Checkpoint(position.step, position.epoch, problem=str(error))
        if manifest is None:
            return Checkpoint(position.step, position.epoch, problem=FOREIGN)
        return described(manifest)
