"""Google Cloud in a box inside the test process, and the room on top of it, with Google's own client between them."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from provisioner.clouds.gcp.api import Clock
from provisioner.clouds.gcp.cloud import GcpCloud
from provisioner.clouds.gcp.machine import account_prefix, substrate_prefix
from provisioner.clouds.gcp.substrate import Prepared
from provisioner.config import GcpConfig
from provisioner.model import Gpu, JobRef, Launch, Market, Offer, claim_token, tags
from provisioner.sandbox.gce.emulator import GceEmulator
from provisioner.sandbox.machines import Machines
from provisioner.terraform.render import GcpStackSpec

JOB = JobRef("digits", "1a2b3c4d")
IDLE = "#!/bin/bash\nsleep 600\n"
PROJECT = "sandbox-project"


def _eventually(true: Callable[[], bool], for_s: float = 15.0) -> bool:
    until = time.monotonic() + for_s
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def eventually() -> Callable[..., bool]:
    """Wait for something that other processes do: ``assert eventually(lambda: ...)``."""
    return _eventually


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


class Stack:
    """What Terraform's stack makes, made by REST at once instead of in seconds. Its state is a file."""

    def __init__(self, box: GcpBox, spec: GcpStackSpec, directory: Path) -> None:
        self.box, self.spec, self.directory = box, spec, directory
        end = hashlib.sha256(spec.region.encode()).hexdigest()[:6]
        self.name = f"{substrate_prefix(spec.job)}-{end}"
        self.email = f"{account_prefix(spec.job)}{end}@{PROJECT}.iam.gserviceaccount.com"
        self.runs: list[str] = []
        self.fail: Exception | None = None

    def state(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.directory / "state.json").read_text()))
        except FileNotFoundError:
            return {}

    def keep(self, state: dict[str, Any]) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "state.json").write_text(json.dumps(state))

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

    def adopt(self, import_id: str) -> None:
        self.runs.append(f"adopt {import_id}")
        self.keep({**self.state(), "node": import_id})

    def release(self) -> None:
        self.runs.append("release")
        self.keep({**self.state(), "node": ""})

    def destroy(self) -> None:
        self.runs.append("destroy")
        if self.fail is not None:
            raise self.fail
        if self.state().get("made"):
            self.box.compute("DELETE", f"global/firewalls/{self.name}-deny")
            if self.spec.network == "own":
                self.box.compute("DELETE", f"regions/{self.spec.region}/subnetworks/{self.name}")
                self.box.compute("DELETE", f"global/networks/{self.name}")
            if self.spec.bucket:
                self.box.call("PUT", f"storage/v1/b/{self.spec.bucket}/iam", {"version": 3, "bindings": []})
            self.box.call("DELETE", f"v1/projects/{PROJECT}/serviceAccounts/{self.email}")
        self.keep({})

    def node_id(self) -> str:
        return str(self.state().get("node", ""))


@dataclass
class Events:
    """What the room told."""

    told: list[dict[str, Any]]

    def emit(self, kind: str, /, **fields: Any) -> None:
        self.told.append({"kind": kind, **fields})


@dataclass
class Room:
    """The room for one job, its stacks and what to claim."""

    cloud: GcpCloud
    stacks: dict[str, Stack]
    box: GcpBox
    events: Events

    def offer(
        self, zone: str = "us-central1-b", market: Market = Market.SPOT, kind: str = "n1-standard-4+1xT4"
    ) -> Offer:
        name = "T4" if "T4" in kind else "L4"
        return Offer("gcp", zone[:-2], zone, kind, Gpu(name, 1, 16), market, None)

    def launch(self, offer: Offer, epoch: int = 1, attempt: int = 0, user_data: str = IDLE) -> Launch:
        token = claim_token(JOB, epoch, offer, attempt)
        return Launch(JOB, epoch, token, user_data, 3600.0, tags(JOB, epoch, token))


def _quick_clock() -> Clock:
    """Return a clock on which a sleep of minutes takes 20 ms."""
    skipped, lock = [0.0], threading.Lock()

    def sleep(seconds: float) -> None:
        time.sleep(min(seconds, 0.02))
        with lock:
            skipped[0] += max(0.0, seconds - 0.02) / 20

    return Clock(tick=lambda: time.monotonic() + skipped[0], sleep=sleep)


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

    def make(bucket: str | None = None, environ: dict[str, str] | None = None, **config: Any) -> Room:
        stacks: dict[str, Stack] = {}

        def stack(spec: GcpStackSpec, where: Path) -> Stack:
            return stacks.setdefault(spec.region, Stack(gcp_box, spec, where))

        def no_terraform() -> Any:
            raise AssertionError

        settings = {"project": PROJECT, "regions": ["us-central1"], **config}
        events = Events([])
        cloud = GcpCloud(
            [GcpConfig.model_validate(settings)],
            JOB,
            tmp_path / "job",
            no_terraform,
            {**gcp_box.environ, **(environ or {})},
            bucket=bucket,
            prefix="jobs/digits",
            events=events,
            clock=_quick_clock(),
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
