"""Goes through a DataLoader so that a run can go on in the middle of an epoch, with the same batches.

What draws random numbers on the way to a batch (sampler, dataset, augmentation, collation) gets a stream of its own,
seeded by the run, the epoch and the batch. So the training's own randomness is not touched, the number of workers does
not matter, and batches that were trained already are passed over without being loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, get_worker_info

from provisioner.node.torch import randomness
from provisioner.node.torch.shield import shield

B = TypeVar("B")


class Batches(Generic[B]):
    """``for batch in batches:`` is one epoch, or what is left of it. ``epoch`` and ``seen`` say where it is.

    A loop may leave an epoch after its last batch without asking for another one: the next one begins all the same.
    """

    def __init__(self, loader: Iterable[B], seed: int) -> None:
        """Take any iterable; a DataLoader over a map-style dataset is skipped through without loading."""
        self.epoch = 0
        self.seen = 0
        """Samples of this epoch that all processes together have had; batches, where the loader has none to count."""
        self._loader = loader
        self._seed = seed
        self._is_through = False
        self._generators = _generators(loader)
        self._fetch: _Fetch | None = None
        self._plan: _Plan | None = None
        shield(loader)
        if isinstance(loader, DataLoader) and can_be_skipped(loader):
            self._plan = _Plan(loader)
            self._fetch = _Fetch(loader.dataset, loader.collate_fn, seed)
            self._seekable: DataLoader[Any] = _rebuilt(loader, self._fetch, self._plan)

    @property
    def loader(self) -> Iterable[B]:
        """Return the loader that is behind it."""
        return self._loader

    @property
    def sampler(self) -> Batches[B]:
        """Return itself: trainers tell a loader's sampler the epoch."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; of the one that it is in already, nowhere."""
        if epoch != self.epoch:
            self.epoch, self.seen = epoch, 0
        self._is_through = False

    @property
    def is_last(self) -> bool:
        """Say whether the batch that was yielded last is the last of its epoch; never, if the loader has no length."""
        return self._is_through

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the epochs that are left of ``count``, from 0 on; the first of them may have begun already."""
        while self.epoch < count:
            epoch = self.epoch
            yield epoch
            if self.epoch == epoch:  # the loop over the batches was left early, or another loader is used
                self.set_epoch(epoch + 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the position."""
        seeds = [seed for _, seed in self._generators]
        return {"epoch": self.epoch, "seen": self.seen, "seed": self._seed, "generators": seeds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a position."""
        seeds = state.get("generators", ())
        if len(seeds) == len(self._generators):
            self._generators = [(one, int(seed)) for (one, _), seed in zip(self._generators, seeds)]
        self.epoch, self.seen, self._seed = int(state["epoch"]), int(state["seen"]), int(state["seed"])
        self._is_through = False
        if self._fetch is not None:
            self._fetch.seed = self._seed

    def __len__(self) -> int:
        """Return the batches of an epoch. Raises TypeError where the loader does not know."""
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[B]:
        """Yield what is left of the epoch."""
        if self._is_through:
            self.set_epoch(self.epoch + 1)
        stream = randomness.Stream(_mixed(self._seed, self.epoch))
        _set_epoch(self._loader, self.epoch)
        for generator, number in self._generators:  # one that the script made goes by the epoch, too
            generator.manual_seed(_mixed(number, self.epoch))
        yield from self._skip_through(stream) if self._plan is not None else self._replay(stream)
        self.set_epoch(self.epoch + 1)

    def _skip_through(self, stream: randomness.Stream) -> Iterator[B]:
        assert self._plan is not None  # noqa: S101 - the caller looked
        plan = self._plan
        plan.begin(stream, self.epoch, self.seen)
        with randomness.Stream(self._seed):  # a loader draws a seed for its workers; for those that stay, once
            batches = iter(self._seekable)
        for number, batch in enumerate(batches):
            self.seen, self._is_through = plan.seen_after(number)
            yield batch

    def _replay(self, stream: randomness.Stream) -> Iterator[B]:
        """Load what was seen once more and throw it away: a stream of data has no place to jump to."""
        if getattr(self._loader, "persistent_workers", False):
            vars(self._loader)["_iterator"] = None  # workers that stayed would draw other numbers than new ones
        with stream:
            batches = iter(self._loader)
        passed, whole = 0, _length(self._loader)
        while True:
            try:
                with stream:
                    batch = next(batches)
            except StopIteration:
                return
            passed += 1
            if passed > self.seen:
                self.seen, self._is_through = passed, passed == whole
                yield batch


def _length(batches: Any) -> int | None:
    try:
        return len(batches)
    except TypeError:  # a stream does not know
        return None


def can_be_skipped(loader: DataLoader[Any]) -> bool:
    """Say whether batches can be passed over without loading them: a subclass may do more with them than load."""
    kind: Any = type(loader)
    return (
        not isinstance(loader.dataset, IterableDataset)
        and loader.batch_sampler is not None
        and not hasattr(loader, "state_dict")
        and kind.__iter__ is DataLoader.__iter__
    )


class _Numbered(list):  # type: ignore[type-arg]
    """The indices of one batch, with its number: what its randomness is seeded by."""

    def __init__(self, indices: Iterable[Any], number: tuple[int, int]) -> None:
        super().__init__(indices)
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _Numbered, (list(self), self.number)


class _Fetch:
    """A dataset whose batches are the collated ones of another, each seeded by its number."""

    def __init__(self, dataset: Any, collate: Any, seed: int) -> None:
        self.dataset, self.collate, self.seed = dataset, collate, seed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, indices: _Numbered) -> Any:
        epoch, number = indices.number
        with randomness.Stream(_mixed(self.seed, epoch, number)):
            several = getattr(self.dataset, "__getitems__", None)
            samples = several(list(indices)) if several else [self.dataset[index] for index in indices]
            return self.collate(samples)


class _Shown:
    """A ``worker_init_fn``: what ``get_worker_info`` tells in the worker is the script's own dataset."""

    def __init__(self, init: Any) -> None:
        self.init = init

    def __call__(self, worker: int) -> None:
        info: Any = get_worker_info()
        object.__setattr__(info, "dataset", info.dataset.dataset)  # it lets nobody assign
        if self.init is not None:
            self.init(worker)


class _Plan:
    """A batch sampler that begins anywhere in the epoch.

    Under a DistributedSampler all processes walk through one order: each round takes ``batch x processes`` samples,
    and process ``r`` takes each ``processes``-th of them from the ``r``-th on, as that sampler does. So a run that goes
    on with another number of processes trains on what is left of the same order.
    """

    def __init__(self, loader: Any) -> None:
        self._batches = loader.batch_sampler
        self._sampler = getattr(self._batches, "sampler", None)
        kind: Any = type(self._sampler)
        is_shared = isinstance(self._sampler, DistributedSampler) and kind.__iter__ is DistributedSampler.__iter__
        self._shared = is_shared and loader.batch_size is not None
        self._stream = randomness.Stream(0)
        self._epoch = self._begin = self._first = 0
        self._ends: list[tuple[int, bool]] = []

    def begin(self, stream: randomness.Stream, epoch: int, seen: int) -> None:
        """Take the position of the next epoch that is walked through."""
        self._stream, self._epoch, self._begin, self._ends = stream, epoch, seen, []

    def seen_after(self, number: int) -> tuple[int, bool]:
        """Return the position after the batch that was yielded as the ``number``-th, and whether it was the last."""
        return self._ends[number]

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[_Numbered]:
        yield from self._of_all() if self._shared else self._of_one()

    def _of_one(self) -> Iterator[_Numbered]:
        with self._stream:
            batches = iter(self._batches)
        number = seen = 0
        whole = _length(self._batches)
        while True:
            try:
                with self._stream:
                    batch = next(batches)
            except StopIteration:
                return
            number += 1
            seen += len(batch)
            if seen > self._begin:
                self._ends.append((seen, number == whole))
                yield _Numbered(batch, (self._epoch, seen))

    def _of_all(self) -> Iterator[_Numbered]:
        sampler: Any = self._sampler
        order = list(_whole_order(sampler, self._epoch))
        size, processes, rank = self._batches.batch_size, sampler.num_replicas, sampler.rank
        at, whole = self._begin, len(self._batches) * size * processes  # less than there is with drop_last
        while at < len(order):
            window = order[at : at + size * processes]
            at += len(window)
            short = -len(window) % processes
            if short and sampler.drop_last:
                window = window[: len(window) - len(window) % processes]
            elif short:
                window = window + (order * (short // len(order) + 1))[:short]
            mine = window[rank::processes]
            if not mine or (self._batches.drop_last and len(mine) < size):
                return
            self._ends.append((at, at >= min(whole, len(order))))
            yield _Numbered(mine, (self._epoch, at * 4096 + rank))


def _whole_order(sampler: Any, epoch: int) -> Iterator[Any]:
    whole: Any = DistributedSampler(
        sampler.dataset, num_replicas=1, rank=0, shuffle=sampler.shuffle, seed=sampler.seed, drop_last=sampler.drop_last
    )
    whole.set_epoch(epoch)
    return iter(whole)


def _rebuilt(loader: Any, fetch: Any, plan: _Plan) -> DataLoader[Any]:
    """Return a loader with the same workers over our own dataset: a loader does not let its parts be exchanged."""
    ways = {**ways_of(loader), "worker_init_fn": _Shown(loader.worker_init_fn)}
    return DataLoader(fetch, batch_sampler=plan, collate_fn=_as_it_is, **ways)


def ways_of(loader: Any) -> dict[str, Any]:
    """Return how a loader loads, whatever it loads."""
    options: dict[str, Any] = {
        "num_workers": loader.num_workers,
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context,
    }
    if loader.num_workers:
        options.update(prefetch_factor=loader.prefetch_factor, persistent_workers=loader.persistent_workers)
    return options


def _as_it_is(batch: Any) -> Any:
    return batch


def _set_epoch(loader: object, epoch: int) -> None:
    """Tell everything that shuffles by the epoch, as DistributedSampler and streaming datasets do."""
    sampler = getattr(loader, "sampler", None)
    batch_sampler = getattr(loader, "batch_sampler", None)
    for part in (
        loader,
        sampler,
        batch_sampler,
        getattr(batch_sampler, "sampler", None),
        getattr(loader, "dataset", None),
    ):
        call = getattr(part, "set_epoch", None)
        if callable(call):
            call(epoch)


def _generators(loader: object) -> list[tuple[torch.Generator, int]]:
    """Return the generators that the script gave the loader and its samplers, with their seeds."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    parts = (loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    found = {id(one): one for part in parts if isinstance(one := getattr(part, "generator", None), torch.Generator)}
    return [(generator, generator.initial_seed()) for generator in found.values()]


def _mixed(*numbers: int) -> int:
    """Mix numbers into a seed of 63 bits: SplitMix64 (Steele, Lea, Flood 2014)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) % 2**64
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) % 2**64
        state ^= state >> 31
    return state % 2**63


def run_seed() -> int:
    """Return the seed of a run: the one that the script gave torch."""
    return int(torch.initial_seed() % 2**63)
