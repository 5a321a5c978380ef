"""Machines that run the start script: a directory, shims first on its PATH, and the links that it was given."""

from __future__ import annotations

import base64
import hashlib
import http.server
import importlib.metadata
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from provisioner.controller import runtime
from provisioner.controller.launch import start_object
from provisioner.controller.runtime_bundle import Bundle
from provisioner.terraform import render

DEPENDENCIES = (
    *("anyio", "blake3", "idna", "nvidia-ml-py", "obstore", "tenacity", "typing-extensions", "watchfiles"),
    "zstandard",
)


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


class Site(http.server.ThreadingHTTPServer):
    """Serves links; ``dead`` makes the start link answer 403, as an expired one does; ``strict`` takes no condition."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.dead = False
        self.hang = False
        self.strict = False
        self.asked: list[str] = []
        self.given: dict[str, bytes] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Site

    def do_PUT(self) -> None:
        length = int(self.headers["Content-Length"])
        body = self.rfile.read(length)
        path, only_if_absent = self.path.split("?")[0], "If-None-Match" in self.headers
        status = 501 if self.server.strict and only_if_absent else 200
        if status == 200 and only_if_absent and path in self.server.given:
            status = 412
        if status == 200:
            self.server.given[path] = body
        self.send_response(status)
        self.end_headers()

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
        self.site = Site({})
        threading.Thread(target=self.site.serve_forever, daemon=True).start()
        self.take(wheels)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.link = f"{self.site.url}/bootstrap.json?X-Amz-Signature=canary-signature"

    def take(self, wheels: list[Path]) -> None:
        """Put wheels behind links."""
        self.wheels = wheels
        self.site.files.update({f"/{wheel.name}": wheel.read_bytes() for wheel in wheels})

    def shim(self, name: str, text: str) -> None:
        (self.bin / name).write_text(f"#!/bin/bash\n{text}\n")
        (self.bin / name).chmod(0o755)

    def say(
        self, command: list[str] | str, *, image: str = "", orders: dict[str, str] | None = None, **boot: Any
    ) -> None:
        """Write the start object. ``orders`` are lines for the script, beside those of every job."""
        lines = {"runtime": "auto", **({"image": image, "pull": image} if image else {}), **(orders or {})}
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
            "runtime": [
                {
                    "name": wheel.name,
                    "url": f"{self.site.url}/{wheel.name}",
                    "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
                }
                for wheel in self.wheels
            ],
        }
        self.site.files["/bootstrap.json"] = start_object([*lines.items()], content | boot)

    def write(self, *, ttl_s: float = 600, **values: float) -> str:
        """Write the user data, and return them."""
        script = render.bootstrap(url=self.link, ttl_s=ttl_s, **{"link_patience_s": 3, **values})
        (self.root / "user-data").write_text(script)
        return script

    def boot(self, *, ttl_s: float = 600, as_argument: bool = False, **values: float) -> subprocess.Popen[bytes]:
        script = self.write(ttl_s=ttl_s, **values)
        if as_argument:
            words = base64.b64encode(script.encode()).decode()
            return self.run(["bash", "-c", f'bash -c "$(echo {words} | base64 -d)"'])
        return self.run(["bash", str(self.root / "user-data")])

    def bring(self, bundle: Bundle) -> dict[str, str]:
        """Put a bundle behind a link; return the lines that tell of it."""
        self.site.files["/runtime.tar.gz"] = bundle.path.read_bytes()
        link = f"{self.site.url}/runtime.tar.gz?X-Amz-Signature=canary-signature"
        return {"bundle-url": link, "bundle-sha256": bundle.sha256}

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
