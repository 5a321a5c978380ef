"""The start script as machines run it: rendered, served over HTTP, with real wheels and a real node."""

from __future__ import annotations

import base64
import hashlib
import http.server
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioner.checkpoint import layout
from provisioner.controller import runtime
from provisioner.terraform import render

DEPENDENCIES = ("anyio", "blake3", "idna", "obstore", "tenacity", "typing-extensions", "watchfiles", "zstandard")


def installed_wheel(name: str, directory: Path) -> Path:
    """Pack an installed distribution back into a wheel: no test asks a package index."""
    found = importlib.metadata.distribution(name)
    tags = [line.split(": ")[1] for line in (found.read_text("WHEEL") or "").splitlines() if line.startswith("Tag: ")]
    files = {
        str(file): Path(str(file.locate())).read_bytes()
        for file in found.files or ()
        if not str(file).startswith("..") and "__pycache__" not in str(file)
    }
    platforms = ".".join(tag.split("-")[2] for tag in tags)
    python, abi, _ = tags[0].split("-")
    return runtime._write_wheel(
        directory / f"{name.replace('-', '_')}-{found.version}-{python}-{abi}-{platforms}.whl", files
    )


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("wheels")
    made = [installed_wheel(name, directory) for name in DEPENDENCIES]
    return [*made, runtime._pip(directory), runtime.build_wheel(directory)]


class Site(http.server.ThreadingHTTPServer):
    """Serves links; ``dead`` makes the start link answer 403, as an expired one does."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.dead = False
        self.hang = False
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        self.server.asked.append(path)
        while self.server.hang and path == "/bootstrap.json":
            time.sleep(0.05)
        dead = self.server.dead and path == "/bootstrap.json"
        body = b"<Error><Code>ExpiredToken</Code></Error>" if dead else self.server.files[path]
        self.send_response(403 if dead else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class Machine:
    """A directory, a PATH with shims first, and whatever the script starts there."""

    def __init__(self, root: Path, node_job: Any, wheels: list[Path]) -> None:
        self.root = root
        self.job = node_job
        self.bin = root / "bin"
        self.bin.mkdir(parents=True)
        self.shim("shutdown", 'echo "$@" >>"$HOME/shutdowns"')
        self.site = Site({f"/{wheel.name}": wheel.read_bytes() for wheel in wheels})
        threading.Thread(target=self.site.serve_forever, daemon=True).start()
        self.wheels = wheels
        self.processes: list[subprocess.Popen[bytes]] = []
        self.link = f"{self.site.url}/bootstrap.json?X-Amz-Signature=canary-signature"

    def shim(self, name: str, text: str) -> None:
        (self.bin / name).write_text(f"#!/bin/bash\n{text}\n")
        (self.bin / name).chmod(0o755)

    def say(self, command: list[str] | str, **boot: Any) -> None:
        content = {
            "version": 1,
            "job": {"name": self.job.ref.name, "uid": self.job.ref.uid},
            "epoch": 1,
            "token": "token-of-1",
            "store": {"uri": self.job.uri},
            "command": command,
            "steps": 100,
            "ttl_s": 600,
            "heartbeat_s": 1,
            "cloud": "local",
            "image": None,
            "runtime": [
                {
                    "name": wheel.name,
                    "url": f"{self.site.url}/{wheel.name}",
                    "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
                }
                for wheel in self.wheels
            ],
        }
        self.site.files["/bootstrap.json"] = json.dumps(content | boot).encode()

    def boot(self, *, ttl_s: float = 600, as_argument: bool = False, **values: float) -> subprocess.Popen[bytes]:
        script = render.bootstrap(url=self.link, ttl_s=ttl_s, **{"link_patience_s": 3, **values})
        if as_argument:
            words = base64.b64encode(script.encode()).decode()
            return self.run(["bash", "-c", f'bash -c "$(echo {words} | base64 -d)"'])
        (self.root / "user-data").write_text(script)
        return self.run(["bash", str(self.root / "user-data")])

    def run(self, command: list[str]) -> subprocess.Popen[bytes]:
        with (self.root / "console.txt").open("ab") as console:
            process = subprocess.Popen(
                command,
                stdout=console,
                stderr=console,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                cwd=self.root,
                env={
                    "PATH": f"{self.bin}:{Path(sys.executable).parent}:/usr/bin:/bin",
                    "HOME": str(self.root),
                    "FAILOVER_HOME": str(self.root / "opt"),
                    "FAILOVER_SANDBOX_DIR": str(self.root),
                    "PYTHONPATH": "/nonexistent/of/the/training",
                },
            )
        self.processes.append(process)
        return process

    @property
    def directory(self) -> Path:
        """The script's own directory for this link."""
        return self.root / "opt" / hashlib.sha256(self.link.encode()).hexdigest()[:16]

    def console(self) -> str:
        return (self.root / "console.txt").read_text(errors="replace")

    def log(self) -> str:
        path = self.directory / "node" / "log.txt"
        return path.read_text() if path.exists() else ""

    def shutdowns(self) -> list[str]:
        path = self.root / "shutdowns"
        return path.read_text().splitlines() if path.exists() else []

    def until(self, ready: Callable[[], Any], timeout: float = 40) -> Any:
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if value := ready():
                return value
            time.sleep(0.01)
        raise AssertionError(self.console())

    def mine(self) -> list[int]:
        """Return every process of this machine, whatever session it made for itself."""
        needle = f"FAILOVER_SANDBOX_DIR={self.root}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if needle in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found

    def pull_the_plug(self) -> None:
        while pids := self.mine():
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            for process in self.processes:
                process.poll()
            time.sleep(0.01)

    def close(self) -> None:
        self.pull_the_plug()
        for process in self.processes:
            process.wait()
        self.site.hang = False
        self.site.shutdown()
        self.site.server_close()


