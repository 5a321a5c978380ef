"""Copies of commits to other stores, in the background. Nothing here holds up training, commits or the node's end."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioner.checkpoint import copying, retention
from provisioner.checkpoint.layout import Position
from provisioner.checkpoint.store import Store
from provisioner.errors import Abandoned, CloudError, ConfigError, Fenced
from provisioner.model import JobRef
from provisioner.node.upkeep import Broom

LONGEST_PAUSE_S = 300.0
THREADS = 4
"""Uploads side by side to one replica: fewer than for a commit, which comes first."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What all replicas of a job share: whose checkpoints these are, which stay, and who may write."""

    job: JobRef
    policy: retention.Policy
    protect: Collection[Position]
    sweep_after_s: float
    fence: Callable[[], None]
    on_fenced: Callable[[Fenced], None]
    report: Callable[[str], None]
    on_copied: Callable[[str, copying.Copied], None]
    """Called with the replica's URI, in its thread."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    number: int
    position: Position
    entry: Path | None


class Replica:
    """One other store, brought up to date by a thread of its own. Of several commits only the newest is copied."""

    def __init__(
        self, uri: str, open_store: Callable[[], Store], primary: Store, rules: Rules, *, bytes_before: int = 0
    ) -> None:
        """Start nothing yet. ``bytes_before`` were sent by an earlier process of this placement."""
        self.uri = uri
        self._open_store = open_store
        self._store: Store | None = None
        self._primary = primary
        self._rules = rules
        self._known: dict[Position, Mapping[str, Any]] = {}
        self._broom: Broom | None = None
        self._lock = threading.Lock()
        self._asked = 0
        self._copied = 0
        self._wanted: _Wanted | None = None
        self._current: _Wanted | None = None
        self._step: int | None = None
        self._bytes = bytes_before
        self._error = ""
        self._failures = 0
        self._random = random.Random()  # noqa: S311 - spreads retries
        self._awake = threading.Event()
        self._closing = threading.Event()
        self._cancel = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replica", daemon=True)

    def start(self) -> None:
        """Begin to wait for commits."""
        self._thread.start()

    def want(self, position: Position, entry: Path | None) -> None:
        """Ask for a copy of a commit, whose files lie at ``entry``. An older one that still waits is superseded."""
        with self._lock:
            self._asked += 1
            self._wanted = _Wanted(self._asked, position, entry)
        self._awake.set()

    def state(self) -> dict[str, Any]:
        """Return what the heartbeat tells: the last step there, bytes sent, how many commits it is behind, and why."""
        with self._lock:
            return {
                "uri": self.uri,
                "step": self._step,
                "bytes": self._bytes,
                "behind": self._asked - self._copied,
                "error": self._error or None,
            }

    def in_use(self) -> set[Position]:
        """Return what is being copied now, and must stay in the job's own store meanwhile."""
        current = self._current
        return {current.position} if current else set()

    def close(self) -> None:
        """Begin nothing but what is wanted already. What has failed is not tried again."""
        self._closing.set()
        self._awake.set()

    def ended(self, timeout_s: float) -> bool:
        """Wait, after ``close``, and say whether there is nothing more to wait for."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def abandon(self) -> None:
        """Copy nothing more."""
        self._cancel.set()
        self.close()

    def _run(self) -> None:
        while (wanted := self._next()) is not None:
            try:
                self._rules.fence()
                self._copy(wanted)
            except Fenced as fenced:
                self._rules.on_fenced(fenced)
                return
            except Abandoned:
                return
            except (CloudError, ConfigError, OSError) as error:
                self._failed(wanted, str(error))
            finally:
                self._current = None

    def _next(self) -> _Wanted | None:
        """Wait for something to copy and return it; None at the end."""
        while not self._cancel.is_set():
            if self._failures:
                if self._closing.wait(self._pause()):
                    return None
            elif not self._closing.is_set():
                self._awake.wait()
            self._awake.clear()
            with self._lock:
                wanted, self._wanted = self._wanted, None
                self._current = wanted
            if wanted is not None:
                return wanted
            if self._closing.is_set():
                return None
        return None

    def _copy(self, wanted: _Wanted) -> None:
        store = self._store = self._store or self._open_store()
        self._known.pop(wanted.position, None)  # a step that was saved anew has other metadata
        copied = copying.copy(
            self._primary,
            store,
            wanted.position,
            job=self._rules.job,
            entry=wanted.entry,
            threads=THREADS,
            cancel=self._cancel,
        )
        with self._lock:
            self._copied = wanted.number
            self._step = copied.position.step
            self._bytes += copied.bytes
            self._error = ""
            self._failures = 0
        self._rules.on_copied(self.uri, copied)
        self._tidy(store, copied.position)

    def _tidy(self, store: Store, newest: Position) -> None:
        rules = self._rules
        try:
            retention.prune(store, rules.job, rules.policy, newest=newest, protect=rules.protect, known=self._known)
        except CloudError as error:
            rules.report(f"old checkpoints are not removed yet: {error}")
        broom = self._broom = self._broom or Broom(store, grace_s=rules.sweep_after_s, report=rules.report)
        if broom.due and not self._closing.is_set():
            broom.sweep()

    def _failed(self, wanted: _Wanted, why: str) -> None:
        with self._lock:
            self._error = why
            self._failures += 1
            if self._wanted is None:  # a newer one would be worth more
                self._wanted = wanted
        if self._failures == 1:
            self._rules.report(f"step {wanted.position.step} is not copied yet: {why}. Trying on, training goes on")
        self._awake.set()

    def _pause(self) -> float:
        pause: float = min(LONGEST_PAUSE_S, 2.0 ** min(self._failures, 16))
        return pause * self._random.uniform(0.7, 1.3)


class Replicas:
    """All replicas of a job. None is a fine number."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        """Take them."""
        self._replicas = tuple(replicas)
        self._abandoned = threading.Event()

    def start(self) -> None:
        """Begin."""
        for replica in self._replicas:
            replica.start()

    def want(self, position: Position, entry: Path | None, *, but: str = "") -> None:
        """Ask for a copy everywhere, except at the replica ``but``."""
        for replica in self._replicas:
            if replica.uri != but:
                replica.want(position, entry)

    def states(self) -> list[dict[str, Any]]:
        """Return what the heartbeat tells of each."""
        return [replica.state() for replica in self._replicas]

    def in_use(self) -> set[Position]:
        """Return what is being copied now."""
        return set().union(*(replica.in_use() for replica in self._replicas))

    def finish(self, timeout_s: float) -> list[str]:
        """Give copies that are under way ``timeout_s`` seconds; return the URIs of those that stay behind."""
        until = time.monotonic() + timeout_s
        for replica in self._replicas:
            replica.close()
        waiting = list(self._replicas)
        while waiting and not self._abandoned.is_set() and time.monotonic() < until:
            waiting = [replica for replica in waiting if not replica.ended(0.05)]
        self.abandon()
        return [state["uri"] for state in self.states() if state["behind"]]

    def abandon(self) -> None:
        """Copy nothing more."""
        self._abandoned.set()
        for replica in self._replicas:
            replica.abandon()
