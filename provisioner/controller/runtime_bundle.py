"""A Python of the node's own, as one file: for machines whose image has none, or one that is too old.

``runtime/`` in the tar holds ``python`` (a shell script that starts it), ``bin`` and ``lib`` (a relocatable CPython and
the libraries it needs), ``node`` (our code and its dependencies), ``certs.pem`` (the authorities that sign
stores' certificates: many images have none) and ``manifest.json``. Plain ``tar`` and ``gzip`` unpack it. Equal parts
give equal bytes.

The interpreter is the one that uv manages (glibc 2.17 and newer), or, where that cannot be downloaded, this
installation's own. What asks for a newer glibc than 2.17 brings this system's along, loader and all; then it starts
wherever the kernel is new enough. The manifest says which.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import certifi

import provisioner
from provisioner import assets
from provisioner.controller import runtime, runtime_elf, runtime_glibc
from provisioner.errors import ConfigError, FailoverError

PYTHON = "3.12"
"""What uv is asked for when nobody says otherwise."""
OLDEST = (3, 11)
TOP = "runtime"
UV_DEADLINE_S = 300.0
OF_IMAGES = (2, 17)
"""The glibc that every image has: what binary wheels are made for (manylinux2014)."""
_FORMAT = 2
_LEFT_OUT_FOLDERS = frozenset(
    {
        *("__pycache__", "test", "tests", "idlelib", "idle_test", "tkinter", "turtledemo", "lib2to3", "ensurepip"),
        *("pydoc_data", "site-packages", "dist-packages", "sqlite3", "curses", "dbm", "venv"),
    }
)
_LEFT_OUT_MODULES = re.compile(
    r"(_tkinter|_curses|_curses_panel|readline|_crypt|nis|_dbm|_gdbm|ossaudiodev|spwd|_sqlite3|_test\w*|_ctypes_test"
    r"|_xxtestfuzz|xx\w*)\..*"
)
_ASK = """
import json, os, platform, sys, sysconfig
paths = sysconfig.get_paths()
print(json.dumps({
    "version": platform.python_version(), "machine": platform.machine(), "libc": platform.libc_ver()[0],
    "executable": os.path.realpath(getattr(sys, "_base_executable", sys.executable)),
    "stdlib": paths["stdlib"], "platstdlib": os.path.join(
        getattr(sys, "base_exec_prefix", sys.exec_prefix), os.path.relpath(paths["platstdlib"], sys.exec_prefix)),
}))
"""
# --library-path reaches this process alone: what the node starts keeps the machine's own libraries, and what the
# machine wants loaded first (an allocator, say). After ours come the folders where images have NVIDIA's: what a loader
# searches by itself depends on where it was built.
_START = """#!/bin/sh
# Python of the node: python ARGUMENTS...
here=${{0%/*}}
if [ -n "${{LD_PRELOAD:-}}" ]; then export FAILOVER_LD_PRELOAD="$LD_PRELOAD" && unset LD_PRELOAD; fi
libraries=$here/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}
libraries=$libraries:/usr/local/nvidia/lib64:/usr/local/nvidia/lib:/usr/lib/{machine}-linux-gnu:/usr/lib64
exec {loader} --library-path "$libraries" "$here/bin/{python}" "$@"
"""
# putenv reaches the libraries of this process, and not os.environ, from which the command's environment is made. Python
# sets LC_CTYPE where the locale is C (PEP 538), to one that our glibc has built in and the image may not know.
_SITE = """\
import os, sys
if not any(os.path.exists(place) for place in (
    "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem",
    os.environ.get("SSL_CERT_FILE", ""), os.environ.get("SSL_CERT_DIR", ""),
)):
    os.putenv("SSL_CERT_FILE", os.path.join(sys.prefix, "certs.pem"))
if "FAILOVER_LD_PRELOAD" in os.environ:
    os.environ["LD_PRELOAD"] = os.environ.pop("FAILOVER_LD_PRELOAD")
try:
    with open("/proc/self/environ", "rb") as file:
        given = dict(one.partition(b"=")[::2] for one in file.read().split(b"\\0"))
except OSError:
    pass
else:
    os.environb.pop(b"LC_CTYPE", None)
    os.environb.update({name: text for name, text in given.items() if name == b"LC_CTYPE"})
"""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a bundle is. ``version`` is ours; ``needs`` is the oldest it runs on: ``glibc 2.17`` or ``Linux 3.2.0``."""

    version: str
    python: str
    platform: str
    needs: str
    built_from: str
    parts: str
    """A hash of what went in: the interpreter, our code, the pinned dependencies."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle on this disk, its SHA-256 in hexadecimal, and its size in bytes."""

    path: Path
    sha256: str
    size: int
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A CPython to take along, as it describes itself."""

    version: str
    machine: str
    executable: Path
    stdlib: Path
    platstdlib: Path
    built_from: str

    @property
    def minor(self) -> str:
        """Return ``3.12`` of ``3.12.4``."""
        return ".".join(self.version.split(".")[:2])


def build(cache: Path, python: str | None = None, *, run: runtime.Run = subprocess.run) -> Bundle:
    """Return the bundle for this version of ours, made if the cache has none.

    ``python`` as ``3.12``; None takes what can be had, best first. Raises ConfigError for one that cannot be,
    Unreachable where the dependencies cannot be fetched.
    """
    interpreter = find_interpreter(cache, python, run)
    wheels = runtime.runtime_wheels(cache, pythons=dict.fromkeys((*runtime.PYTHONS, interpreter.minor)), run=run)
    return assemble(cache / "bundles", interpreter, fitting(wheels, interpreter.minor))


def find_interpreter(cache: Path, python: str | None, run: runtime.Run = subprocess.run) -> Interpreter:
    """Return uv's interpreter, downloaded into the cache, or else this installation's own. Raises ConfigError."""
    wanted = python or PYTHON
    if not re.fullmatch(r"3\.\d{1,2}", wanted) or int(wanted[2:]) < OLDEST[1]:
        raise ConfigError(f"--python {wanted}: the node needs Python 3.11 or newer", hint="write 3.12, for example")
    managed, why = _from_uv(cache / "pythons", wanted, run)
    if managed is not None:
        return managed
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if python not in (None, here):
        raise ConfigError(
            f"there is no Python {python} to make a bundle from: {why}, and this installation has {here}",
            hint=f"leave --python out to take {here}, or run it where uv can download",
        )
    return _described(Path(sys.executable), f"this installation: {why}", run)


def _from_uv(directory: Path, wanted: str, run: runtime.Run) -> tuple[Interpreter | None, str]:
    """Return uv's interpreter, or None and why."""
    uv = _uv()
    if uv is None:
        return None, "uv is not installed"
    environ = {**os.environ, "UV_PYTHON_INSTALL_DIR": str(directory), "UV_NO_PROGRESS": "1", "UV_HTTP_RETRIES": "1"}
    find = [uv, "python", "find", "--managed-python", "--no-python-downloads", "--no-project", wanted]
    found = _asked(find, environ, run)
    if not found and _asked([uv, "python", "install", "--no-bin", "--quiet", wanted], environ, run) is not None:
        found = _asked(find, environ, run)
    if not found:
        return None, f"uv could not download Python {wanted}"
    return _described(Path(found.strip()), "uv", run), ""


def _asked(command: list[str], environ: Mapping[str, str], run: runtime.Run) -> str | None:
    """Return what a command printed; None when it failed or took too long."""
    try:
        done = run(command, capture_output=True, text=True, timeout=UV_DEADLINE_S, check=False, env=environ)
    except (subprocess.TimeoutExpired, OSError):
        return None
    return str(done.stdout) if done.returncode == 0 else None


def _uv() -> str | None:
    try:
        files = importlib.metadata.distribution("uv").files or ()
    except importlib.metadata.PackageNotFoundError:
        files = ()
    own = next((str(file.locate()) for file in files if Path(str(file)).name == "uv"), None)
    return own or shutil.which("uv")


def _described(python: Path, built_from: str, run: runtime.Run) -> Interpreter:
    done = run([str(python), "-I", "-c", _ASK], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise FailoverError(f"{python} does not start: {done.stderr.strip()[-200:]}")
    said = json.loads(done.stdout)
    if said["libc"] != "glibc" or said["machine"] not in runtime_glibc.LOADERS:
        raise ConfigError(
            f"a bundle cannot be made from {python}: it is for {said['machine']} with {said['libc'] or 'another libc'}",
            hint="make it on Linux with glibc, and name it in job.runtime_file",
        )
    return Interpreter(
        said["version"],
        said["machine"],
        Path(said["executable"]),
        Path(said["stdlib"]),
        Path(said["platstdlib"]),
        built_from,
    )


def fitting(wheels: Iterable[Path], minor: str) -> list[Path]:
    """Return the one wheel of each name that serves this Python best; pip stays at home."""
    exact = f"cp{minor.replace('.', '')}"
    best: dict[str, tuple[int, Path]] = {}
    for wheel in wheels:
        name, (python, abi, _) = wheel.name.split("-")[0].lower(), wheel.stem.split("-")[-3:]
        old = [int(tag[3:]) for tag in python.split(".") if re.fullmatch(r"cp3\d+", tag)]
        if exact in python.split(".") and abi != "abi3":
            rank = 0
        elif abi == "abi3" and old and min(old) <= int(exact[3:]):
            rank = 1
        elif "py3" in python.split("."):
            rank = 2
        else:
            continue
        if name not in {"pip", "uv"} and (name not in best or rank < best[name][0]):
            best[name] = (rank, wheel)
    return [wheel for _, wheel in sorted(best.values(), key=lambda one: one[1].name)]


def assemble(directory: Path, interpreter: Interpreter, wheels: Sequence[Path]) -> Bundle:
    """Put the parts together, or return the bundle that was made of them before."""
    parts = _parts(interpreter, wheels)
    path = directory / f"failover-runtime-{interpreter.minor}-{interpreter.machine}-{parts}.tar.gz"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        files = dict(_interpreter_files(interpreter))
        for wheel in wheels:
            files.update(_unpacked(wheel))
        loader, libraries, needs = _loader(interpreter, files)
        files.update(libraries)
        platform = f"linux-{interpreter.machine}"
        about = Manifest(provisioner.__version__, interpreter.version, platform, needs, interpreter.built_from, parts)
        files["manifest.json"] = (json.dumps(asdict(about), indent=2) + "\n").encode()
        start = _START.format(loader=loader, machine=interpreter.machine, python=f"python{interpreter.minor}")
        files[f"lib/python{interpreter.minor}/sitecustomize.py"] = _SITE.encode()
        _write(path, {**files, "python": start.encode(), "certs.pem": Path(certifi.where())})
    return opened(path)


def _loader(interpreter: Interpreter, files: Mapping[str, bytes | Path]) -> tuple[str, dict[str, Path], str]:
    """Return the loader as the shell writes it, the C library to take along if any, and what a machine needs then."""
    elves = list(_elves(files.values()))
    if (floor := max([OF_IMAGES, *(elf.glibc for elf in elves)])) == OF_IMAGES:
        return runtime_glibc.LOADERS[interpreter.machine], {}, f"glibc {'.'.join(map(str, floor))}"
    loader, libc = runtime_glibc.of(interpreter.executable, interpreter.machine)
    own = runtime_glibc.files(loader, libc, {name for elf in elves for name in elf.needed})
    libraries = {f"lib/{name}": path for name, path in own.items()}
    return f'"$here/lib/{loader.name}"', libraries, f"Linux {runtime_glibc.kernel(libc)}"


def _parts(interpreter: Interpreter, wheels: Sequence[Path]) -> str:
    """Return a hash of what goes in. An interpreter changes with its version and its executable."""
    mark = hashlib.sha256(f"{_FORMAT}\0{interpreter.version}\0{interpreter.built_from}\0{_START}{_SITE}".encode())
    mark.update(interpreter.executable.read_bytes())
    mark.update(runtime_glibc.of(interpreter.executable, interpreter.machine)[1].read_bytes())
    mark.update(assets.path("requirements/node.txt").read_bytes() + Path(certifi.where()).read_bytes())
    for wheel in wheels:
        mark.update(wheel.name.encode() + wheel.read_bytes())
    return mark.hexdigest()[:16]


def opened(path: Path) -> Bundle:
    """Read a bundle's manifest and hash. Raises ConfigError for a file that is none."""
    hint = "failover runtime build makes one"
    try:
        data = path.read_bytes()
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
            member = tar.extractfile(f"{TOP}/manifest.json")
            raw = json.loads(member.read() if member else b"")
        manifest = Manifest(**{name: str(raw[name]) for name in Manifest.__dataclass_fields__})
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or 'not a bundle'}", hint=hint) from None
    except (tarfile.TarError, EOFError, KeyError, ValueError, TypeError):
        raise ConfigError(f"{path}: not a bundle of the node's runtime", hint=hint) from None
    return Bundle(path, hashlib.sha256(data).hexdigest(), len(data), manifest)


def brought(path: Path) -> Bundle:
    """Read a bundle that was made elsewhere. Raises ConfigError for one of another version than ours."""
    bundle = opened(path)
    if bundle.manifest.version != provisioner.__version__:
        raise ConfigError(
            f"{path}: made by gpu-failover {bundle.manifest.version}, and this is {provisioner.__version__}",
            hint=f"make it with {provisioner.__version__}: failover runtime build --output {path.name}",
        )
    return bundle


def _elves(files: Iterable[bytes | Path]) -> Iterator[runtime_elf.Elf]:
    for file in files:
        if isinstance(file, Path):
            with file.open("rb") as opened_file:
                if not runtime_elf.is_elf(opened_file.read(8)):
                    continue
        elif not runtime_elf.is_elf(file[:8]):
            continue
        yield runtime_elf.read(_data(file))


def _interpreter_files(interpreter: Interpreter) -> Iterator[tuple[str, bytes | Path]]:
    """Yield the executable, the standard library as far as a node needs it, and the libraries of both."""
    name = f"python{interpreter.minor}"
    binaries = [interpreter.executable]
    yield f"bin/{name}", interpreter.executable
    for root in dict.fromkeys((interpreter.stdlib, interpreter.platstdlib)):
        for path in _library(root):
            yield f"lib/{name}/{path.relative_to(root).as_posix()}", path
            if path.suffix == ".so":
                binaries.append(path)
    for soname, path in _libraries(binaries).items():
        yield f"lib/{soname}", path


def _library(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = [one for one in folders if one not in _LEFT_OUT_FOLDERS and not one.startswith("config-")]
        for name in names:
            dynamic = Path(folder).name == "lib-dynload"
            if name.endswith((".pyc", ".a")) or (dynamic and _LEFT_OUT_MODULES.fullmatch(name)):
                continue
            if Path(folder, name).is_file():
                yield Path(folder, name)


def _libraries(binaries: Sequence[Path]) -> dict[str, Path]:
    """Return name -> file of the libraries beyond glibc that these need, and those need in turn, as ldd finds them."""
    done = subprocess.run(
        ["ldd", *map(str, binaries)], capture_output=True, text=True, check=False, timeout=60, env={"PATH": os.defpath}
    )
    found: dict[str, Path] = {}
    for soname, path in re.findall(r"^\s+(\S+) => (\S+)", done.stdout, re.MULTILINE):
        if runtime_glibc.NAMED.fullmatch(soname):
            continue
        if path == "not":
            raise FailoverError(f"this Python needs {soname}, which is not here", hint="install it")
        found[soname] = Path(path)
    return found


def _unpacked(wheel: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            parts = member.filename.split("/")
            if parts[0].endswith(".data"):
                if len(parts) < 3 or parts[1] not in {"purelib", "platlib"}:
                    continue
                parts = parts[2:]
            if not member.is_dir() and ".." not in parts and not member.filename.startswith("/"):
                yield "/".join(("node", *parts)), archive.read(member)


def _write(path: Path, files: Mapping[str, bytes | Path]) -> None:
    """Write the tar, sorted and without times or owners; a reader never sees half of it."""
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with (
            os.fdopen(handle, "wb") as raw,
            gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar,
        ):
            for name in sorted(files):
                data = _data(files[name])
                member = tarfile.TarInfo(f"{TOP}/{name}")
                member.size = len(data)
                member.mode = 0o755 if name == "python" or name.startswith(("bin/", "lib/ld-linux")) else 0o644
                tar.addfile(member, io.BytesIO(data))
        Path(draft).chmod(0o644)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def _data(file: bytes | Path) -> bytes:
    return file.read_bytes() if isinstance(file, Path) else file
