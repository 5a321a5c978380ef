"""The wheels that the controller puts into the store for its nodes. The package index is a fake ``pip``."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from provisioner.controller import runtime
from provisioner.errors import Unreachable


class Index:
    """Stands for ``pip download``: writes the files that it would."""

    def __init__(self):
        self.calls: list[list[str]] = []
        self.fails = ""

    def __call__(self, command, **_options):
        self.calls.append(command)
        if self.fails:
            return subprocess.CompletedProcess(command, 1, "", f"WARNING: x\nERROR: {self.fails}\n")
        directory = Path(command[command.index("--dest") + 1])
        version = command[command.index("--python-version") + 1].replace(".", "")
        (directory / f"zstandard-0.25.0-cp{version}-cp{version}-manylinux2014_x86_64.whl").write_bytes(b"z")
        (directory / "tenacity-9.2.1-py3-none-any.whl").write_bytes(b"t")
        return subprocess.CompletedProcess(command, 0, "", "")


def test_the_second_start_asks_nobody(tmp_path):
    index = Index()
    first = runtime.runtime_wheels(tmp_path, pythons=("3.11", "3.12"), run=index)
    asked = len(index.calls)
    assert runtime.runtime_wheels(tmp_path, pythons=("3.11", "3.12"), run=index) == first
    assert len(index.calls) == asked
    names = [path.name.split("-")[0] for path in first]
    assert {"gpu_failover", "pip", "tenacity", "zstandard"} == set(names)
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert names.count("zstandard") == len({"3.11", "3.12", here})
    for command in index.calls:
        assert "--require-hashes" in command
    # What serves every Python is fetched once: the later calls name a shorter list.
    assert all(command[-1].endswith("bound.txt") for command in index.calls[1:])


def test_a_failed_download_leaves_no_half_cache_and_says_why(tmp_path):
    index = Index()
    index.fails = "no matching distribution found for obstore==0.12.1"
    with pytest.raises(Unreachable, match="obstore"):
        runtime.collect(tmp_path, ("3.11",), run=index)
    index.fails = ""
    assert runtime.collect(tmp_path, ("3.11",), run=index)
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".collecting")] == []


def test_our_wheel_is_the_same_every_time_and_holds_what_a_node_imports(tmp_path):
    first = runtime.build_wheel(tmp_path / "a")
    second = runtime.build_wheel(tmp_path / "b")
    assert first.read_bytes() == second.read_bytes()
    names = zipfile.ZipFile(first).namelist()
    assert "provisioner/node/__main__.py" in names
    assert not [name for name in names if name.startswith(("provisioner/cli", "provisioner/controller"))]


def test_a_node_starts_from_its_wheel_without_any_library_of_the_controller(tmp_path):
    """In an interpreter that sees the wheel and the node's few dependencies, and refuses everything else."""
    wheel = runtime.build_wheel(tmp_path)
    code = f"""
import importlib.abc, sys
allowed = {{"provisioner", "obstore", "blake3", "zstandard", "watchfiles", "anyio", "idna", "tenacity"}}
allowed |= {{"typing_extensions", "_cffi_backend", "cffi"}}
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.split(".")[0]
        if top not in allowed and top not in sys.stdlib_module_names:
            raise ImportError(f"{{name}} is not on a bare machine", name=name)
sys.meta_path.insert(0, Refuse())
sys.path.insert(0, {str(wheel)!r})
import provisioner.node.__main__, provisioner.node.supervisor, watchfiles
assert {str(wheel)!r} in provisioner.__file__, provisioner.__file__
print("fine")
"""
    done = subprocess.run(
        [sys.executable, "-E", "-s", "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.stdout == "fine\n", done.stderr


def test_a_hashed_list_is_cut_down_to_some_names():
    text = "# made by uv\nblake3==1.0 \\\n    --hash=sha256:aa\n    # via x\nzstandard==0.25 \\\n    --hash=sha256:bb\n"
    assert runtime._subset(text, {"zstandard"}) == "zstandard==0.25 \\\n    --hash=sha256:bb\n"
