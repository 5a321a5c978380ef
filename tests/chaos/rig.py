"""What storms need of this machine: disks that can be filled (a tmpfs each), clocks that can be set (a C library).

Where it may not mount, or has no C compiler, a blow that needs them does nothing and says so. ``make test-chaos`` gives
the tests a mount namespace of their own, so that nothing stays mounted.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from provisioner.sandbox import hardware

CLOCK = "FAILOVER_TEST_CLOCK"
_BALLAST = ".ballast"
_SOURCE = Path(__file__).with_name("clock.c")
_SIZE = "200m"


@functools.cache
def library() -> Path | None:
    """Return the library that shifts a process's time of day, None without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    built = Path(tempfile.mkdtemp(prefix="storm-")) / "clock.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", built, _SOURCE, "-ldl"], check=True, timeout=60)
    return built


@functools.cache
def mounts() -> bool:
    """Say whether this process may mount."""
    with tempfile.TemporaryDirectory(prefix="storm-") as folder:
        if not _mount(Path(folder)):
            return False
        _unmount(Path(folder))
        return True


def _mount(folder: Path) -> bool:
    argv = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE},mode=0700", "tmpfs", str(folder)]
    try:
        return subprocess.run(argv, capture_output=True, timeout=10, check=False).returncode == 0
    except FileNotFoundError:
        return False


def _unmount(folder: Path) -> None:
    subprocess.run(["umount", "-l", str(folder)], capture_output=True, timeout=10, check=False)


@contextlib.contextmanager
def rigged() -> Iterator[None]:
    """Let a sandbox that is started meanwhile give its machines such disks and clocks."""
    wanted = {hardware.CLOCK: str(library() or ""), hardware.DISK: _SIZE if mounts() else ""}
    os.environ |= wanted
    try:
        yield
    finally:
        for name in wanted:
            del os.environ[name]


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Put a folder on a disk of its own; what is on it at the end stays in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if not mounts() or not _mount(folder):
        yield
        return
    try:
        yield
    finally:
        empty(folder)
        kept = folder.with_name(f"{folder.name}.kept")
        shutil.copytree(folder, kept, ignore=lambda *_: [_BALLAST], dirs_exist_ok=True)
        _unmount(folder)
        shutil.copytree(kept, folder, dirs_exist_ok=True)
        shutil.rmtree(kept)


def leave(machines: Path) -> None:
    """Let the disks of machines that have ended go; their consoles stay."""
    for machine in machines.glob("*"):
        if machine.is_mount():
            console = (machine / "console.log").read_bytes() if (machine / "console.log").exists() else b""
            _unmount(machine)
            (machine / "console.log").write_bytes(console)


def fill(folder: Path) -> str:
    """Fill the disk of a folder. Return what to say of it."""
    if not folder.is_mount():
        return "it has no disk of its own here"
    room = os.statvfs(folder)
    with (folder / _BALLAST).open("ab") as file:
        os.posix_fallocate(file.fileno(), 0, file.tell() + room.f_bavail * room.f_bsize)
    return f"{room.f_bavail * room.f_bsize >> 20} MB were free"


def empty(folder: Path) -> None:
    """Make room again."""
    (folder / _BALLAST).unlink(missing_ok=True)


def clock(file: Path) -> dict[str, str]:
    """Return what a process needs in its environment to go by a clock of its own, which is right at first."""
    found = library()
    if found is None:
        return {}
    file.write_bytes(bytes(8))
    return {"LD_PRELOAD": str(found), CLOCK: str(file)}


def set_clock(file: Path, seconds: float) -> str:
    """Put a clock ahead of the right time, or behind it. Return what to say of it."""
    if not file.exists():
        return "it has no clock of its own here"
    with file.open("r+b") as opened:
        opened.write(struct.pack("=q", int(seconds * 1e9)))
    return f"{seconds:+.0f} s"
