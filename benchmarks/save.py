"""How long a step is held by a save, and how long the save takes: torch.save, DCP's async_save, and ours.

    make bench-save ARGS="--sizes 0.1 1 4"

Runs with the Python of .venv-torch. Each contender is a process of its own. ``stall`` is how long the call holds the
training, ``total`` until everything is written and synced. The bare copy of the state into memory that is there already
is the least that a save beside training can hold it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

ROUNDS = 5
TENSOR_BYTES = 16 << 20
WAYS = ("copy", "torch.save", "dcp.async_save", "ours")


def state_of(gigabytes: float) -> dict[str, torch.Tensor]:
    """Return a model's worth of float32 tensors of 16 MiB, and some small ones."""
    import torch

    count = max(1, int(gigabytes * 1e9) // TENSOR_BYTES)
    tensors = {f"layer{number}.weight": torch.rand(TENSOR_BYTES // 4) for number in range(count)}
    return {**tensors, **{f"layer{number}.bias": torch.rand(1024) for number in range(count)}}


def measure(way: str, gigabytes: float, folder: Path) -> dict[str, float]:
    """Return the medians of stall and total in seconds, after a round that makes the buffers."""
    import torch

    torch.set_num_threads(1)
    state = state_of(gigabytes)
    rounds = [ROUND[way](state, folder, number) for number in range(ROUNDS + 1)][1:]
    return {
        "stall_s": statistics.median(stall for stall, _ in rounds),
        "total_s": statistics.median(total for _, total in rounds),
    }


def _copy(state: dict[str, Any], folder: Path, number: int) -> tuple[float, float]:  # noqa: ARG001 - as the others
    import torch

    if not _KEPT:
        _KEPT.update({name: torch.empty_like(tensor) for name, tensor in state.items()})
    began = time.perf_counter()
    for name, tensor in state.items():
        _KEPT[name].copy_(tensor)
    held = time.perf_counter() - began
    return held, held


def _torch_save(state: dict[str, Any], folder: Path, number: int) -> tuple[float, float]:  # noqa: ARG001
    import torch

    began = time.perf_counter()
    with (folder / "state.tmp").open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    (folder / "state.tmp").replace(folder / "state.pt")
    held = time.perf_counter() - began
    return held, held


def _dcp(state: dict[str, Any], folder: Path, number: int) -> tuple[float, float]:
    import torch.distributed.checkpoint as dcp

    began = time.perf_counter()
    writer = dcp.FileSystemWriter(folder / f"dcp-{number % 2}", sync_files=True)
    under_way: Any = dcp.async_save(state, storage_writer=_KEPT.setdefault("writer", writer), no_dist=True)
    held = time.perf_counter() - began
    under_way.result()
    return held, time.perf_counter() - began


def _ours(state: dict[str, Any], folder: Path, number: int) -> tuple[float, float]:
    from provisioner.node.torch import folder as place
    from provisioner.node.torch.writer import Writer

    writer = _KEPT.setdefault("writer", Writer())
    began = time.perf_counter()

    def write(parts: Any) -> None:
        place.write(folder, number, parts, frozen={}, rest={}, metrics={})
        place.prune(folder, 2, number)

    writer.save({"model": state}, write)
    held = time.perf_counter() - began
    writer.finish()
    return held, time.perf_counter() - began


ROUND = {"copy": _copy, "torch.save": _torch_save, "dcp.async_save": _dcp, "ours": _ours}
_KEPT: dict[str, Any] = {}


def main() -> int:
    """Measure each way in a process of its own, one after the other, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=float, nargs="+", default=[0.1, 1.0, 4.0], metavar="GB")
    parser.add_argument("--scratch", type=Path, help="where to write; a directory on a real disk")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        way, size = arguments.one
        print(json.dumps(measure(way, float(size), arguments.scratch)))
        return 0
    rows = []
    for size in arguments.sizes:
        for way in WAYS:
            with tempfile.TemporaryDirectory(dir=arguments.scratch) as folder:
                command = [sys.executable, __file__, "--one", way, str(size), "--scratch", folder]
                found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            rows.append({"gb": size, "way": way, **found})
            print(f"{size:g} GB {way}: {found}", file=sys.stderr)
    print("| state | way | step held for | of the bare copy | until written |\n| --- | --- | --- | --- | --- |")
    for row in rows:
        bare = next(one["stall_s"] for one in rows if one["gb"] == row["gb"] and one["way"] == "copy")
        total = "" if row["way"] == "copy" else f"{row['total_s']:.2f} s"
        print(f"| {row['gb']:g} GB | {row['way']} | {row['stall_s']:.3f} s | {row['stall_s'] / bare:.2f} | {total} |")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
