"""Releases, what is left over, and the end of a job at AWS."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from provisioner.clouds.aws import release
from provisioner.clouds.base import Request
from provisioner.config import AwsConfig
from provisioner.errors import CloudError, StateLocked, TerraformError
from provisioner.model import Market, Node, NodeState, Owned
from tests import sweeps


def claim(room: Any, **offer: Any) -> Node:
    wanted = room.offer(**offer)
    node = room.cloud.claim(wanted, room.launch(wanted))
    assert isinstance(node, Node), node
    return node


def billable(room: Any) -> list[Owned]:
    return [thing for thing in room.cloud.owned() if thing.kind in ("machine", "volume", "spot_request")]


def wrongly_launched(room: Any, *, behavior: str = "terminate", kind: str = "one-time", market: str = "spot") -> str:
    """Start a machine as an older version, or a hand, might have: our tags, but not our safeguards."""
    launch = room.launch(room.offer())
    tagged = [{"Key": key, "Value": value} for key, value in launch.tags.items()]
    kinds = ["instance", "volume", *(["spot-instances-request"] if market == "spot" else [])]
    options = {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": kind}}
    made = room.box.client("ec2").run_instances(
        LaunchTemplate={"LaunchTemplateId": room.prepared().template_id},
        MinCount=1,
        MaxCount=1,
        InstanceType="g4dn.xlarge",
        SubnetId=room.prepared().subnets["us-east-1b"],
        InstanceInitiatedShutdownBehavior=behavior,
        UserData=launch.user_data,
        TagSpecifications=[{"ResourceType": each, "Tags": tagged} for each in kinds],
        **({"InstanceMarketOptions": options} if market == "spot" else {}),
    )
    return str(made["Instances"][0]["InstanceId"])


def as_node(room: Any, instance_id: str) -> Node:
    offer = replace(room.offer(), zone="", instance_type="")
    return Node(instance_id, offer, room.launch(room.offer()).job, 1, "", 0.0)


def test_a_released_machine_is_gone_and_terraform_lets_go_of_it_before_it_takes_the_next(room: Any) -> None:
    node = claim(room)
    room.cloud.adopt(node)
    room.cloud.release(node)
    assert room.box.instances()[0]["state"] == "terminated"
    assert room.cloud.inspect(node) is NodeState.GONE
    assert not billable(room)
    assert room.stacks["us-east-1"].runs == ["prepare", f"adopt {node.id}"], "a release waits for no Terraform"
    room.cloud.release(node)  # once more is fine


def test_a_machine_that_one_list_does_not_show_is_terminated_all_the_same(room: Any) -> None:
    node = claim(room)
    room.box.emulator.faults.set([{"action": "DescribeInstances", "code": "InvalidInstanceID.NotFound", "times": 1}])
    room.cloud.release(node)
    assert room.box.living() == []


def test_a_lost_machine_is_let_go_before_the_stack_is_touched(room: Any, make_room: Any) -> None:
    node = claim(room)
    room.cloud.adopt(node)
    room.box.emulator.take(node.id)
    changed = make_room(disk_gb=200)
    changed.cloud.prepare("us-east-1")
    assert changed.stacks["us-east-1"].runs == ["release", "prepare"]


def test_when_terraform_fails_the_machine_is_gone_all_the_same(room: Any) -> None:
    node = claim(room)
    room.cloud.adopt(node)
    room.stacks["us-east-1"].fail = TerraformError("no provider", hint="install one")
    room.cloud.release(node)
    assert room.box.instances()[0]["state"] == "terminated"


def test_two_entries_are_two_markets_with_their_own_limits(aws_box: Any, make_room: Any) -> None:
    made = make_room()
    entries = [
        {"regions": ["us-east-1"], "market": "spot", "max_price": "0.3 USD", "instance_types": ["g4dn.xlarge"]},
        {"regions": ["us-west-2", "us-east-1"], "market": "spot", "max_price": "0.9 USD", "disk_gb": 300},
    ]
    made.cloud._configs = tuple(AwsConfig.model_validate(entry) for entry in entries)
    offers = {(offer.region, offer.instance_type): offer for offer in made.cloud.offers(Request(gpus=("T4", "L4")))}
    assert {region for region, _ in offers} == {"us-east-1", "us-west-2"}
    assert made.cloud.max_price(offers["us-east-1", "g4dn.xlarge"]) == "0.3"
    assert made.cloud.max_price(offers["us-east-1", "g6.xlarge"]) == "0.9"
    assert made.cloud.max_price(offers["us-west-2", "g4dn.xlarge"]) == "0.9"
    assert (made.cloud.spec("us-east-1").disk_gb, made.cloud.spec("us-west-2").disk_gb) == (100, 300)


def test_a_machine_that_does_not_end_is_reported(room: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    node = claim(room)
    monkeypatch.setattr(room.box.emulator, "_end_s", 30.0)
    with pytest.raises(CloudError, match=f"{node.id} is still shutting-down"):
        release.terminate(room.cloud._account.region("us-east-1"), node.id, room.cloud._clock, confirm_s=1.0)


def test_r21_a_node_whose_controller_is_dead_leaves_nothing_that_costs(room: Any, eventually: Any) -> None:
    """The end of life that the node carries in itself: nobody releases anything here."""
    for market in Market:
        offer = room.offer(market=market)
        node = room.cloud.claim(offer, room.launch(offer, user_data="#!/bin/bash\nsleep 0.2\nshutdown -h now\n"))
        assert isinstance(node, Node)
    assert eventually(lambda: [i["state"] for i in room.box.instances()] == ["terminated"] * 2)
    assert {i["reason"] for i in room.box.instances()} == {"Client.InstanceInitiatedShutdown"}
    assert not billable(room)


def test_r21_a_stopped_machine_and_its_disk_are_found_with_their_cost(room: Any, eventually: Any) -> None:
    instance_id = wrongly_launched(room, behavior="stop", market="on-demand")
    assert eventually(lambda: room.box.machines.alive(instance_id))
    room.box.emulator._guest_off(instance_id)
    assert eventually(lambda: room.box.instances()[0]["state"] == "stopped")
    machine, volume = billable(room)
    assert (machine.kind, machine.state, machine.price_per_hour) == ("machine", "stopped", None)
    assert volume.kind == "volume"
    assert volume.price_per_hour is not None
    assert volume.price_per_hour.amount == Decimal("0.0110")  # 100 GB for an hour
    assert room.cloud.inspect(as_node(room, instance_id)) is NodeState.STOPPED
    room.cloud.release(as_node(room, instance_id))
    assert not billable(room)


def test_r21_the_emulator_replaces_what_a_persistent_request_started(room: Any, eventually: Any) -> None:
    """The proof that the next test proves something."""
    instance_id = wrongly_launched(room, kind="persistent")
    room.box.client("ec2").terminate_instances(InstanceIds=[instance_id])
    assert eventually(lambda: len(room.box.living()) == 1)
    twin = room.box.instances()[-1]
    assert (twin["id"] != instance_id, twin["tags"]) == (True, {})
    assert [thing.kind for thing in billable(room)] == ["spot_request"]


@pytest.mark.parametrize("terminated_before", [False, True])
def test_r21_a_persistent_request_brings_nothing_back(room: Any, eventually: Any, terminated_before: bool) -> None:
    instance_id = wrongly_launched(room, kind="persistent")
    if terminated_before:
        room.box.client("ec2").terminate_instances(InstanceIds=[instance_id])
        assert eventually(lambda: len(room.box.living()) == 1)
    room.cloud.release(as_node(room, instance_id))
    assert not room.box.living()
    assert not billable(room)
    assert not eventually(lambda: bool(room.box.living()), for_s=0.5)


def test_r21_every_launch_of_ours_is_one_time(room: Any) -> None:
    claim(room)
    requests = room.box.client("ec2").describe_spot_instance_requests()["SpotInstanceRequests"]
    assert [(r["Type"], r["InstanceInterruptionBehavior"]) for r in requests] == [("one-time", "terminate")]


def test_dismantle_leaves_nothing(room: Any) -> None:
    node = claim(room)
    room.cloud.release(node)
    room.cloud.dismantle()
    state = room.box.emulator.state()
    for kind in ("templates", "security_groups", "roles", "instance_profiles", "volumes"):
        assert state[kind] == []
    assert not room.cloud.owned()
    assert not (room.box.directory / "job" / "terraform" / "aws-us-east-1").exists()
    room.cloud.dismantle()  # once more is fine
    room.cloud.prepare("us-east-1")  # and it can begin again


@pytest.mark.parametrize("broken", [False, True])
def test_dismantle_removes_what_no_state_file_names(room: Any, *, broken: bool) -> None:
    """Terraform was killed between AWS's answer and its note; or cannot run at all any more."""
    stack = room.stacks["us-east-1"]
    if broken:
        stack.fail = TerraformError("no provider")
    else:
        stack.keep({})
    room.cloud.dismantle()
    assert not room.cloud.owned()
    assert room.box.emulator.state()["roles"] == []


