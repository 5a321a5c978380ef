"""What a job's training has printed, read from the store over all its placements: once, or for as long as it goes on.

The parts of a placement's log are numbered without a gap and never change, so whoever follows asks for the next number;
lists are asked for only to find a newer placement.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import zstandard

from provisioner.checkpoint import layout
from provisioner.checkpoint.store import Store, Stored
from provisioner.errors import Unreachable

T = TypeVar("T")

POLL_S = 2.0
LIST_S = 15.0
"""Between two lists, in seconds."""
AWAY_S = 30.0
"""Longest pause while the store does not answer, in seconds."""
AT_ONCE = 8
"""Parts that are fetched ahead. Each is 4 MiB at most, uncompressed."""
_MOST_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Lines:
    """Whole lines of one placement, without their ends, in their order."""

    epoch: int
    lines: Sequence[bytes]


class End(Protocol):
    """Says whether the job has ended."""

    def __call__(self) -> bool:
        """Look now. Raises CloudError."""
        ...


class TrainingLog:
    """Reads the log of one job. ``say`` takes a line for the operator: the store is away, a part is damaged."""

    def __init__(
        self,
        store: Store,
        *,
        say: Callable[[str], object],
        wait: Callable[[float], object] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
        patient: bool = False,
    ) -> None:
        """Ask nothing yet. ``patient``: a store that is away is asked until it is back."""
        self._store = store
        self._say = say
        self._wait = wait
        self._monotonic = monotonic
        self._patient = patient
        self._away = False
        self._telling = threading.Lock()
        self._next: dict[int, int] = {}
        """The number of the next part, by epoch."""

    def epochs(self) -> list[int]:
        """Return the placements that have left anything, in their order. Raises CloudError."""
        names = self._asked(lambda: self._store.folders(layout.EPOCHS))
        return sorted(int(name) for name in names if name.isdigit())

    def so_far(self, epochs: Sequence[int], *, after: float | None = None, tail: int | None = None) -> Iterator[Lines]:
        """Yield what there is: what was stored after the Unix time ``after``, the last ``tail`` lines of it.

        A part holds the lines of a few seconds, and is as new as its newest line. Raises CloudError.
        """
        if tail is not None:
            yield from self._last(epochs, after, tail)
            return
        for epoch in epochs:
            parts = [part for part in self._parts(epoch) if after is None or part.modified >= after]
            for part in self._fetched(parts):
                yield Lines(epoch, part)

    def follow(self, epochs: Sequence[int], ended: End, *, only: int | None = None) -> Iterator[Lines | None]:
        """Yield what comes after ``so_far``, until the job (``only``: that placement) has ended; None: nothing new.

        Raises CloudError.
        """
        current = only if only is not None else max(epochs, default=0)
        newer: list[int] = []
        listed = float("-inf")
        while True:
            over = self._asked(ended)  # before the look: what a job prints is there when it has ended
            yield from self._new(current)
            if over or self._monotonic() >= listed + LIST_S:
                listed = self._monotonic()
                newer = [epoch for epoch in self.epochs() if epoch > current]
            begun = next((epoch for epoch in newer if self._has_begun(epoch, owned=only is not None)), None)
            if over or begun is not None:
                for part in self._fetched(self._parts(current)):  # its last words, also after a gap
                    yield Lines(current, part)
            if only is None and begun is not None:
                current, newer = begun, [epoch for epoch in newer if epoch > begun]
                continue
            if over or begun is not None:
                return
            yield None
            self._wait(POLL_S)

    def _has_begun(self, epoch: int, *, owned: bool) -> bool:
        key = layout.owner(epoch) if owned else layout.log_part(epoch, 0)
        return self._asked(lambda: self._store.exists(key))

    def _new(self, epoch: int) -> Iterator[Lines]:
        while epoch:
            number = self._next.get(epoch, 0)
            key = layout.log_part(epoch, number)
            data = self._asked(partial(self._store.get, key))
            if data is None:
                return
            self._next[epoch] = number + 1
            yield Lines(epoch, self._lines(key, data))

    def _parts(self, epoch: int) -> list[Stored]:
        """List the parts that were not read yet, by number; from now on they count as read."""
        first = self._next.get(epoch, 0)
        listed = self._asked(lambda: self._store.objects(layout.logs(epoch)))
        numbered = [(number, part) for part in listed if (number := layout.log_number(part.key)) is not None]
        parts = sorted((number, part) for number, part in numbered if number >= first)
        if parts:
            self._next[epoch] = parts[-1][0] + 1
        return [part for _, part in parts]

    def _last(self, epochs: Sequence[int], after: float | None, tail: int) -> Iterator[Lines]:
        """Look from the newest part back until there are lines enough."""
        found: deque[Lines] = deque()
        left = tail
        for epoch in reversed(epochs):
            parts = [part for part in self._parts(epoch) if after is None or part.modified >= after]
            for lines in self._fetched(parts[::-1]) if left > 0 else ():
                found.appendleft(Lines(epoch, lines[max(0, len(lines) - left) :]))
                left -= len(lines)
                if left <= 0:
                    break
        yield from found

    def _fetched(self, parts: Sequence[Stored]) -> Iterator[Sequence[bytes]]:
        """Fetch parts, some ahead, and yield their lines in the order of ``parts``."""
        if len(parts) < 2:
            for part in parts:
                yield self._read(part.key)
            return
        left = iter(parts)
        pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="parts")
        try:
            ahead: deque[Future[Sequence[bytes]]] = deque()
            for part in left:
                ahead.append(pool.submit(self._read, part.key))
                if len(ahead) >= AT_ONCE:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _read(self, key: str) -> Sequence[bytes]:
        data = self._asked(lambda: self._store.get(key))
        return () if data is None else self._lines(key, data)

    def _lines(self, key: str, data: bytes) -> Sequence[bytes]:
        try:
            text = zstandard.ZstdDecompressor().stream_reader(data).read(_MOST_BYTES)
        except zstandard.ZstdError:
            self._say(f"{key} is damaged: its lines are missing here")
            return ()
        return text.removesuffix(b"\n").split(b"\n")

    def _asked(self, call: Callable[[], T]) -> T:
        """Ask the store; where it does not answer, and there is patience, until it does."""
        pause = POLL_S
        while True:
            try:
                answer = call()
            except Unreachable as error:
                if not self._patient:
                    raise
                self._turn(away=True, words=f"the store does not answer ({error}); trying on")
                self._wait(pause)
                pause = min(AWAY_S, pause * 2)
            else:
                self._turn(away=False, words="the store answers again")
                return answer

    def _turn(self, *, away: bool, words: str) -> None:
        with self._telling:
            turned, self._away = away != self._away, away
        if turned:
            self._say(words)
