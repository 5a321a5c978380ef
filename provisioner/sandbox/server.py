"""The cloud in a box as one object: AutoDL, AWS, machines, a control API and a scenario, in one process.

Whatever it starts dies with it: machines hold a pipe to this process and end when it ends.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from pathlib import Path
from typing import Any

from provisioner.sandbox.autodl.box import Box, open_box
from provisioner.sandbox.control import Control
from provisioner.sandbox.ec2 import AwsEmulator
from provisioner.sandbox.machines import Machines
from provisioner.sandbox.scenario import Scenario, Stage

FILE = "sandbox.json"
REGION = "us-east-1"


class Sandbox:
    """Start, steer and stop the cloud in a box. ``start`` and ``stop`` belong to the owner; the rest is thread-safe."""

    def __init__(self, directory: Path, scenario: Scenario | None = None) -> None:
        """Keep machines, consoles and ``sandbox.json`` below ``directory``."""
        self.directory = directory.absolute()
        self.scenario = scenario or Scenario(name="empty")
        self.machines = Machines(self.directory / "machines")
        self._access_key = "AKIA" + secrets.token_hex(8).upper()
        timing = self.scenario.aws
        self.aws = AwsEmulator(self.machines, boot_s=timing.boot, end_s=timing.end, launch_key=self._access_key)
        self.autodl: Box | None = None
        self._control = Control(self)
        self._stage: Stage | None = None
        self._started_at = time.time()

    def start(self) -> dict[str, Any]:
        """Open the ports and return (and write, 0600) where they are. moto goes on loading behind its port."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        aws = self.aws.start()
        self.autodl = open_box(self.machines, self.directory)
        control = self._control.start()
        env = {
            "AWS_ACCESS_KEY_ID": self._access_key,
            "AWS_SECRET_ACCESS_KEY": secrets.token_hex(20),
            "AWS_ENDPOINT_URL": aws,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        env["AUTODL_TOKEN"] = self.autodl.token
        ready = {"autodl": self.autodl.url, "aws": aws, "control": control, "pid": os.getpid(), "env": env}
        self._started_at = time.time()
        self._stage = Stage(self, self.scenario)
        self._stage.start()
        _write_private(self.directory / FILE, json.dumps(ready) + "\n")
        self.aws.preload()
        return ready

    def stop(self) -> None:
        """Kill every machine and close every port."""
        if self._stage is not None:
            self._stage.stop()
        threads = [
            threading.Thread(target=stop) for stop in (self.machines.stop_all, self._control.stop, self.aws.stop)
        ]
        if self.autodl is not None:
            threads.append(threading.Thread(target=self.autodl.stop))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=10)
        self.machines.stop_all()  # one may have been booting meanwhile
        (self.directory / FILE).unlink(missing_ok=True)

    # --- controls, for the control API and for scenarios --------------------------------------------------------------

    def newest(self, cloud: str) -> str:
        """Return the machine of a cloud that was started last and runs. Raises LookupError."""
        mine = [machine_id for machine_id in self.machines.live() if _cloud_of(machine_id) == cloud]
        if not mine:
            message = f"no machine runs at {cloud}"
            raise LookupError(message)
        return mine[-1]

    def take(self, cloud: str, machine_id: str | None = None) -> str:
        """Take a machine away, the newest by default; return its id. Raises LookupError."""
        machine_id = machine_id or self.newest(cloud)
        if _cloud_of(machine_id) == "aws":
            self.aws.take(machine_id)
        elif self.autodl is not None:
            self.autodl.take(machine_id)
        return machine_id

    def notice(self, seconds: float, machine_id: str | None = None) -> str:
        """Give an AWS machine the spot notice and take it away ``seconds`` later; return its id. Raises LookupError."""
        machine_id = machine_id or self.newest("aws")
        self.aws.interrupt(machine_id, seconds)
        return machine_id

    def set_stock(self, stock: list[dict[str, Any]]) -> None:
        """Set AutoDL's idle cards."""
        if self.autodl is not None:
            self.autodl.set_stock(stock)

    def state(self) -> dict[str, Any]:
        """Return what both clouds hold, which machines run, and what is left of ours."""
        aws = self.aws.state()
        autodl = self.autodl.state() if self.autodl is not None else {}
        live = [{"id": machine_id, "cloud": _cloud_of(machine_id)} for machine_id in self.machines.live()]
        return {
            "scenario": self.scenario.name,
            "started_at": self._started_at,
            "machines": live,
            "aws": aws,
            "autodl": autodl,
            "faults": self.aws.faults.rules(),
            "launches": self.aws.faults.log(),
            "events": self._stage.log() if self._stage is not None else [],
            "left": _left(aws, autodl, live),
        }

    def reset(self) -> None:
        """Go back to the scenario's beginning: no machine, no object, no fault but the scenario's."""
        if self._stage is not None:
            self._stage.stop()
        self.aws.reset()
        if self.autodl is not None:
            self.autodl.reset()
        self.machines.stop_all()
        self._started_at = time.time()
        self._stage = Stage(self, self.scenario)
        self._stage.start()


def _cloud_of(machine_id: str) -> str:
    return "aws" if machine_id.startswith("i-") else "autodl"


def _left(aws: dict[str, Any], autodl: dict[str, Any], live: list[dict[str, str]]) -> list[str]:
    """List what a job should have taken away with it."""
    left = [f"{machine['cloud']}/machine/{machine['id']}" for machine in live]
    running = {machine["id"] for machine in live}
    left += [f"autodl/instance/{i['id']}" for i in autodl.get("instances", ()) if i["id"] not in running]
    left += [f"autodl/deployment/{deployment['id']}" for deployment in autodl.get("deployments", ())]
    ended = ("shutting-down", "terminated")
    left += [f"aws/instance/{i['id']}" for i in aws["instances"] if i["state"] not in ended and not i["alive"]]
    left += [f"aws/volume/{volume['id']}" for volume in aws["volumes"]]
    left += [f"aws/spot-request/{r['id']}" for r in aws["spot_requests"] if r["state"] in ("open", "active")]
    kinds = {"templates": "launch-template", "roles": "role", "instance_profiles": "instance-profile"}
    left += [f"aws/{word}/{name}" for kind, word in kinds.items() for name in aws[kind]]
    return left + [f"aws/security-group/{name}" for name in aws["security_groups"]]


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, at once and whole."""
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    fresh.replace(path)