def test_dismantle_names_what_is_left(room: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    node = claim(room)
    monkeypatch.setattr("provisioner.clouds.regional.SWEPT_S", 4.0)
    with pytest.raises(CloudError, match=f"AWS still lists us-east-1 machine {node.id}"):
        room.cloud.dismantle()
    room.cloud.release(node)
    room.cloud.dismantle()


def test_the_leak_line_of_a_locked_state_has_the_command_that_unlocks_it_and_the_lock_is_met_once(
    room: Any, tmp_path: Path
) -> None:
    node = claim(room)
    room.cloud.release(node)
    stack = room.stacks["us-east-1"]
    stack.fail = StateLocked("s3://b/x is locked by root@desk", hint="failover state unlock FILE id-1")
    places = {"fallback": [{"aws": {"regions": ["us-east-1"]}}]}
    (left,) = sweeps.world({"aws": room.cloud}, places, tmp_path / "state").finish(frozenset({"aws"})).leaked
    assert left == "aws: cannot tell: s3://b/x is locked by root@desk; failover state unlock FILE id-1"
    assert stack.runs == ["prepare", "destroy"]
    assert not room.cloud.owned()


def test_a_region_that_cannot_be_asked_hides_no_other_and_is_never_called_empty(make_room: Any) -> None:
    room = make_room(regions=["us-west-2", "us-east-1"])
    room.cloud.prepare("us-east-1")
    node = claim(room)
    denied = {"service": "ec2", "region": "us-west-2", "code": "UnauthorizedOperation"}
    room.box.emulator.faults.set([denied])
    assert ("machine", node.id) in {(thing.kind, thing.id) for thing in room.cloud.owned()}
    assert {event["place"] for event in room.events.told if event["kind"] == "owned_partly"} == {"us-west-2"}
    heard = {region: room.cloud.heard(region) for region in ("us-east-1", "us-west-2", "eu-west-1")}
    assert heard == {"us-east-1": True, "us-west-2": False, "eu-west-1": False}
    room.cloud.release(node)
    with pytest.raises(CloudError, match=r"^us-west-2 could not be asked: "):
        room.cloud.dismantle()
    assert not room.box.emulator.state()["templates"]  # what could be taken apart was
    room.box.emulator.faults.set([])
    room.cloud.dismantle()
    assert not room.cloud.owned()


def test_other_jobs_are_left_alone(room: Any) -> None:
    ec2 = room.box.client("ec2")
    other = [{"Key": "failover:owner", "Value": "gpu-failover"}, {"Key": "failover:job", "Value": "digits"}]
    other.append({"Key": "failover:uid", "Value": "ffffffff"})
    made = ec2.run_instances(
        ImageId="ami-12c6146b", MinCount=1, MaxCount=1, TagSpecifications=[{"ResourceType": "instance", "Tags": other}]
    )
    room.cloud.dismantle()
    assert not room.cloud.owned()
    assert room.box.living() == [made["Instances"][0]["InstanceId"]]
