"""Models that no process holds whole: FSDP, tensor parallel. Each process writes its own shards.

The format is that of torch.distributed.checkpoint, which cuts shards anew when the number of processes changes. Needs
torch >= 2.3; loaded only where a model is sharded.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable

import torch
import torch.distributed as dist
import torch.distributed.checkpoint
from torch.distributed.checkpoint import state_dict as named

from provisioner.node.torch import folder

dcp: Any = torch.distributed.checkpoint
"""Untyped: for type checkers it exports nothing."""


class Shards:
    """The model and its optimizers, saved beside the training over a group of its own, which no step waits in."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        """Take all parts; modules and optimizers of them are written here. All processes make it at the same time."""
        self._modules = {name: part for name, part in parts.items() if isinstance(part, torch.nn.Module)}
        self._optimizers = {name: part for name, part in parts.items() if isinstance(part, torch.optim.Optimizer)}
        self.names = frozenset({*self._modules, *self._optimizers})
        self._group = dist.new_group(backend="gloo")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="failover-shards")
        self._written: Future[None] | None = None

    def save(self, draft: Path, publish: Callable[[], None]) -> None:
        """Copy this process's shards into host memory and return; write them, then ``publish`` at the first process.

        The first process is through when all are: ``publish`` finds every shard on the disk. Waits for the save before.
        """
        self.finish()
        copied = dcp.async_save(self._states(), checkpoint_id=str(draft / folder.SHARDS), process_group=self._group)

        def wait() -> None:
            try:
                copied.result()
            except dcp.CheckpointException as error:
                raise OSError(_said(error)) from error
            if dist.get_rank() == 0:
                publish()

        self._written = self._thread.submit(wait)

    def finish(self) -> None:
        """Wait until everything is written. Raises what went wrong, in any of the processes."""
        written, self._written = self._written, None
        if written is not None:
            written.result()

    def load(self, path: Path) -> None:
        """Load a checkpoint into the parts, shared out among the processes that are there now.

        Raises ValueError, in all processes, where one cannot read; the parts may be half loaded then.
        """
        states = self._states()
        try:
            dcp.load(states, checkpoint_id=str(path / folder.SHARDS), process_group=self._group)
        except dcp.CheckpointException as error:
            raise ValueError(f"{path}: {_said(error)}") from error
        for name, module in self._modules.items():
            named.set_model_state_dict(module, states[name])
        for name, optimizer in self._optimizers.items():
            named.set_optimizer_state_dict(self._model_of(optimizer), optimizer, states[name])

    def own(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return the buffers, as BatchNorm's averages: FSDP leaves each process its own."""
        return {
            name: {key: buffer.detach().cpu().clone() for key, buffer in module.named_buffers() if _is_plain(buffer)}
            for name, module in self._modules.items()
        }

    def take_own(self, state: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Put the buffers back."""
        for name, module in self._modules.items():
            kept = state.get(name, {})
            for key, buffer in module.named_buffers():
                if key in kept and _is_plain(buffer):
                    buffer.copy_(kept[key])

    def _states(self) -> dict[str, Any]:
        states: dict[str, Any] = {name: named.get_model_state_dict(part) for name, part in self._modules.items()}
        for name, part in self._optimizers.items():
            states[name] = named.get_optimizer_state_dict(self._model_of(part), part)
        return states

    def _model_of(self, optimizer: torch.optim.Optimizer) -> torch.nn.Module:
        """Return the module that an optimizer trains: its state is kept by the names of parameters."""
        trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for module in self._modules.values():
            if trained <= {id(parameter) for parameter in module.parameters()}:
                return module
        raise ValueError("an optimizer trains parameters that are in none of the modules that are saved")


def _is_plain(buffer: torch.Tensor) -> bool:
    return type(buffer) is torch.Tensor


def _said(error: Any) -> str:
    """Return what went wrong in the first process that met something."""
    for rank, (problem, _) in sorted(error.failures.items()):
        return f"process {rank}: {problem!r}"
    return str(error)
