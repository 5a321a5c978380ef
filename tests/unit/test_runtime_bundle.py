"""The node's own Python as a file: what it needs of a machine, and that it starts there without anything of ours."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from provisioner.cli.runtime import runtime_group
from provisioner.controller import runtime, runtime_bundle, runtime_elf, runtime_glibc
from provisioner.errors import ConfigError

HERE = Path("/proc/self/exe").resolve()


def no_uv(command, **options):
    """Answer as uv does where it cannot download."""
    if "python" in command[1:2] and Path(command[0]).name == "uv":
        return subprocess.CompletedProcess(command, 2, "", "error sending request")
    return subprocess.run(command, **options)  # noqa: PLW1510 - handed in


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory):
    return runtime_bundle.find_interpreter(tmp_path_factory.mktemp("pythons"), None, no_uv)


@pytest.fixture(scope="module")
def bundle(interpreter, tmp_path_factory):
    directory = tmp_path_factory.mktemp("bundles")
    return runtime_bundle.assemble(directory, interpreter, [runtime.build_wheel(directory)])


def test_the_interpreter_of_uv_is_taken_where_it_can_be_had(tmp_path):
    """It is installed below the cache, and asked for once."""
    asked = []

    def uv(command, **options):
        if command[1:2] != ["python"]:
            return subprocess.run(command, **options)  # noqa: PLW1510 - handed in
        asked.append(command[2])
        assert options["env"]["UV_PYTHON_INSTALL_DIR"] == str(tmp_path / "pythons")
        if command[2] == "install":
            (tmp_path / "pythons").mkdir()
        there = (tmp_path / "pythons").exists()
        return subprocess.CompletedProcess(command, 0 if there else 2, f"{sys.executable}\n" if there else "", "")

    assert runtime_bundle.find_interpreter(tmp_path, None, uv).built_from == "uv"
    assert asked == ["find", "install", "find"]
    assert runtime_bundle.find_interpreter(tmp_path, None, uv).executable == HERE
    assert asked == ["find", "install", "find", "find"]


@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf (binutils) is not installed")
def test_what_a_file_needs_is_what_readelf_says():
    some = [HERE, *sorted(Path(runtime_elf.__file__).parents[2].glob(".venv/lib/*/site-packages/**/*.so"))[:20]]
    for path in some:
        said = subprocess.run(["readelf", "-dVW", path], capture_output=True, text=True, check=True).stdout
        elf = runtime_elf.read(path.read_bytes())
        assert list(elf.needed) == re.findall(r"\(NEEDED\).*\[(.+)\]", said)
        versions = [(int(one), int(two)) for one, two in re.findall(r"GLIBC_(\d+)\.(\d+)", said)]
        assert elf.glibc >= max(versions, default=(0, 0))


@pytest.mark.parametrize("data", [b"", b"#!/bin/sh\n", runtime_elf.MAGIC, runtime_elf.MAGIC + b"\xff" * 200])
def test_what_is_no_elf_file_is_refused(data):
    for reads in (runtime_elf.read, runtime_elf.kernel):
        with pytest.raises(ValueError, match="ELF"):
            reads(data)


def test_whatever_a_file_asks_for_is_in_the_bundle_and_a_kernel_is_all_it_needs(bundle):
    with tarfile.open(bundle.path) as tar:
        files = {one.name: tar.extractfile(one).read() for one in tar.getmembers()}  # type: ignore[union-attr]
    elves = [runtime_elf.read(data) for data in files.values() if runtime_elf.is_elf(data)]
    if max(elf.glibc for elf in elves) <= runtime_bundle.OF_IMAGES:
        pytest.skip("this Python starts on the glibc of every image")
    assert len(elves) > 20
    assert not [name for elf in elves for name in elf.needed if f"runtime/lib/{name}" not in files]
    oldest = runtime_elf.kernel(files["runtime/lib/libc.so.6"])
    assert bundle.manifest.needs == f"Linux {'.'.join(map(str, oldest))}"


def test_a_python_for_every_image_keeps_the_image_s_glibc(interpreter):
    loader, libraries, needs = runtime_bundle._loader(interpreter, {"lib/a.py": b"pass"})
    assert (loader, libraries) == (runtime_glibc.LOADERS[interpreter.machine], {})
    assert needs == "glibc 2.17"


@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf (binutils) is not installed")
def test_the_oldest_kernel_is_what_readelf_says(interpreter):
    _, libc = runtime_glibc.of(interpreter.executable, interpreter.machine)
    said = subprocess.run(["readelf", "-nW", libc], capture_output=True, text=True, check=True).stdout
    assert f"ABI: {runtime_glibc.kernel(libc)}\n" in said.replace(" \n", "\n")
    with pytest.raises(ValueError, match="ABI note"):
        runtime_elf.kernel(runtime_elf.MAGIC + bytes(64))


def test_equal_parts_give_equal_bytes_and_are_packed_once(bundle, interpreter, tmp_path):
    wheel = runtime.build_wheel(tmp_path)
    again = runtime_bundle.assemble(tmp_path, interpreter, [wheel])
    assert again.sha256 == bundle.sha256
    with tarfile.open(again.path) as tar:
        members = tar.getmembers()
    assert [one.name for one in members] == sorted(one.name for one in members)
    assert {(one.mtime, one.uid, one.gid, one.uname) for one in members} == {(0, 0, 0, "")}
    before = again.path.stat().st_mtime_ns
    assert runtime_bundle.assemble(tmp_path, interpreter, [wheel]).path.stat().st_mtime_ns == before


def test_it_starts_where_it_is_unpacked_and_what_it_starts_keeps_the_machine_s_libraries(bundle, tmp_path):
    subprocess.run(["tar", "-xzf", bundle.path, "-C", tmp_path], check=True)
    python = tmp_path / "runtime" / "python"
    code = (
        "import ctypes, hashlib, json, lzma, os, ssl, subprocess, sys, zlib, provisioner.model as ours\n"
        'maps = \'import re; print(*set(re.findall(r"/\\\\S+[.]so\\\\S*", open("/proc/self/maps").read())))\'\n'
        f"child = subprocess.run([{sys.executable!r}, '-I', '-c', maps], capture_output=True, text=True).stdout\n"
        "mine = [line.split()[-1] for line in open('/proc/self/maps') if '.so' in line]\n"
        "print(json.dumps([sys.prefix, ours.__file__, mine, child.split(), dict(os.environ)]))"
    )
    given = {"LD_LIBRARY_PATH": "/of/the/training", "LD_PRELOAD": "libdl.so.2"}
    done = subprocess.run(
        [python, "-E", "-s", "-c", code],
        env=given,
        cwd=tmp_path / "runtime" / "node",
        capture_output=True,
        text=True,
        check=False,
    )
    prefix, ours, mine, child, environ = json.loads(done.stdout or pytest.fail(done.stderr))
    assert Path(prefix).resolve() == tmp_path / "runtime"
    assert Path(ours).is_relative_to(tmp_path)
    assert mine
    assert all(Path(name).resolve().is_relative_to(tmp_path) for name in mine)
    assert child
    assert not [name for name in child if Path(name).is_relative_to(tmp_path)]
    environ.pop("PWD", None)  # of the shell that starts it
    assert environ == given


def test_each_dependency_comes_once_and_fits():
    names = ["blake3-1.0-cp311-cp311-x", "blake3-1.0-cp312-cp312-x", "obstore-0.12-cp311-abi3-x", "pip-25-py3-none-any"]
    names += ["late-1-cp313-abi3-x", "idna-3-py3-none-any", "zstandard-1-cp312-cp312-x.y"]
    found = runtime_bundle.fitting([Path(f"{name}.whl") for name in names], "3.12")
    assert [path.name.split("-cp")[0] for path in found] == [
        "blake3-1.0",
        "idna-3-py3-none-any.whl",
        "obstore-0.12",
        "zstandard-1",
    ]


@pytest.mark.parametrize(
    ("python", "line"),
    [
        ("3.8", "--python 3.8: the node needs Python 3.11 or newer"),
        ("three", "--python three: the node needs Python 3.11 or newer"),
        ("3.99", f"there is no Python 3.99 to make a bundle from: .*{sys.version_info[0]}.{sys.version_info[1]}"),
    ],
)
def test_a_python_that_cannot_be_had_is_named(python, line, tmp_path):
    with pytest.raises(ConfigError, match=line) as caught:
        runtime_bundle.find_interpreter(tmp_path, python, no_uv)
    assert caught.value.hint


@pytest.mark.parametrize("content", [None, b"", b"no tar", b"\x1f\x8b\x08\0\0\0\0\0"])
def test_a_file_that_is_no_bundle_is_named(content, tmp_path):
    path = tmp_path / "runtime.tar.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"runtime\.tar\.gz") as caught:
        runtime_bundle.opened(path)
    assert "failover runtime build" in caught.value.hint


def test_the_command_tells_what_a_machine_needs(bundle, monkeypatch, tmp_path):
    monkeypatch.setattr(runtime_bundle, "build", lambda *_: bundle)
    done = CliRunner().invoke(runtime_group, ["build", "--output", str(tmp_path / "out.tar.gz")])
    assert done.exit_code == 0, done.output
    assert f"{bundle.manifest.needs} or newer" in done.output
    assert runtime_bundle.opened(tmp_path / "out.tar.gz").sha256 == bundle.sha256
