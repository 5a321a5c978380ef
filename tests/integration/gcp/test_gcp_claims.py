"""Claims through Google's own client, against Compute Engine in a box."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provisioner.clouds.base import Accounted, Cloud, Quotas
from provisioner.clouds.gcp.machine import machine_name
from provisioner.model import Failure, FailureKind, Market, Node, NodeState, Offer, Scope
from provisioner.planner.memory import FailureMemory

PLAIN, DETAILED = "ZONE_RESOURCE_POOL_EXHAUSTED", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
ZONES = ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f")


def claimed(answer: Node | Failure) -> Node:
    assert isinstance(answer, Node), answer
    return answer


def refused(answer: Node | Failure) -> Failure:
    assert isinstance(answer, Failure), answer
    return answer


def sweep(room: Any, offers: list[Offer]) -> tuple[Node | None, list[Failure]]:
    """Claim along a list as the controller does: what a refusal rules out is not tried."""
    memory, failures = FailureMemory(), []
    for offer in offers:
        if memory.blocks(offer, 0.0) is not None:
            continue
        answer = room.cloud.claim(offer, room.launch(offer))
        if isinstance(answer, Node):
            return answer, failures
        failures.append(answer)
        memory = memory.remember(answer, offer, now=0.0)
    return None, failures


def test_the_room_fulfils_the_contracts(room: Any) -> None:
    for contract in (Cloud, Quotas, Accounted):
        assert isinstance(room.cloud, contract)


def test_a_claimed_machine_is_what_was_asked_for(room: Any) -> None:
    offer = room.offer()
    launch = room.launch(offer)
    node = claimed(room.cloud.claim(offer, launch))
    assert node.id == f"us-central1-b/{machine_name(launch)}"
    found = room.box.compute("GET", f"zones/us-central1-b/instances/{machine_name(launch)}")
    assert found["status"] == "RUNNING"
    assert found["guestAccelerators"][0]["acceleratorType"].endswith(
        "zones/us-central1-b/acceleratorTypes/nvidia-tesla-t4"
    )
    wanted = {"provisioningModel": "SPOT", "instanceTerminationAction": "DELETE", "onHostMaintenance": "TERMINATE"}
    assert wanted.items() <= found["scheduling"].items()
    assert (found["scheduling"]["automaticRestart"], found["scheduling"]["maxRunDuration"]) == (
        False,
        {"seconds": "3600"},
    )
    metadata = {item["key"]: item["value"] for item in found["metadata"]["items"]}
    assert metadata == {
        "startup-script": launch.user_data,
        "enable-oslogin": "TRUE",
        "block-project-ssh-keys": "TRUE",
        "install-nvidia-driver": "True",
    }
    assert found["serviceAccounts"][0]["email"] == room.stacks["us-central1"].email
    assert found["tags"]["items"] == [room.stacks["us-central1"].name]
    assert found["networkInterfaces"][0]["accessConfigs"][0]["natIP"]
    assert found["shieldedInstanceConfig"]["enableVtpm"]
    assert found["disks"][0]["autoDelete"]
    kinds = {thing.kind: thing for thing in room.cloud.owned()}
    for kind in ("machine", "volume"):
        assert (kinds[kind].job, kinds[kind].epoch, kinds[kind].token) == ("digits", 1, node.token)
        assert kinds[kind].price_per_hour is not None
    assert {"firewall", "service_account"} <= set(kinds)
    assert room.cloud.inspect(node) is NodeState.RUNNING


@pytest.mark.parametrize(
    ("rule", "kind", "scope", "code"),
    [
        ({"code": PLAIN, "delay": 0.4}, FailureKind.NO_CAPACITY, Scope.OFFER, PLAIN),
        ({"code": DETAILED, "delay": 0.4}, FailureKind.NO_CAPACITY, Scope.OFFER, DETAILED),
        ({"code": "QUOTA_EXCEEDED", "delay": 0.4}, FailureKind.QUOTA, Scope.FAMILY, "QUOTA_EXCEEDED"),
        (
            {"code": "QUOTA_EXCEEDED", "metric": "GPUS_ALL_REGIONS"},
            FailureKind.QUOTA,
            Scope.ACCOUNT,
            "QUOTA_EXCEEDED",
        ),
        (
            {"code": "QUOTA_EXCEEDED", "metric": "CPUS_ALL_REGIONS"},
            FailureKind.QUOTA,
            Scope.ACCOUNT,
            "QUOTA_EXCEEDED",
        ),
        (
            {"code": "VM_MIN_COUNT_NOT_REACHED", "also": ["QUOTA_EXCEEDED"], "metric": "IN_USE_ADDRESSES"},
            FailureKind.QUOTA,
            Scope.REGION,
            "QUOTA_EXCEEDED",
        ),
        ({"code": "UNSUPPORTED_OPERATION"}, FailureKind.NO_CAPACITY, Scope.OFFER, "UNSUPPORTED_OPERATION"),
        ({"code": "SOMETHING_NEW_IN_2031"}, FailureKind.UNKNOWN, Scope.OFFER, "SOMETHING_NEW_IN_2031"),
        ({"code": "forbidden"}, FailureKind.UNAUTHORIZED, Scope.ACCOUNT, "forbidden"),
        ({"code": "accessNotConfigured"}, FailureKind.UNAUTHORIZED, Scope.ACCOUNT, "accessNotConfigured"),
    ],
)
def test_r22_the_operation_holds_the_reason(
    room: Any, rule: dict[str, Any], kind: FailureKind, scope: Scope, code: str
) -> None:
    """Insert says yes. What it came to is told seconds later, and only by the operation."""
    room.box.emulator.faults.set([{"method": "instances.insert", **rule}])
    offer = room.offer()
    failure = refused(room.cloud.claim(offer, room.launch(offer)))
    assert (failure.kind, failure.scope, failure.code) == (kind, scope, code)
    assert len(room.box.inserts()) == 1
    assert not room.box.instances()
    assert (failure.code in room.cloud.unknown_codes) is (kind is FailureKind.UNKNOWN)
    if kind is FailureKind.QUOTA:
        assert f"project={room.box.emulator.project}" in failure.advice
    if kind is FailureKind.UNAUTHORIZED:
        assert "compute.instances.insert" in failure.message or "console" in failure.advice


def test_r22_a_refusal_in_each_zone_and_one_machine_at_the_end(room: Any, eventually: Any) -> None:
    """Zone a: plain; b: detailed, and it names f; c holds a stopped twin of the last name; f has room."""
    twin_offer = room.offer("us-central1-c")
    twin = claimed(room.cloud.claim(twin_offer, room.launch(twin_offer)))
    machine = next(one["id"] for one in room.box.instances())
    assert eventually(lambda: room.box.machines.alive(machine))
    room.box.compute("POST", f"zones/us-central1-c/instances/{twin.id.partition('/')[2]}/stop")
    assert eventually(lambda: room.box.instances()[0]["state"] == "TERMINATED")
    room.box.emulator.faults.set(
        [
            {"method": "instances.insert", "zone": "us-central1-a", "code": PLAIN, "delay": 0.5},
            {
                "method": "instances.insert",
                "zone": "us-central1-b",
                "code": DETAILED,
                "delay": 0.5,
                "zones_available": ["us-central1-f"],
            },
            {"method": "instances.insert", "zone": "us-central1-c", "code": "QUOTA_EXCEEDED", "delay": 0.5},
        ]
    )
    node, failures = sweep(room, [room.offer(zone) for zone in ("us-central1-a", "us-central1-b", "us-central1-f")])
    assert [failure.elsewhere for failure in failures] == [(), ("us-central1-f",)]
    assert {(failure.kind, failure.scope) for failure in failures} == {(FailureKind.NO_CAPACITY, Scope.OFFER)}
    assert node is not None
    assert room.box.living() == [node.id]
    owned = [(thing.kind, thing.id, thing.state) for thing in room.cloud.owned() if thing.kind in ("machine", "volume")]
    assert ("machine", twin.id, "terminated") in owned
    assert [kind for kind, thing, _ in owned if thing == twin.id] == ["machine", "volume"]
    room.cloud.release(twin)
    room.cloud.release(node)
    assert not [thing for thing in room.cloud.owned() if thing.kind in ("machine", "volume")]


def test_r22_a_stopped_twin_of_the_last_claim_does_not_stand_in_the_way(room: Any, eventually: Any) -> None:
    """Same placement, same zone, next attempt: another name."""
    offer = room.offer()
    first = claimed(room.cloud.claim(offer, room.launch(offer)))
    room.box.compute("POST", f"zones/us-central1-b/instances/{first.id.partition('/')[2]}/stop")
    assert eventually(lambda: room.box.instances()[0]["state"] == "TERMINATED")
    second = claimed(room.cloud.claim(offer, room.launch(offer, attempt=1)))
    assert second.id != first.id
    assert room.cloud.inspect(first) is NodeState.STOPPED


def test_a_state_that_google_has_yet_to_invent_is_a_machine_that_runs(room: Any) -> None:
    offer = room.offer()
    launch = room.launch(offer)
    node = claimed(room.cloud.claim(offer, launch))
    zone, name = node.id.split("/")
    room.box.emulator._world.get(f"zones/{zone}", "instances", name)["status"] = "MOVING_HOUSE"
    assert room.cloud.inspect(node) is NodeState.RUNNING
    assert claimed(room.cloud.claim(offer, launch)).id == node.id
    assert len(room.box.instances()) == 1


def test_r22_a_token_whose_machine_stands_still_makes_no_second_one(room: Any, eventually: Any) -> None:
    offer = room.offer()
    first = claimed(room.cloud.claim(offer, room.launch(offer)))
    room.box.compute("POST", f"zones/us-central1-b/instances/{first.id.partition('/')[2]}/stop")
    assert eventually(lambda: room.box.instances()[0]["state"] == "TERMINATED")
    failure = refused(room.cloud.claim(offer, room.launch(offer)))
    assert (failure.kind, failure.scope, failure.code) == (FailureKind.NO_CAPACITY, Scope.OFFER, "MACHINE_GONE")
    assert not room.box.living()
    assert eventually(lambda: room.box.instances() == []), "it is sent away: nobody will start it again"


@pytest.mark.parametrize("later", [None, PLAIN])
def test_r22_a_lost_insert_answer_is_asked_for_again(room: Any, later: str | None) -> None:
    """The call reached Google, its answer was lost: the same request id finds the machine, or the reason."""
    rule = {"method": "instances.insert", "lost": True, "times": 1} | ({"code": later} if later else {})
    room.box.emulator.faults.set([rule])
    offer = room.offer()
    answer = room.cloud.claim(offer, room.launch(offer))
    if later is None:
        assert room.box.living() == [claimed(answer).id]
    else:
        assert refused(answer).code == later
    assert len(room.box.inserts()) == 1


def test_r22_a_name_that_is_still_taken_after_a_refusal_is_waited_for(room: Any) -> None:
    """A fault of Google's passes: the operation is asked for anew, under another id, as soon as the name is free."""
    room.box.emulator.faults.set([{"method": "instances.insert", "code": "INTERNAL_ERROR", "times": 1}])
    offer = room.offer()
    node = claimed(room.cloud.claim(offer, room.launch(offer)))
    assert room.box.living() == [node.id]
    assert room.box.inserts()[0] == ("us-central1-b", "INTERNAL_ERROR")


