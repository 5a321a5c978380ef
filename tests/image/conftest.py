"""Containers of the image under test, and an S3 server on this machine for them. `make image-test` starts all this."""

from __future__ import annotations

import json
import os
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from provisioner.checkpoint import layout
from provisioner.checkpoint.restore import restore
from provisioner.checkpoint.store import Store
from provisioner.model import JobRef
from tests import servers

USER = 10001


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = os.environ.get("IMAGE_TEST_SKIP") or ("" if os.environ.get("IMAGE_TEST_IMAGE") else "run: make image-test")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.image)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


def docker(*words: str, check: bool = True, timeout: float = 120) -> str:
    """Run the engine's client and return what it prints."""
    ended = subprocess.run(
        [os.environ["DOCKER"], *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert not check or ended.returncode == 0, f"docker {words[0]}: {ended.stderr}"
    return ended.stdout


class Container:
    """A container, by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def inspect(self, template: str) -> str:
        return docker("inspect", "--format", template, self.name).strip()

    def wait(self, timeout: float = 90) -> int:
        """Return the exit code."""
        return int(docker("wait", self.name, timeout=timeout))

    def stop(self, seconds: int = 30) -> int:
        docker("stop", "--time", str(seconds), self.name)
        return int(self.inspect("{{.State.ExitCode}}"))

    def output(self) -> str:
        ended = subprocess.run(
            [os.environ["DOCKER"], "logs", self.name],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
        )
        return ended.stdout

    def python(self, code: str) -> str:
        """Run some Python in the container."""
        return docker("exec", self.name, "python", "-c", code)

    def until(self, ready: Callable[[], Any], timeout: float = 60) -> Any:
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if value := ready():
                return value
            if self.inspect("{{.State.Running}}") != "true":
                break
            time.sleep(0.2)
        raise AssertionError(
            f"it did not come to that; the container's state is {self.inspect('{{json .State}}')}:\n{self.output()}"
        )


class Job:
    """A job in the S3 server, and containers for its placements."""

    def __init__(self, server: servers.Server, root: Path, run: Callable[..., Container]) -> None:
        self.ref = JobRef(f"digits-{uuid.uuid4().hex[:8]}", "1a2b3c4d")
        self.server = server
        self.root = root
        self.store: Store = server.store("jobs").at(self.ref.name)
        self.uri = server.uri("jobs")
        self._run = run

    def access(self) -> dict[str, Any]:
        """Return what a node is told of the store."""
        assert self.server.credentials is not None
        return {
            "uri": self.uri,
            "endpoint": self.server.endpoint,
            "region": servers.REGION,
            "credentials": self.server.credentials.as_json(),
        }

    def start(
        self,
        epoch: int,
        command: list[str] | str,
        *,
        options: tuple[str, ...] = (),
        disk: str = "",
        **boot: Any,
    ) -> Container:
        """Start a placement. ``disk``: options of a tmpfs on which the node works; else it is a directory of ours."""
        directory = self.root / f"machine-{epoch}-{uuid.uuid4().hex[:4]}"
        directory.mkdir()
        content: dict[str, Any] = {
            "version": 1,
            "job": {"name": self.ref.name, "uid": self.ref.uid},
            "epoch": epoch,
            "token": f"token-of-{epoch}-{self.ref.name}",
            "store": self.access(),
            "command": command,
            "ttl_s": 600,
            "heartbeat_s": 1,
            "cloud": "local",
        }
        path = directory / "bootstrap.json"
        path.write_text(json.dumps(content | boot))
        for owned in (directory, path):
            if os.geteuid() == 0:
                os.chown(owned, USER, USER)
            else:
                owned.chmod(0o777)
        if disk:
            mounts = ["--tmpfs", f"/run/failover:{disk},uid={USER},mode=700"]
            mounts += ["--volume", f"{path}:/run/failover/bootstrap.json:ro"]
        else:
            mounts = ["--volume", f"{directory}:/run/failover"]
        return self._run(*mounts, *options)

    def heartbeat(self, epoch: int) -> dict[str, Any]:
        data = self.store.get(layout.heartbeat(epoch))
        return json.loads(data) if data else {}

    def step(self, epoch: int) -> int:
        return self.heartbeat(epoch).get("step") or 0

    def done(self) -> dict[str, Any] | None:
        data = self.store.get(layout.DONE)
        return json.loads(data) if data else None

    def log(self, epoch: int) -> str:
        parts = [self.store.get(part.key) for part in self.store.objects(layout.logs(epoch))]
        return b"".join(zstandard.decompress(part) for part in parts if part).decode()

    def checkpoint(self) -> tuple[int, dict[str, bytes]]:
        """Restore the newest checkpoint; return its step and the bytes of its files."""
        found = restore(self.store, self.ref, self.root / uuid.uuid4().hex)
        assert found is not None
        entry = found.directory / found.entry
        return found.position.step, {path.name: path.read_bytes() for path in entry.iterdir()}


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    with servers.started("moto", tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def run() -> Iterator[Callable[..., Container]]:
    """Start containers; they are removed after the test."""
    names = []

    def start(
        *options: str, image: str = os.environ.get("IMAGE_TEST_TRAINING", ""), command: tuple[str, ...] = ()
    ) -> Container:
        name = f"failover-{uuid.uuid4().hex[:12]}"
        names.append(name)
        label = os.environ["IMAGE_TEST_LABEL"]
        docker("run", "--detach", "--name", name, "--label", label, "--network", "host", *options, image, *command)
        return Container(name)

    yield start
    if names:
        docker("rm", "--force", *names, check=False)


@pytest.fixture
def job(s3: servers.Server, tmp_path: Path, run: Callable[..., Container]) -> Job:
    return Job(s3, tmp_path, run)
