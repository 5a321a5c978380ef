"""Accelerate: ``with checkpointing(accelerator, loader) as run:`` around a loop of one's own.

Needs accelerate; ``import provisioner.node.torch`` does not import this.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Generic, TypeVar

from accelerate.state import GradientState  # type: ignore[import-untyped, unused-ignore]
from accelerate.utils import send_to_device  # type: ignore[import-untyped, unused-ignore]

from provisioner.node.torch import files
from provisioner.node.torch.batches import Batches
from provisioner.node.torch.efficiency import Advising
from provisioner.node.torch.foreign import ForeignMemory
from provisioner.node.torch.loaders import resumable
from provisioner.node.torch.moments import Moments
from provisioner.node.torch.ranks import NOTHING, STOP
from provisioner.node.torch.surroundings import Surroundings

B = TypeVar("B")
_WHOLE = "metadata.json"
"""What is written last."""


class Placed(Generic[B]):
    """Batches on the accelerator's device. Accelerate asks it for the end of an epoch, where it steps at any rate."""

    remainder = -1
    """Samples that the last batch lacks: Accelerate's word for "not known"."""

    def __init__(self, batches: Batches[B], device: Any) -> None:
        """Take batches of this process."""
        self._batches = batches
        self._device = device

    @property
    def end_of_dataloader(self) -> bool:
        """Say whether the epoch has had its last batch."""
        return self._batches.is_last

    def __len__(self) -> int:
        """Return the batches of this process in an epoch."""
        return len(self._batches)

    def __iter__(self) -> Iterator[B]:
        """Yield what is left of the epoch."""
        gradients = GradientState()
        gradients._add_dataloader(self)  # noqa: SLF001 - as its own loaders do
        try:
            for batch in self._batches:
                yield send_to_device(batch, self._device)
        finally:
            gradients._remove_dataloader(self)  # noqa: SLF001


class Accelerated(Generic[B]):
    """A training that is saved as it goes, by ``accelerator.save_state``. See :func:`checkpointing`."""

    def __init__(
        self,
        accelerator: Any,
        loader: Iterable[B],
        *,
        every_s: float | None,
        keep: int,
        surroundings: Surroundings,
        watch: ForeignMemory | None,
        advise: bool,
    ) -> None:
        """Take what is prepared; nothing is read before ``with``."""
        self.done = 0
        self.restored = False
        self._accelerator = accelerator
        self._places = resumable(loader)
        self.batches = Placed(self._places, accelerator.device)
        about = self._places
        self._advising = Advising(self.batches, about=about, surroundings=surroundings) if advise else None
        self._keep = keep
        self._around = surroundings
        self._moments = Moments(every_s, surroundings, watch=watch)
        self._metrics: dict[str, Any] = {}
        accelerator.register_for_checkpointing(self)

    def __enter__(self) -> Accelerated[B]:
        if self._moments.ranks.rank == 0:
            files.sweep(self._around.checkpoints)
        found = files.newest_first(*self._around.restore_from)
        newest = next((str(path) for path in found if (path / _WHOLE).is_file()), None)
        newest = self._moments.ranks.same(newest)
        if newest is not None:
            self._accelerator.load_state(newest)
            self.restored = True
            self._moments.saved_step = self.done
            self._moments.say(f"going on after step {self.done} ({newest})")
        self._moments.listen()
        if self._advising is not None:
            self._advising.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._advising is not None:
            self._advising.close()
        try:
            if kind is None:
                if self._moments.saved_step != self.done:
                    self.save()
                self._moments.ranks.close()
        finally:
            self._moments.leave_signals()

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the epochs that are left of ``count``, from 0 on; the first of them may have begun already."""
        yield from self._places.epochs(count)

    def step(self, **metrics: Any) -> None:
        """Count a step of the optimizer, and save when it is time; while gradients are added up it does nothing.

        ``metrics`` are numbers that the next checkpoint is to carry. Raises Stopped, after a last checkpoint, when the
        machine has to go.
        """
        if not self._accelerator.sync_gradients:
            return
        self.done += 1
        self._metrics = {name: value.detach() if hasattr(value, "detach") else value for name, value in metrics.items()}
        agreed = self._moments.agreed(self.done)
        if agreed == NOTHING:
            return
        self.save()
        if agreed == STOP:
            raise self._moments.stop(self.done)

    def save(self) -> None:
        """Save now. All processes have to call it at the same step."""
        began = self._moments.begin()
        ranks, folder = self._moments.ranks, self._around.checkpoints
        draft = folder / f".step-{self.done}.tmp"
        if ranks.rank == 0:
            files.remove(draft)
        ranks.wait()
        self._accelerator.save_state(str(draft))
        ranks.wait()  # each process writes a file of its own
        if ranks.rank == 0:
            (draft / _WHOLE).write_text(json.dumps({**files.numbers(self._metrics), "step": self.done}), "ascii")
            files.put(draft, folder / f"step-{self.done}")
            files.prune(folder, self._keep, self.done)
        self._moments.saved(self.done, began)

    def state_dict(self) -> dict[str, Any]:
        """Return what Accelerate does not save by itself."""
        return {"done": self.done, "batches": self._places.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it."""
        self.done = int(state["done"])
        self._places.load_state_dict(state["batches"])


def checkpointing(
    accelerator: Any,
    dataloader: Iterable[B],
    *,
    every_s: float | None = None,
    keep: int = 2,
    surroundings: Surroundings | None = None,
    watch: ForeignMemory | None = None,
    advise: bool = True,
) -> Accelerated[B]:
    """Make a loop with Accelerate that goes on where it was, on whichever machine.

    For example::

        model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
        with checkpointing(accelerator, loader) as run:
            for epoch in run.epochs(10):
                for images, labels in run.batches:
                    with accelerator.accumulate(model):
                        ...
                        optimizer.step()
                    run.step(loss=loss)

    The loader is not prepared: ``run.batches`` shares it out among the processes, and moves batches to the device.
    ``every_s``, ``keep``, ``watch`` and ``advise`` are those of :func:`provisioner.node.torch.checkpointing`.
    """
    around = surroundings or Surroundings()
    return Accelerated(
        accelerator, dataloader, every_s=every_s, keep=keep, surroundings=around, watch=watch, advise=advise
    )