def test_a_stock_out_costs_one_insert_a_zone(room: Any) -> None:
    room.box.emulator.faults.set([{"method": "instances.insert", "code": PLAIN}])
    node, failures = sweep(room, [room.offer(zone) for zone in ZONES])
    assert (node, len(failures)) == (None, 4)
    assert [zone for zone, _ in room.box.inserts()] == list(ZONES)


def test_a_quota_costs_one_insert_a_region_and_market(make_room: Callable[..., Any]) -> None:
    room = make_room(regions=["us-central1", "us-east1"])
    for metric in ("NVIDIA_T4_GPUS", "PREEMPTIBLE_NVIDIA_T4_GPUS"):
        for region in ("us-central1", "us-east1"):
            room.box.emulator.set_quota(metric, 0.0, region)
    for region in ("us-central1", "us-east1"):
        room.cloud.prepare(region)
    zones = (*ZONES, "us-east1-c", "us-east1-d")
    node, failures = sweep(room, [room.offer(zone, market) for market in Market for zone in zones])
    assert node is None
    assert {(one.kind, one.scope) for one in failures} == {(FailureKind.QUOTA, Scope.FAMILY)}
    assert [zone for zone, _ in room.box.inserts()] == ["us-central1-a", "us-east1-c"] * 2
    other = room.offer(kind="g2-standard-4")
    claimed(room.cloud.claim(other, room.launch(other)))  # a quota of T4 says nothing of L4


