"""Claims against EC2 in a box that honours client tokens as EC2 does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from provisioner.clouds.base import Cloud
from provisioner.clouds.clock import Clock
from provisioner.controller.ledger import bills
from provisioner.controller.records import Begun, Choice, Published
from provisioner.model import Ending, Failure, FailureKind, Market, Money, Node, NodeState, Scope
from tests import sweeps

CAPACITY = {"action": "RunInstances", "code": "InsufficientInstanceCapacity"}


def claimed(answer: Node | Failure) -> Node:
    assert isinstance(answer, Node), answer
    return answer


def refused(answer: Node | Failure) -> Failure:
    assert isinstance(answer, Failure), answer
    return answer


def test_the_room_fulfils_the_contract(room: Any) -> None:
    assert isinstance(room.cloud, Cloud)


def test_a_claimed_machine_is_what_was_asked_for(room: Any) -> None:
    offer = room.offer("us-east-1c")
    node = claimed(room.cloud.claim(offer, room.launch(offer)))
    instance = room.box.client("ec2").describe_instances(InstanceIds=[node.id])["Reservations"][0]["Instances"][0]
    assert instance["Placement"]["AvailabilityZone"] == "us-east-1c"
    assert instance["InstanceLifecycle"] == "spot"
    assert instance["MetadataOptions"]["HttpTokens"] == "required"
    assert instance["ClientToken"] == node.token
    attribute = "instanceInitiatedShutdownBehavior"
    shutdown = room.box.client("ec2").describe_instance_attribute(InstanceId=node.id, Attribute=attribute)
    assert shutdown["InstanceInitiatedShutdownBehavior"]["Value"] == "terminate"
    kinds = {thing.kind: thing for thing in room.cloud.owned()}
    for kind in ("machine", "volume", "spot_request"):
        assert (kinds[kind].job, kinds[kind].epoch, kinds[kind].token) == ("digits", 1, node.token)
    assert {"launch_template", "security_group", "role", "instance_profile"} <= set(kinds)


def test_no_capacity_costs_one_call_and_blocks_one_offer(room: Any) -> None:
    room.box.emulator.faults.set([{**CAPACITY, "az": "us-east-1a", "status": 500}])
    offer = room.offer("us-east-1a")
    failure = refused(room.cloud.claim(offer, room.launch(offer)))
    assert (failure.kind, failure.scope, failure.ttl_s) == (FailureKind.NO_CAPACITY, Scope.OFFER, 180)
    assert room.box.launches() == ["InsufficientInstanceCapacity"]


def test_capacity_found_missing_after_the_answer_is_the_same_refusal(
    room: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room.cloud, "_clock", Clock())  # the box needs its real time to find out
    room.box.emulator.faults.set([{"action": "RunInstances", "async": True, "times": 1, "delay": 0.1}])
    offer = room.offer()
    failure = refused(room.cloud.claim(offer, room.launch(offer)))
    assert (failure.kind, failure.code) == (FailureKind.NO_CAPACITY, "Server.InsufficientInstanceCapacity")
    assert not room.box.living()


def test_r18_spot_refused_then_on_demand_is_another_token_and_one_machine(room: Any) -> None:
    room.box.emulator.faults.set([{**CAPACITY, "market": "spot"}])
    spot, on_demand = room.offer(), room.offer(market=Market.ON_DEMAND)
    assert refused(room.cloud.claim(spot, room.launch(spot))).kind is FailureKind.NO_CAPACITY
    node = claimed(room.cloud.claim(on_demand, room.launch(on_demand)))
    assert room.launch(spot).token != room.launch(on_demand).token
    assert room.box.living() == [node.id]


def test_r18_the_emulator_refuses_what_ec2_refuses(room: Any) -> None:
    """The proof that the other tests of R18 prove something: one token for two markets is a mismatch here too."""
    room.box.emulator.faults.set([{**CAPACITY, "market": "spot"}])
    spot, on_demand = room.offer(), room.offer(market=Market.ON_DEMAND)
    same = replace(room.launch(on_demand), token=room.launch(spot).token)
    room.cloud.claim(spot, room.launch(spot))
    failure = refused(room.cloud.claim(on_demand, same))
    assert room.box.launches() == ["InsufficientInstanceCapacity", "IdempotentParameterMismatch"]
    assert (failure.kind, failure.scope) == (FailureKind.NO_CAPACITY, Scope.OFFER)


@pytest.mark.parametrize("times", [1, 3])
def test_r18_a_lost_answer_gives_the_machine_that_was_made(room: Any, times: int) -> None:
    room.box.emulator.faults.set([{"action": "RunInstances", "lost": True, "times": times}])
    offer = room.offer()
    node = claimed(room.cloud.claim(offer, room.launch(offer)))
    assert room.box.living() == [node.id]
    assert room.box.launches()[1:] == [f"again {node.id}"] * times


def test_r18_lost_before_the_work_was_done_is_tried_again(room: Any) -> None:
    rules = [{"action": "RunInstances", "code": "InternalError", "status": 500, "times": 1}]
    rules += [{"action": "RunInstances", "code": "RequestLimitExceeded", "times": 2}]
    room.box.emulator.faults.set(rules)
    offer = room.offer()
    node = claimed(room.cloud.claim(offer, room.launch(offer)))
    assert room.box.living() == [node.id]


def test_r18_doubt_then_refusal_finds_the_machine_of_the_lost_answer(room: Any) -> None:
    """The answer is lost, and the repeat is refused before EC2 looks at the token: the machine is there."""
    room.box.emulator.faults.set(
        [
            {"action": "RunInstances", "lost": True, "times": 1},
            {"action": "RunInstances", "code": "UnauthorizedOperation"},
        ]
    )
    offer = room.offer()
    node = claimed(room.cloud.claim(offer, room.launch(offer)))
    assert room.box.living() == [node.id]


def test_a_machine_whose_claim_was_not_answered_is_given_back_while_the_job_goes_on(room: Any, tmp_path: Path) -> None:
    """EC2 made it, and then neither answers the claim nor says what the token made; later it lists it."""
    places, policy = sweeps.aws(regions=["us-east-1"]), {"budget": "1 USD"}
    made = sweeps.world({"aws": room.cloud}, places, tmp_path / "state", policy)
    room.box.emulator.faults.set(
        [
            {"action": "RunInstances", "lost": True, "times": 1},
            {"action": "RunInstances", "code": "UnauthorizedOperation"},
            {"action": "DescribeInstances", "code": "UnauthorizedOperation"},
        ]
    )
    offer = room.offer()
    answer = made.claim(Choice(offer, Money(Decimal(1), "USD")), 1, 0, Published((), None))
    assert answer.failure is not None
    assert answer.failure.doubtful
    [lost] = room.box.living()
    [doubt] = made.ledger.unanswered()
    room.box.emulator.faults.set([])
    assert made.why_stop(Begun(doubt.begun, 1), ()) == ""
    assert made.unanswered._search is not None
    made.unanswered._search.join()
    assert room.box.living() == []
    [bill] = bills(made.directory.path)
    assert (bill.node, bill.begun, bill.unanswered, bill.ended is None) == (lost, doubt.begun, False, False)


KILLED = """
import os, signal, sys
from pathlib import Path
from decimal import Decimal
from provisioner.clouds.aws.api import Region
from provisioner.clouds.aws.cloud import AwsCloud
from provisioner.config import AwsConfig
from provisioner.model import Gpu, JobRef, Launch, Market, Offer, claim_token, tags
run = Region.run
def die(self, request):
    run(self, request)
    os.kill(os.getpid(), signal.SIGKILL)
