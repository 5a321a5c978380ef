"""``with checkpointing(model, optimizer, dataloader=loader) as run:``: a training loop that survives its machine."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Protocol

import torch

from provisioner.node.torch import files, folder, randomness, tensors
from provisioner.node.torch.batches import Batches, run_seed
from provisioner.node.torch.efficiency import Advising
from provisioner.node.torch.foreign import ForeignMemory
from provisioner.node.torch.moments import Moments
from provisioner.node.torch.ranks import NOTHING, STOP
from provisioner.node.torch.surroundings import Surroundings
from provisioner.node.torch.writer import Writer

if TYPE_CHECKING:
    from provisioner.node.torch.sharded import Shards


_WRAPPERS = {"DistributedDataParallel": "module", "DataParallel": "module", "OptimizedModule": "_orig_mod"}
"""What wraps a module, and under which name."""
_OPEN: set[Path] = set()
"""Where trainings are saved just now: two would take each other's checkpoints for their own."""


class Stateful(Protocol):
    """What can be saved: modules, optimizers, schedulers, scalers, averages of weights."""

    def state_dict(self) -> Any:
        """Return the state."""
        ...

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Take it."""
        ...


class Checkpointing:
    """A training that is saved as it goes. ``step()`` after each step of the optimizer does everything else.

    ``done`` counts the steps that are trained, ``restored`` says whether there was something to go on from, ``batches``
    goes through the loader. See :func:`checkpointing`.
    """

    def __init__(
        self,
        parts: Mapping[str, Any],
        loader: Iterable[Any] | None,
        *,
        rng: bool,
        every_s: float | None,
        keep: int,
        surroundings: Surroundings,
        monotonic: Callable[[], float],
        watch: ForeignMemory | None,
        advise: bool,
    ) -> None:
        """Take the parts; nothing is read before ``with``."""
        self.done = 0
        self.restored = False
        self.batches: Batches[Any] = Batches(() if loader is None else loader, run_seed())
        self._advising = Advising(self.batches, surroundings=surroundings) if advise and loader is not None else None
        self._parts = parts
        self._rng = rng
        self._keep = keep
        self._around = surroundings
        self._moments = Moments(every_s, surroundings, monotonic, watch)
        self._ranks = self._moments.ranks
        self._writer = Writer()
        self._shards = _shards(parts)
        self._frozen = {name: _frozen(part) for name, part in parts.items()}
        self._metrics: dict[str, Any] = {}

    @property
    def batch_scale(self) -> float:
        """By what to multiply the batch: 1, or less after the command ran out of memory on this machine."""
        return self._around.batch_scale

    def __enter__(self) -> Checkpointing:  # noqa: PYI034 - typing.Self is not in Python 3.9
        target = self._around.checkpoints.resolve()
        if target in _OPEN:
            raise RuntimeError(f"{target} has a training that goes on: give it these parts, too, by also={{...}}")
        for name, state in self._states():
            tensors.take_apart(name, state, tensors.as_it_is)  # not only after ten minutes
        if self._ranks.rank == 0:
            files.sweep(target)
        self._restore()
        first = self._ranks.same(self.done)
        if first != self.done:
            where = "all processes have to see the same FAILOVER_CHECKPOINT_DIR"
            raise RuntimeError(f"process {self._ranks.rank} is at step {self.done}, the first one at {first}: {where}")
        self._moments.listen()
        _OPEN.add(target)
        if self._advising is not None:
            self._advising.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _OPEN.discard(self._around.checkpoints.resolve())
        if self._advising is not None:
            self._advising.close()
        try:
            if kind is None and self._moments.saved_step != self.done:
                self.save()
            self._finish()
            if kind is None:
                self._ranks.close()
        finally:
            self._moments.leave_signals()

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the epochs that are left of ``count``, from 0 on; the first of them may have begun already."""
        yield from self.batches.epochs(count)

    def step(self, **metrics: Any) -> None:
        """Count a step, and save when it is time. ``metrics`` are numbers that the next checkpoint is to carry.

        Raises Stopped, after a last checkpoint, when the machine has to go.
        """
        self.done += 1
        self._metrics = {name: _detached(value) for name, value in metrics.items()}
        agreed = self._moments.agreed(self.done)
        if agreed == NOTHING:
            return
        if self._moments.saved_step != self.done:
            self.save()
        if agreed == STOP:
            self._finish()
            raise self._moments.stop(self.done)

    def save(self) -> None:
        """Save now. All processes have to call it at the same step. It returns as soon as the state is copied."""
        began = self._moments.begin()
        own: dict[str, Any] = {"rng": randomness.portable(randomness.capture())} if self._rng else {}
        if self._shards is not None:
            own["buffers"] = self._shards.own()
        of_all = self._ranks.gather(own)
        target, step = self._around.checkpoints, self.done
        rest = {"batches": self.batches.state_dict(), "processes": of_all}
        metrics = files.numbers(self._metrics)
        if self._shards is not None:
            self._save_shards(self._shards, target, rest, metrics)
        elif self._ranks.rank == 0:

            def write(parts: folder.Parts) -> None:
                folder.write(target, step, parts, frozen=self._frozen, rest=rest, metrics=metrics)
                folder.prune(target, self._keep, step)

            self._writer.save(dict(self._states()), write)
        self._moments.saved(self.done, began)

    def _save_shards(self, shards: Shards, target: Path, rest: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        """Let every process write its shards; the first one adds what is no shard, and gives it all its name."""
        shards.finish()
        step = self.done
        parts = {name: tensors.take_apart(name, state, tensors.copied) for name, state in self._states()}

        def publish() -> None:
            folder.publish(target, step, parts, frozen={}, rest=rest, metrics=metrics)
            folder.prune(target, self._keep, step)

        if self._ranks.rank == 0:
            folder.begin(target, step)
        self._ranks.wait()  # what a killed save has left is gone before anybody writes
        shards.save(folder.draft(target, step), publish)

    def _states(self) -> Iterator[tuple[str, Any]]:
        """Yield the state of each part that is no shard."""
        for name, part in self._parts.items():
            if self._shards is None or name not in self._shards.names:
                yield name, _bare(part).state_dict()

    def _finish(self) -> None:
        self._writer.finish()
        if self._shards is not None:
            self._shards.finish()

    def _restore(self) -> None:
        found = self._ranks.same([str(path) for path in folder.newest_first(*self._around.restore_from)])
        half: ValueError | None = None
        for path in map(Path, found):
            try:
                step, parts, rest = folder.read(path)
            except (ValueError, OSError) as error:
                self._moments.say(f"passed over: {error}")
                continue
            shards = self._shards_in(path, parts)
            try:
                if shards is not None:
                    shards.load(path)
            except ValueError as error:
                self._moments.say(f"passed over: {error}")
                half = error
                continue
            for name, part in self._parts.items():
                if name in parts and not _kept_nothing(part, parts[name]):
                    _bare(part).load_state_dict(parts[name])
            self.batches.load_state_dict(rest["batches"])
            self._take_own(rest["processes"])
            self.done, self._moments.saved_step, self.restored = step, step, True
            self._moments.say(f"going on after step {step} ({path})")
            return
        if half is not None:  # to begin anew with half of a state would be worse than to end
            raise half

    def _shards_in(self, path: Path, parts: Mapping[str, Any]) -> Shards | None:
        """Return who is to load a checkpoint's shards, if it has any. Raises ValueError if it is not of this script."""
        shards = self._shards if folder.has_shards(path) else None
        if shards is not self._shards:
            raise ValueError(f"{path} was saved by a model that was not sharded, and this one is")
        missing = sorted(set(self._parts) - set(parts) - (frozenset() if shards is None else shards.names))
        if missing:
            raise ValueError(f"{path} has no {', '.join(missing)}; it was saved by another script")
        return shards

    def _take_own(self, processes: Sequence[Mapping[str, Any]]) -> None:
        """Take what each process has for itself; one that was not there before has nothing to take."""
        own = processes[self._ranks.rank] if self._ranks.rank < len(processes) else {}
        if self._rng and "rng" in own:
            randomness.restore(own["rng"])
        if self._shards is not None:
            self._shards.take_own(own.get("buffers", {}))


def checkpointing(
    model: Stateful,
    optimizer: Stateful | None = None,
    scheduler: Stateful | None = None,
    scaler: Stateful | None = None,
    dataloader: Iterable[Any] | None = None,
    *,
    also: Mapping[str, Stateful] | None = None,
    rng: bool = True,
    every_s: float | None = None,
    keep: int = 2,
    surroundings: Surroundings | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    watch: ForeignMemory | None = None,
    advise: bool = True,
) -> Checkpointing:
    """Make a training loop that goes on where it was, on whichever machine.

    For example::

        with checkpointing(model, optimizer, scheduler, dataloader=loader) as run:
            for epoch in run.epochs(10):
                for images, labels in run.batches:
                    ...
                    optimizer.step()
                    run.step(loss=loss)

    Restores the newest checkpoint if there is one. Saves every ``every_s`` seconds (None: as the node advises; alone
    every ten minutes), when the machine has to go, and at the end. Checkpoints appear in ``FAILOVER_CHECKPOINT_DIR``
    (alone: ``checkpoints``), of which the ``keep`` newest stay. ``also`` names more objects with ``state_dict`` and
    ``load_state_dict``, an average of the weights for example. ``rng`` keeps the random generators of every process.
    ``watch`` also saves and leaves when others take the card's memory. ``advise`` says how long the training waits for
    its loader, and what to change.

    Under torch.distributed every process calls it, after the group was made; the first one writes.

    Raises ValueError for a checkpoint that lacks one of the parts, TypeError for a state that cannot be kept.
    """
    named = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    for name in also or {}:
        if named.get(name) is not None or not re.fullmatch(r"[\w-]+", name):
            raise ValueError(f"also: {name!r} names a part already, or is no name of letters, digits, _ and -")
    parts = {name: part for name, part in {**named, **(also or {})}.items() if part is not None}
    for name, part in parts.items():
        if not callable(getattr(part, "state_dict", None)) or not callable(getattr(part, "load_state_dict", None)):
            raise TypeError(f"{name} has no state_dict and load_state_dict")
    return Checkpointing(
        parts,
        dataloader,
        rng=rng,
        every_s=every_s,
        keep=keep,
        surroundings=surroundings or Surroundings(),
        monotonic=monotonic,
        watch=watch,
        advise=advise,
    )


def _bare(part: Any) -> Any:
    """Return a module without what wraps it, so that its names are the same with one process and with many."""
    inner = _WRAPPERS.get(type(part).__name__) if isinstance(part, torch.nn.Module) else None
    return part if inner is None else _bare(getattr(part, inner))


def _kept_nothing(part: Any, state: Any) -> bool:
    """Say whether there is nothing to take: a scaler that had nothing to do does not want to hear of that."""
    return isinstance(state, dict) and not state and not isinstance(part, torch.nn.Module)


def _shards(parts: Mapping[str, Any]) -> Shards | None:
    """Return who writes shards, where there are any: models by FSDP, or with a DTensor among their parameters."""
    modules = [module for part in parts.values() if isinstance(part, torch.nn.Module) for module in part.modules()]
    parameters = [parameter for module in modules for parameter in module.parameters(recurse=False)]
    if not any(type(one).__name__ in {"DTensor", "FullyShardedDataParallel"} for one in [*modules, *parameters]):
        return None
    from provisioner.node.torch.sharded import Shards  # needs a newer torch than everything else here

    return Shards(parts)


def _frozen(part: Any) -> frozenset[str]:
    """Return the names of parameters that are not trained: they are saved in a file of their own."""
    if not isinstance(part, torch.nn.Module):
        return frozenset()
    return frozenset(name for name, found in _bare(part).named_parameters() if not found.requires_grad)


def _detached(value: Any) -> Any:
    """Return a number without the graph that it was reckoned by; from a card it is fetched when it is saved."""
    return value.detach() if isinstance(value, torch.Tensor) else value