def test_unauthorized_costs_one_insert_in_all_and_names_the_permission(room: Any) -> None:
    text = "Required 'compute.disks.create' permission for 'projects/sandbox-project/zones/us-central1-a/disks/x'"
    room.box.emulator.faults.set([{"method": "instances.insert", "code": "forbidden", "message": text}])
    node, failures = sweep(room, [room.offer(zone, market) for market in Market for zone in ZONES])
    assert (node, len(room.box.inserts())) == (None, 1)
    assert "the permission compute.disks.create is missing on projects/sandbox-project" in failures[0].message


def test_throttling_backs_off_and_tries_the_same_again(room: Any) -> None:
    room.box.emulator.faults.set([{"method": "instances.insert", "code": "rateLimitExceeded", "times": 3}])
    offer = room.offer()
    claimed(room.cloud.claim(offer, room.launch(offer)))
    assert [outcome for _, outcome in room.box.inserts()][:3] == ["rateLimitExceeded"] * 3
    assert len(room.box.instances()) == 1


def test_an_unknown_code_is_counted_and_told(room: Any) -> None:
    room.box.emulator.faults.set([{"method": "instances.insert", "code": "SOMETHING_NEW_IN_2031"}])
    offer = room.offer()
    room.cloud.claim(offer, room.launch(offer))
    assert room.cloud.unknown_codes == {"SOMETHING_NEW_IN_2031": 1}
    assert [event["code"] for event in room.events.told if event["kind"] == "unknown_code"] == ["SOMETHING_NEW_IN_2031"]


