"""Machines of any image: trees without Python, with one that is too old, and with an old glibc, entered by chroot."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import certifi
import pytest

from provisioner.checkpoint import layout
from provisioner.controller import runtime_bundle
from provisioner.controller.runtime_bundle import Bundle
from tests.image_trees import TRAINER, bare_tree, packed_bundle, put, wheels_of_here
from tests.start_machines import Machine

pytestmark = pytest.mark.slow


def may_enter_trees() -> str:
    """Return why trees cannot be entered here; empty where they can."""
    if os.geteuid() != 0:
        return "chroot needs root"
    missing = [name for name in ("unshare", "chroot", "mount", "ldd") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} is not installed"
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return "" if done.returncode == 0 else "a mount namespace is not allowed here"


@pytest.fixture(scope="session", autouse=True)
def _root_only() -> None:
    if reason := may_enter_trees():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_tree(tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="session")
def old_glibc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Debian 11: glibc 2.31, as Ubuntu 20.04, and Python 3.9."""
    sources = Path("/etc/apt/sources.list.d/debian.sources")
    if shutil.which("mmdebstrap") is None or not sources.exists():
        pytest.skip("mmdebstrap on Debian is needed to make a Debian 11")
    mirror = re.findall(r"^URIs: *(\S+)", sources.read_text(), re.MULTILINE)[0]
    tree = tmp_path_factory.mktemp("old") / "tree"
    command = ["mmdebstrap", "--quiet", "--variant=essential", "--include=python3-minimal,wget"]
    command += ["--aptopt=Acquire::Check-Valid-Until false", "--dpkgopt=path-exclude=/usr/share/doc/*", "bullseye"]
    done = subprocess.run([*command, tree, mirror], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip("the packages of Debian 11 cannot be had here")
    power = tree / "usr/local/sbin/shutdown"
    power.write_text('#!/bin/bash\necho "$@" >>"$HOME/shutdowns"\n')
    power.chmod(0o755)
    return tree


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return packed_bundle(tmp_path_factory.mktemp("bundle"))


class Tree(Machine):
    """A machine whose root is a tree that it cannot write to; its own directory and the store are mounted in it."""

    tree: Path

    def run(self, command: list[str]) -> subprocess.Popen[bytes]:
        mounts = [f"mount --bind '{self.tree}' '{self.tree}'"]
        for path in (self.root, self.job.root, Path("/dev"), Path("/proc")):
            place = self.tree / str(path).lstrip("/")
            place.mkdir(parents=True, exist_ok=True)
            mounts.append(f"mount --rbind '{path}' '{place}'")
        mounts.append(f"mount -o remount,bind,ro '{self.tree}'")
        enter = " && ".join([*mounts, f"""exec {shutil.which("chroot")} '{self.tree}' "$@" """])
        return super().run(["unshare", "--mount", "--propagation", "private", "sh", "-c", enter, "sh", *command])


@pytest.fixture
def machine(tmp_path, node_job) -> Iterator[Tree]:
    made = Tree(tmp_path / "machine", node_job, [])
    made.bin.joinpath("shutdown").unlink()
    yield made
    made.close()


def copy_of(tree: Path, where: Path) -> Path:
    return Path(shutil.copytree(tree, where, symlinks=True))


def trains_to_the_end(machine, node_job):
    assert machine.boot().wait(60) == 0, machine.console()
    assert node_job.done() == node_job.done() | {"result": "completed", "final_step": 20}
    assert machine.shutdowns() == ["-h now"]
    assert "libraries: none" in machine.log(), "what the bundle brings is for the node alone"
    assert set(machine.site.asked) == {"/bootstrap.json", "/runtime.tar.gz"}
    assert machine.until(lambda: not machine.mine())


@pytest.mark.parametrize("tool", ["curl", "wget"])
def test_an_image_without_python_trains(bare, machine, node_job, bundle, tmp_path, tool):
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed here")
    machine.tree = copy_of(bare, tmp_path / "tree")
    put(machine.tree, Path(shutil.which(tool) or ""))
    machine.say(["bash", "-c", TRAINER], steps=20, orders=machine.bring(bundle))
    trains_to_the_end(machine, node_job)


def put_python(tree: Path, *minors: int) -> str:
    """Put a Python 3 of this machine into a tree, the first that is here, and return its version."""
    home = pwd.getpwuid(os.getuid()).pw_dir
    places = [*os.environ.get("PATH", "").split(":"), *map(str, Path(home).glob(".pyenv/versions/3.*/bin"))]
    names = [shutil.which(f"python3.{minor}", path=place) for minor in minors for place in places]
    for found in filter(None, names):
        try:
            one = runtime_bundle._described(Path(found), "test", subprocess.run)
        except Exception:  # noqa: BLE001, S112 - a wrapper that leads nowhere
            continue
        for name, path in runtime_bundle._interpreter_files(one):
            place = tree / "usr" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)
        libraries = next((tree / "usr/lib").glob("*-linux-gnu"))
        for library in (tree / "usr/lib").glob("*.so*"):
            library.rename(libraries / library.name)
        (tree / "usr/bin/python3").symlink_to(f"python{one.minor}")
        return one.version
    return ""


