"""What a machine with a Python needs to run the node, as wheels: ours, its dependencies for several Pythons, and pip.

Nothing is fetched twice: the wheels stand in a cache directory whose name is the hash of what was asked for, so a
second start needs no network. The node unpacks them itself (see templates/bootstrap.sh.j2); pip rides along for its
table of platform tags. A machine without a fitting Python gets a bundle (:mod:`provisioner.controller.runtime_bundle`).
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import provisioner
from provisioner import assets
from provisioner.errors import FailoverError, Unreachable

DISTRIBUTION = "gpu-failover"
PYTHONS = ("3.11", "3.12", "3.13")
"""The interpreters that machines may bring."""
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_17_x86_64")
"""glibc 2.17 and newer: Ubuntu 18.04, Amazon Linux 2 and what came after."""
DEADLINE_S = 300.0
_NODE_ROOMS = ("checkpoint", "node", "telemetry")
_TIME = (1980, 1, 1, 0, 0, 0)

Run = Callable[..., "subprocess.CompletedProcess[str]"]
_made: dict[tuple[Path, tuple[str, ...]], list[Path]] = {}


def runtime_wheels(cache: Path, *, pythons: Iterable[str] = PYTHONS, run: Run = subprocess.run) -> list[Path]:
    """Return all wheels that a node needs, sorted by name. Raises Unreachable when they cannot be had.

    What this process has made already is not made anew for its next job.
    """
    asked = (cache, tuple(pythons))
    if (made := _made.get(asked)) and all(path.exists() for path in made):
        return made
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache):
        wheels = [build_wheel(cache / "own"), *collect(cache, asked[1], run=run)]
    _made[asked] = sorted(wheels, key=lambda path: path.name)
    return _made[asked]


def build_wheel(directory: Path) -> Path:
    """Write the wheel of this very code, as it runs, into ``directory`` and return it. Equal code gives equal bytes.

    It holds what a node imports and no more, from a checkout and from an installation alike.
    """
    root = Path(provisioner.__file__).parent
    files = {f"provisioner/{name}": (root / name).read_bytes() for name in _sources(root)}
    info = f"gpu_failover-{provisioner.__version__}.dist-info"
    files[f"{info}/METADATA"] = _metadata()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: gpu-failover\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/RECORD"] = _record(files, f"{info}/RECORD")
    return _write_wheel(directory / f"gpu_failover-{provisioner.__version__}-py3-none-any.whl", files)


def collect(cache: Path, pythons: Sequence[str] = PYTHONS, *, run: Run = subprocess.run) -> list[Path]:
    """Return the node's dependencies for these Pythons on Linux, and pip, from the cache or the package index.

    The files are pinned by hash (requirements/node.txt). Raises Unreachable, FailoverError.
    """
    requirements = assets.path("requirements/node.txt")
    wanted = "\0".join((requirements.read_text(encoding="utf-8"), *_targets(pythons), *PLATFORMS))
    directory = cache / f"node-{hashlib.sha256(wanted.encode()).hexdigest()[:16]}"
    if not directory.is_dir():
        with tempfile.TemporaryDirectory(dir=cache, prefix=".collecting-") as draft:
            _download(Path(draft) / "wheels", requirements, pythons, run)
            Path(draft, "wheels").replace(directory)
    return sorted(directory.glob("*.whl"))


def _targets(pythons: Sequence[str]) -> list[str]:
    """Return the versions to fetch for, this interpreter's first when it is not among them: the sandbox runs on it."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    return list(dict.fromkeys((*pythons, here)))


def _download(directory: Path, requirements: Path, pythons: Sequence[str], run: Run) -> None:
    directory.mkdir(parents=True)
    pip = _pip(directory)
    first, *others = _targets(pythons)
    _pip_download(pip, directory, requirements, first, run)
    # Most wheels serve every Python; only those bound to one are fetched again.
    bound = {
        wheel.name.split("-")[0].lower().replace("_", "-")
        for wheel in directory.glob(f"*-{_tag(first)}-{_tag(first)}-*")
    }
    if bound and others:
        subset = directory.parent / "bound.txt"
        subset.write_text(_subset(requirements.read_text(encoding="utf-8"), bound), encoding="utf-8")
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda version: _pip_download(pip, directory, subset, version, run), others))


