"""The stack of a job in a region of Google Cloud, through real Terraform and the stand-in, at the sandbox's cloud."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace

import pytest

from provisioner.errors import ConfigError, TerraformError, Unauthorized
from provisioner.model import JobRef, Market
from provisioner.terraform.provider import discover
from provisioner.terraform.render import GcpNodeSpec, GcpStackSpec
from provisioner.terraform.runner import Runner
from provisioner.terraform.stack import GcpRegionStack

pytestmark = pytest.mark.timeout(600)
PROJECT = "sandbox-project"
SPEC = GcpStackSpec(
    JobRef("digits", "1a2b3c4d"), PROJECT, "us-central1", bucket="bucket", prefix="jobs/digits", disk_gb=60
)
SCRIPT = "#!/bin/bash\nsleep 600\n"


class World:
    """One stack at the emulator, which is looked into with its own interface."""

    def __init__(self, box, toolchain, directory):
        self.box = box
        self.gce, self.call, self.compute = box.emulator, box.call, box.compute
        self.environ = {**os.environ, **box.environ}
        self.toolchain = toolchain
        self.directory = directory

    def stack(self, spec=SPEC, name="gcp-us-central1"):
        return GcpRegionStack(spec, Runner(self.toolchain, self.directory / name, environ=self.environ))

    def claim(self, substrate, name):
        zone = "us-central1-b"
        body = {
            "name": name,
            "machineType": f"zones/{zone}/machineTypes/g2-standard-4",
            "labels": {"failover-job": "digits"},
            "tags": {"items": [substrate.network_tag]},
            "metadata": {"items": [{"key": "startup-script", "value": SCRIPT}]},
            "disks": [{"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": substrate.image}}],
            "networkInterfaces": [{"subnetwork": substrate.subnetwork, "accessConfigs": [{"type": "ONE_TO_ONE_NAT"}]}],
            "serviceAccounts": [{"email": substrate.service_account, "scopes": ["cloud-platform"]}],
            "scheduling": {"provisioningModel": "SPOT", "onHostMaintenance": "TERMINATE", "automaticRestart": False,
                           "instanceTerminationAction": "DELETE"},
        }  # fmt: skip
        self.compute("POST", f"zones/{zone}/instances", body)
        return f"projects/{PROJECT}/zones/{zone}/instances/{name}"

    def by_hand(self, *arguments, name="gcp-us-central1"):
        argv = [*self.toolchain.terraform, *arguments, "-input=false", "-no-color"]
        env = {**self.environ, **self.toolchain.env}
        return subprocess.run(argv, cwd=self.directory / name, env=env, capture_output=True, text=True, check=False)

    def left(self):
        state = self.gce.state()
        kinds = ("instances", "disks", "networks", "subnetworks", "firewalls", "service_accounts", "bindings")
        return {kind: state[kind] for kind in kinds if state[kind]}


@pytest.fixture(scope="session")
def toolchain(tmp_path_factory, _emulator):
    environ = {**os.environ, **_emulator.environ, "FAILOVER_TF_PROVIDER": "stand-in"}
    try:
        return discover(tmp_path_factory.mktemp("toolchain"), environ, "google")
    except TerraformError as error:
        pytest.skip(str(error))


@pytest.fixture
def world(gcp_box, toolchain, tmp_path):
    return World(gcp_box, toolchain, tmp_path)


def test_a_region_is_prepared_as_designed_and_goes_without_a_trace(world):
    stack = world.stack()
    made = stack.prepare()
    assert made.subnetwork.endswith(f"projects/{PROJECT}/regions/us-central1/subnetworks/default")
    assert made.network_tag.startswith("failover-digits-1a2b3c4d")
    (rule,) = world.gce.state()["firewalls"]
    found = world.compute("GET", f"global/firewalls/{rule}")
    assert rule.startswith("failover-digits-1a2b3c4d")
    assert (found["direction"], found["denied"], found["sourceRanges"]) == (
        "INGRESS",
        [{"IPProtocol": "all"}],
        ["0.0.0.0/0"],
    )
    assert found["targetTags"] == [made.network_tag]
    assert found["priority"] < 1000
    assert "allowed" not in found
    assert made.service_account.startswith("fo-1a2b3c4d-")
    policy = world.call("GET", "storage/v1/b/bucket/iam?optionsRequestedPolicyVersion=3")
    (binding,) = policy["bindings"]
    assert (binding["role"], binding["members"]) == (
        "roles/storage.objectUser",
        [f"serviceAccount:{made.service_account}"],
    )
    assert binding["condition"]["expression"] == (
        "resource.name.startsWith('projects/_/buckets/bucket/objects/jobs/digits/') || "
        "api.getAttribute('storage.googleapis.com/objectListPrefix', '').startsWith('jobs/digits/')"
    )
    assert world.box.living() == []
    for path in stack.runner.directory.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert world.gce.token.encode() not in path.read_bytes(), path
    stack.destroy()
    assert world.left() == {}
    assert stack.runner.state() == {}


@pytest.mark.slow
def test_r22_r23_r25_a_life(world, eventually):
    """What a killed run made is taken over; a machine is adopted as it is, dies, and is never bought again."""
    spec = replace(SPEC, network="own", ssh_cidr="203.0.113.7/32")
    first = world.stack(spec).prepare()
    (world.directory / "gcp-us-central1" / "terraform.tfstate").unlink()
    stack = world.stack(spec)
    made = stack.prepare()
    assert made == first
    assert "import" not in (stack.runner.directory / "main.tf").read_text()
    assert stack.runner.plan().empty, "what was taken over is as it is wanted"

    machine = world.claim(made, "failover-digits-1a2b3c4d-e1-0f0f0f0f")
    assert eventually(lambda: [one["state"] for one in world.box.instances()] == ["RUNNING"])
    summaries = []
    stack.runner.on_event = lambda event: summaries.append(event) if event["kind"] == "change_summary" else None
    stack.adopt(machine)
    assert {(told["add"], told["remove"], told["import"]) for told in summaries} == {(0, 0, 1)}
    assert stack.node_id() == machine
    assert stack.runner.plan().empty

    zone, name = machine.split("/")[3], machine.split("/")[5]
    world.compute("DELETE", f"zones/{zone}/instances/{name}")
    assert eventually(lambda: world.box.instances() == [])
    assert [(change.address, change.actions) for change in stack.drift()] == [
        ("module.node.google_compute_instance.gpu[0]", {"delete"})
    ]
    by_hand = world.by_hand("apply", "-auto-approve")
    assert by_hand.returncode == 1
    assert f"{machine} not found" in " ".join(by_hand.stderr.split())
    stack.release()
    assert stack.node_id() == ""
    assert world.box.living() == []


@pytest.mark.slow
def test_terraform_alone_can_start_and_take_away_the_machine(world):
    node = GcpNodeSpec(
        "n1-standard-8", "us-central1-a", Market.SPOT, "nvidia-tesla-t4", max_run_s=3600, user_data=SCRIPT
    )
    stack = world.stack(replace(SPEC, node=node, autodl_available=False))
    stack._write(autodl_available=False, adopted=None)
    stack.runner.init()
    applied = world.by_hand("apply", "-auto-approve")
    assert applied.returncode == 0, applied.stderr
    found = world.compute("GET", "zones/us-central1-a/instances/failover-digits-1a2b3c4d")
    assert found["scheduling"]["provisioningModel"] == "SPOT"
    assert found["scheduling"]["instanceTerminationAction"] == "DELETE"
    assert str(found["scheduling"]["maxRunDuration"]["seconds"]) == "3600"
    assert found["guestAccelerators"][0]["acceleratorCount"] == 1
    assert found["disks"][0]["autoDelete"] is True
    assert found["shieldedInstanceConfig"]["enableVtpm"] is True
    metadata = {item["key"]: item["value"] for item in found["metadata"]["items"]}
    assert metadata == {
        "block-project-ssh-keys": "TRUE",
        "enable-oslogin": "TRUE",
        "install-nvidia-driver": "True",
        "startup-script": SCRIPT,
    }
    gone = world.by_hand("apply", "-auto-approve", "-var=autodl_available=true")
    assert gone.returncode == 0, gone.stderr
    assert world.box.living() == []


def test_a_refusal_is_told_by_its_kind(world):
    world.environ["GOOGLE_OAUTH_ACCESS_TOKEN"] = "another"
    with pytest.raises(Unauthorized, match="Error 401"):
        world.stack().prepare()


def test_the_stand_in_is_for_a_cloud_on_this_machine_only(tmp_path):
    environ = {**os.environ, "FAILOVER_TF_PROVIDER": "stand-in", "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    with pytest.raises(ConfigError, match="GOOGLE_COMPUTE_CUSTOM_ENDPOINT names no address of this machine"):
        discover(tmp_path, {**environ, "GOOGLE_COMPUTE_CUSTOM_ENDPOINT": ""}, "google")