Region.run = die
job = JobRef("digits", "1a2b3c4d")
offer = Offer("aws", "us-east-1", "us-east-1b", "g4dn.xlarge", Gpu("T4", 1, 16), Market.SPOT, None)
token = claim_token(job, 1, offer)
cloud = AwsCloud([AwsConfig(regions=("us-east-1",))], job, Path(sys.argv[1]), None, os.environ,
                 bucket="bucket", prefix="jobs/digits")
cloud.claim(offer, Launch(job, 1, token, sys.argv[2], 3600.0, tags(job, 1, token)))
"""


@pytest.mark.parametrize("user_data", ["#!/bin/bash\nsleep 600\n", "#!/bin/bash\nsleep 600 # signed anew\n"])
def test_r18_killed_between_the_call_and_the_record(
    make_room: Callable[..., Any], tmp_path: Path, user_data: str
) -> None:
    """kill -9 after EC2's answer; the next controller repeats the claim, in the second case with other user data."""
    make_room().cloud.prepare("us-east-1")
    room = make_room()
    command = [sys.executable, "-c", KILLED, str(tmp_path / "job"), "#!/bin/bash\nsleep 600\n"]
    environ = {**os.environ, **room.box.environ}
    assert subprocess.run(command, env=environ, check=False, timeout=60).returncode == -9
    offer = room.offer()
    node = claimed(room.cloud.claim(offer, room.launch(offer, user_data=user_data)))
    assert room.box.living() == [node.id]
    assert not room.cloud.unknown_codes


def test_r18_a_token_whose_machine_has_ended_makes_no_second_one(room: Any, eventually: Any) -> None:
    offer = room.offer()
    node = claimed(room.cloud.claim(offer, room.launch(offer)))
    room.box.client("ec2").terminate_instances(InstanceIds=[node.id])
    assert eventually(lambda: room.box.instances()[0]["state"] == "terminated")
    again = claimed(room.cloud.claim(offer, room.launch(offer)))
    assert room.box.launches()[-1] == "IdempotentInstanceTerminated"
    assert (again.id, room.cloud.inspect(again)) == (node.id, NodeState.GONE)
    assert len(room.box.instances()) == 1


