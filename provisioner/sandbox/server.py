"""The cloud in a box as one object: AutoDL, AWS, machines, a control API and a scenario, in one process.

Whatever it starts dies with it: machines hold a pipe to this process and end when it ends.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provisioner.sandbox.autodl.box import Box, open_box
from provisioner.sandbox.control import Control
from provisioner.sandbox.ec2 import AwsEmulator
from provisioner.sandbox.faults import Faults
from provisioner.sandbox.gce.emulator import GceEmulator
from provisioner.sandbox.gce.faults import GceFaults
from provisioner.sandbox.gce.metadata import GceMetadata
from provisioner.sandbox.machines import Machines, kill_marked
from provisioner.sandbox.metadata import Metadata
from provisioner.sandbox.scenario import NOTICE_S, Scenario
from provisioner.sandbox.stage import Stage

if TYPE_CHECKING:
    from provisioner.sandbox.containers import Containers

FILE = "sandbox.json"
REGION = "us-east-1"
PROJECT = "sandbox-project"


class Sandbox:
    """Start, steer and stop the cloud in a box. ``start`` and ``stop`` belong to the owner; the rest is thread-safe."""

    def __init__(
        self, directory: Path, scenario: Scenario | None = None, *, containers: Containers | None = None
    ) -> None:
        """Keep machines, consoles and ``sandbox.json`` below ``directory``. ``containers``: what machines may start."""
        self.directory = directory.absolute()
        self.scenario = scenario or Scenario(name="empty")
        self.machines = Machines(self.directory / "machines", containers=containers)
        self._access_key = "AKIA" + secrets.token_hex(8).upper()
        aws, gcp = self.scenario.aws, self.scenario.gcp
        self.aws = AwsEmulator(self.machines, boot_s=aws.boot, end_s=aws.end, launch_key=self._access_key)
        self.gcp = GceEmulator(self.machines, project=PROJECT, boot_s=gcp.boot, end_s=gcp.end)
        self.autodl: Box | None = None
        self._control = Control(self)
        self._stage: Stage | None = None
        self._controller: int | None = None
        self._started_at = time.time()

    def start(self) -> dict[str, Any]:
        """Open the ports and return (and write, 0600) where they are. moto goes on loading behind its port."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        aws, gcp = self.aws.start(), self.gcp.start()
        self.autodl = open_box(self.machines, self.directory)
        control = self._control.start()
        env = {
            "AWS_ACCESS_KEY_ID": self._access_key,
            "AWS_SECRET_ACCESS_KEY": secrets.token_hex(20),
            "AWS_ENDPOINT_URL": aws,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            **self.gcp.env(),
        }
        env["AUTODL_TOKEN"] = self.autodl.token
        ready = {"autodl": self.autodl.url, "aws": aws, "gcp": gcp, "control": control, "pid": os.getpid(), "env": env}
        self._started_at = time.time()
        self._stage = Stage(self, self.scenario)
        self._stage.start()
        _write_private(self.directory / FILE, json.dumps(ready) + "\n")
        self.aws.preload()
        return ready

    def stop(self) -> None:
        """Kill every machine, and what carries our own mark, and close every port."""
        if self._stage is not None:
            self._stage.stop()
        kill_marked(self.directory)
        stops = (self.machines.stop_all, self._control.stop, self.aws.stop, self.gcp.stop)
        threads = [threading.Thread(target=stop) for stop in stops]
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
        elif _cloud_of(machine_id) == "gcp":
            self.gcp.take(machine_id)
        elif self.autodl is not None:
            self.autodl.take(machine_id)
        return machine_id

    def notice(self, seconds: float | None, machine_id: str | None = None, cloud: str = "aws") -> str:
        """Give a spot machine its notice and take it away ``seconds`` later; return its id. Raises LookupError.

        Without ``seconds`` it is what the cloud gives: 120 at AWS, 30 at Google Cloud.
        """
        machine_id = machine_id or self.newest(cloud)
        cloud = _cloud_of(machine_id)
        if cloud not in NOTICE_S:
            raise LookupError(f"{cloud} gives no notice")
        emulator = self.gcp if cloud == "gcp" else self.aws
        emulator.interrupt(machine_id, NOTICE_S[cloud] if seconds is None else seconds)
        return machine_id

    def metadata(self, machine_id: str) -> Metadata | GceMetadata | None:
        """Return the metadata endpoint of a running machine of AWS or Google Cloud."""
        if _cloud_of(machine_id) == "gcp":
            return self.gcp.metadata(machine_id)
        return self.aws.metadata(machine_id)

    def faults(self, cloud: str) -> Faults | GceFaults:
        """Return the rules of a cloud. Raises LookupError."""
        found: dict[str, Faults | GceFaults] = {"aws": self.aws.faults, "gcp": self.gcp.faults}
        return found[cloud]

    def launches(self) -> list[dict[str, Any]]:
        """Return every launch asked of AWS and Google Cloud, oldest first."""
        found = [{"cloud": "aws", **launch} for launch in self.aws.faults.log()] + self.gcp.faults.log()
        return sorted(found, key=lambda launch: float(launch["time"]))

    def set_stock(self, stock: list[dict[str, Any]]) -> None:
        """Set AutoDL's idle cards."""
        if self.autodl is not None:
            self.autodl.set_stock(stock)

    def name_controller(self, pid: int) -> None:
        """Take note of the process that is the controller. Raises LookupError where there is none."""
        try:
            process = os.pidfd_open(pid)  # unlike its number it never stands for another process
        except OSError as error:
            raise LookupError(f"process {pid}") from error
        old, self._controller = self._controller, process
        if old is not None:
            os.close(old)

    def kill_controller(self) -> None:
        """Kill the controller with -9. Raises LookupError where none was named, or it has ended."""
        if self._controller is None:
            raise LookupError("no controller was named")
        try:
            signal.pidfd_send_signal(self._controller, signal.SIGKILL)
        except ProcessLookupError as error:
            raise LookupError("the controller has ended") from error

    def state(self) -> dict[str, Any]:
        """Return what the clouds hold, which machines run, and what is left of ours."""
        aws, gcp = self.aws.state(), self.gcp.state()
        autodl = self.autodl.state() if self.autodl is not None else {}
        live = [{"id": machine_id, "cloud": _cloud_of(machine_id)} for machine_id in self.machines.live()]
        return {
            "scenario": self.scenario.name,
            "started_at": self._started_at,
            "machines": live,
            "aws": aws,
            "gcp": gcp,
            "autodl": autodl,
            "faults": self.aws.faults.rules(),
            "gcp_faults": self.gcp.faults.rules(),
            "launches": self.launches(),
            "events": self._stage.log() if self._stage is not None else [],
            "left": _left(aws, autodl, gcp, live),
        }

    def reset(self) -> None:
        """Go back to the scenario's beginning: no machine, no object, no fault but the scenario's."""
        if self._stage is not None:
            self._stage.stop()
        self.aws.reset()
        self.gcp.reset()
        if self.autodl is not None:
            self.autodl.reset()
        self.machines.stop_all()
        self._started_at = time.time()
        self._stage = Stage(self, self.scenario)
        self._stage.start()


