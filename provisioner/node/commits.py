"""Commits what appears in the checkpoint directory, in the background, newest first."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from provisioner.checkpoint import layout, retention
from provisioner.checkpoint.layout import Position
from provisioner.checkpoint.save import Commit, Saver
from provisioner.errors import Abandoned, CloudError, Fenced, Unstable
from provisioner.node import pace
from provisioner.node.metadata import Metadata, lasts

LOOK_S = 1.0
"""How often the directory is read at least, in seconds; changes are noticed at once where the kernel tells them."""
LONGEST_PAUSE_S = 30.0
_UNSTABLE_TRIES = 5
READ_TRIES = 5
"""How often an entry is tried that the disk does not give, before it is passed over. The end tries it again."""
READ_PAUSE_S = 0.5
"""The first pause after such a try, in seconds; each is twice the one before."""
_LAST_TRIES = 2
_Key: TypeAlias = tuple[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _Entry:
    path: Path
    step: int
    identity: tuple[int, int]
    """Inode and time of change: an entry that was replaced is a new one."""
    appeared: int
    """When it was renamed, as of its first sight, in nanoseconds: what is changed in it later counts no more."""

    @property
    def key(self) -> _Key:
        return self.path.name, self.identity


class Committer:
    """Watches one directory. ``on_commit`` and ``on_fenced`` are called in its thread.

    Of several finished checkpoints the one with the highest step is saved; older ones are superseded.
    """

    def __init__(
        self,
        directory: Path,
        saver: Saver,
        *,
        policy: retention.Policy,
        protect: Callable[[], Collection[Position]],
        on_commit: Callable[[Commit, Path], None],
        on_fenced: Callable[[Fenced], None],
        report: Callable[[str], None],
    ) -> None:
        """Start nothing yet. What ``policy`` keeps stays in the store, and what ``protect`` names.

        ``on_commit`` gets the commit and where its files lie.
        """
        self.last: Commit | None = None
        self.busy = False
        """A save is going on."""
        self._directory = directory
        self._saver = saver
        self._policy = policy
        self._protect = protect
        self._on_commit = on_commit
        self._on_fenced = on_fenced
        self._report = report
        self._handled: set[_Key] = set()
        self._tries: dict[_Key, int] = {}
        self._passed: dict[_Key, bool] = {}
        """What was passed over, and whether another try may help."""
        self._appeared: dict[tuple[str, int], int] = {}
        self._last_appeared = 0
        self._went_back = False
        self._unlisted = 0
        """How often in a row the directory could not be read."""
        self._strange: set[str] = set()
        self._known: dict[Position, Mapping[str, Any]] = {}
        self._metadata = Metadata(report)
        self._failures = 0
        self._unstable = 0
        self._closing = threading.Event()
        self._until = float("inf")
        self._thread = threading.Thread(target=self._run, name="commits", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def finish(self, timeout_s: float) -> bool:
        """Commit what is left, for ``timeout_s`` seconds at most; False when something did not make it."""
        until = self._until = time.monotonic() + timeout_s
        self._closing.set()
        while self._thread.is_alive() and not self._saver.cancel.is_set() and (left := until - time.monotonic()) > 0:
            self._thread.join(min(0.2, left))
        if self._thread.is_alive():
            self._saver.cancel.set()
            self._thread.join(1.0)
            return False
        try:
            return self._newest() is None and not any(
                entry.key in self._passed and not self._is_superseded(entry) for entry in self._entries()
            )
        except OSError:
            return False

    def unreadable(self) -> bool:
        """Say whether the last checkpoint was passed over for a reason that lasts: no machine would do better."""
        try:
            return any(
                self._passed.get(entry.key) is False and not self._is_superseded(entry) for entry in self._entries()
            )
        except OSError:
            return False

    def abandon(self) -> None:
        """Commit nothing more. ``finish`` waits no longer."""
        self._saver.cancel.set()
        self._closing.set()

    def _run(self) -> None:
        for _ in self._ticks():
            if not self._commit_all():
                return
        for key in [key for key, may_help in self._passed.items() if may_help]:  # the last chance
            del self._passed[key]
            self._tries[key] = READ_TRIES - _LAST_TRIES
            self._handled.discard(key)
        self._commit_all()

    def _commit_all(self) -> bool:
        """Commit until nothing is left to do; False when this node must not write any more."""
        while (entry := self._next()) is not None:
            try:
                self.busy = True
                self._commit(entry)
            except Fenced as fenced:
                self._on_fenced(fenced)
                return False
            except Abandoned:
                return False
            except Unstable as unstable:
                self._unstable += 1
                if self._unstable == _UNSTABLE_TRIES:
                    self._report(f"{unstable}; it should appear by a rename, whole. Trying on")
                time.sleep(min(1.0, 0.1 * self._unstable))
            except CloudError as error:
                self._failures += 1
                if self._failures == 1:
                    self._report(f"step {entry.step} is not committed yet: {error}. Trying on, training goes on")
                self._pause()
            except OSError as error:
                self._unread(entry, error)
            finally:
                self.busy = False
        return True

    def _unread(self, entry: _Entry, error: OSError) -> None:
        """Pause before another try, or pass the entry over."""
        lasting = lasts(error)
        tries = self._tries[entry.key] = self._tries.get(entry.key, 0) + 1
        why = error.strerror or str(error)
        if lasting or tries >= READ_TRIES:
            self._report(f"{entry.path} cannot be read ({why}); it is passed over")
            self._handled.add(entry.key)
            self._passed[entry.key] = not lasting
            return
        if tries == 1:
            self._report(f"{entry.path} cannot be read ({why}). Trying again")
        self._wait_to_read(tries)

    def _wait_to_read(self, tries: int) -> None:
        if self._closing.is_set():
            time.sleep(READ_PAUSE_S)
        else:
            self._closing.wait(READ_PAUSE_S * 2.0 ** (tries - 1))

    def _next(self) -> _Entry | None:
        """Return the entry to save next; None, too, when the directory cannot be read: the next look tries again."""
        while not self._saver.cancel.is_set():
            try:
                entry = self._newest()
            except OSError as error:
                self._unlisted += 1
                if self._unlisted == 1:
                    self._report(f"{self._directory} cannot be read ({error.strerror or error}). Trying again")
                if not self._closing.is_set() or self._unlisted >= READ_TRIES:
                    return None
                self._wait_to_read(self._unlisted)
            else:
                self._unlisted = 0
                return entry
        return None

    def _commit(self, entry: _Entry) -> None:
        if self._closing.is_set() and (
            late := pace.too_late(pace.size_of(entry.path), self._until - time.monotonic(), self.last)
        ):
            self._report(f"step {entry.step} is not saved any more: {late}")
            self._handled.add(entry.key)
            self._passed[entry.key] = True
            return
        self._known.pop(Position(self._saver.epoch, entry.step), None)  # a save that fails may have replaced it
        commit = self._saver.save(entry.path, entry.step, self._metadata.of(entry.path))
        self._handled.add(entry.key)
        self.last = commit
        self._last_appeared = entry.appeared
        self._went_back = False
        self._failures = self._unstable = 0
        self._on_commit(commit, entry.path)
        self._known[commit.position] = commit.manifest.metadata
        try:
            retention.prune(
                self._saver.store,
                self._saver.job,
                self._policy,
                newest=commit.position,
                protect=self._protect(),
                known=self._known,
            )
        except CloudError as error:
            self._report(f"old checkpoints are not removed yet: {error}")

    def _newest(self) -> _Entry | None:
        """Return the entry to save next; older ones than the newest commit are ticked off unsaved. Raises OSError."""
        best: _Entry | None = None
        try:
            for entry in self._entries():
                if entry.key in self._handled:
                    continue
                if self._is_superseded(entry):
                    self._handled.add(entry.key)
                    self._tell_going_back(entry)
                    continue
                if best is None or entry.step > best.step:
                    best = entry
        except OSError:
            if best is None:
                raise
        return best

    def _is_superseded(self, entry: _Entry) -> bool:
        return self.last is not None and entry.step < self.last.position.step

    def _tell_going_back(self, entry: _Entry) -> None:
        """Say, once until the next commit, that what the training saves now is lost: it is behind its newest commit."""
        if self.last is None or self._went_back or entry.appeared <= self._last_appeared:
            return
        self._went_back = True
        newest = self.last.position.step
        self._report(
            f"step {entry.step} is older than step {newest}, which is committed: it is not saved, nor is any other "
            f"below {newest}; a restore would take step {newest}. To go back, stop the job, remove step {newest} "
            "(failover checkpoint rm --force) and start it anew"
        )

    def _entries(self) -> Iterator[_Entry]:
        """List what may be saved. Raises OSError, at the end, but not for what the trainer removed."""
        problem: OSError | None = None
        try:
            listing = list(os.scandir(self._directory))
        except (FileNotFoundError, NotADirectoryError):
            return
        for item in listing:
            step = layout.step_of(item.name)
            try:
                if step is None or item.is_symlink():
                    self._wonder(item.name)
                    continue
                info = item.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            except OSError as error:
                problem = error
                continue
            appeared = self._appeared.setdefault((item.name, info.st_ino), info.st_ctime_ns)
            yield _Entry(Path(item.path), step, (info.st_ino, info.st_mtime_ns), appeared)
        if problem is not None:
            raise problem

    def _wonder(self, name: str) -> None:
        if name in self._strange or layout.is_unfinished(name):
            return
        self._strange.add(name)
        self._report(f"{name} in the checkpoint directory is not uploaded: its name does not end in a step number")

    def _pause(self) -> None:
        pause = min(LONGEST_PAUSE_S, 2.0 ** min(self._failures, 16)) * random.uniform(0.7, 1.3)  # noqa: S311 - spreads retries
        if self._closing.is_set():
            time.sleep(min(pause, 2.0))
        else:
            self._closing.wait(pause)

    def _ticks(self) -> Iterator[None]:
        """Yield whenever the directory may have changed, and one last time at the end."""
        try:
            yield from self._kernel_ticks()
        except (OSError, ImportError) as error:  # no inotify instance left, or no such thing here
            self._report(f"the checkpoint directory is read every {LOOK_S:g} s ({type(error).__name__})")
            while not self._closing.wait(LOOK_S):
                yield
        yield

    def _kernel_ticks(self) -> Iterator[None]:
        from watchfiles import watch

        yield
        for _ in watch(
            self._directory,
            watch_filter=None,
            debounce=50,
            step=20,
            stop_event=self._closing,
            rust_timeout=int(LOOK_S * 1000),
            yield_on_timeout=True,
            recursive=False,
            raise_interrupt=False,
        ):
            yield