def _pip_download(pip: Path, directory: Path, requirements: Path, version: str, run: Run) -> None:
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    # fmt: off
    command = [
        sys.executable, str(pip / "pip"), "download", "--quiet", "--disable-pip-version-check", "--no-input",
        "--only-binary=:all:", "--no-deps", "--require-hashes", "--implementation", "cp", "--python-version", version,
        *platforms, "--dest", str(directory), "--requirement", str(requirements),
    ]
    # fmt: on
    try:
        done = run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise Unreachable(f"the package index did not deliver the node's wheels within {DEADLINE_S:.0f} s") from None
    if done.returncode != 0:
        reason = next(
            (line for line in reversed(done.stderr.splitlines()) if line.startswith("ERROR")), "no reason given"
        )
        raise Unreachable(
            f"the node's wheels for Python {version} cannot be fetched: {reason.removeprefix('ERROR: ')[:300]}",
            hint="check the package index that pip is configured for",
        )


def _pip(directory: Path) -> Path:
    """Put pip's wheel into ``directory`` and return it: the installed one packed anew, else the one Python carries."""
    try:
        found = importlib.metadata.distribution("pip")
        files = {
            str(file): Path(str(file.locate())).read_bytes()
            for file in found.files or ()
            if not str(file).startswith("..") and "__pycache__" not in str(file)
        }
        if files:
            return _write_wheel(directory / f"pip-{found.version}-py3-none-any.whl", files)
    except (importlib.metadata.PackageNotFoundError, FileNotFoundError):
        pass
    bundled = importlib.util.find_spec("ensurepip")
    places = [Path(bundled.origin).parent / "_bundled"] if bundled and bundled.origin else []
    for place in (*places, Path("/usr/share/python-wheels")):
        for wheel in sorted(place.glob("pip-*.whl")):
            return Path(shutil.copy(wheel, directory))
    raise FailoverError(
        "there is no pip here to fetch the node's wheels with", hint="install pip into this environment"
    )


def _tag(version: str) -> str:
    return "cp" + version.replace(".", "")


def _subset(requirements: str, names: Iterable[str]) -> str:
    """Return the entries of a hashed requirements file that pin one of ``names``."""
    chosen = []
    take = False
    for line in requirements.splitlines():
        if line and not line[0].isspace() and not line.startswith("#"):
            take = line.split("==")[0].strip().lower().replace("_", "-") in names
        if take and not line.strip().startswith("#"):
            chosen.append(line)
    return "\n".join(chosen) + "\n"


def _sources(root: Path) -> Iterator[str]:
    """Yield the modules that a node imports, as paths below the package."""
    for path in sorted(
        [*root.glob("*.py"), root / "py.typed", *(p for room in _NODE_ROOMS for p in (root / room).rglob("*.py"))]
    ):
        if path.is_file():
            yield path.relative_to(root).as_posix()


def _metadata() -> bytes:
    """Return the name and version of our METADATA. Dependencies are left out: the runtime holds them all."""
    return f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: {provisioner.__version__}\n".encode()


def _record(files: dict[str, bytes], own: str) -> bytes:
    lines = []
    for name, data in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}")
    return ("\n".join([*lines, f"{own},,"]) + "\n").encode()


def _write_wheel(path: Path, files: dict[str, bytes]) -> Path:
    """Write a wheel whose bytes depend on its contents alone; a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, data in sorted(files.items()):
            member = zipfile.ZipInfo(name, _TIME)
            member.external_attr = 0o644 << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, data)
    draft.replace(path)
    return path


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """Let one process fill the cache at a time."""
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
