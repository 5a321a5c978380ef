"""State dictionaries as files: tensors in the safetensors format, everything else in a small ``torch.save`` file.

Tensors that are trained and tensors that are frozen are in files of their own, so that a frozen base stays the same
bytes from save to save and is uploaded once. The format is that of https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import collections
import copy
import ctypes
import io
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Callable

import torch

TYPES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_BY_NAME = {name: dtype for dtype, name in TYPES.items()}
_TENSOR, _NUMPY = "\0tensor\0", "\0numpy\0"
"""Begin the text that stands in a tree for a tensor, or for numpy's number or array; its name, and strides, follow."""
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})
_WRITE_BYTES = 8 << 20
_ALIGN = 64

Place = Callable[[str, torch.Tensor], torch.Tensor]


def take_apart(what: str, tree: Any, place: Place) -> tuple[Any, dict[str, torch.Tensor]]:
    """Return (tree without tensors, tensors by path). ``place(path, tensor)`` gives a tensor that may be kept.

    A tensor that is in the tree twice, as tied weights are, is taken once. Raises TypeError, which names ``what`` and
    the path, for what could be written but not read again.
    """
    apart = _Apart(what, place)
    return apart.walk(tree, ""), apart.tensors


class _Apart:
    """A tree that is being taken apart."""

    def __init__(self, what: str, place: Place) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._what = what
        self._place = place
        self._known: dict[tuple[object, ...], str] = {}

    def walk(self, value: Any, path: str) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if isinstance(value, dict) and not isinstance(value, collections.Counter):
            return {key: self.walk(item, f"{path}.{key}" if path else str(key)) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            items = [self.walk(item, f"{path}.{index}" if path else str(index)) for index, item in enumerate(value)]
            return items if isinstance(value, list) else tuple(items)
        return value if type(value) in _PLAIN else self._strange(value, path)

    def _tensor(self, value: torch.Tensor, path: str) -> Any:
        if value.layout is not torch.strided or value.dtype not in TYPES or value.is_quantized:
            return value.detach().cpu().clone()
        key = (value.device, value.data_ptr(), value.dtype, tuple(value.shape), value.stride())
        name = self._known.get(key) if value.numel() else None
        if name is None:
            name = self._known[key] = self._take(value, path)
        return _TENSOR + name + _strides(value)

    def _strange(self, value: Any, path: str) -> Any:
        found = _from_numpy(value)
        if found is not None:
            return _NUMPY + self._take(found, path)
        if _is_read_again(value):
            return copy.copy(value)
        if isinstance(value, dict):  # a Counter, for a PyTorch that does not know it
            return dict(value)
        what = f"{self._what}: {path} is a {type(value).__name__}, which a checkpoint cannot hold"
        raise TypeError(f"{what}: make it a number, a text or a tensor (or torch.serialization.add_safe_globals)")

    def _take(self, tensor: torch.Tensor, path: str) -> str:
        name = path
        while name in self.tensors:  # a key with a dot in it, or 1 beside "1"
            name += "'"
        self.tensors[name] = self._place(name, tensor.detach())
        return name


def as_it_is(_name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Copy nothing: a place for ``take_apart`` to see whether it can."""
    return tensor


def copied(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor that is no shard: a place for ``take_apart``. Raises TypeError for one that is."""
    if type(tensor).__name__ in {"DTensor", "ShardedTensor"}:
        raise TypeError(f"{name} is a shard; only modules and optimizers may hold shards")
    return tensor.cpu().clone(memory_format=torch.contiguous_format)


def put_together(tree: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return what ``take_apart`` was given."""
    if isinstance(tree, str) and tree.startswith(_TENSOR):
        name, _, strides = tree[len(_TENSOR) :].partition("\0")
        found = tensors[name]
        return _laid_out(found, [int(one) for one in strides.split(",")]) if strides else found
    if isinstance(tree, str) and tree.startswith(_NUMPY):
        return tensors[tree[len(_NUMPY) :]].numpy()[()]
    if isinstance(tree, collections.Counter):
        return tree
    if isinstance(tree, dict):
        return {key: put_together(item, tensors) for key, item in tree.items()}
    if isinstance(tree, list):
        return [put_together(item, tensors) for item in tree]
    if isinstance(tree, tuple):
        return tuple(put_together(item, tensors) for item in tree)
    return tree


def write(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors that lie contiguous in host memory. The interpreter's lock is free while bytes go to the disk."""
    header: dict[str, object] = {}
    at = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _ALIGN)
    with path.open("wb", buffering=0) as file:
        _write_all(file.fileno(), memoryview(len(text).to_bytes(8, "little") + text))
        for tensor in tensors.values():
            _write_all(file.fileno(), _bytes_of(tensor))


def read(path: Path) -> dict[str, torch.Tensor]:
    """Read tensors into memory of their own. Raises ValueError for a file that is cut short or damaged."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= size - 8:
            raise ValueError(f"{path}: not a safetensors file, or cut short")
        try:
            header = json.loads(file.read(length))
            rows = [(name, entry) for name, entry in header.items() if name != "__metadata__"]
            found: dict[str, torch.Tensor] = {}
            for name, entry in rows:
                begin, end = entry["data_offsets"]
                dtype = _BY_NAME[entry["dtype"]]
                itemsize = torch.empty(0, dtype=dtype).element_size()
                if end - begin != math.prod(entry["shape"]) * itemsize or 8 + length + end > size:
                    raise ValueError(f"{path}: {name} is cut short")
                tensor = torch.empty(entry["shape"], dtype=dtype)
                file.seek(8 + length + begin)
                _read_all(file, _bytes_of(tensor))
                found[name] = tensor
        except (AttributeError, KeyError, RuntimeError, TypeError) as error:
            raise ValueError(f"{path}: damaged header: {error}") from error
        return found


class Buffers:
    """Host memory for one copy of a state, used again from save to save. Pinned where tensors come from a card."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._held: dict[str, torch.Tensor] = {}
        self._used: dict[str, torch.Tensor] = {}

    def begin(self) -> None:
        """Start a copy."""
        self._used = {}

    def copy(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a tensor; from a card the copy is under way until ``wait``."""
        held = self._held.get(name)
        if held is None or held.shape != tensor.shape or held.dtype != tensor.dtype:
            held = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        held.copy_(tensor, non_blocking=tensor.is_cuda)
        self._used[name] = held
        return held

    def wait(self) -> None:
        """Wait until what was copied is there; what the state does not hold any more is let go."""
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call, unused-ignore]
            torch.cuda.synchronize()
        self._held = self._used


def split(tensors: Mapping[str, torch.Tensor], frozen: frozenset[str]) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """Yield (suffix, tensors) of each file that is to be written; a file without tensors is none."""
    groups: list[tuple[str, dict[str, torch.Tensor]]] = [
        ("", {name: tensor for name, tensor in tensors.items() if name not in frozen}),
        (".frozen", {name: tensor for name, tensor in tensors.items() if name in frozen}),
    ]
    for suffix, found in groups:
        if found:
            yield suffix, found


def _strides(tensor: torch.Tensor) -> str:
    """Return how a tensor lies in memory, where it is not row by row and can be laid out so again."""
    rows = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride())):
        if stride != rows:
            break
        rows *= max(size, 1)
    else:
        return ""
    if torch.empty_like(tensor, device="meta").stride() != tensor.stride():  # it overlaps, or leaves gaps
        return ""
    return "\0" + ",".join(map(str, tensor.stride()))


def _laid_out(tensor: torch.Tensor, strides: list[int]) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)


def _from_numpy(value: Any) -> torch.Tensor | None:
    """Return the numbers of numpy's number or array; None for others, and where the format has none like them."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic)):
        return None
    try:
        found = torch.from_numpy(numpy.array(value))
    except (TypeError, ValueError):
        return None
    return found if found.dtype in TYPES else None


def _is_read_again(value: Any) -> bool:
    """Say whether ``torch.load`` reads a value that ``torch.save`` wrote."""
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception:  # noqa: BLE001 - whatever the pickler and the unpickler meet
        return False
    return True


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return a tensor's memory. The caller keeps the tensor alive."""
    size = tensor.numel() * tensor.element_size()
    if not size:
        return memoryview(b"")
    if not tensor.is_contiguous():
        raise ValueError("only contiguous tensors can be written")
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")


def _write_all(handle: int, view: memoryview) -> None:
    while view:
        view = view[os.write(handle, view[:_WRITE_BYTES]) :]


def _read_all(file: Any, view: memoryview) -> None:
    while view:
        count: int | None = file.readinto(view)
        if not count:
            raise ValueError("cut short")
        view = view[count:]
