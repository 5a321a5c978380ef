"""Releases, what is left over, quotas, and the end of a job at Google Cloud."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.clouds.gcp import release
from provisioner.clouds.gcp.api import Account
from provisioner.clouds.gcp.probe import look
from provisioner.errors import CloudError, TerraformError, Unauthorized
from provisioner.model import Ending, FailureKind, Market, Node, NodeState, Owned, Scope
from tests import sweeps


def claim(room: Any, *args: Any) -> Node:
    wanted = room.offer(*args)
    node = room.cloud.claim(wanted, room.launch(wanted))
    assert isinstance(node, Node), node
    return node


def billable(room: Any) -> list[Owned]:
    return [thing for thing in room.cloud.owned() if thing.kind in ("machine", "volume")]


def test_a_released_machine_is_gone_and_terraform_lets_go_of_it_before_it_takes_the_next(
    room: Any, make_room: Any
) -> None:
    node = claim(room)
    room.cloud.adopt(node)
    room.cloud.release(node)
    assert room.box.instances() == []
    assert room.cloud.inspect(node) is NodeState.UNLISTED
    assert not billable(room)
    name = node.id.partition("/")[2]
    adopted = f"adopt projects/sandbox-project/zones/us-central1-b/instances/{name}"
    assert room.stacks["us-central1"].runs == ["prepare", adopted], "a release waits for no Terraform"
    room.cloud.release(node)  # once more is fine
    changed = make_room(ssh_cidr="203.0.113.7/32")
    changed.cloud.prepare("us-central1")
    assert changed.stacks["us-central1"].runs == ["release", "prepare"]


def test_a_machine_that_one_look_does_not_show_is_deleted_all_the_same(room: Any) -> None:
    node = claim(room)
    room.box.emulator.faults.set([{"method": "instances.get", "code": "notFound", "times": 1}])
    assert room.cloud.inspect(node) is NodeState.UNLISTED
    room.box.emulator.faults.set([{"method": "instances.get", "code": "notFound", "times": 1}])
    room.cloud.release(node)
    assert room.box.instances() == []


def test_a_claim_that_is_made_again_an_hour_later_tells_when_the_machine_was_launched(room: Any) -> None:
    before, first = time.time(), claim(room)
    room.cloud._clock = replace(room.cloud._clock, now=lambda: time.time() + 3600)
    again = claim(room)
    assert again.id == first.id
    assert before - 1 <= again.claimed_at == first.claimed_at <= time.time()


def test_a_disk_that_outlives_its_machine_goes_with_it(room: Any) -> None:
    node = claim(room)
    zone, name = node.id.split("/")
    found = room.box.emulator._world.get(f"zones/{zone}", "instances", name)
    found["disks"][0]["autoDelete"] = False  # somebody has changed it by hand
    room.cloud.release(node)
    assert room.box.emulator.state()["disks"] == []


def test_a_machine_that_does_not_end_is_reported(room: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    node = claim(room)
    monkeypatch.setattr(room.box.emulator._instances, "_end_s", 30.0)
    zone, name = node.id.split("/")
    with pytest.raises(CloudError, match=f"machine {node.id} is still there"):
        release.terminate(room.cloud._compute("us-central1"), zone, name, room.cloud._clock, confirm_s=0.5)


def test_a_preempted_machine_is_gone_with_its_disk(room: Any, eventually: Any) -> None:
    node = claim(room)
    machine = room.box.instances()[0]["id"]
    assert eventually(lambda: room.box.machines.alive(machine))
    room.box.emulator.take(machine)
    assert eventually(lambda: room.cloud.inspect(node) is NodeState.GONE)
    assert not billable(room)


def test_the_report_says_why_a_spot_machine_was_lost(room: Any, eventually: Any, tmp_path: Path) -> None:
    node, other = claim(room), claim(room, "us-central1-b", Market.ON_DEMAND)
    assert eventually(lambda: all(room.box.machines.alive(one["id"]) for one in room.box.instances()))
    room.box.emulator.take(next(one["id"] for one in room.box.instances() if one["name"] in node.id))
    assert eventually(lambda: room.cloud.inspect(node) is NodeState.GONE)
    places = {"fallback": [{"gcp": {"project": "sandbox-project", "regions": ["us-central1"]}}]}
    watched, event = sweeps.watched(room.cloud, places, tmp_path / "state", node)
    assert watched.ending is Ending.LOST
    assert watched.reason.startswith("the cloud says the machine is gone: compute.instances.preempted: ")
    assert event["reason"] == watched.reason
    assert room.cloud.why_gone(other) == ""
    room.box.emulator.faults.set([{"method": "zoneOperations.list", "code": "forbidden"}])
    watched, _ = sweeps.watched(room.cloud, places, tmp_path / "state", node)
    assert (watched.ending, watched.reason) == (Ending.LOST, "the cloud says the machine is gone")


def test_r21_a_machine_that_switched_itself_off_is_found_with_its_disk_and_cost(room: Any, eventually: Any) -> None:
    offer = room.offer()
    node = room.cloud.claim(offer, room.launch(offer, user_data="#!/bin/bash\nsleep 0.2\nshutdown -h now\n"))
    assert isinstance(node, Node)
    assert eventually(lambda: room.cloud.inspect(node) is NodeState.STOPPED)
    assert eventually(lambda: room.box.instances()[0]["state"] == "TERMINATED")
    machine, volume = billable(room)
    assert (machine.kind, machine.state, machine.price_per_hour) == ("machine", "terminated", None)
    assert str(volume.price_per_hour) == "0.0137 USD"  # 100 GB of pd-balanced for an hour
    room.cloud.release(replace(node, offer=replace(offer, zone="", instance_type="")))
    assert not billable(room)


def test_dismantle_leaves_nothing(make_room: Callable[..., Any]) -> None:
    room = make_room(bucket="bucket", network="own")
    node = claim(room)
    room.cloud.release(node)
    room.cloud.dismantle()
    state = room.box.emulator.state()
    assert [state[kind] for kind in ("networks", "subnetworks", "firewalls", "service_accounts", "disks")] == [[]] * 5
    assert not room.cloud.owned()
    assert not (room.box.directory / "job" / "terraform" / "gcp-us-central1").exists()
    room.cloud.dismantle()  # once more is fine
    room.cloud.prepare("us-central1")  # and it can begin again


@pytest.mark.parametrize("broken", [False, True])
def test_dismantle_removes_what_no_state_file_names(make_room: Callable[..., Any], *, broken: bool) -> None:
    """Terraform was killed between Google's answer and its note; or cannot run at all any more."""
    room = make_room(bucket="bucket", network="own")
    room.cloud.prepare("us-central1")
    if broken:
        room.stacks["us-central1"].fail = TerraformError("no provider")
    else:
        room.stacks["us-central1"].keep({})
    kinds = {thing.kind for thing in room.cloud.owned()}
    assert kinds == {"network", "subnetwork", "firewall", "service_account"}
    room.cloud.dismantle()
    assert not room.cloud.owned()
    assert not [one for one in room.box.emulator.state()["bindings"] if "fo-1a2b3c4d" in str(one)]