def test_credentials_that_google_refuses_end_it(make_room: Callable[..., Any]) -> None:
    make_room().cloud.prepare("us-central1")
    room = make_room(environ={"GOOGLE_OAUTH_ACCESS_TOKEN": "wrong"})
    offer = room.offer()
    failure = refused(room.cloud.claim(offer, room.launch(offer)))
    assert (failure.kind, failure.scope) == (FailureKind.UNAUTHORIZED, Scope.ACCOUNT)


@pytest.mark.parametrize("content", [None, "{}", '{"type": "authorized_user", "client_id": "x"}'])
def test_a_key_file_that_is_none_is_named(make_room: Callable[..., Any], tmp_path: Path, content: str | None) -> None:
    make_room().cloud.prepare("us-central1")
    file = tmp_path / "key.json"
    if content is not None:
        file.write_text(content)
    environ = {"GOOGLE_OAUTH_ACCESS_TOKEN": "", "GOOGLE_APPLICATION_CREDENTIALS": str(file)}
    room = make_room(environ=environ)
    offer = room.offer()
    failure = refused(room.cloud.claim(offer, room.launch(offer)))
    assert (failure.kind, failure.scope) == (FailureKind.UNAUTHORIZED, Scope.ACCOUNT)
    assert str(file) in failure.message
    assert room.box.inserts() == []


