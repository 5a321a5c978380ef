"""What is transferred: three trees of random bytes, and their changes by a tenth."""

from __future__ import annotations

import filecmp
import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MIB = 2**20
REGION_BYTES = MIB
_BLOCK_BYTES = 8 * MIB


@dataclass(frozen=True, slots=True)
class Shape:
    """``files`` of ``file_bytes`` each; small ones in folders of a hundred."""

    name: str
    files: int
    file_bytes: int

    @property
    def size(self) -> int:
        """Return the bytes of the whole tree."""
        return self.files * self.file_bytes

    @property
    def title(self) -> str:
        """Return what the table calls it."""
        if self.files == 1:
            return f"{_size(self.file_bytes)} in 1 file"
        if self.name == "small":
            return f"{self.files:,} files of {_size(self.file_bytes)}"
        return f"{_size(self.size)} in {self.files} files"

    def paths(self, root: Path) -> list[Path]:
        """Return the files, in order."""
        if self.name == "small":
            return [root / f"{number // 100:03}" / f"{number % 100:02}.bin" for number in range(self.files)]
        return [root / f"{number:03}.bin" for number in range(self.files)]


FULL = {
    shape.name: shape
    for shape in (Shape("one", 1, 1024 * MIB), Shape("many", 200, 1024 * MIB // 200), Shape("small", 10_000, 20 * 1024))
}
QUICK = {shape.name: shape for shape in (Shape("one", 1, 24 * MIB), Shape("many", 20, MIB), Shape("small", 300, 4096))}


def make(root: Path, shape: Shape) -> Path:
    """Write the tree; the same bytes each time."""
    source = random.Random(shape.name)
    for path in shape.paths(root):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for start in range(0, shape.file_bytes, _BLOCK_BYTES):
                file.write(source.randbytes(min(_BLOCK_BYTES, shape.file_bytes - start)))
    return root


def warm(root: Path) -> None:
    """Read everything, so that the page cache has it."""
    for path in _files(root):
        with path.open("rb", buffering=0) as file:
            while file.read(_BLOCK_BYTES):
                pass


def same(one: Path, other: Path) -> bool:
    """Say whether two trees hold the same files with the same bytes."""
    names = sorted(str(path.relative_to(one)) for path in _files(one))
    if names != sorted(str(path.relative_to(other)) for path in _files(other)):
        return False
    return all(filecmp.cmp(one / name, other / name, shallow=False) for name in names)


def change(root: Path, shape: Shape, how: str, seed: int) -> int:
    """Rewrite a tenth in place and return its bytes.

    ``contiguous``: the first tenth of the tree (of the file, or whole files). ``scattered``: every tenth region of
    1 MiB of it, spread at random; a file that is smaller is one region.
    """
    step = min(REGION_BYTES, shape.file_bytes)
    regions = [(path, start) for path in shape.paths(root) for start in range(0, shape.file_bytes, step)]
    count = round(len(regions) / 10)
    chosen = regions[:count] if how == "contiguous" else random.Random(seed).sample(regions, count)
    changed = 0
    source = random.Random(f"{how} {seed}")
    for path, start in chosen:
        length = min(step, shape.file_bytes - start)
        with path.open("r+b") as file:
            file.seek(start)
            file.write(source.randbytes(length))
        changed += length
    return changed


def copied(root: Path, target: Path) -> Path:
    """Return a copy that may be changed."""
    shutil.copytree(root, target)
    return target


def _files(root: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(root):
        for name in names:
            yield Path(folder, name)


def _size(count: int) -> str:
    for unit, name in ((2**30, "GiB"), (MIB, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.4g} {name}"
    return f"{count} B"