@pytest.fixture
def machine(tmp_path: Path, node_job: Any, wheels: list[Path]) -> Iterator[Machine]:
    made = Machine(tmp_path / "machine", node_job, wheels)
    yield made
    made.close()


def test_the_script_is_clean_and_small():
    link = (
        "https://bucket.s3.us-east-1.amazonaws.com/p/digits/epochs/1/bootstrap.json?X-Amz-Security-Token=" + "x" * 1500
    )
    script = render.bootstrap(url=link, ttl_s=3600)
    assert len(script.encode()) < 16384, "EC2 takes 16 KiB of user data"
    checker = Path(sys.executable).parent / "shellcheck"
    subprocess.run([checker, "-s", "bash", "-"], input=script.encode(), check=True)
    subprocess.run(["bash", "-n"], input=script.encode(), check=True)
    # Only the link and numbers differ from one script to the next.
    other = render.bootstrap(url="https://x/", ttl_s=60)
    differing = [line for line in script.splitlines() if line not in other.splitlines()]
    assert [line.split("=")[0] for line in differing] == ["URL", "TTL"]


@pytest.mark.parametrize("as_argument", [False, True])
def test_a_bare_machine_trains_to_the_end_and_turns_itself_off(machine, node_job, as_argument):
    machine.say(node_job.trainer(steps=20, pause=0.1), steps=20)
    process = machine.boot(as_argument=as_argument)
    machine.until(lambda: "step 3" in machine.log())
    for pid in machine.mine():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        assert b"canary-signature" not in words, "the link stands in the process list"
        assert b"bootstrap.json?" not in words
    assert process.wait(60) == 0
    assert machine.shutdowns() == ["-h now"]
    assert node_job.done()["result"] == "completed"
    assert "canary-signature" not in machine.console()
    assert (machine.directory / "bootstrap.json").stat().st_mode & 0o777 == 0o600
    assert machine.until(lambda: not machine.mine()), "nothing is left running"


def test_the_training_keeps_its_own_python_settings(machine, node_job):
    machine.say("echo PYTHONPATH=$PYTHONPATH; echo step 100")
    assert machine.boot().wait(60) == 0
    assert "PYTHONPATH=/nonexistent/of/the/training" in machine.log()


def test_r16_a_start_that_was_killed_after_it_read_its_orders_starts_again_on_a_dead_link(machine, node_job):
    machine.say(node_job.trainer(steps=20), steps=20)
    machine.boot()
    machine.until((machine.directory / "bootstrap.json").exists)
    machine.pull_the_plug()
    machine.site.dead = True
    again = machine.run(["bash", str(machine.root / "user-data")])
    assert again.wait(60) == 0
    assert node_job.done()["result"] == "completed"


def test_r16_a_reboot_goes_on_after_the_last_commit(machine, node_job):
    machine.say(node_job.trainer(steps=60, pause=0.05), steps=60)
    machine.boot(ttl_s=500)
    machine.until(lambda: "step 10 is committed" in machine.log())
    first_end = (machine.directory / "deadline").read_text()
    machine.pull_the_plug()
    machine.site.dead = True
    again = machine.run(["bash", str(machine.directory / "start.sh")])
    assert again.wait(60) == 0
    assert node_job.done()["result"] == "completed"
    assert "restored step" in machine.log()
    assert (machine.directory / "deadline").read_text() == first_end, "a reboot must not begin the time anew"


def test_r16_a_dead_link_ends_the_machine(machine, node_job):
    machine.say(node_job.trainer())
    machine.site.dead = True
    assert machine.boot().wait(60) == 75
    assert machine.shutdowns() == ["-h now"]
    assert "the link is dead (HTTP 403)" in machine.console()
    assert machine.until(lambda: not machine.mine())


