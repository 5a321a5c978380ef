"""The stack of a job in a region, through real Terraform: at the sandbox's AWS, by the stand-in and by the official
provider where this machine has one."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace

import pytest

from provisioner.errors import ConfigError, TerraformError
from provisioner.model import JobRef, Market
from provisioner.terraform.plan import Allow
from provisioner.terraform.provider import discover
from provisioner.terraform.render import NodeSpec, StackSpec
from provisioner.terraform.runner import Runner
from provisioner.terraform.stack import RegionStack

JOB = JobRef("digits", "1a2b3c4d")
pytestmark = pytest.mark.timeout(1800)
SPEC = StackSpec(JOB, "us-east-1", bucket="checkpoints", prefix="jobs/digits")
OTHER_IMAGE = "ami-12c6146b"


class World:
    """One stack at the box, and what EC2 was asked."""

    def __init__(self, box, toolchain, directory, *, official):
        self.box = box
        self.ec2, self.iam = box.client("ec2"), box.client("iam")
        self.environ = {**os.environ, **box.environ}
        self.toolchain = toolchain
        self.directory = directory
        self.official = official

    def stack(self, spec=SPEC, name="aws-us-east-1"):
        return RegionStack(spec, Runner(self.toolchain, self.directory / name, environ=self.environ))

    def claim(self, substrate, market=Market.SPOT, user_data="#!/bin/bash\nsleep 600\n", token="claim"):  # noqa: S107
        options = {"InstanceMarketOptions": {"MarketType": "spot"}} if market is Market.SPOT else {}
        tags = [{"Key": "failover:token", "Value": token}, {"Key": "failover:epoch", "Value": "1"}]
        template = substrate.launch_template_id
        made = self.ec2.run_instances(
            LaunchTemplate={"LaunchTemplateId": template, "Version": str(substrate.launch_template_version)},
            SubnetId=substrate.subnet_ids["us-east-1b"],
            InstanceType="g4dn.xlarge",
            ClientToken=token,
            UserData=user_data,
            TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
            MinCount=1,
            MaxCount=1,
            **options,
        )
        return made["Instances"][0]["InstanceId"]

    def by_hand(self, *arguments, name="aws-us-east-1"):
        argv = [*self.toolchain.terraform, *arguments, "-input=false", "-no-color"]
        env = {**self.environ, **self.toolchain.env}
        return subprocess.run(argv, cwd=self.directory / name, env=env, capture_output=True, text=True, check=False)

    def left(self):
        state = self.box.emulator.state()
        return {
            kind: state[kind] for kind in ("templates", "security_groups", "roles", "instance_profiles") if state[kind]
        }


@pytest.fixture(scope="session", params=["stand-in", pytest.param("official", marks=pytest.mark.slow)])
def toolchain(request, tmp_path_factory, _emulator):
    environ = {**os.environ, **_emulator.environ, "FAILOVER_TF_PROVIDER": request.param}
    try:
        return discover(tmp_path_factory.mktemp("toolchain"), environ)
    except TerraformError as error:
        pytest.skip(str(error))


@pytest.fixture
def world(aws_box, toolchain, tmp_path, request):
    return World(aws_box, toolchain, tmp_path, official=request.node.callspec.params["toolchain"] == "official")


@pytest.mark.parametrize("toolchain", ["stand-in"], indirect=True)
def test_a_region_is_prepared_as_designed_and_goes_without_a_trace(world):
    world.environ["AWS_SECRET_ACCESS_KEY"] = secret = "canary-2f81"
    stack = world.stack()
    events: list[dict] = []
    stack.runner.on_event = events.append
    made = stack.prepare()
    assert set(made.subnet_ids) >= {"us-east-1a", "us-east-1b"}
    assert {"kind": "change_summary", "add": 5, "change": 0, "import": 0, "remove": 0, "operation": "plan"} in events
    version = world.ec2.describe_launch_template_versions(LaunchTemplateId=made.launch_template_id)
    data = version["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    assert data["MetadataOptions"]["HttpTokens"] == "required"
    assert data["MetadataOptions"]["HttpPutResponseHopLimit"] == 2
    assert data["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert "KeyName" not in data
    (disk,) = data["BlockDeviceMappings"]
    assert (disk["DeviceName"], disk["Ebs"]["Encrypted"], disk["Ebs"]["VolumeType"]) == ("/dev/sda1", True, "gp3")
    (group,) = world.ec2.describe_security_groups(GroupIds=[made.security_group_id])["SecurityGroups"]
    assert group["IpPermissions"] == []
    assert {tag["Key"] for tag in group["Tags"]} >= {"failover:owner", "failover:job", "failover:uid"}
    assert reach(world.iam, made.role_name) == {
        "arn:aws:s3:::checkpoints/jobs/digits/*": None,
        "arn:aws:s3:::checkpoints": ["jobs/digits/*"],
    }
    assert world.box.launches() == []
    for path in stack.runner.directory.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert secret.encode() not in path.read_bytes(), path
    stack.destroy()
    stack.destroy()
    assert world.left() == {}
    assert stack.runner.state() == {}


def reach(iam, role):
    """Return what a role may touch: resource to the prefixes it may list."""
    assert iam.list_attached_role_policies(RoleName=role)["AttachedPolicies"] == []
    document = iam.get_role_policy(RoleName=role, PolicyName="store")["PolicyDocument"]
    assert {statement["Effect"] for statement in document["Statement"]} == {"Allow"}
    return {
        each["Resource"]: each.get("Condition", {}).get("StringLike", {}).get("s3:prefix")
        for each in document["Statement"]
    }


@pytest.mark.slow
@pytest.mark.parametrize("toolchain", ["stand-in", pytest.param("official", marks=pytest.mark.long)], indirect=True)
def test_r23_adoption_never_replaces_the_machine(world):
    stack = world.stack()
    made = stack.prepare()
    moved = replace(SPEC, ami_id=OTHER_IMAGE)
    cases = [
        ("the_image_has_moved_since", moved, Market.SPOT),
        ("user_data_of_another_epoch", moved, Market.ON_DEMAND),
        ("on_demand", SPEC, Market.ON_DEMAND),
        ("spot", SPEC, Market.SPOT),
    ]
    if world.official:  # it takes half a minute for each; the first two have all that could make it replace a machine
        del cases[2:]
    for case, spec, market in cases:
        machine = world.claim(made, market, user_data=f"#!/bin/bash\n# {case}\nsleep 600\n", token=case)
        stack.spec = spec
        summaries: list[dict] = []
        stack.runner.on_event = lambda event, into=summaries: (
            into.append(event) if event["kind"] == "change_summary" else 0
        )
        stack.adopt(machine)
        assert {(told["add"], told["remove"], told["import"]) for told in summaries} == {(0, 0, 1)}, case
        assert stack.node_id() == machine
        assert world.box.living() == [machine]
        assert stack.runner.plan().empty, f"{case}: the plan after the adoption wants something"
        stack.adopt(machine)
        if market is Market.SPOT:
            world.ec2.terminate_instances(InstanceIds=[machine])
        stack.release()
        assert world.box.living() == []
    assert len(world.box.launches()) == len(cases)
    stack.destroy()
    assert world.left() == {}


@pytest.mark.slow
@pytest.mark.parametrize("toolchain", ["stand-in", pytest.param("official", marks=pytest.mark.thorough)], indirect=True)
def test_r25_a_machine_that_died_is_never_bought_again(world):
    stack = world.stack()
    made = stack.prepare()
    machine = world.claim(made)
    stack.adopt(machine)
    with pytest.raises(TerraformError, match=r"refused to prepare .* delete module.node.aws_instance.gpu\[0\]"):
        stack.prepare()
    assert world.box.living() == [machine]
    world.ec2.terminate_instances(InstanceIds=[machine])

    assert [(change.address, change.actions) for change in stack.drift()] == [
        ("module.node.aws_instance.gpu[0]", {"delete"})
    ]
    by_hand = world.by_hand("apply", "-auto-approve")
    assert by_hand.returncode == 1
    assert f"The adopted machine {machine} is gone" in " ".join(by_hand.stderr.split())
    with pytest.raises(TerraformError, match="is gone; Terraform must not buy another"):
        stack.runner.apply(stack.runner.plan(), Allow.ADOPT)
    world.stack(replace(SPEC, job=JobRef("other", "ffffffff"), prefix="jobs/other"), "other").prepare()
    kept = (stack.runner.directory / "terraform.tfstate").read_bytes()
    stack.prepare()
    assert stack.node_id() == ""
    (stack.runner.directory / "terraform.tfstate").write_bytes(kept)
    stack.release()
    assert stack.node_id() == ""
    assert world.by_hand("apply", "-auto-approve").returncode == 0
    assert world.box.living() == []
    assert [launch["action"] for launch in world.box.emulator.faults.log()] == ["RunInstances"]


@pytest.mark.slow
@pytest.mark.parametrize("toolchain", ["stand-in"], indirect=True)
def test_a_machine_of_an_earlier_placement_is_released_before_the_next_is_adopted(world):
    stack = world.stack()
    made = stack.prepare()
    first = world.claim(made, token="first")
    stack.adopt(first)
    second = world.claim(made, token="second")
    stack.adopt(second)
    assert world.box.living() == [second]
    assert stack.node_id() == second
    stack.destroy()
    assert world.box.living() == []


@pytest.mark.slow
@pytest.mark.parametrize("toolchain", ["stand-in"], indirect=True)
def test_what_cannot_be_adopted_is_left_alone(world):
    stack = world.stack()
    made = stack.prepare()
    machine = world.claim(made)
    with pytest.raises(TerraformError, match="import"):
        stack.adopt("i-0123456789abcdef0")
    world.ec2.delete_launch_template(LaunchTemplateId=made.launch_template_id)
    with pytest.raises(TerraformError, match=r"refused to adopt .* create module.region.aws_launch_template.node"):
        stack.adopt(machine)
    assert world.box.living() == [machine]
    assert stack.node_id() == ""
    written = json.loads((stack.runner.directory / "terraform.tfvars.json").read_text())
    assert (written["autodl_available"], written["adopted_instance_id"]) == (True, None)


@pytest.mark.slow
@pytest.mark.parametrize("toolchain", ["stand-in"], indirect=True)
def test_terraform_alone_can_start_and_take_away_the_machine(world):
    node = NodeSpec("g4dn.xlarge", "us-east-1c", Market.SPOT, "0.5", user_data="#!/bin/bash\nsleep 600\n")
    stack = world.stack(replace(SPEC, vpc="own", node=node, autodl_available=False))
    stack._write(autodl_available=False, adopted=None)
    stack.runner.init()
    assert world.by_hand("apply", "-auto-approve").returncode == 0
    (machine,) = world.box.living()
    (instance,) = (i for i in world.box.instances() if i["id"] == machine)
    assert (instance["zone"], instance["market"]) == ("us-east-1c", "spot")
    assert world.by_hand("plan", "-detailed-exitcode").returncode == 0
    gone = world.by_hand("apply", "-auto-approve", "-var=autodl_available=true")
    assert gone.returncode == 0, gone.stderr
    assert world.box.living() == []
    assert world.by_hand("destroy", "-auto-approve").returncode == 0
    assert world.left() == {}


@pytest.mark.parametrize("toolchain", ["stand-in"], indirect=True)
def test_the_stand_in_is_for_a_cloud_on_this_machine_only(tmp_path, toolchain):
    environ = {**os.environ, "FAILOVER_TF_PROVIDER": "stand-in"}
    for endpoint in ("", "https://ec2.example.com", "http://127.0.0.1.example.com"):
        with pytest.raises(ConfigError, match="is for the sandbox"):
            discover(tmp_path, {**environ, "AWS_ENDPOINT_URL": endpoint})
    if toolchain.source == "sandbox":
        (tmp_path / "stack").mkdir()
        runner = Runner(
            toolchain, tmp_path / "stack", environ={**environ, "AWS_ENDPOINT_URL": "https://ec2.example.com"}
        )
        (tmp_path / "stack" / "main.tf").write_text('data "aws_vpc" "x" {\n  default = true\n}\n')
        runner.init()
        with pytest.raises(TerraformError, match="names no address of this machine"):
            runner.plan()
