"""Driver against CUDA: what starts, what does not, and that both versions are named."""

from __future__ import annotations

import json

import pytest

from provisioner.checkpoint import layout
from provisioner.checkpoint.store import open_store
from provisioner.controller.start_failures import driver_failure
from provisioner.errors import ExitCode
from provisioner.node import bootstrap, driver
from provisioner.node.supervisor import Supervisor

KERNEL = (
    "NVRM version: NVIDIA UNIX {open}x86_64 {module} {version}  Thu Nov  2 01:50:58 UTC 2026\nGCC version:  gcc 12\n"
)


def machine(root, version, *, torch="", open_modules=False):
    if version:
        path = root / "proc/driver/nvidia/version"
        path.parent.mkdir(parents=True)
        words = (
            {"open": "Open Kernel Module for ", "module": ""}
            if open_modules
            else {"open": "", "module": "Kernel Module "}
        )
        path.write_text(KERNEL.format(version=version, **words))
    if torch:
        path = root / "opt/conda/lib/python3.11/site-packages/torch/version.py"
        path.parent.mkdir(parents=True)
        path.write_text(f"__version__ = '2.4.0'\ndebug = False\ncuda: Optional[str] = {torch}\nhip = None\n")
    return root


@pytest.mark.parametrize(
    ("version", "cuda", "fits"),
    [
        ("450.80.02", "11.8.0", True),
        ("440.118.02", "11.0", False),
        ("525.60.13", "12.6.3", True),
        ("515.105.01", "12.0.1", False),
        ("470.256.02", "12.4.1", False),
        ("570.195.03", "12.8", True),
        ("575.57.08", "13.0.0", False),
        ("580.65.06", "13.0.0", True),
        ("595.45.04", "11.8.0", True),
        ("418.87.01", "10.2", True),  # older than the table: not judged
        ("535.129.03", "14.0", True),  # newer than the table: not judged
        ("", "12.4.1", True),
        ("470.256.02", "", True),
    ],
)
@pytest.mark.parametrize("by", ["CUDA_VERSION", "NVIDIA_REQUIRE_CUDA", "torch"])
@pytest.mark.parametrize("open_modules", [False, True])
def test_a_driver_serves_every_cuda_of_its_major_version(tmp_path, version, cuda, fits, by, open_modules):
    environ = {"CUDA_VERSION": cuda, "NVIDIA_REQUIRE_CUDA": f"cuda>={cuda} brand=tesla,driver>=470,driver<471"}
    environ = {by: environ[by]} if by in environ and cuda else {}
    root = machine(tmp_path, version, torch=repr(cuda or None) if by == "torch" else "", open_modules=open_modules)
    line = driver.mismatch(environ, root, lambda: "")
    assert (line == "") is fits
    if line:
        assert version in line
        assert ".".join(cuda.split(".")[:2]) in line
        assert "\n" not in line


def test_pytorch_s_own_cuda_counts_before_the_image_s(tmp_path):
    root = machine(tmp_path, "470.256.02", torch="'11.8'")
    assert driver.mismatch({"CUDA_VERSION": "12.4.1"}, root, lambda: "") == ""


def test_an_image_with_a_driver_of_its_own_is_left_to_its_runtime(tmp_path):
    root = machine(tmp_path, "470.256.02")
    (root / "usr/local/cuda-12.4/compat").mkdir(parents=True)
    (root / "usr/local/cuda-12.4/compat/libcuda.so.550.54.15").touch()
    assert driver.mismatch({"CUDA_VERSION": "12.4.1"}, root, lambda: "") == ""


def test_where_the_kernel_does_not_tell_nvml_is_asked(tmp_path):
    assert "470.256.02" in driver.mismatch({"CUDA_VERSION": "12.4.1"}, tmp_path, lambda: "470.256.02")


def test_a_node_whose_driver_is_too_old_names_both_versions_and_restores_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "_TORCH", ())
    monkeypatch.setattr(driver, "driver_version", lambda _root: "470.256.02")
    store = open_store(f"file://{tmp_path}/store").at("digits")
    boot = {"version": 1, "job": {"name": "digits", "uid": "1a2b3c4d"}, "epoch": 1, "token": "t", "command": ["false"]}
    (tmp_path / "bootstrap.json").write_text(json.dumps({**boot, "store": {"uri": f"file://{tmp_path}/store"}}))
    node = Supervisor(
        bootstrap.load(tmp_path / "bootstrap.json"), tmp_path / "node", environ={"CUDA_VERSION": "12.4.1", "HOME": "/"}
    )
    assert node.run() is ExitCode.COME_AGAIN
    end = json.loads(store.get(layout.heartbeat(1)) or b"{}")["end"]
    assert "470.256.02" in end["reason"]
    assert "12.4" in end["reason"]
    assert driver_failure(end["cause"], end["reason"]) is not None
    assert "the command runs" not in (tmp_path / "node" / "log.txt").read_text()
