"""Machines of any image: trees without Python, with one too old, with an old glibc or none, entered by chroot."""

from __future__ import annotations

import json
import os
import platform
import pwd
import re
import shutil
import socketserver
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import certifi
import pytest

from provisioner.checkpoint import layout
from provisioner.controller import runtime_bundle
from provisioner.controller.runtime_bundle import Bundle
from provisioner.model import JobRef
from tests import servers
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


def debian(tree: Path, release: str, variant: str, packages: str) -> Path:
    """Make a tree of Debian's packages."""
    sources = Path("/etc/apt/sources.list.d/debian.sources")
    if shutil.which("mmdebstrap") is None or not sources.exists():
        pytest.skip("mmdebstrap on Debian is needed to make a tree of its packages")
    mirror = re.findall(r"^URIs: *(\S+)", sources.read_text(), re.MULTILINE)[0]
    command = ["mmdebstrap", "--quiet", f"--variant={variant}", f"--include={packages}"]
    command += ["--aptopt=Acquire::Check-Valid-Until false", "--dpkgopt=path-exclude=/usr/share/doc/*", release]
    done = subprocess.run([*command, tree, mirror], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"the packages of {release} cannot be had here")
    return tree


@pytest.fixture(scope="session")
def old_glibc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Debian 11: glibc 2.31, as Ubuntu 20.04, and Python 3.9."""
    tree = debian(tmp_path_factory.mktemp("old") / "tree", "bullseye", "essential", "python3-minimal,wget")
    power = tree / "usr/local/sbin/shutdown"
    power.write_text('#!/bin/bash\necho "$@" >>"$HOME/shutdowns"\n')
    power.chmod(0o755)
    return tree


@pytest.fixture(scope="session")
def no_glibc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shell that is one static file: no C library, no /etc/nsswitch.conf."""
    tree = debian(tmp_path_factory.mktemp("none") / "tree", "bookworm", "extract", "busybox-static")
    busybox = next(path for path in (tree / "bin/busybox", tree / "usr/bin/busybox") if path.exists())
    made = tmp_path_factory.mktemp("static")
    for folder in ("bin", "etc", "tmp", "dev", "proc"):
        (made / folder).mkdir()
    shutil.copy(busybox, made / "bin/sh")
    return made


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return packed_bundle(tmp_path_factory.mktemp("bundle"))


class Tree(Machine):
    """A machine whose root is a tree that it cannot write to; its own directory and the store are mounted in it."""

    tree: Path
    before: tuple[str, ...] = ()

    def run(self, command: list[str]) -> subprocess.Popen[bytes]:
        mounts = [f"mount --bind '{self.tree}' '{self.tree}'"]
        for path in (self.root, self.job.root, Path("/dev"), Path("/proc")):
            place = self.tree / str(path).lstrip("/")
            place.mkdir(parents=True, exist_ok=True)
            mounts.append(f"mount --rbind '{path}' '{place}'")
        mounts.append(f"mount -o remount,bind,ro '{self.tree}'")
        enter = " && ".join([*mounts, f"""exec {shutil.which("chroot")} '{self.tree}' "$@" """])
        return super().run(
            [*self.before, "unshare", "--mount", "--propagation", "private", "sh", "-c", enter, "sh", *command]
        )


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


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("S3_IGNORE_SUBDOMAIN_BUCKETNAME", "true")  # a host's name is no bucket's
        with servers.started("moto", tmp_path_factory.mktemp("s3")) as server:
            yield server


