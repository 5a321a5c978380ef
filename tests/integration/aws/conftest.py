"""A cloud in a box inside the test process, and the AWS room on top of it."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import boto3
import pytest

from provisioner.clouds.aws.cloud import AwsCloud
from provisioner.clouds.aws.inventory import PATH, job_tags
from provisioner.clouds.aws.substrate import Prepared
from provisioner.config import AwsConfig
from provisioner.model import Gpu, Launch, Market, Offer
from provisioner.sandbox.ec2 import AwsEmulator
from provisioner.sandbox.machines import Machines
from provisioner.terraform.render import StackSpec
from tests import rooms

_STATEMENT = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::bucket/jobs/digits/*"}
_POLICY = json.dumps({"Version": "2012-10-17", "Statement": [_STATEMENT]})


@pytest.fixture
def eventually() -> Callable[..., bool]:
    """Wait for something that other processes do: ``assert eventually(lambda: ...)``."""
    return rooms.eventually


@functools.cache
def _client(url: str, service: str, region: str) -> Any:
    make: Any = boto3.client
    return make(service, region, endpoint_url=url, aws_access_key_id="box", aws_secret_access_key="box")


@dataclass
class AwsBox:
    """The emulator of this process: one account, empty at the beginning of each test."""

    emulator: AwsEmulator
    machines: Machines
    url: str
    directory: Path

    @property
    def environ(self) -> dict[str, str]:
        return {"AWS_ACCESS_KEY_ID": "box", "AWS_SECRET_ACCESS_KEY": "box", "AWS_ENDPOINT_URL": self.url}

    def client(self, service: str, region: str = "us-east-1") -> Any:
        return _client(self.url, service, region)

    def instances(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.emulator.state()["instances"]
        return found

    def living(self) -> list[str]:
        return [i["id"] for i in self.instances() if i["state"] not in ("shutting-down", "terminated")]

    def launches(self) -> list[str]:
        return [entry["outcome"] for entry in self.emulator.faults.log()]


@dataclass(frozen=True)
class _Made:
    launch_template_id: str
    launch_template_version: int
    subnet_ids: dict[str, str]


class SdkStack(rooms.KeptStack):
    """What Terraform's stack makes, made by boto3 in a second instead of half a minute. Its state is a file."""

    def __init__(self, box: AwsBox, spec: StackSpec, directory: Path) -> None:
        super().__init__(directory)
        self.spec = spec
        self.ec2, self.iam = box.client("ec2", spec.region), box.client("iam")
        self.name = f"{spec.job.name}-{spec.job.uid}"
        self.role = "0" if spec.region == "us-east-1" else spec.region

    def prepare(self) -> _Made:
        self.runs.append("prepare")
        state = self.state()
        if "template" not in state:
            state |= {"group": self._group(), "template": ""}
            self._role()
            state["template"] = self._template(state["group"])
            self.keep(state)
        subnets = {s["AvailabilityZone"]: s["SubnetId"] for s in self.ec2.describe_subnets()["Subnets"]}
        return _Made(state["template"], 1, subnets)

    def _destroy(self, state: dict[str, Any]) -> None:
        if "template" in state:
            self.ec2.delete_launch_template(LaunchTemplateId=state["template"])
            self.ec2.delete_security_group(GroupId=state["group"])
            pair = {"InstanceProfileName": f"failover-{self.name}-{self.role}", "RoleName": f"{self.name}-{self.role}"}
            self.iam.remove_role_from_instance_profile(**pair)
            self.iam.delete_instance_profile(InstanceProfileName=pair["InstanceProfileName"])
            self.iam.delete_role_policy(RoleName=pair["RoleName"], PolicyName="store")
            self.iam.delete_role(RoleName=pair["RoleName"])

    def _tagged(self, *kinds: str) -> list[dict[str, Any]]:
        found = [{"Key": key, "Value": value} for key, value in job_tags(self.spec.job).items()]
        return [{"ResourceType": kind, "Tags": found} for kind in kinds]

    def _group(self) -> str:
        made = self.ec2.create_security_group(
            GroupName=f"failover-{self.name}", Description="x", TagSpecifications=self._tagged("security-group")
        )
        return str(made["GroupId"])

    def _role(self) -> None:
        profile, role = f"failover-{self.name}-{self.role}", f"{self.name}-{self.role}"
        self.iam.create_role(RoleName=role, Path=PATH, AssumeRolePolicyDocument="{}")
        self.iam.put_role_policy(RoleName=role, PolicyName="store", PolicyDocument=_POLICY)
        self.iam.create_instance_profile(InstanceProfileName=profile, Path=PATH)
        self.iam.add_role_to_instance_profile(InstanceProfileName=profile, RoleName=role)

    def _template(self, group: str) -> str:
        disk = {"VolumeSize": 100, "VolumeType": "gp3", "Encrypted": True}
        data = {
            "ImageId": "ami-12c6146b",
            "SecurityGroupIds": [group],
            "IamInstanceProfile": {"Name": f"failover-{self.name}-{self.role}"},
            "InstanceInitiatedShutdownBehavior": "terminate",
            "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 2},
            "BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": disk}],
            "TagSpecifications": self._tagged("instance", "volume"),
        }
        made = self.ec2.create_launch_template(
            LaunchTemplateName=f"failover-{self.name}",
            LaunchTemplateData=data,
            TagSpecifications=self._tagged("launch-template"),
        )
        return str(made["LaunchTemplate"]["LaunchTemplateId"])


