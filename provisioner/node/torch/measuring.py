"""What the passes of a micro-batch hold and move, and what an optimizer keeps: measured where the model is.

Every kernel goes through a dispatch mode, which keeps a list of the storages that live. So all is counted that PyTorch
allocates: what is saved for backward, logits, gradients on their way. Two sizes of a micro-batch give a line for each
moment of the passes, and the highest of these lines at any other size.
"""

# mypy: disable-error-code="no-untyped-call"
# PyTorch leaves what is measured with here untyped.
from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator
from typing import Any, Callable

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from provisioner.fitting import Passes, envelope
from provisioner.node.torch import pieces, randomness
from provisioner.node.torch.buffers import Buffers

SIZES = (2, 3)
"""Samples of the micro-batches that are measured: two points of each line. With one, BatchNorm would refuse."""
_WIDE = (
    "binary_cross_entropy_with_logits", "cosine_similarity", "cross_entropy", "group_norm", "kl_div", "l1_loss",
    "layer_norm", "log_softmax", "mse_loss", "nll_loss", "normalize", "rms_norm", "smooth_l1_loss", "softmax",
    "softplus",
)  # fmt: skip
"""Of torch.nn.functional, what CUDA's autocast does in float32 and the CPU's does not, or not always."""


def passes(model: nn.Module, sample: Any, loss_of: Callable[[Any], torch.Tensor], *, half: bool) -> Passes:
    """Measure forward and backward, with autocast or without. ``sample`` is a batch of one sample or more."""
    found = [_timeline(model, pieces.repeated(sample, size), loss_of, half=half) for size in SIZES]
    (few, more), (small, large) = found, SIZES
    span = float(large - small)
    if len(few.live) == len(more.live):
        slopes = [(one, (other - one) / span) for one, other in zip(few.live, more.live)]
    else:  # another number of kernels: only the peaks can be compared
        slopes = [(max(few.live), (max(more.live) - max(few.live)) / span)]
    moved = (more.moved - few.moved) / span
    return Passes(
        peak=envelope([(at - small * slope, slope) for at, slope in slopes]),
        moved=(max(0.0, few.moved - small * moved), moved),
        kernels=few.kernels,
        flops=_flops(pieces.repeated(sample, small), loss_of, half=half, model=model),
    )


def optimizer_bytes(optimizer: torch.optim.Optimizer) -> int | None:
    """Return the bytes of an optimizer's state after its first step; None where it cannot tell without one.

    A copy makes the step on tensors without data; the optimizer and its parameters are left alone.
    """
    if optimizer.state:  # it has trained already
        return size_of(_tensors(list(optimizer.state.values())))
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    twins = {id(one): torch.empty_like(one, device="meta", requires_grad=one.requires_grad) for one in parameters}
    try:
        twin = copy.deepcopy(optimizer, dict(twins))
        for one in twins.values():
            one.grad = torch.empty_like(one) if one.requires_grad else None
        twin.step()
    except Exception:  # noqa: BLE001 - whatever a foreign optimizer does not like about tensors without data
        return None
    return sum(int(one.nbytes) for one in _tensors(list(twin.state.values())))


@contextlib.contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Give gradients, buffers and random generators back as they were. Within, all gradients are there and are zero.

    Nothing that hangs on a gradient is called.
    """
    random = randomness.capture()
    buffers = Buffers(model)
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    # an optimizer that steps in the backward pass must not
    found = [getattr(parameter, "_post_accumulate_grad_hooks", None) for parameter in model.parameters()]
    hooks = [(hooks, dict(hooks)) for hooks in found if hooks]
    for called, _ in hooks:
        called.clear()
    for parameter, _ in gradients:
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    try:
        yield
    finally:
        for called, kept in hooks:
            called.update(kept)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        buffers.put_back()
        randomness.restore(random)


def size_of(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of tensors, each storage once."""
    found = {one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in tensors}  # noqa: SLF001 - its id
    return sum(found.values())