def test_two_jobs_that_leave_a_bucket_at_once_both_do(
    make_room: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy was changed between reading and writing it: Google refuses the old one (412), and it is read again."""
    room = make_room(bucket="bucket")
    room.cloud.prepare("us-central1")
    room.stacks["us-central1"].keep({})
    http, late = Account.http, [True]

    def http_late(account: Account, method: str, service: str, path: str, body: Any = None) -> Any:
        if method == "PUT" and late and late.pop():
            body = {**body, "etag": "b3RoZXI="}
        return http(account, method, service, path, body)

    monkeypatch.setattr(Account, "http", http_late)
    room.cloud.dismantle()
    assert not late
    assert not room.cloud.owned()
    assert not [one for one in room.box.emulator.state()["bindings"] if "fo-1a2b3c4d" in str(one)]


def test_dismantle_names_what_is_left(room: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    node = claim(room)
    monkeypatch.setattr("provisioner.clouds.regional.SWEPT_S", 0.5)
    with pytest.raises(CloudError, match=f"Google Cloud still lists us-central1 machine {node.id}"):
        room.cloud.dismantle()
    room.cloud.release(node)
    room.cloud.dismantle()


def test_a_project_that_cannot_be_asked_hides_no_other_and_is_never_called_empty(
    make_room: Callable[..., Any], tmp_path: Path
) -> None:
    room = make_room(others=({"project": "closed-project", "regions": ["europe-west4"]},))
    node = claim(room)
    assert ("machine", node.id) in {(thing.kind, thing.id) for thing in room.cloud.owned()}
    assert {event["place"] for event in room.events.told if event["kind"] == "owned_partly"} == {"closed-project"}
    assert (room.cloud.heard("us-central1"), room.cloud.heard("europe-west4")) == (True, False)
    room.cloud.release(node)
    with pytest.raises(CloudError, match=r"^closed-project could not be asked: "):
        room.cloud.dismantle()
    assert not room.box.emulator.state()["firewalls"]  # what could be taken apart was
    with pytest.raises(CloudError, match=r"^closed-project could not be asked: "):
        room.cloud.owned()
    places = {"fallback": [{"gcp": {"project": "sandbox-project", "regions": ["us-central1"]}}]}
    (left,) = sweeps.world({"gcp": room.cloud}, places, tmp_path / "state").finish(frozenset({"gcp"})).leaked
    assert left.startswith("gcp: cannot tell: closed-project could not be asked: ")


def test_a_machine_is_released_where_it_is_although_the_file_names_another_project(
    room: Any, make_room: Callable[..., Any]
) -> None:
    node = claim(room)
    moved = make_room(project="closed-project", others=({"project": "sandbox-project", "regions": ["us-east1"]},))
    assert node.id in {thing.id for thing in moved.cloud.owned()}
    moved.cloud.release(node)
    assert room.box.instances() == []


def test_other_jobs_are_left_alone(room: Any) -> None:
    node = claim(room)
    zone, name = node.id.split("/")
    other = room.box.emulator._world.get(f"zones/{zone}", "instances", name)
    other["labels"] = {**other["labels"], "failover-uid": "ffffffff"}
    disk = room.box.emulator._world.get(f"zones/{zone}", "disks", name)
    disk["labels"] = other["labels"]
    room.cloud.dismantle()
    assert not room.cloud.owned()
    assert room.box.living() == [node.id]


def test_an_offer_over_its_quota_is_named_before_it_is_asked_for(room: Any) -> None:
    emulator = room.box.emulator
    emulator.set_quota("NVIDIA_T4_GPUS", 0.0, "us-central1")
    emulator.set_quota("PREEMPTIBLE_NVIDIA_T4_GPUS", 0.0, "us-central1")
    t4, l4 = room.offer(), room.offer(kind="g2-standard-4")
    over = room.cloud.over_quota([t4, l4])
    assert list(over) == [t4.key]
    failure = over[t4.key]
    assert (failure.kind, failure.scope, failure.code) == (
        FailureKind.QUOTA,
        Scope.FAMILY,
        "PREEMPTIBLE_NVIDIA_T4_GPUS",
    )
    assert failure.message == (
        "us-central1: PREEMPTIBLE_NVIDIA_T4_GPUS is 0, 0 in use and NVIDIA_T4_GPUS is 0, 0 in use; this machine needs 1"
    )
    assert "metric=compute.googleapis.com/preemptible_nvidia_t4_gpus&project=sandbox-project" in failure.advice
    assert room.box.inserts() == []


def test_a_machine_that_came_counts_at_once(room: Any) -> None:
    room.box.emulator.set_quota("GPUS_ALL_REGIONS", 1.0)
    offers = [room.offer(market=market) for market in Market]
    assert not room.cloud.over_quota(offers)
    node = claim(room)
    over = room.cloud.over_quota(offers)
    assert {failure.scope for failure in over.values()} == {Scope.ACCOUNT}
    assert len(over) == 2
    room.cloud.release(node)
    assert not room.cloud.over_quota(offers)


def test_quotas_that_cannot_be_read_block_nothing(room: Any) -> None:
    room.box.emulator.faults.set([{"method": "regions.get", "code": "forbidden"}])
    assert not room.cloud.over_quota([room.offer()])
    assert [event["region"] for event in room.events.told if event["kind"] == "quotas_unknown"] == ["us-central1"]


def test_the_doctor_says_whether_a_project_answers(gcp_box: Any) -> None:
    told = look("sandbox-project", gcp_box.environ)
    assert told == "project sandbox-project answers; 32 of 32 GPUs are free to ask for"
    with pytest.raises(Unauthorized, match="GOOGLE_OAUTH_ACCESS_TOKEN is wrong, or has ended"):
        look("sandbox-project", {**gcp_box.environ, "GOOGLE_OAUTH_ACCESS_TOKEN": "wrong"})
    with pytest.raises(CloudError) as caught:
        look("another-project", gcp_box.environ)
    assert "fallback.gcp.project" in caught.value.hint