@dataclass
class Room:
    """The AWS room for one job, its stacks and what to claim."""

    cloud: AwsCloud
    stacks: dict[str, SdkStack]
    box: AwsBox
    events: rooms.Events

    def offer(self, zone: str = "us-east-1b", market: Market = Market.SPOT) -> Offer:
        return Offer("aws", zone[:-1], zone, "g4dn.xlarge", Gpu("T4", 1, 16), market, None)

    def launch(self, offer: Offer, epoch: int = 1, user_data: str = rooms.IDLE) -> Launch:
        return rooms.launch(offer, epoch, user_data=user_data)

    def prepared(self) -> Prepared:
        found = self.cloud._substrate("us-east-1").noted()
        assert found is not None
        return found


@pytest.fixture(scope="session")
def _emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsBox]:
    directory = tmp_path_factory.mktemp("machines")
    machines = Machines(directory, grace_s=1.0)
    emulator = AwsEmulator(machines, boot_s=0.05, end_s=0.05, twin_s=0.05)
    yield AwsBox(emulator, machines, emulator.start(), directory)
    machines.stop_all()
    emulator.stop()


@pytest.fixture
def aws_box(_emulator: AwsBox, tmp_path: Path) -> Iterator[AwsBox]:
    """An empty AWS account in a box."""
    _emulator.emulator.reset()
    yield replace(_emulator, directory=tmp_path)
    _emulator.machines.stop_all()


@pytest.fixture
def make_room(aws_box: AwsBox, tmp_path: Path) -> Callable[..., Room]:
    """Make AWS rooms. Two of them on one directory are one controller before and after a crash."""

    def make(**config: Any) -> Room:
        stacks: dict[str, SdkStack] = {}

        def stack(spec: StackSpec, where: Path) -> SdkStack:
            return stacks.setdefault(spec.region, SdkStack(aws_box, spec, where))

        events = rooms.Events()
        cloud = AwsCloud(
            [AwsConfig.model_validate({"regions": ["us-east-1"], **config})],
            rooms.JOB,
            tmp_path / "job",
            rooms.no_terraform,
            aws_box.environ,
            bucket="bucket",
            prefix="jobs/digits",
            events=events,
            clock=rooms.quick_clock(),
            stack=stack,
        )
        return Room(cloud, stacks, aws_box, events)

    return make


@pytest.fixture
def room(make_room: Callable[..., Room]) -> Room:
    """One AWS room whose region is prepared."""
    made = make_room()
    made.cloud.prepare("us-east-1")
    return made
