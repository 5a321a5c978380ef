"""Google Cloud in a box inside the test process, and the room on top of it, with Google's own client between them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from provisioner.clouds.gcp.cloud import GcpCloud
from provisioner.clouds.gcp.machine import account_prefix, substrate_prefix
from provisioner.clouds.gcp.substrate import Prepared
from provisioner.config import GcpConfig
from provisioner.model import Gpu, Launch, Market, Offer
from provisioner.sandbox.gce.emulator import GceEmulator
from provisioner.sandbox.machines import Machines
from provisioner.terraform.render import GcpStackSpec
from tests import rooms

PROJECT = "sandbox-project"


@pytest.fixture
def eventually() -> Callable[..., bool]:
    """Wait for something that other processes do: ``assert eventually(lambda: ...)``."""
    return rooms.eventually


@dataclass
class GcpBox:
    """The emulator of this process: one project, empty at the beginning of each test."""

    emulator: GceEmulator
    machines: Machines
    directory: Path

    @property
    def environ(self) -> dict[str, str]:
        return self.emulator.env()

    def call(self, method: str, path: str, body: object = None) -> Any:
        headers = {"Authorization": f"Bearer {self.emulator.token}"}
        answer = httpx.request(method, f"{self.emulator.url}/{path}", json=body, headers=headers, trust_env=False)
        answer.raise_for_status()
        return answer.json()

    def compute(self, method: str, path: str, body: object = None) -> Any:
        return self.call(method, f"compute/v1/projects/{PROJECT}/{path}", body)

    def instances(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.emulator.state()["instances"]
        return found

    def living(self) -> list[str]:
        return [f"{i['zone']}/{i['name']}" for i in self.instances() if i["state"] not in ("STOPPING", "TERMINATED")]

    def inserts(self) -> list[tuple[str, str]]:
        """Where machines were asked for, and what became of it; a repeat that Google knew again is left out."""
        log = self.emulator.faults.log()
        return [(entry["az"], entry["outcome"]) for entry in log if not entry["outcome"].startswith("again ")]


class Stack(rooms.KeptStack):
    """What Terraform's stack makes, made by REST at once instead of in seconds. Its state is a file."""

    def __init__(self, box: GcpBox, spec: GcpStackSpec, directory: Path) -> None:
        super().__init__(directory)
        self.box, self.spec = box, spec
        end = hashlib.sha256(spec.region.encode()).hexdigest()[:6]
        self.name = f"{substrate_prefix(spec.job)}-{end}"
        self.email = f"{account_prefix(spec.job)}{end}@{PROJECT}.iam.gserviceaccount.com"

    def prepare(self) -> Prepared:
        self.runs.append("prepare")
        if not self.state().get("made"):
            account = {"accountId": self.email.partition("@")[0]}
            self.box.call("POST", f"v1/projects/{PROJECT}/serviceAccounts", account)
            if self.spec.bucket:
                member = {"role": "roles/storage.objectUser", "members": [f"serviceAccount:{self.email}"]}
                policy = {"version": 3, "bindings": [{**member, "condition": {"title": "x", "expression": "true"}}]}
                self.box.call("PUT", f"storage/v1/b/{self.spec.bucket}/iam", policy)
            network = "global/networks/default"
            if self.spec.network == "own":
                network = f"global/networks/{self.name}"
                self.box.compute("POST", "global/networks", {"name": self.name, "autoCreateSubnetworks": False})
                subnet = {"name": self.name, "network": f"projects/{PROJECT}/{network}", "ipCidrRange": "10.73.0.0/20"}
                self.box.compute("POST", f"regions/{self.spec.region}/subnetworks", subnet)
            rule = {"name": f"{self.name}-deny", "network": f"projects/{PROJECT}/{network}", "direction": "INGRESS"}
            self.box.compute("POST", "global/firewalls", {**rule, "denied": [{"IPProtocol": "all"}]})
            self.keep({"made": True, "node": ""})
        name = self.name if self.spec.network == "own" else "default"
        links = (f"global/networks/{name}", f"regions/{self.spec.region}/subnetworks/{name}")
        network, subnetwork = (f"projects/{PROJECT}/{link}" for link in links)
        return Prepared(network, subnetwork, self.email, self.name, self.spec.image)

    def _destroy(self, state: dict[str, Any]) -> None:
        if state.get("made"):
            self.box.compute("DELETE", f"global/firewalls/{self.name}-deny")
            if self.spec.network == "own":
                self.box.compute("DELETE", f"regions/{self.spec.region}/subnetworks/{self.name}")
                self.box.compute("DELETE", f"global/networks/{self.name}")
            if self.spec.bucket:
                self.box.call("PUT", f"storage/v1/b/{self.spec.bucket}/iam", {"version": 3, "bindings": []})
            self.box.call("DELETE", f"v1/projects/{PROJECT}/serviceAccounts/{self.email}")


@dataclass
class Room:
    """The room for one job, its stacks and what to claim."""

    cloud: GcpCloud
    stacks: dict[str, Stack]
    box: GcpBox
    events: rooms.Events

    def offer(
        self, zone: str = "us-central1-b", market: Market = Market.SPOT, kind: str = "n1-standard-4+1xT4"
    ) -> Offer:
        name = "T4" if "T4" in kind else "L4"
        return Offer("gcp", zone[:-2], zone, kind, Gpu(name, 1, 16), market, None)

    def launch(self, offer: Offer, epoch: int = 1, attempt: int = 0, user_data: str = rooms.IDLE) -> Launch:
        return rooms.launch(offer, epoch, attempt, user_data)


@pytest.fixture(scope="session")
def _emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcpBox]:
    directory = tmp_path_factory.mktemp("machines")
    machines = Machines(directory, grace_s=1.0)
    emulator = GceEmulator(machines, boot_s=0.05, end_s=0.05, refuse_s=0.1, held_s=0.08)
    emulator.start()
    yield GcpBox(emulator, machines, directory)
    emulator.stop()
    machines.stop_all()


@pytest.fixture
def gcp_box(_emulator: GcpBox, tmp_path: Path) -> Iterator[GcpBox]:
    """An empty project in a box."""
    _emulator.emulator.reset()
    _emulator.emulator.add_bucket("bucket")
    yield replace(_emulator, directory=tmp_path)
    _emulator.machines.stop_all()


@pytest.fixture
def make_room(gcp_box: GcpBox, tmp_path: Path) -> Callable[..., Room]:
    """Make rooms. Two of them on one directory are one controller before and after a crash."""

    def make(
        bucket: str | None = None,
        environ: dict[str, str] | None = None,
        others: tuple[dict[str, Any], ...] = (),
        **config: Any,
    ) -> Room:
        stacks: dict[str, Stack] = {}

        def stack(spec: GcpStackSpec, where: Path) -> Stack:
            return stacks.setdefault(spec.region, Stack(gcp_box, spec, where))

        entries = ({"project": PROJECT, "regions": ["us-central1"], **config}, *others)
        events = rooms.Events()
        cloud = GcpCloud(
            [GcpConfig.model_validate(entry) for entry in entries],
            rooms.JOB,
            tmp_path / "job",
            rooms.no_terraform,
            {**gcp_box.environ, **(environ or {})},
            bucket=bucket,
            prefix="jobs/digits",
            events=events,
            clock=rooms.quick_clock(share=0.05),
            stack=stack,
        )
        return Room(cloud, stacks, gcp_box, events)

    return make


@pytest.fixture
def room(make_room: Callable[..., Room]) -> Room:
    """One room whose region is prepared."""
    made = make_room()
    made.cloud.prepare("us-central1")
    return made