def inputs(sample: Any) -> int:
    """Return the bytes of one sample of a batch."""
    both = [size_of(_tensors(pieces.repeated(sample, size))) for size in SIZES]
    return (both[1] - both[0]) // (SIZES[1] - SIZES[0])


class _Timeline(TorchDispatchMode):  # type: ignore[misc, unused-ignore]  # PyTorch has no types here
    """``live``: bytes that are there after each kernel, without the tensors that it is made with."""

    def __init__(self, settled: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.live: list[int] = [0]
        self.moved = 0.0
        self.kernels = 0
        self._settled = {one.untyped_storage()._cdata for one in settled}  # noqa: SLF001 - its id
        self._found: dict[int, tuple[StorageWeakRef, int]] = {}
        self._now = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self._sweep()
        given, made = _tensors((args, kwargs)), _tensors(out)
        for tensor in made:
            storage = tensor.untyped_storage()
            key = storage._cdata  # noqa: SLF001 - its id
            if key not in self._settled and key not in self._found:
                self._found[key] = (StorageWeakRef(storage), storage.nbytes())
                self._now += storage.nbytes()
        self.live.append(self._now)
        if func._schema.is_mutable or not _same(given, made):  # noqa: SLF001 - else a view: no kernel runs
            self.kernels += 1
            self.moved += sum(one.nbytes for one in (*given, *made))
        return out

    def _sweep(self) -> None:
        gone = [key for key, (reference, _) in self._found.items() if reference.expired()]
        for key in gone:
            self._now -= self._found.pop(key)[1]


class _AsOnCards(TorchFunctionMode):  # type: ignore[misc, unused-ignore]  # same
    """Widens the inputs of what CUDA's autocast does in float32, since the CPU's has another list."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _WIDE:
            args = tuple(_wide(one) for one in args)
            kwargs = {name: _wide(one) for name, one in (kwargs or {}).items()}
        return func(*args, **(kwargs or {}))


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype is torch.bfloat16 else value


def _timeline(model: nn.Module, micro_batch: Any, loss_of: Callable[[Any], torch.Tensor], *, half: bool) -> _Timeline:
    gradients = [one.grad for one in model.parameters() if one.grad is not None]
    found = _Timeline([*model.parameters(), *model.buffers(), *gradients, *_tensors(micro_batch)])
    with found:
        _run(model, micro_batch, loss_of, half=half)
    return found


def _run(model: nn.Module, micro_batch: Any, loss_of: Callable[[Any], torch.Tensor], *, half: bool) -> None:
    kind = next(model.parameters()).device.type
    with contextlib.ExitStack() as stack:
        if half:
            dtype = torch.bfloat16 if kind == "cpu" or torch.cuda.is_bf16_supported() else torch.float16
            stack.enter_context(torch.autocast(kind, dtype=dtype))
            if kind == "cpu":
                stack.enter_context(_AsOnCards())
        loss = loss_of(micro_batch)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        found = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f"a {type(loss).__name__}"
        raise ValueError(f"the loss is {found}: it has to be one number, the mean over the samples")
    loss.backward()


def _flops(micro_batch: Any, loss_of: Callable[[Any], torch.Tensor], *, half: bool, model: nn.Module) -> float | None:
    try:
        from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count
    except ImportError:  # PyTorch 2.0
        return None
    aten, name = torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu"
    mapping: dict[Any, Any] = {}
    if hasattr(aten, name):  # a card's attention is counted, the CPU's is not
        mapping[getattr(aten, name)] = lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v)
        mapping[getattr(aten, f"{name}_backward")] = lambda g, q, k, v, *_, **__: sdpa_backward_flop_count(g, q, k, v)
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        _run(model, micro_batch, loss_of, half=half)
    return float(counter.get_total_flops()) / pieces.length(micro_batch)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [one for one in pieces.tensors(value) if one.layout is torch.strided]


def _same(given: list[torch.Tensor], made: list[torch.Tensor]) -> bool:
    storages = {one.untyped_storage()._cdata for one in given}  # noqa: SLF001 - its id
    return all(one.untyped_storage()._cdata in storages for one in made)  # noqa: SLF001
