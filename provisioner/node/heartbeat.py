"""The node's sign of life: one small object, rewritten no more often than once a second.

Several stores allow one change of an object per second. A value that was superseded before it could be written is
never written; a store that refuses is left alone for a growing time; nothing here makes the training wait.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from provisioner.checkpoint import layout
from provisioner.checkpoint.store import Store
from provisioner.clock import now as unix_now
from provisioner.errors import CloudError, Fenced

SPACING_S = 1.2
"""Between the end of one write and the begin of the next, in seconds: a second, and room for a slow network."""
LONGEST_PAUSE_S = 30.0
SLACK_S = 30.0
"""What one look at the fence and one write may take beyond the pause between two, in seconds: then it hangs."""


class Heartbeat:
    """Writes ``epochs/<n>/heartbeat.json`` every ``every_s`` seconds and looks at the fence each time.

    ``store`` makes one try for each write: a second one in the same second is what some stores refuse. ``sample``
    gives the fields that change; ``on_fenced`` is called once, then nothing more is written.
    """

    def __init__(
        self,
        store: Store,
        epoch: int,
        *,
        every_s: float,
        sample: Callable[[], dict[str, Any]],
        fence: Callable[[], None],
        on_fenced: Callable[[Fenced], None],
        clock: Callable[[], float] = unix_now,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Start nothing yet. ``clock`` gives Unix seconds."""
        self.before: dict[str, Any] = {}
        """What an earlier process of the same epoch wrote last."""
        self.alive: Callable[[float], object] = lambda _within_s: None
        """Called before each write and each pause with the seconds until the next call at the latest; never raises."""
        self._store = store
        self._epoch = epoch
        self._every_s = max(every_s, SPACING_S)
        self._sample = sample
        self._fence = fence
        self._on_fenced = on_fenced
        self._clock = clock
        self._monotonic = monotonic
        self._sleep = sleep
        self._seq = 0
        self._end: dict[str, Any] | None = None
        self._failures = 0
        self._last_write = float("-inf")
        self._hurry = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin, after the last number of an earlier process of this epoch."""
        try:
            before = json.loads(self._store.get(layout.heartbeat(self._epoch)) or b"{}")
            self._seq = int(before.get("seq") or 0)
            self.before = before
        except (CloudError, ValueError, TypeError, AttributeError):
            self.before = {}
        self._thread.start()

    def hurry(self) -> None:
        """Ask for a heartbeat as soon as the spacing allows."""
        self._hurry.set()

    def finish(self, end: dict[str, Any], timeout_s: float) -> None:
        """Write the last heartbeat with ``end``, trying for ``timeout_s`` seconds at most."""
        self._end = end
        self._closing.set()
        self._hurry.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def stop(self) -> None:
        """Write nothing more."""
        self._closing.set()
        self._end = None
        self._hurry.set()

    def _run(self) -> None:
        while True:
            closing = self._closing.is_set()
            if closing and self._end is None:
                return
            self._hurry.clear()
            self.alive(SLACK_S)
            try:
                written = self._beat()
            except Fenced as fenced:
                self._on_fenced(fenced)
                return
            if closing and written:
                return
            self._wait()

    def _beat(self) -> bool:
        """Write once; False when the store refused. Raises Fenced."""
        try:
            self._fence()
            body = {"epoch": self._epoch, "seq": self._seq + 1, "time": round(self._clock(), 3)}
            body |= self._sample() | {"end": self._end}
            try:
                self._store.put(layout.heartbeat(self._epoch), json.dumps(body).encode())
            finally:
                self._last_write = self._monotonic()
        except Fenced:
            raise
        except CloudError:
            self._failures += 1
            return False
        self._seq += 1
        self._failures = 0
        return True

    def _wait(self) -> None:
        self.alive(max(self._every_s, LONGEST_PAUSE_S * 1.3 if self._failures else 0.0) + SPACING_S + SLACK_S)
        if self._failures:
            pause = min(LONGEST_PAUSE_S, SPACING_S * 2.0 ** min(self._failures, 16))  # 2.0**1024 is an error
            pause *= random.uniform(0.7, 1.3)  # noqa: S311 - spreads retries, guards nothing
            if self._closing.is_set():  # the last word matters: short pauses until the caller's time is up
                self._sleep(min(pause, 4.0))
            else:
                self._closing.wait(pause)
        else:
            self._hurry.wait(self._every_s)
        rest = SPACING_S - (self._monotonic() - self._last_write)
        if rest > 0:
            self._sleep(rest)


def replica_bytes(before: Mapping[str, Any]) -> dict[str, int]:
    """Return what an earlier heartbeat says was sent to each replica, by URI."""
    listed = before.get("replicas")
    return {
        str(replica.get("uri")): int(replica["bytes"])
        for replica in (listed if isinstance(listed, list) else [])
        if isinstance(replica, dict) and isinstance(replica.get("bytes"), int)
    }