def test_a_service_account_that_went_away_is_made_anew(room: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody tidied up behind our back: neither the note nor the state of Terraform is right."""
    monkeypatch.setattr("provisioner.clouds.gcp.substrate.NEW_S", -1.0)
    stack = room.stacks["us-central1"]
    stack.destroy()
    offer = room.offer()
    node = claimed(room.cloud.claim(offer, room.launch(offer)))
    assert room.box.living() == [node.id]
    assert stack.runs == ["prepare", "destroy", "prepare"]
    assert next(outcome for _, outcome in room.box.inserts()) == "notFound"
    assert len(room.box.inserts()) == 2


def test_a_service_account_that_google_has_not_heard_of_yet_is_waited_for(room: Any) -> None:
    text = "The resource 'projects/p/serviceAccounts/x@y' of type 'serviceAccount' was not found."
    rule = {"method": "instances.insert", "code": "notFound", "message": text, "times": 2}
    room.box.emulator.faults.set([rule])
    offer = room.offer()
    claimed(room.cloud.claim(offer, room.launch(offer)))
    assert [outcome for _, outcome in room.box.inserts()][:2] == ["notFound"] * 2
    assert room.stacks["us-central1"].runs == ["prepare"]


def test_a_prepared_region_is_not_prepared_again_by_the_next_controller(room: Any, make_room: Any) -> None:
    second = make_room()
    second.cloud.prepare("us-central1")
    assert second.stacks == {}
    changed = make_room(network="own")
    changed.cloud.prepare("us-central1")
    assert changed.stacks["us-central1"].runs == ["prepare"]


KILLED = """
import os, signal, sys
from pathlib import Path
from provisioner.clouds.clock import Clock
from provisioner.clouds.gcp.cloud import GcpCloud
from provisioner.clouds.gcp.compute import Compute
from provisioner.config import GcpConfig
from provisioner.model import Gpu, JobRef, Launch, Market, Offer, claim_token, tags

when = sys.argv[2]
job = JobRef("digits", "1a2b3c4d")
config = GcpConfig.model_validate({"project": "sandbox-project", "regions": ["us-central1"]})
cloud = GcpCloud([config], job, Path(sys.argv[1]), lambda: None, os.environ, prefix="jobs/digits")
offer = Offer("gcp", "us-central1", "us-central1-b", "n1-standard-4+1xT4", Gpu("T4", 1, 16), Market.SPOT, None)
token = claim_token(job, 1, offer)
insert, operation = Compute.insert, Compute.operation

def killed(*args, **kwargs):
    if when == "after insert":
        insert(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)

Compute.insert = killed
cloud.claim(offer, Launch(job, 1, token, "#!/bin/bash\\nsleep 600\\n", 3600.0, tags(job, 1, token)))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("when", "user_data"),
    [
        ("before insert", "#!/bin/bash\nsleep 600\n"),
        ("after insert", "#!/bin/bash\nsleep 600\n"),
        ("after insert", "#!/bin/bash\nsleep 601\n"),  # Google refuses the id with another body, and the name is taken
    ],
)
def test_r22_a_claim_repeated_after_kill_9_gives_the_same_machine(
    room: Any, make_room: Any, tmp_path: Path, when: str, user_data: str
) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "job"), when]
    environ = {**os.environ, **room.box.environ}
    assert subprocess.run(command, env=environ, check=False, timeout=60).returncode == -9
    again = make_room()
    offer = again.offer()
    node = claimed(again.cloud.claim(offer, again.launch(offer, user_data=user_data)))
    assert again.box.living() == [node.id]
    assert not again.cloud.unknown_codes


def test_an_operation_that_never_ends_is_given_up_and_leaves_no_machine(
    room: Any, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    monkeypatch.setattr("provisioner.clouds.gcp.claim.OPERATION_S", 0.3)
    room.box.emulator.faults.set([{"method": "instances.insert", "code": PLAIN, "delay": 60.0}])
    offer = room.offer()
    failure = refused(room.cloud.claim(offer, room.launch(offer)))
    assert (failure.kind, failure.code) == (FailureKind.NO_CAPACITY, "TIMEOUT")
    assert eventually(lambda: not room.box.instances())
