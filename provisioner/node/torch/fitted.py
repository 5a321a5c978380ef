"""``plan = fit(model, sample, ...)``: how a training fits a card, before it meets the end of its memory."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Sequence
from typing import Any, Callable

import torch
from torch import nn

from provisioner.fitting import CHECKPOINTING, GIB, HALF, WAYS, Card, Choice, Measured, Passes, amount, choose
from provisioner.node.torch import measuring, memory, pieces, recompute
from provisioner.node.torch.surroundings import Surroundings


class Plan:
    """How to train here. Every step takes ``accumulate`` micro-batches of ``micro_batch`` samples: the whole batch.

    ``need`` is the memory in bytes that is reckoned with, ``why`` the reason in words; ``fits`` is False where even one
    sample does not fit. ``print(plan)`` tells all of it.
    """

    def __init__(self, measured: Measured, choice: Choice, blocks: Sequence[nn.Module], device: str) -> None:
        """Take what was measured and what was chosen. ``device``: the type of the device to train on."""
        self.measured = measured
        self.micro_batch = choice.micro_batch
        self.accumulate = choice.accumulate
        self.checkpointing = choice.checkpointing
        self.need = choice.need
        self.fits = choice.fits
        self.why = choice.why
        self.dtype: torch.dtype = getattr(torch, choice.dtype)
        self._choice = choice
        self._blocks = blocks
        self._device = device

    def autocast(self) -> Any:
        """Return the context for the forward pass; it decorates functions, too. Without a cast it does nothing."""
        cast = self.dtype is not torch.float32
        return torch.autocast(self._device, dtype=self.dtype if cast else torch.bfloat16, enabled=cast)

    def scaler(self) -> Any:
        """Return a GradScaler, which does something with float16 only."""
        enabled = self.dtype is torch.float16
        if hasattr(torch.amp, "GradScaler"):
            return torch.amp.GradScaler(self._device, enabled=enabled)
        return torch.cuda.amp.GradScaler(enabled=enabled)  # PyTorch before 2.3

    def apply(self, model: nn.Module) -> nn.Module:
        """Turn activation checkpointing on where the plan asks for it, and return the model."""
        if self.checkpointing:
            recompute.apply(self._blocks)
        return model

    def __str__(self) -> str:
        """Return the plan and what it was made from, a line each."""
        one, measured = self._choice, self.measured
        bound = f" of {amount(one.card.memory)}" if one.card.memory else ""
        rows = [
            ("card", one.card.name),
            ("memory", amount(one.need) + bound),
            ("batch", f"{measured.batch} = {one.accumulate} x {one.micro_batch}"),
            ("dtype", f"{one.dtype}{' with a scaler' if one.dtype == 'float16' else ''}"),
            ("checkpointing", f"{len(self._blocks)} blocks" if one.checkpointing else "none"),
            ("weights", amount(measured.weights)),
            ("gradients", amount(measured.gradients)),
            ("optimizer", amount(measured.optimizer)),
            ("why", one.why),
        ]
        return "\n".join(f"{name:<14} {text}" for name, text in rows)


def fit(
    model: nn.Module,
    sample: Any,
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    batch: int | None = None,
    budget: float | str | None = None,
    autocast: bool = True,
    blocks: Sequence[str] = (),
    surroundings: Surroundings | None = None,
) -> Plan:
    """Measure what a step needs, and plan how to train: micro-batch, dtype, activation checkpointing.

    ``sample`` is a batch of any size, on the model's device; ``loss(piece)`` returns the mean loss of a part of it
    (left out: ``model(**piece).loss``). ``batch`` is the number of samples of a step in this process, by default as
    many as in ``sample``: it stays what it is. ``optimizer`` is asked what it keeps; without one it is taken for Adam.
    ``budget`` is the memory that may be used, bytes or ``"14 GiB"``; None is the card's, and without a card no limit.
    ``blocks`` names the modules for activation checkpointing where they are not found by themselves.

    The model, its gradients and buffers, and the random generators stay as they are. Call it before the model is
    wrapped for several processes. Under ``failover fit`` the script ends here. Raises ValueError for what makes no
    sense.
    """
    whole = pieces.length(sample) if batch is None else batch
    if whole < 1:
        raise ValueError(f"batch={whole}: a step takes one sample or more")
    bound = _bytes(budget)
    found = recompute.blocks(model, blocks)
    measured = _measured(model, sample, loss or _own_loss(model, sample), optimizer, whole, found, half=autocast)
    target = (surroundings or Surroundings()).fit_file
    if target is not None:
        target.write_text(json.dumps(measured.as_json()), "utf-8")
        raise SystemExit(0)
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    plan = Plan(measured, choose(measured, _card(kind, bound)), found, kind)
    if not plan.fits:
        print(f"failover: fit: {plan.why}", file=sys.stderr, flush=True)  # noqa: T201 - the script's own stderr
    return plan


def _measured(
    model: nn.Module,
    sample: Any,
    loss: Callable[[Any], torch.Tensor],
    optimizer: torch.optim.Optimizer | None,
    batch: int,
    blocks: Sequence[nn.Module],
    *,
    half: bool,
) -> Measured:
    trained = [one for one in model.parameters() if one.requires_grad]
    gradients = measuring.size_of(trained)
    kept = None if optimizer is None else measuring.optimizer_bytes(optimizer)
    ways: dict[str, Passes] = {}
    with measuring.undisturbed(model):
        for name in WAYS:
            checkpointing, cast = name.endswith(CHECKPOINTING), name.startswith(HALF)
            if (checkpointing and not blocks) or (cast and not half):
                continue
            try:
                with recompute.applied(blocks) if checkpointing else contextlib.nullcontext():
                    ways[name] = measuring.passes(model, sample, loss, half=cast)
            except RuntimeError as error:
                if not checkpointing and not memory.is_out_of_memory(error):
                    raise
                lines = str(error).splitlines() or [""]
                print(f"failover: fit: without {name}: {lines[0]}", file=sys.stderr)  # noqa: T201 - the script's own
    return Measured(
        batch=batch,
        weights=measuring.size_of([*model.parameters(), *model.buffers()]),
        gradients=gradients,
        optimizer=2 * gradients if kept is None else kept,
        inputs=measuring.inputs(sample),
        ways=ways,
    )


def _own_loss(model: nn.Module, sample: Any) -> Callable[[Any], torch.Tensor]:
    if not hasattr(sample, "items"):
        raise ValueError("fit needs loss=, a function that returns the mean loss of a part of the batch")
    return lambda piece: model(**piece).loss


def _card(kind: str, budget: float) -> Card:
    if kind != "cuda":
        return Card("cpu", memory=budget)
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Card(found.name, memory=budget or float(found.total_memory), capability=(found.major, found.minor))


def _bytes(budget: float | str | None) -> float:
    if budget is None:
        return 0.0
    if isinstance(budget, str):
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(GiB|GB|MiB|MB)", budget.strip())
        if match is None:
            raise ValueError(f"budget={budget!r} is no memory: write bytes or '14 GiB'")
        budget = float(match[1]) * {"GiB": GIB, "GB": 1e9, "MiB": GIB / 1024, "MB": 1e6}[match[2]]
    if not budget > 0:
        raise ValueError(f"budget={budget!r} is no memory: write bytes or '14 GiB'")
    return float(budget)
