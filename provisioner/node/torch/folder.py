"""A directory of checkpoints: ``step-40/`` appears by a rename, whole or not at all."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from provisioner.node.torch import files, tensors

FORMAT = 1
TREES = "state.pt"
"""Everything that is no tensor, with names where the tensors were."""
METADATA = "metadata.json"
SHARDS = "shards"
"""What torch.distributed.checkpoint wrote: ``load(..., checkpoint_id="step-40/shards")`` reads it."""
_NAME = re.compile(r"step-(\d+)\Z")

Parts = Mapping[str, "tuple[Any, Mapping[str, torch.Tensor]]"]
"""By the part's name: its tree without tensors, and its tensors by path."""


def write(
    folder: Path,
    step: int,
    parts: Parts,
    *,
    frozen: Mapping[str, frozenset[str]],
    rest: Mapping[str, Any],
    metrics: Mapping[str, float],
) -> Path:
    """Write one checkpoint and return its path. What has that name already, damaged perhaps, is replaced."""
    begin(folder, step)
    try:
        return publish(folder, step, parts, frozen=frozen, rest=rest, metrics=metrics)
    except BaseException:  # on a full disk a half of it would be in the way of the next
        files.remove(draft(folder, step))
        raise


def draft(folder: Path, step: int) -> Path:
    """Return where a checkpoint is made, before it gets its name."""
    return folder / f".step-{step}.tmp"


def begin(folder: Path, step: int) -> None:
    """Make the draft, empty."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(draft(folder, step), ignore_errors=True)
    draft(folder, step).mkdir()


def publish(
    folder: Path,
    step: int,
    parts: Parts,
    *,
    frozen: Mapping[str, frozenset[str]],
    rest: Mapping[str, Any],
    metrics: Mapping[str, float],
) -> Path:
    """Add what is no shard to the draft and give it its name. What has that name already is replaced."""
    target, final = draft(folder, step), folder / f"step-{step}"
    for name, (_, found) in parts.items():
        for suffix, group in tensors.split(found, frozen.get(name, frozenset())):
            tensors.write(target / f"{name}{suffix}.safetensors", group)
    trees = {name: tree for name, (tree, _) in parts.items()}
    torch.save({"format": FORMAT, "step": step, "trees": trees, "rest": dict(rest)}, target / TREES)
    (target / METADATA).write_text(json.dumps({"step": step, **metrics}), "ascii")
    files.put(target, final)
    return final


def has_shards(path: Path) -> bool:
    """Say whether a checkpoint was written by all processes."""
    return (path / SHARDS).is_dir()


def read(path: Path) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """Return (step, state of each part, the rest). Raises ValueError for one that is not whole, or not ours."""
    try:
        state = torch.load(path / TREES, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ValueError(f"{path} has no {TREES}: it was not saved by this toolkit") from None
    except Exception as error:  # a damaged file raises whatever the unpickler meets
        raise ValueError(f"{path / TREES}: {error}") from error
    form = state.get("format") if isinstance(state, dict) else None
    if form != FORMAT:
        raise ValueError(f"{path} has format {form}, this version reads {FORMAT}")
    parts = {}
    for name, tree in state["trees"].items():
        found: dict[str, torch.Tensor] = {}
        for suffix in ("", ".frozen"):
            file = path / f"{name}{suffix}.safetensors"
            if file.exists():
                found.update(tensors.read(file))
        try:
            parts[name] = tensors.put_together(tree, found)
        except KeyError as error:
            raise ValueError(f"{path}: {name} lacks {error}") from error
    return int(state["step"]), parts, state["rest"]


def newest_first(*folders: Path) -> list[Path]:
    """List the checkpoints in some directories, the one with the highest step first."""
    found = []
    for path in (path for folder in folders if folder.is_dir() for path in folder.iterdir()):
        match = _NAME.match(path.name)
        if match and path.is_dir():
            found.append((int(match.group(1)), path))
    return [path for _, path in sorted(found, reverse=True)]


def prune(folder: Path, keep: int, step: int) -> None:
    """Remove all but the newest up to a step: what is above it could not be read, and does not count."""
    for path in [path for path in newest_first(folder) if files.step_of(path) <= step][keep:]:
        files.hide(path)