def _cloud_of(machine_id: str) -> str:
    prefixes = {"i-": "aws", "gce-": "gcp"}
    return next((cloud for prefix, cloud in prefixes.items() if machine_id.startswith(prefix)), "autodl")


def _left(aws: dict[str, Any], autodl: dict[str, Any], gcp: dict[str, Any], live: list[dict[str, str]]) -> list[str]:
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
    left += [f"aws/security-group/{name}" for name in aws["security_groups"]]
    return left + _left_at_google(gcp, running)


def _left_at_google(gcp: dict[str, Any], running: set[str]) -> list[str]:
    """List what is left at Google Cloud. A machine that is off keeps its name and its disk, so it counts."""
    off = [one for one in gcp["instances"] if one["id"] not in running and one["state"] != "STOPPING"]
    left = [f"gcp/instance/{one['zone']}/{one['name']}" for one in off]
    kinds = {"disks": "disk", "networks": "network", "subnetworks": "subnetwork", "firewalls": "firewall"}
    kinds["service_accounts"] = "service-account"
    left += [f"gcp/{word}/{name}" for kind, word in kinds.items() for name in gcp[kind]]
    return left + [f"gcp/binding/{one['on']} {one['role']} {one['member']}" for one in gcp["bindings"]]


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, at once and whole."""
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    fresh.replace(path)