class Names(socketserver.BaseRequestHandler):
    """Answers what a name server does that knows store.dns.test, in IPv4, and nothing else."""

    def handle(self) -> None:
        asked, line = self.request
        end = asked.index(b"\0", 12) + 5
        known, of_ipv4 = asked[12:end].startswith(b"\5store\3dns\4test\0"), asked[end - 3] == 1
        answer = struct.pack(">HHHLH", 0xC00C, 1, 1, 60, 4) + bytes((127, 0, 0, 1)) if known and of_ipv4 else b""
        head = asked[:2] + struct.pack(">HHHHH", 0x8180 if known else 0x8183, 1, len(answer) // 16, 0, 0)
        line.sendto(head + asked[12:end] + answer, self.client_address)


@pytest.fixture(scope="session")
def name_server() -> Iterator[str]:
    """Start a name server and return its address."""
    try:
        server = socketserver.UDPServer(("127.9.8.7", 53), Names)
    except OSError as error:
        pytest.skip(f"no name server can listen here: {error.strerror}")
    with server:
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        yield str(server.server_address[0])
        server.shutdown()


FOREIGN = "passwd: compat systemd\nhosts: mymachines mdns4_minimal [NOTFOUND=return] files myhostname dns\n"
"""Modules that are not in the image."""


def resolves(tree: Path, name_server: str, nsswitch: str = "") -> None:
    """Say how names are found in a tree; no nsswitch.conf where that is empty."""
    for name, text in {
        "hosts": "127.0.0.1 localhost\n127.0.0.1 store.hosts.test\n",
        "resolv.conf": f"nameserver {name_server}\n",
        "nsswitch.conf": nsswitch,
    }.items():
        (tree / "etc" / name).unlink(missing_ok=True)
        if text:
            (tree / "etc" / name).write_text(text)


@pytest.mark.parametrize(
    "where",
    [
        pytest.param(("127.0.0.1", "hosts: files dns\n"), marks=pytest.mark.thorough),
        pytest.param(("localhost", "hosts: files dns\n"), marks=pytest.mark.thorough),
        pytest.param(("store.hosts.test", FOREIGN), marks=pytest.mark.thorough),
        ("store.dns.test", FOREIGN),
        ("store.hosts.test", ""),
        pytest.param(("store.dns.test", ""), marks=pytest.mark.thorough),
    ],
)
def test_an_image_with_an_old_glibc_trains_with_a_store_of_any_name(
    old_glibc, machine, node_job, bundle, s3, name_server, where
):
    host, nsswitch = where
    machine.tree = old_glibc
    resolves(old_glibc, name_server, nsswitch)
    node_job.ref = JobRef(f"digits-{machine.site.server_port}", "1a2b3c4d")
    node_job.store = s3.store("jobs").at(node_job.ref.name)
    store = {"uri": s3.uri("jobs"), "endpoint": s3.endpoint.replace("127.0.0.1", host), "region": servers.REGION}
    store["credentials"] = s3.credentials.as_json()
    look = "sed -n 's/.*[/]\\(libc[-.].*\\)/C library: \\1/p' /proc/$$/maps\n"
    machine.say(["bash", "-c", look + TRAINER], steps=20, orders=machine.bring(bundle), store=store)
    trains_to_the_end(machine, node_job)
    assert set(re.findall(r"C library: (\S+)", machine.log())) == {"libc-2.31.so"}


def said_by(machine: Tree, bundle: Bundle, code: str) -> str:
    """Run a Python text with the bundle in the tree."""
    subprocess.run(["tar", "-xzf", bundle.path, "-C", machine.root], check=True)
    (machine.root / "text.py").write_text(code)
    runtime = machine.root / "runtime"
    into = f"cd {runtime}/node && exec {runtime}/python -E -s - <{machine.root}/text.py"
    assert machine.run(["/bin/sh", "-c", into]).wait(60) == 0, machine.console()
    return machine.console()


WITHOUT_GLIBC = """
import pathlib, ssl, threading, watchfiles
from provisioner.checkpoint.store import Credentials, open_store
for host in ("127.0.0.1", "localhost", "store.hosts.test", "store.dns.test"):
    endpoint = ENDPOINT.replace("127.0.0.1", host)
    print(open_store(URI, endpoint=endpoint, region=REGION, credentials=Credentials(*KEYS)).get("greeting"))
here = pathlib.Path(ROOT, "watched")
here.mkdir()
threading.Timer(0.2, (here / "new").touch).start()
print({pathlib.Path(path).name for _, path in next(watchfiles.watch(here, rust_timeout=20000))})
print(ssl.create_default_context().verify_mode.name, len("Grüße"))
"""


def test_an_image_without_any_glibc_is_enough_for_the_node(no_glibc, machine, bundle, s3, name_server):
    machine.tree = no_glibc
    resolves(no_glibc, name_server)
    s3.store("greetings").put("greeting", b"good day")
    keys = (s3.credentials.access_key_id, s3.credentials.secret_access_key)
    given = {"ENDPOINT": s3.endpoint, "URI": s3.uri("greetings"), "REGION": servers.REGION, "KEYS": keys}
    head = "".join(f"{name} = {value!r}\n" for name, value in {**given, "ROOT": str(machine.root)}.items())
    lines = said_by(machine, bundle, head + WITHOUT_GLIBC).splitlines()
    assert lines == ["b'good day'"] * 4 + ["{'new'}", "CERT_REQUIRED 5"]


NVML = """
#include <stdio.h>
#include <pthread.h>
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
static void *nothing(void *given) { return given; }
int nvmlSystemGetDriverVersion(char *version, unsigned length) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, nothing, NULL) || pthread_join(thread, NULL)) return 999;
  snprintf(version, length, "550.54.14");
  return 0;
}
"""


@pytest.mark.parametrize("folder", [f"usr/lib/{platform.machine()}-linux-gnu", "usr/lib64", "usr/local/nvidia/lib64"])
def test_the_driver_s_library_of_an_old_image_is_found_and_runs(old_glibc, machine, bundle, tmp_path, folder):
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    machine.tree = old_glibc
    library = old_glibc / folder / "libnvidia-ml.so.1"
    library.parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "nvml.c").write_text(NVML)
    libraries = ["-Wl,--no-as-needed", "-lpthread", "-ldl", "-lm", "-lrt"]
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "nvml.c", *libraries], check=True)
    try:
        code = "from provisioner.node import driver\nprint(driver._nvml())\n"
        assert said_by(machine, bundle, code) == "550.54.14\n"
    finally:
        library.unlink()


FORBIDDEN = """
import ctypes, os, struct, sys
rules = struct.pack("HBBI" * 4, 0x20, 0, 0, 0, 0x15, 0, 1, 435, 6, 0, 0, 0x50001, 6, 0, 0, 0x7FFF0000)
kept = ctypes.create_string_buffer(rules)
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.c_char_p(struct.pack("HP", 4, ctypes.addressof(kept)))) == 0
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""clone3 is answered with EPERM, as by engines that are older than the call."""


def test_an_engine_that_forbids_threads_is_named_before_anything_is_restored(old_glibc, machine, node_job, bundle):
    machine.tree = old_glibc
    machine.before = (sys.executable, "-c", FORBIDDEN)
    link = f"{machine.site.url}/heartbeat.json"
    machine.say(["bash", "-c", TRAINER], steps=20, orders={**machine.bring(bundle), "end-url": link})
    assert machine.boot().wait(60) == 75
    line = "the node's runtime does not start here: RuntimeError: can't start new thread"
    assert json.loads(machine.site.given["/heartbeat.json"])["end"]["reason"] == line
    assert machine.console().splitlines() == [f"failover: {line}"]
    assert machine.shutdowns() == ["-h now"]
    assert node_job.store.get(layout.owner(1)) is None
