"""How long a training waits for its loader, and what to change: ``with advising(loader) as loader:``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Callable, Generic, TypeVar, cast

import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

from provisioner.node.torch import pieces
from provisioner.node.torch.batches import Batches
from provisioner.node.torch.counsel import Counsel, Loader, Measured, counsel
from provisioner.node.torch.meter import Meter
from provisioner.node.torch.surroundings import Surroundings

L = TypeVar("L", bound=Iterable[Any])
EVERY_S = 30.0
"""A window in seconds: at the end of each it is reckoned what to change."""
WARM_UP = 10
"""Batches that count for nothing: compilation, caches, the first memory of a card."""
LEAST = 20
"""Batches from which on something can be said."""


_become: Callable[[Any, type], None] = object.__dict__["__class__"].__set__
"""As an assignment to ``__class__``, also where a class makes a property of that, as Accelerate's loaders do."""


class Advising(Generic[L]):
    """Goes along with a loader. ``last`` is what it advises now, ``seen`` what that rests on. See :func:`advising`."""

    def __init__(
        self,
        loader: L,
        *,
        about: Any = None,
        every_s: float = EVERY_S,
        warm_up: int = WARM_UP,
        surroundings: Surroundings | None = None,
        meter: Meter | None = None,
        say: Callable[[str], object] | None = None,
        perf_counter: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Take what is walked through, and ``about``, the loader that is behind it."""
        self.last: Counsel | None = None
        self.seen: Measured | None = None
        self._loader = loader
        self._about = loader if about is None else about
        self._every_s = every_s
        self._warm_up = warm_up
        self._around = surroundings or Surroundings()
        self._meter = meter
        self._say = say or _say
        self._clock = perf_counter
        self._kind: type | None = None
        self._rule = ""
        """What the last window alone would advise."""
        self._batches = self._batch_bytes = 0
        self._begin_window(perf_counter())

    def __enter__(self) -> L:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> L:
        """Begin; return what to go through: the loader itself, where it is an object of its own."""
        if self._meter is None:
            self._meter = Meter()
        self._meter.start()
        kind = type(self._loader)
        try:  # It stays the same object, of a subclass: who holds it need not be told.
            _become(self._loader, type(kind.__name__, (kind,), {"__iter__": self._iterating(kind)}))
        except (AttributeError, TypeError):  # a list, a generator, one with slots: it cannot be of another class
            return cast("L", _Iterable(self, self._loader))
        self._kind = kind
        return self._loader

    def close(self) -> None:
        """Say what was advised at last, and leave the loader as it was."""
        if self._kind is not None:
            _become(self._loader, self._kind)
            self._kind = None
        if self._meter is not None:
            before = self.last
            if self._steps >= LEAST:
                self._look(self._clock())
            self._meter.close()
            self._meter = None
            if before is not None:
                self._tell("at the end")

    def through(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches of an epoch, and measure what each was waited for."""
        clock = self._clock
        at, is_first = clock(), True
        while True:
            asked = clock()
            try:
                batch = next(batches)
            except StopIteration:
                self._worked += asked - at
                return
            came = clock()
            self._took(asked - at, came - asked, came, is_first=is_first)
            if self._batches == 1:
                self._batch_bytes = pieces.nbytes(batch)
            at, is_first = came, False
            yield batch

    def _iterating(self, kind: Any) -> Callable[[Any], Iterator[Any]]:
        iterate = kind.__iter__
        return lambda loader: self.through(iterate(loader))

    def _took(self, worked: float, waited: float, now: float, *, is_first: bool) -> None:
        """Count a batch: what the one before it was worked on, and what this one was waited for, in seconds."""
        if self._meter is None:  # closed, and somebody still goes on with the loader
            return
        self._batches += 1
        if self._batches <= self._warm_up:
            if self._batches == self._warm_up:
                self._begin_window(now)
                if self._meter is not None:
                    self._meter.begin()
            return
        self._worked += worked
        self._steps += 1
        if is_first and self._has_workers:
            self._starts += 1
            self._started += waited
        else:
            self._waited += waited
        if now >= self._look_at and self._steps >= LEAST:
            self._look(now)

    def _begin_window(self, now: float) -> None:
        self._worked = self._waited = self._started = 0.0
        self._steps = self._starts = 0
        self._look_at = now + self._every_s
        self._has_workers = bool(facts(self._about).workers)

    def _look(self, now: float) -> None:
        assert self._meter is not None  # noqa: S101 - started
        host = self._meter.host
        self.seen = Measured(
            loader=facts(self._about),
            steps=self._steps,
            seconds=self._worked + self._waited,
            waited_s=self._waited,
            starts_s=self._started,
            starts=self._starts,
            cores=host.cores() / int(os.environ.get("LOCAL_WORLD_SIZE") or 1),
            memory=host.memory(),
            shm=host.shm(),
            batch_bytes=self._batch_bytes,
            gpu=self._meter.gpu(),
            **self._meter.rates(),
        )
        self._take(counsel(self.seen))
        self._begin_window(now)

    def _take(self, found: Counsel) -> None:
        """Let a new advice stand. One that differs has to come twice in a row: no flutter."""
        before, self.last, rule = self.last, found, self._rule
        self._rule = found.rule
        if before is None:
            self._tell(f"after {self._batches} batches")
        elif found.rule not in {before.rule, rule}:
            self.last = before
        elif before.rule != found.rule:
            self._tell("now")
        if _is_first() and self.seen is not None:
            advice = {"rule": self.last.rule, "advice": self.last.text, "change": self.last.change}
            self._around.report_efficiency({**advice, **self.seen.numbers()})

    def _tell(self, when: str) -> None:
        if _is_first() and self.last is not None:
            self._say(f"efficiency {when}: {self.last.text}")


def advising(
    loader: L,
    *,
    every_s: float = EVERY_S,
    warm_up: int = WARM_UP,
    surroundings: Surroundings | None = None,
    meter: Meter | None = None,
    say: Callable[[str], object] | None = None,
) -> Advising[L]:
    """Measure how long a training waits for its loader, and name the one thing to change.

    For example::

        with advising(loader) as loader:
            for epoch in range(10):
                for images, labels in loader:
                    ...

    It is said on stderr after the first ``every_s`` seconds behind ``warm_up`` batches, when it changes, and at the
    end; the node's heartbeat carries it. ``checkpointing`` and the callbacks do the same by themselves. ``meter`` looks
    at the card and the host. A list or a generator comes back as something to go through, without its other methods.
    """
    return Advising(loader, every_s=every_s, warm_up=warm_up, surroundings=surroundings, meter=meter, say=say)


def facts(loader: Any) -> Loader:
    """Return how a loader loads."""
    while isinstance(loader, Batches):
        loader = loader.loader
    if not isinstance(loader, DataLoader):
        return Loader()
    any_loader: Any = loader
    return Loader(
        workers=any_loader.num_workers,
        batch=any_loader.batch_size or getattr(any_loader.batch_sampler, "batch_size", None),
        pinned=bool(any_loader.pin_memory),
        persistent=bool(any_loader.persistent_workers),
        prefetch=any_loader.prefetch_factor or 2,
        is_stream=isinstance(any_loader.dataset, IterableDataset),
    )


class _Iterable:
    """An iterable that keeps its class: a list, a generator."""

    def __init__(self, advising: Advising[Any], inner: Iterable[Any]) -> None:
        self._advising = advising
        self._inner = inner

    def __iter__(self) -> Iterator[Any]:
        return self._advising.through(iter(self._inner))

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]


def _is_first() -> bool:
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


def _say(line: str) -> None:
    sys.stderr.write(f"failover: {line}\n")
    sys.stderr.flush()
