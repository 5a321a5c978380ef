"""The C library of this system, to take along: an image's own is older than what was built here asks for.

All of it goes, beside its loader: parts of two glibc do not work together. ``libc.so.6`` alone would take, say, the
image's ``libpthread.so.0`` with the first library of the image that is opened (NVIDIA's). What resolves names is in
glibc since 2.34, and in ``libnss_*`` before. The compiler's run-time libraries come along too, for images of another
C library.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from provisioner.controller import runtime_elf
from provisioner.errors import FailoverError

LOADERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
"""Where programs name their loader, by machine."""
NAMED = re.compile(
    r"(ld-linux[^/]*|lib(c|m|dl|rt|pthread|util|resolv|nsl|anl|BrokenLocale|thread_db|mvec))\.so\.\d+"
    r"|lib(gcc_s|stdc\+\+)\.so\.\d+"
)
"""What every image has: glibc, and the compiler's run-time libraries that binary wheels take from the system."""
_PARTS = ("c", "m", "mvec", "pthread", "dl", "rt", "util", "resolv", "anl", "nss_files", "nss_dns", "nss_compat")
_COMPILER = re.compile(r"lib(gcc_s|stdc\+\+)\.so\.\d+")
_UNWINDER = "libgcc_s.so.1"
"""Opened by glibc itself when a thread ends."""


def of(executable: Path, machine: str) -> tuple[Path, Path]:
    """Return the loader and ``libc.so.6`` that a program of this system runs with. Raises FailoverError."""
    said = subprocess.run(["ldd", executable], capture_output=True, text=True, check=False, timeout=60).stdout
    found = re.search(r"^\s+libc\.so\.6 => (/\S+)", said, re.MULTILINE)
    if found is None:
        raise FailoverError(f"the C library of {executable} is not found", hint="ldd has to work here")
    return Path(LOADERS[machine]), Path(found[1])


def files(loader: Path, libc: Path, asked: Iterable[str]) -> dict[str, Path]:
    """Return name -> file of the loader, of glibc, and of the compiler's libraries among ``asked``.

    Raises FailoverError for one that is not here.
    """
    places = (libc.parent, Path("/usr", *libc.parent.parts[1:]))
    found = {loader.name: loader}
    for part in _PARTS:
        here = sorted(path for place in places for path in place.glob(f"lib{part}.so.[0-9]*") if _numbered(path))
        found.update({path.name: path for path in here[:1]})
    for name in {_UNWINDER, *filter(_COMPILER.fullmatch, asked)}:
        path = next((place / name for place in places if (place / name).exists()), None)
        if path is None:
            raise FailoverError(f"this Python needs {name}, which is not here", hint="install it")
        found[name] = path
    return found


def kernel(libc: Path) -> str:
    """Return the oldest Linux that a ``libc.so.6`` runs on, as 3.2.0: what its ABI note says. Raises ValueError."""
    return ".".join(map(str, runtime_elf.kernel(libc.read_bytes())))


def _numbered(path: Path) -> bool:
    return re.fullmatch(r".+\.so\.\d+", path.name) is not None
