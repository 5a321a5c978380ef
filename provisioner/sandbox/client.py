"""The cloud in a box as another process uses it: start it, learn where it is, look into it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from provisioner.errors import ConfigError, FailoverError, Unreachable
from provisioner.sandbox.machines import MARKER
from provisioner.sandbox.scenario import Scenario, load

BUCKET = "failover-drill"
END_S = 20.0
CONTROL_TIMEOUT_S = 30.0
_OPERATORS_OWN = (
    "AWS_",
    "AUTODL_",
    "GOOGLE_",
    "CLOUDSDK_",
    "GCE_",
    "TF_VAR_",
    "FAILOVER_STATE_DIR",
    "FAILOVER_NOTIFY",
    "BOTO_",
)


@dataclass(frozen=True, slots=True)
class Box:
    """A running cloud in a box. Addresses are URLs; ``env`` is what a controller needs in its environment."""

    autodl: str
    aws: str
    gcp: str
    control: str
    env: Mapping[str, str] = field(repr=False)
    scenario: Scenario
    directory: Path

    @property
    def access_key_id(self) -> str:
        """Key id that the box accepts."""
        return self.env["AWS_ACCESS_KEY_ID"]

    @property
    def secret_access_key(self) -> str:
        """Secret key that the box accepts."""
        return self.env["AWS_SECRET_ACCESS_KEY"]

    def environ(self, base: Mapping[str, str], *, state: Path, provider: str = "auto") -> dict[str, str]:
        """Return an environment for a controller: the operator's accounts are out of its reach.

        What has it, Terraform included, ends with the box.
        """
        kept = {name: value for name, value in base.items() if not name.startswith(_OPERATORS_OWN)}
        ours = {"FAILOVER_STATE_DIR": str(state), "FAILOVER_TF_PROVIDER": provider, MARKER: str(self.directory)}
        return {**kept, **self.env, **ours}

    def name_controller(self, pid: int) -> None:
        """Say which process a scenario's ``kill_controller`` kills. Raises Unreachable."""
        try:
            answer = httpx.post(
                f"{self.control}/controller", json={"pid": pid}, timeout=CONTROL_TIMEOUT_S, trust_env=False
            )
            answer.raise_for_status()
        except httpx.HTTPError as error:
            message = f"the cloud in a box does not answer: {type(error).__name__}"
            raise Unreachable(message) from None

    def state(self) -> dict[str, Any]:
        """Return what the clouds hold, which machines run, and what is left. Raises Unreachable."""
        try:
            answer = httpx.get(f"{self.control}/state", timeout=CONTROL_TIMEOUT_S, trust_env=False)
            answer.raise_for_status()
            state: dict[str, Any] = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            message = f"the cloud in a box does not answer: {type(error).__name__}"
            raise Unreachable(message) from None
        return state

    def make_bucket(self) -> None:
        """Make the bucket that stands for the operator's own."""
        import boto3

        boto3.client(
            "s3",
            endpoint_url=self.aws,
            region_name=self.env["AWS_REGION"],
            aws_access_key_id=self.access_key_id,
            aws_secret_access_key=self.secret_access_key,
        ).create_bucket(Bucket=BUCKET)


@contextlib.contextmanager
def open_box(directory: Path, scenario: Path, *, image: str | None = None) -> Iterator[Box]:
    """Start the cloud in a box as a process that ends with this one. Raises ConfigError, FailoverError.

    With ``image`` its machines have a container engine: the one that answers here, which must have that image.
    """
    loaded = load(scenario)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (directory / "sandbox.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "provisioner.sandbox", "--exit-with-parent", str(os.getpid())),
                *("--directory", str(directory), "--scenario", str(scenario)),
                *(("--image", image) if image else ()),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    try:
        assert process.stdout is not None  # noqa: S101 - asked for above
        line = process.stdout.readline()
        if not line:
            raise _did_not_start(process.wait(END_S), directory / "sandbox.log")
        ready = json.loads(line)
        addresses = (ready["autodl"], ready["aws"], ready["gcp"], ready["control"])
        box = Box(*addresses, ready["env"], loaded, directory.absolute())
        box.make_bucket()
        yield box
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _did_not_start(code: int, log: Path) -> FailoverError:
    words = log.read_text("utf-8", "replace").strip().splitlines()
    last = words[-1] if words else f"exit code {code}"
    kind = ConfigError if code == int(ConfigError.exit_code) else FailoverError
    return kind(f"the cloud in a box did not start: {last}")
