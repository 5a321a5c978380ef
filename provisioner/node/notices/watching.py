"""Watches every source of this machine. None is ever given up, waited for, or able to hold up another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from provisioner.clock import now as unix_now
from provisioner.node.notices import signals
from provisioner.node.notices.ec2 import DEFAULT_ENDPOINT, Ec2
from provisioner.node.notices.gce import DEFAULT_HOST, GceMetadata, Maintenance, Preemption
from provisioner.node.notices.gpu import Gpu
from provisioner.node.notices.source import Notice, Source, SourceAbsent, SourceAway
from provisioner.node.verdict import Cause

WAIT_S = 5.0
"""How long a source is waited for in one question, in seconds: a dead connection must not hide a notice for longer."""
LOOK_S = 3.0
LEAST_S = 5.0
"""What a notice leaves at least, in seconds, even if its deadline has passed."""


def sources(cloud: str, environ: Mapping[str, str], own: Callable[[], set[int]]) -> list[Source]:
    """Return where notices come from on this machine. ``own`` gives the process ids of the training command."""
    found: list[Source] = [Gpu(own=own, foreign_is_final=environ.get("FAILOVER_FOREIGN_MEMORY") == "stop")]
    if cloud == "aws":
        found.append(Ec2(environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or DEFAULT_ENDPOINT))
    if cloud == "gcp":
        metadata = GceMetadata(environ.get("GCE_METADATA_HOST") or DEFAULT_HOST)
        found += [Preemption(metadata), Maintenance(metadata, has_gpu=Path("/dev/nvidiactl").exists())]
    return found


class Lookout:
    """A thread for each source. A final notice becomes a request to stop, any other a line; each is told once."""

    def __init__(
        self,
        watched: Sequence[Source],
        *,
        stop: Callable[[str, float, Cause], object],
        note: Callable[..., object],
        grace_s: float = signals.GRACE_S,
        clock: Callable[[], float] = unix_now,
    ) -> None:
        """Start nothing yet. ``stop`` gets the reason, the seconds that are left and the cause.

        ``note`` gets a kind, a line and fields. ``grace_s`` is what a final notice without a deadline leaves, in
        seconds; ``clock`` gives Unix seconds.
        """
        self._stop = stop
        self._note = note
        self._grace_s = grace_s
        self._clock = clock
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._told: dict[str, tuple[str, bool, str]] = {}
        self._away: set[str] = set()
        self._watched = list(watched)

    def start(self) -> None:
        """Begin; the caller is never held up."""
        for source in self._watched:
            threading.Thread(target=self._watch, args=(source,), name="notices", daemon=True).start()

    def notice_s(self) -> float | None:
        """Return what this machine's notice leaves, in seconds, where its cloud tells beforehand."""
        return next((source.notice_s for source in self._watched if isinstance(source, Preemption)), None)

    def close(self) -> None:
        """Ask no more."""
        self._closing.set()

    def look(self, timeout_s: float = LOOK_S) -> None:
        """Ask every source once, now. Comes back after ``timeout_s`` seconds at the latest."""
        asked = [
            threading.Thread(target=self.ask, args=(source,), name="notices", daemon=True) for source in self._watched
        ]
        for thread in asked:
            thread.start()
        end = time.monotonic() + timeout_s
        for thread in asked:
            thread.join(max(0.0, end - time.monotonic()))

    def ask(self, source: Source, wait_s: float = 0.0) -> bool:
        """Ask one source and pass on what is new; False when this machine has no such source."""
        try:
            notice = source.watch(wait_s)
        except SourceAbsent:
            return False
        except SourceAway as away:
            if self._turns(source.name, away=True):
                self._note("line", f"{source.name} cannot be asked for notices ({away}); asking on")
            return True
        if self._turns(source.name, away=False):
            self._note("line", f"{source.name} answers again")
        self._hear(source.name, notice)
        return True

    def _watch(self, source: Source) -> None:
        while not self._closing.is_set():
            begin = time.monotonic()
            if not self.ask(source, WAIT_S):
                return
            self._closing.wait(max(0.0, begin + source.every_s - time.monotonic()))

    def _turns(self, name: str, *, away: bool) -> bool:
        """Say whether a source has gone away, or come back, just now."""
        with self._lock:
            turned = away != (name in self._away)
            (self._away.add if away else self._away.discard)(name)
            return turned

    def _hear(self, name: str, notice: Notice | None) -> None:
        with self._lock:
            last = self._told.pop(name, None)
            if notice is None:
                return
            self._told[name] = (notice.kind, notice.final, notice.mark)
            if last == self._told[name]:
                return
        fields: dict[str, Any] = {"notice": notice.kind, "source": name, "deadline": notice.deadline}
        words = f"{name} gives notice: {notice.kind}" + (f" ({notice.detail})" if notice.detail else "")
        self._note("notice", words if notice.final else f"{words}; going on", final=notice.final, **fields)
        if notice.final:
            left = self._grace_s if notice.deadline is None else notice.deadline - self._clock()
            self._stop(f"notice: {notice.kind}", max(LEAST_S, left), notice.cause)
