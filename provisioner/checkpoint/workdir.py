"""The job's working directory as one object, ``workdir/<blake3>.tar.zst``: the controller packs, the node unpacks."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import blake3
import zstandard

from provisioner.checkpoint import layout
from provisioner.checkpoint.store import Store
from provisioner.errors import ConfigError, CorruptCheckpoint

LEFT_OUT = frozenset({".git", ".failover", ".venv", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"})
MAX_BYTES = 512 * 1024 * 1024
"""A workdir is code. Data belongs into the store or an image."""


def pack(directory: Path, *, max_bytes: int = MAX_BYTES) -> tuple[str, bytes]:
    """Return (key, archive). Equal contents give equal bytes: no times, no owners, sorted names.

    Folders of :data:`LEFT_OUT` stay behind. Raises ConfigError when the files are more than ``max_bytes``.
    """
    raw = io.BytesIO()
    total = 0
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in _walk(directory):
            name = path.relative_to(directory).as_posix()
            info = archive.gettarinfo(path, name)
            if not (info.isreg() or info.isdir() or info.issym()):
                continue
            total += info.size
            if total > max_bytes:
                raise ConfigError(
                    f"{directory}: the working directory holds more than {max_bytes // 2**20} MiB",
                    hint="point job.workdir at the code, and keep data in a store or an image",
                )
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            info.mtime = 0
            info.mode &= 0o777
            if info.isreg():
                with path.open("rb") as file:
                    archive.addfile(info, file)
            else:
                archive.addfile(info)
    data = zstandard.ZstdCompressor(level=6).compress(raw.getvalue())
    return f"{layout.WORKDIR}/{blake3.blake3(data).hexdigest()}.tar.zst", data


def unpack(store: Store, key: str, directory: Path, *, report: Callable[[str], None] = lambda _line: None) -> None:
    """Fetch a packed workdir and unpack it into ``directory``, which is made.

    Raises CorruptCheckpoint, CloudError, OSError.
    """
    data = store.get(key)
    if data is None or key != f"{layout.WORKDIR}/{blake3.blake3(data).hexdigest()}.tar.zst":
        raise CorruptCheckpoint(f"{key} is missing or does not match its hash")
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with (
            zstandard.ZstdDecompressor().stream_reader(data) as plain,
            tarfile.open(fileobj=plain, mode="r|") as archive,
        ):
            _extract(archive, directory)
    except (tarfile.TarError, zstandard.ZstdError) as error:
        raise CorruptCheckpoint(f"{key} cannot be unpacked: {error}") from error
    report(f"working directory unpacked ({len(data) // 1024} KiB)")


def _extract(archive: tarfile.TarFile, directory: Path) -> None:
    """Write files and folders, links last, so that nothing is written through one.

    tarfile's own filters came with Python 3.11.4; Debian 12 has 3.11.2.
    """
    links: list[tuple[Path, str]] = []
    for member in archive:
        name = PurePosixPath(member.name)
        if name.is_absolute() or ".." in name.parts:
            raise CorruptCheckpoint(f"the working directory holds a path that is refused: {member.name!r}")
        place = directory / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if member.isdir():
            place.mkdir(exist_ok=True)
        elif member.issym():
            links.append((place, member.linkname))
        elif (source := archive.extractfile(member)) is not None:
            with source, place.open("xb") as file:
                shutil.copyfileobj(source, file)
            place.chmod(member.mode & 0o777)
    for place, target in links:
        place.symlink_to(target)


def _walk(directory: Path) -> Iterator[Path]:
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        if entry.name in LEFT_OUT:
            continue
        path = Path(entry.path)
        yield path
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(path)