def test_a_token_counts_in_its_zone_alone(room: Any) -> None:
    a, b = room.offer("us-east-1a"), room.offer("us-east-1b")
    one = claimed(room.cloud.claim(a, room.launch(a)))
    two = claimed(room.cloud.claim(b, replace(room.launch(b), token=one.token)))
    assert one.id != two.id  # as EC2 documents it; our tokens name the zone


def test_a_profile_that_ec2_has_not_heard_of_yet_is_waited_for(room: Any) -> None:
    text = "Value (arn:aws:iam::1:instance-profile/x) for parameter iamInstanceProfile.arn is invalid. Invalid IAM ..."
    room.box.emulator.faults.set(
        [{"action": "RunInstances", "code": "InvalidParameterValue", "message": text, "times": 2}]
    )
    offer = room.offer()
    claimed(room.cloud.claim(offer, room.launch(offer)))
    assert len(room.box.launches()) == 3


def test_a_missing_permission_is_named(room: Any) -> None:
    room.box.emulator.faults.set([{"action": "RunInstances", "code": "UnauthorizedOperation"}])
    offer = room.offer()
    failure = refused(room.cloud.claim(offer, room.launch(offer)))
    assert (failure.kind, failure.scope) == (FailureKind.UNAUTHORIZED, Scope.ACCOUNT)
    assert "the permission ec2:RunInstances is missing on arn:aws:ec2:us-east-1" in failure.message


def test_a_template_that_went_away_is_made_anew(room: Any) -> None:
    """Somebody tidied up behind our back: neither the note nor the state of Terraform is right."""
    stack, state = room.stacks["us-east-1"], room.stacks["us-east-1"].state()
    stack.destroy()
    stack.keep({})
    assert state["template"] == room.prepared().template_id
    offer = room.offer()
    claimed(room.cloud.claim(offer, room.launch(offer)))
    assert stack.runs == ["prepare", "destroy", "prepare"]


def test_a_prepared_region_is_not_prepared_again_by_the_next_controller(room: Any, make_room: Any) -> None:
    second = make_room()
    second.cloud.prepare("us-east-1")
    assert second.stacks == {}
    changed = make_room(disk_gb=200)
    changed.cloud.prepare("us-east-1")
    assert changed.stacks["us-east-1"].runs == ["prepare"]


def test_a_claim_that_is_made_again_an_hour_later_tells_when_the_machine_was_launched(room: Any) -> None:
    offer, before = room.offer(), time.time()
    first = claimed(room.cloud.claim(offer, room.launch(offer)))
    room.cloud._clock = replace(room.cloud._clock, now=lambda: time.time() + 3600)
    again = claimed(room.cloud.claim(offer, room.launch(offer)))
    assert again.id == first.id
    assert before - 1 <= again.claimed_at == first.claimed_at <= time.time()


def test_inspect_waits_for_a_machine_that_is_not_listed_yet(room: Any) -> None:
    offer = room.offer()
    node = claimed(room.cloud.claim(offer, room.launch(offer)))
    rule = {"action": "DescribeInstances", "code": "InvalidInstanceID.NotFound"}
    room.box.emulator.faults.set([rule])
    assert room.cloud.inspect(node) is NodeState.PENDING
    assert room.cloud.inspect(replace(node, claimed_at=node.claimed_at - 3600)) is NodeState.UNLISTED


def test_the_report_says_why_a_spot_machine_was_lost(room: Any, eventually: Any, tmp_path: Path) -> None:
    offer = room.offer()
    node = claimed(room.cloud.claim(offer, room.launch(offer)))
    assert eventually(lambda: room.box.machines.alive(node.id))
    room.box.emulator.take(node.id)
    watched, event = sweeps.watched(room.cloud, sweeps.aws(regions=["us-east-1"]), tmp_path / "state", node)
    assert watched.ending is Ending.LOST
    assert watched.reason.startswith("the cloud says the machine is gone: Server.SpotInstanceTermination: ")
    assert event["reason"] == watched.reason


def test_the_ceiling_goes_to_aws_in_dollars(make_room: Callable[..., Any]) -> None:
    room = make_room(max_price="7.1 CNY")
    offer = room.offer()
    claimed(room.cloud.claim(offer, room.launch(offer)))
    request = room.box.client("ec2").describe_spot_instance_requests()["SpotInstanceRequests"][0]
    assert (request["SpotPrice"], request["Type"]) == ("1.000000", "one-time")