def test_the_end_of_life_needs_neither_link_nor_disk(machine, node_job):
    machine.say(node_job.trainer())
    machine.site.hang = True
    (machine.root / "opt").write_text("a file where the directory should be: nothing can be written")
    machine.boot(ttl_s=2)
    assert machine.until(machine.shutdowns) == ["-h now"]


def test_two_starts_at_once_run_one_node(machine, node_job):
    machine.say(node_job.trainer(steps=30, pause=0.05), steps=30)
    first = machine.boot()
    machine.until(lambda: "step 3" in machine.log())
    second = machine.run(["bash", str(machine.directory / "start.sh")])
    assert second.wait(30) == 0
    assert machine.shutdowns() == []
    assert first.wait(60) == 0
    assert machine.log().count("the command runs") == 1


def test_a_wheel_that_was_tampered_with_is_not_unpacked(machine, node_job):
    machine.say(node_job.trainer())
    name = next(name for name in machine.site.files if "tenacity" in name)
    machine.site.files[name] += b"x"
    assert machine.boot().wait(60) == 75
    assert "does not match its hash" in machine.console()
    assert node_job.done() is None
    assert node_job.store.get(layout.owner(1)) is None


def test_a_signal_to_the_script_reaches_the_training(machine, node_job):
    machine.say(node_job.trainer(pause=0.05))
    process = machine.boot()
    machine.until(lambda: "step 12\n" in machine.log())
    process.terminate()
    assert process.wait(60) == 75
    assert node_job.done() is None
    assert node_job.restored_state()["step"] >= 12


DOCKER = """
case "$1" in
  pull) {pull} ;;
  run)
    {run}
    ;;
esac
"""
RUN_IT = """
    for word in "$@"; do case "$word" in *:/run/failover) home="${word%%:*}" ;; esac; done
    export FAILOVER_IN_CONTAINER=1 FAILOVER_RUN="$home" FAILOVER_HOME="$home"
    exec bash "$home/start.sh"
"""


def test_an_image_is_run_by_docker(machine, node_job):
    machine.shim("docker", DOCKER.format(pull="echo pulled $3", run=RUN_IT))
    machine.say(node_job.trainer(steps=20), steps=20, image="repo/img:tag")
    assert machine.boot().wait(60) == 0
    assert node_job.done()["result"] == "completed"
    assert machine.shutdowns() == ["-h now"]


@pytest.mark.parametrize(
    ("pull", "run", "reason"),
    [
        ("sleep 60", "", "the image repo/img:tag was not pulled within 1 s"),
        ("echo no such manifest >&2; exit 1", "", "the image repo/img:tag cannot be pulled: no such manifest"),
        (
            "true",
            "echo 'unsatisfied condition: cuda>=13.0' >&2; exit 125",
            "the container of repo/img:tag cannot be started (code 125): unsatisfied condition: cuda>=13.0",
        ),
    ],
)
def test_r37_an_image_that_does_not_start_is_named_and_the_machine_ends(machine, node_job, pull, run, reason):
    machine.shim("docker", f'if [ "$1" = image ]; then exit 1; fi\n{DOCKER.format(pull=pull, run=run)}')
    machine.say(node_job.trainer(), image="repo/img:tag")
    assert machine.boot(pull_patience_s=1).wait(60) == 75
    heartbeat = json.loads(node_job.store.get(layout.heartbeat(1)))
    assert heartbeat["end"] == {"reason": reason, "exit_code": 75}
    assert machine.shutdowns() == ["-h now"]


def test_a_machine_whose_python_is_too_old_makes_one_with_conda(machine, node_job):
    """As on a stock AutoDL image: an old python3 for the first part, conda beside it."""
    for name in ("python3", "python3.11", "python3.12", "python3.13", "python3.14", "python"):
        machine.shim(
            name,
            f'case "$*" in *"< (3, 11)"*) exit 1 ;; esac\n'
            f'if [ "$0" = "{machine.bin}/python3" ]; then exec {sys.executable} "$@"; fi\nexit 1',
        )
    machine.shim(
        "conda",
        'echo "conda $*" >>"$HOME/conda-calls"\nwhile [ "$1" != -p ]; do shift; done\n'
        f'mkdir -p "$2/bin" && printf \'#!/bin/bash\\nexec {sys.executable} "$@"\\n\' >"$2/bin/python3"\n'
        'chmod 755 "$2/bin/python3"',
    )
    machine.say(["bash", "-c", "echo step 100"])
    assert machine.boot().wait(60) == 0
    assert "python=3.12" in (machine.root / "conda-calls").read_text()
    assert node_job.done()["result"] == "completed"
