"""A loader that a trainer may save and restore by itself: ``trainer.fit(model, resumable(loader))``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, SequentialSampler

from provisioner.node.torch.batches import Batches, can_be_skipped, run_seed, ways_of

B = TypeVar("B")


def resumable(loader: Iterable[B], *, share: bool = True) -> Batches[B]:
    """Make a loader whose place a trainer can save and restore, in the middle of an epoch: Lightning does by itself.

    With several processes each gets its share of a DataLoader's samples, as Lightning would give it; ``share=False``
    leaves that to the loader. What is drawn at random is seeded by ``torch.initial_seed()``, so seed before.
    """
    return Shared(loader, run_seed()) if share and isinstance(loader, DataLoader) else Batches(loader, run_seed())


class Shared(Batches[B]):
    """Batches that are shared out among the processes once these have found each other: that may be after this."""

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        """Take a loader that goes through the whole dataset, or one with a DistributedSampler."""
        super().__init__(loader, seed)
        self._shared = False

    def __len__(self) -> int:
        """Return the batches of this process in an epoch."""
        self._share()
        return super().__len__()

    def __iter__(self) -> Iterator[B]:
        """Yield what is left of the epoch for this process."""
        self._share()
        yield from super().__iter__()

    def _share(self) -> None:
        loader: Any = self._loader
        if self._shared or not (dist.is_available() and dist.is_initialized()):
            return
        self._shared = True
        if dist.get_world_size() == 1 or isinstance(loader.sampler, DistributedSampler):
            return
        if isinstance(loader.dataset, IterableDataset) or hasattr(loader, "state_dict"):
            return
        if not (can_be_skipped(loader) and loader.batch_size is not None and _is_plain(loader)):
            what = "a loader with a sampler, a batch sampler or an __iter__ of its own cannot be shared out"
            raise ValueError(f"{what}: give each process its part, and resumable(loader, share=False)")
        position = self.state_dict()
        sampler: Any = DistributedSampler(
            loader.dataset,
            shuffle=not isinstance(loader.sampler, SequentialSampler),
            seed=int(os.environ.get("PL_GLOBAL_SEED") or 0),  # what all processes know, as Lightning takes it
            drop_last=False,
        )
        shared: DataLoader[Any] = DataLoader(
            loader.dataset,
            batch_size=loader.batch_size,
            sampler=sampler,
            drop_last=loader.drop_last,
            collate_fn=loader.collate_fn,
            **ways_of(loader),
        )
        super().__init__(shared, self._seed)
        self.load_state_dict(position)


def _is_plain(loader: Any) -> bool:
    """Say whether an epoch has each sample once: in order, or in any order."""
    sampler = loader.sampler
    return type(sampler) is SequentialSampler or (
        type(sampler) is RandomSampler and not sampler.replacement and len(sampler) == len(loader.dataset)
    )
