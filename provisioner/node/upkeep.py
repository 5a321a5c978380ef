"""Keeping a store tidy from the node: sweeps, seldom, in the background, and never in anybody's way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from provisioner.checkpoint import sweep
from provisioner.checkpoint.store import Store
from provisioner.errors import CloudError, Fenced

EVERY_S = 600.0
"""Between the begins of two sweeps of one store, in seconds."""
LOOK_S = 0.5


class Broom:
    """Sweeps one store, no more often than every ``every_s`` seconds. What fails is told once, until it works again."""

    def __init__(
        self,
        store: Store,
        *,
        grace_s: float,
        report: Callable[[str], None],
        every_s: float = EVERY_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Sweep nothing yet."""
        self._store = store
        self._grace_s = grace_s
        self._report = report
        self._every_s = every_s
        self._monotonic = monotonic
        self._last = float("-inf")
        self._failed = False

    @property
    def due(self) -> bool:
        """Say whether the last sweep is long enough ago."""
        return self._monotonic() - self._last >= self._every_s

    def sweep(self) -> None:
        """Sweep. Never raises for what the store does."""
        self._last = self._monotonic()
        try:
            done = sweep.sweep(self._store, grace_s=self._grace_s)
        except CloudError as error:
            if not self._failed:
                self._report(f"{self._store.uri} is not swept: {error}")
            self._failed = True
            return
        self._failed = False
        if done.deleted:
            size = done.deleted_bytes / 2**20
            self._report(f"{self._store.uri}: {size:.1f} MiB removed that no checkpoint needs any more")


class Upkeep:
    """Sweeps the job's own store after commits, while none is under way. ``fence`` is asked before each sweep."""

    def __init__(
        self,
        broom: Broom,
        *,
        busy: Callable[[], bool],
        fence: Callable[[], None],
        on_fenced: Callable[[Fenced], None],
    ) -> None:
        """Start nothing yet."""
        self._broom = broom
        self._busy = busy
        self._fence = fence
        self._on_fenced = on_fenced
        self._wanted = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)

    def start(self) -> None:
        """Begin to wait for commits."""
        self._thread.start()

    def after_commit(self) -> None:
        """Ask for a sweep, if one is due."""
        self._wanted.set()

    def stop(self) -> None:
        """Begin no further sweep. One that is under way may be cut off at any moment: it is made for that."""
        self._closing.set()
        self._wanted.set()

    def _run(self) -> None:
        while self._wanted.wait() and not self._closing.is_set():
            self._wanted.clear()
            if not self._broom.due:
                continue
            while self._busy() and not self._closing.wait(LOOK_S):
                pass
            if self._closing.is_set():
                return
            try:
                self._fence()
            except Fenced as fenced:
                self._on_fenced(fenced)
                return
            except CloudError:
                continue
            self._broom.sweep()
