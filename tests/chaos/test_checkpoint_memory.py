"""However large a checkpoint is, saving and restoring it takes at most 256 MiB, and few open files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import blake3
import pytest

from tests.chaos.users import users
from tests.servers import NotInstalledError, started

MOST_MIB = 256


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Path]:
    """Give a directory whose gigabytes do not stay."""
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


def large(where: Path) -> Path:
    """Write 1 GiB that looks random, in three files."""
    where.mkdir()
    endless = blake3.blake3(b"large")
    piece = 4 << 20
    for number, pieces in enumerate((160, 64, 32)):
        with (where / f"weights-{number}").open("wb") as file:
            for at in range(pieces):
                file.write(endless.digest(length=piece, seek=(number << 40) + at * piece))
    return where


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "kind",
    [
        "directory",
        pytest.param("rclone", marks=pytest.mark.long),
        pytest.param("seaweedfs", marks=pytest.mark.thorough),
    ],
)
def test_a_gibibyte_is_saved_and_restored_in_256_mib_of_memory_and_with_64_open_files(kind, room):
    entry = large(room / "step-1")
    order = {"entry": str(entry), "directory": str(room / "restored"), "files": 64}
    if kind == "directory":
        with users(room) as everybody:
            everybody.run("measured", **order)
    else:
        try:
            with started(kind, room / "server") as server, users(room, server) as everybody:
                everybody.run("measured", **order)
        except NotInstalledError as missing:
            pytest.skip(str(missing))
    before, saved, restored = map(int, everybody.announced())
    print(f"{kind}: {before} MiB before, {saved} MiB after the save, {restored} MiB after the restore")
    assert max(saved, restored) <= MOST_MIB
