"""Random trees of files for the tests of the checkpoint engine: drawn, written, changed, and compared."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from provisioner.checkpoint.manifest import Manifest
from provisioner.checkpoint.save import Saver
from provisioner.checkpoint.store import Store, open_store
from provisioner.checkpoint.tree import Sizes
from provisioner.model import JobRef

JOB = JobRef("digits", "1a2b3c4d")
SMALL = Sizes(blob=64, pack=512)
"""Small enough that a few kilobytes make several blobs and packs."""
PAGE = 4096
"""What a hole is made of."""

_WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=8)
_BYTES = st.binary(min_size=1, max_size=6).map(lambda data: os.fsdecode(data.replace(b"/", b"_").replace(b"\0", b"_")))
_ODD = st.sampled_from(
    [
        "\n",
        "a\nb",
        " ",
        "-rf",
        "~",
        ".hidden",
        "...",
        "\\",
        "#1",
        "%2e%2e",
        "*",
        "模型",
        "é",
        "e\u0301",
        "x" * 255,
        "ö" * 127,
    ]
)
names = (_WORDS | _BYTES | _ODD).filter(lambda name: name not in {".", ".."} and len(os.fsencode(name)) < 256)

_LENGTHS = st.sampled_from([0, 1, 63, 64, 65, 127, 128, 448, 511, 512, 513, 575, 1024, 1500])


@dataclass(frozen=True, slots=True)
class Content:
    """A file: runs of random bytes (by a seed), zeros and holes, and its permission bits."""

    runs: tuple[tuple[str, int], ...]
    mode: int = 0o644

    def write(self, path: Path) -> None:
        with path.open("wb") as file:
            for kind, length in self.runs:
                if kind == "hole":
                    file.seek(length * PAGE, os.SEEK_CUR)
                elif kind == "zeros":
                    file.write(bytes(length))
                else:
                    file.write(pattern(kind, length))
            file.truncate()
        path.chmod(self.mode)


@dataclass(frozen=True, slots=True)
class Pointer:
    """A symbolic link."""

    target: str


@dataclass(frozen=True, slots=True)
class Directory:
    """A folder and what is in it."""

    children: Mapping[str, Any]
    mode: int = 0o755


def pattern(seed: str, length: int) -> bytes:
    """Return bytes that look random and are the same for the same seed."""
    import blake3

    return blake3.blake3(seed.encode()).digest(length=length)


_RUNS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", "d"]), _LENGTHS)
    | st.tuples(st.just("zeros"), _LENGTHS)
    | st.tuples(st.just("hole"), st.integers(1, 3)),
    max_size=4,
).map(tuple)
contents = st.builds(Content, _RUNS, st.sampled_from([0o644, 0o600, 0o755, 0o444, 0o400, 0o777, 0o000]))
pointers = st.builds(
    Pointer, names | st.sampled_from(["/etc/passwd", "../..", ".", "/nowhere/at all", "a/b/c", "x" * 900])
)
_MODES = st.sampled_from([0o755, 0o700, 0o555, 0o500, 0o777])
nodes = st.recursive(
    contents | pointers,
    lambda inner: st.builds(Directory, st.dictionaries(names, inner, max_size=4), _MODES),
    max_leaves=10,
)
directories = st.builds(Directory, st.dictionaries(names, nodes, max_size=5), _MODES)
entries = directories | contents


def build(path: Path, node: Any) -> Path:
    """Write a tree; folders get their permission bits last."""
    if isinstance(node, Content):
        node.write(path)
    elif isinstance(node, Pointer):
        path.symlink_to(node.target)
    else:
        path.mkdir()
        for name, inner in node.children.items():
            build(path / name, inner)
        path.chmod(node.mode)
    return path


def write(path: Path, **files: bytes) -> Path:
    """Write a folder of plain files."""
    path.mkdir(parents=True)
    for name, data in files.items():
        (path / name).write_bytes(data)
    return path


def shape(path: str | Path) -> Any:
    """Return all that must come back: names, kinds, permission bits, link targets, every byte."""
    path = os.fspath(path)
    info = os.lstat(path)
    if stat.S_ISLNK(info.st_mode):
        return "link", os.readlink(path)  # noqa: PTH115 - as it stands, bytes that are not UTF-8 too
    if stat.S_ISDIR(info.st_mode):
        names = sorted(os.listdir(path))  # noqa: PTH208 - as above
        return stat.S_IMODE(info.st_mode), {name: shape(f"{path}/{name}") for name in names}
    with Path(path).open("rb") as file:
        return stat.S_IMODE(info.st_mode), file.read()


def disk_blocks(path: Path) -> int:
    """Return the bytes that the files of a tree take on the disk."""
    return sum(info.st_blocks * 512 for info in map(os.lstat, _files(path)))


def _files(path: Path) -> Iterator[Path]:
    if path.is_symlink() or not path.is_dir():
        yield path
        return
    for child in path.iterdir():
        yield from _files(child)


def new_store(name: str = "digits") -> Store:
    """Return an empty store in memory."""
    return open_store("memory://").at(name)


def saver(store: Store, epoch: int = 1, job: JobRef | None = JOB, *, fence: Callable[[], None] = lambda: None) -> Saver:
    """Return what saves in small pieces."""
    return Saver(store, job, epoch, fence=fence, threads=2, clock=lambda: 1.0, sizes=SMALL)


def blobs(manifest: Manifest) -> dict[str, int]:
    """Return the lengths of a checkpoint's different blobs by their hashes."""
    return {blob.digest: blob.length for _, _, blob in manifest.stored()}
