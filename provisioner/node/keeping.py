"""What becomes of a finished checkpoint: the commit, its copies, and what stays of the older ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from provisioner.checkpoint.copying import Copied
from provisioner.checkpoint.restore import Restored
from provisioner.checkpoint.save import Commit, Saver
from provisioner.errors import Fenced
from provisioner.node.commits import Committer
from provisioner.node.replicas import Replica, Replicas, Rules
from provisioner.node.stores import Stores
from provisioner.node.upkeep import Broom, Upkeep

COPY_LEAST_S = 5.0
COPY_MOST_S = 60.0
"""How long a copy may go on after the command has ended by itself, in seconds: twice the last commit, within these."""
LAST_WORD_S = 3.0
"""What a stop's deadline leaves for the log and the last heartbeat, in seconds."""


class Keeping:
    """Puts the parts together; they run in threads of their own."""

    def __init__(
        self,
        directory: Path,
        saver: Saver,
        stores: Stores,
        *,
        restored: Restored | None,
        bytes_before: Mapping[str, int],
        on_commit: Callable[[Commit], None],
        on_copied: Callable[[str, Copied], None],
        on_fenced: Callable[[Fenced], None],
        report: Callable[[str], None],
    ) -> None:
        """Start nothing yet. ``bytes_before`` gives what an earlier process of this placement sent to each replica."""
        boot = stores.boot
        protect = (restored.position,) if restored else ()
        self._restored = restored
        self._restored_from = stores.name_of(restored.store_uri) if restored else ""
        self._own_uri = boot.store_uri
        self._on_commit = on_commit
        rules = Rules(boot.job, boot.retention, protect, boot.sweep_after_s, saver.fence, on_fenced, report, on_copied)
        self._replicas = Replicas(
            [
                Replica(
                    access.uri,
                    lambda access=access: stores.for_copies(access),  # type: ignore[misc]
                    saver.store,
                    rules,
                    bytes_before=bytes_before.get(access.uri, 0),
                )
                for access in stores.replicas()
            ]
        )
        self._committer = Committer(
            directory,
            saver,
            policy=boot.retention,
            protect=lambda: {*protect, *self._replicas.in_use()},
            on_commit=self._committed,
            on_fenced=on_fenced,
            report=report,
        )
        self._upkeep = Upkeep(
            Broom(saver.store, grace_s=boot.sweep_after_s, report=report),
            busy=lambda: self._committer.busy,
            fence=saver.fence,
            on_fenced=on_fenced,
        )

    @property
    def last(self) -> Commit | None:
        """Return the newest commit of this start."""
        return self._committer.last

    @property
    def busy(self) -> bool:
        """Say whether a save is going on."""
        return self._committer.busy

    def replicas(self) -> list[dict[str, Any]]:
        """Return what the heartbeat tells of each replica."""
        return self._replicas.states()

    def start(self) -> None:
        """Begin. Replicas get what was restored, if it came from the job's own store and they have not got it yet."""
        self._committer.start()
        self._upkeep.start()
        self._replicas.start()
        found = self._restored
        if found is not None and self._restored_from == self._own_uri:
            self._replicas.want(found.position, found.directory / found.entry)

    def hush(self) -> None:
        """Begin nothing that could wait: the machine has to go."""
        self._upkeep.stop()

    def finish(self, timeout_s: float) -> bool:
        """Commit what is left, for ``timeout_s`` seconds at most; False when something did not make it."""
        self.hush()
        return self._committer.finish(timeout_s)

    def unreadable(self) -> bool:
        """Say whether the last checkpoint cannot be read, here or elsewhere: another try would only cost money."""
        return self._committer.unreadable()

    def finish_copies(self, left_s: float | None) -> list[str]:
        """Give copies the ``left_s`` seconds of a stop (None: nobody is in a hurry); return who stays behind.

        A replica whose last try has failed is not waited for.
        """
        if left_s is None:
            took = self.last.seconds if self.last else 0.0
            return self._replicas.finish(min(COPY_MOST_S, max(COPY_LEAST_S, 2 * took)))
        return self._replicas.finish(max(0.0, left_s - LAST_WORD_S))

    def abandon(self) -> None:
        """Commit and copy nothing more."""
        self._committer.abandon()
        self._replicas.abandon()
        self._upkeep.stop()

    def _committed(self, commit: Commit, entry: Path) -> None:
        self._on_commit(commit)
        self._replicas.want(commit.position, entry)
        self._upkeep.after_commit()