def test_an_old_python_fetches_and_the_bundle_trains(bare, machine, node_job, bundle, tmp_path):
    """Neither curl nor wget: as on AutoDL's stock images, where python3 is 3.8."""
    machine.tree = copy_of(bare, tmp_path / "tree")
    if not put_python(machine.tree, 8, 9, 10, 7, 6):
        pytest.skip("there is no Python older than 3.11 on this machine")
    machine.say(["bash", "-c", TRAINER], steps=20, orders=machine.bring(bundle))
    trains_to_the_end(machine, node_job)


@pytest.mark.parametrize("authorities", [False, True])
def test_a_python_that_fits_is_used_unless_it_could_check_no_certificate(
    bare, machine, node_job, bundle, tmp_path, authorities
):
    machine.tree = copy_of(bare, tmp_path / "tree")
    assert put_python(machine.tree, sys.version_info.minor)
    if authorities:
        (machine.tree / "etc/ssl/certs").mkdir(parents=True)
        shutil.copy(certifi.where(), machine.tree / "etc/ssl/certs/ca-certificates.crt")
    machine.take(wheels_of_here(tmp_path))
    machine.say(["bash", "-c", TRAINER], steps=20, orders=machine.bring(bundle))
    assert machine.boot().wait(60) == 0, machine.console()
    assert node_job.done()["result"] == "completed"
    assert ("/runtime.tar.gz" in machine.site.asked) is not authorities


def test_an_image_with_nothing_that_fetches_ends_itself(bare, machine, node_job, tmp_path):
    machine.tree = copy_of(bare, tmp_path / "tree")
    machine.say(["bash", "-c", TRAINER], steps=20)
    assert machine.boot().wait(60) == 75
    assert "there is neither curl, wget nor Python here" in machine.console()
    assert machine.shutdowns() == ["-h now"]


def test_a_glibc_below_the_floor_is_named_and_nothing_is_fetched(old_glibc, machine, node_job, bundle):
    if bundle.manifest.floor <= (2, 31):
        pytest.skip(f"this Python starts on glibc {bundle.manifest.glibc} already")
    machine.tree = old_glibc
    link = f"{machine.site.url}/heartbeat.json"
    machine.say(["bash", "-c", TRAINER], steps=20, orders={**machine.bring(bundle), "end-url": link})
    assert machine.boot().wait(60) == 75
    line = f"the node's runtime needs glibc {bundle.manifest.glibc} or newer, and there is 2.31 here"
    assert json.loads(machine.site.given["/heartbeat.json"])["end"] == {"reason": line, "exit_code": 75}
    assert machine.console().splitlines() == [f"failover: {line}"]
    assert machine.site.asked == ["/bootstrap.json"]
    assert machine.shutdowns() == ["-h now"]
    assert node_job.store.get(layout.owner(1)) is None
