"""``failover sweep`` against EC2, IAM and S3 in a box: what no run holds is found, priced and removed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provisioner.clouds.aws.inventory import job_tags
from provisioner.controller.sweep import Options, Sweep
from provisioner.model import Node
from tests import rooms
from tests.desk import Desk
from tests.integration.aws.test_aws_claim import KILLED

FILE = """
job: {name: digits, command: train}
checkpoint: {store: s3://bucket/jobs}
fallback: [{aws: {regions: [us-east-1], disk_gb: 100}}]
"""
DYING = KILLED.replace("    run(self, request)\n", "    try: run(self, request)\n    except Exception: pass\n")
SUBSTRATE = {"launch_template", "security_group", "role", "instance_profile"}


@pytest.fixture
def desk(aws_box: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    for name, value in {**aws_box.environ, "FAILOVER_STATE_DIR": str(tmp_path / "state")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    aws_box.client("s3").create_bucket(Bucket="bucket")
    return Desk(tmp_path, FILE, capsys)


def tagged(kind: str) -> list[dict[str, Any]]:
    tags = [{"Key": key, "Value": value} for key, value in job_tags(rooms.JOB).items()]
    return [{"ResourceType": kind, "Tags": tags}]


def claim(room: Any, epoch: int = 1) -> Node:
    offer = room.offer()
    node = room.cloud.claim(offer, room.launch(offer, epoch))
    assert isinstance(node, Node)
    return node


def test_the_machine_of_a_lost_answer_and_a_killed_controller_is_removed_and_its_cost_is_told(
    desk: Desk, aws_box: Any, make_room: Callable[..., Any], tmp_path: Path
) -> None:
    """EC2 made the machine, its answer was lost, and the controller died before it wrote down anything."""
    make_room().cloud.prepare("us-east-1")
    desk.events.emit("claim", epoch=1, offer="aws/us-east-1/us-east-1b/g4dn.xlarge/spot", price="?")
    aws_box.emulator.faults.set([{"action": "RunInstances", "lost": True, "times": 1}])
    command = [sys.executable, "-c", DYING, str(tmp_path / "job"), rooms.IDLE]
    assert subprocess.run(command, env={**os.environ, **aws_box.environ}, check=False, timeout=60).returncode == -9
    [lost] = aws_box.living()
    token = next(i["tags"]["failover:token"] for i in aws_box.instances())
    start = f"jobs/digits/epochs/1/bootstrap-{token[:16]}.json"
    aws_box.client("s3").put_object(Bucket="bucket", Key=start, Body=b"secret")

    code, told, _ = desk.sweep()
    assert code == 1
    machine = next(one for one in told["things"] if one["kind"] == "machine")
    assert (machine["id"], machine["job"], machine["epoch"]) == (lost, "digits", 1)
    assert (machine["standing"], machine["why"]) == ("orphan", "not the machine that the open run holds")
    assert told["per_hour"]["USD"] >= 0.526
    assert aws_box.living() == [lost], "without --yes nothing is changed"

    code, told, said = desk.sweep("--yes")
    assert (code, aws_box.living()) == (0, [])
    machine = next(one for one in told["things"] if one["kind"] == "machine")
    assert machine["removed"]
    assert float(machine["cost"].removesuffix(" USD")) == pytest.approx(
        0.526 * max(60.0, machine["seconds"]) / 3600, rel=0.05
    )
    assert f"removed machine {lost} (aws/us-east-1): it has cost about {machine['cost']}" in said
    assert "Contents" not in aws_box.client("s3").list_objects_v2(Bucket="bucket"), "its start object held secrets"
    assert desk.sweep()[:1] == (0,)
    assert aws_box.emulator.state()["templates"], "the open run keeps what was prepared for it"


def test_what_an_open_run_holds_is_not_listed_and_a_young_stray_is_left_alone(
    desk: Desk, aws_box: Any, room: Any
) -> None:
    stray, held = claim(room, 1), claim(room, 2)
    desk.events.emit("claim", epoch=1)
    desk.events.emit("claim", epoch=2)
    desk.events.emit("claimed", epoch=2, node=held.id)
    told = desk.sweep("--older", "10m")[1]["things"]
    assert {one["id"] for one in told if one["kind"] == "machine"} == {stray.id}
    assert {one["standing"] for one in told} == {"young"}
    assert desk.sweep("--yes")[0] == 0
    assert aws_box.living() == [held.id]


def test_a_machine_that_trains_for_the_open_run_is_kept_for_the_next_controller(
    desk: Desk, aws_box: Any, room: Any
) -> None:
    node = claim(room)
    desk.events.emit("claim", epoch=1)
    s3 = aws_box.client("s3")
    for name, value in {"owner": {"token": node.token}, "heartbeat": {"time": time.time(), "step": 3}}.items():
        s3.put_object(Bucket="bucket", Key=f"jobs/digits/epochs/1/{name}.json", Body=json.dumps(value).encode())
    assert desk.sweep("--yes")[0] == 0
    assert aws_box.living() == [node.id]


def test_a_machine_that_a_controller_takes_up_meanwhile_stays_with_all_that_it_needs(
    desk: Desk, aws_box: Any, room: Any
) -> None:
    node = claim(room)
    desk.events.emit("claim", epoch=1)
    start = {"Bucket": "bucket", "Key": f"jobs/digits/epochs/1/bootstrap-{node.token[:16]}.json"}
    aws_box.client("s3").put_object(**start, Body=b"secret")
    work = Sweep(None, Options(older=0.0), os.environ)
    swept = work.look()
    desk.events.emit("claimed", epoch=1, node=node.id)
    work.remove(swept, say=lambda _: None)
    assert {one.kind: one.problem for one in swept.orphans()} == {
        "machine": "job digits was taken up meanwhile",
        **dict.fromkeys(("start_object", "spot_request", "volume"), "its machine is still there"),
    }
    assert aws_box.living() == [node.id]
    assert aws_box.client("s3").get_object(**start)["Body"].read() == b"secret"


def test_of_a_job_that_has_ended_everything_goes_in_every_region_that_it_used(
    desk: Desk, aws_box: Any, make_room: Callable[..., Any]
) -> None:
    """Its file names one region; an earlier one named another, where a stack is."""
    made = make_room(regions=["us-east-1", "us-west-2"])
    for region in ("us-east-1", "us-west-2"):
        made.cloud.prepare(region)
        (desk.directory.path / "terraform" / f"aws-{region}").mkdir(parents=True, exist_ok=True)
    desk.events.emit("claim", epoch=1)
    claim(made)
    ec2 = aws_box.client("ec2")
    ec2.allocate_address(Domain="vpc", TagSpecifications=tagged("elastic-ip"))
    vpc = ec2.create_vpc(CidrBlock="10.73.0.0/16", TagSpecifications=tagged("vpc"))["Vpc"]["VpcId"]
    ec2.create_subnet(VpcId=vpc, CidrBlock="10.73.0.0/20", TagSpecifications=tagged("subnet"))
    desk.remember(is_open=False)
    assert desk.kinds() == {"machine", "volume", "spot_request", "address", "vpc", *SUBSTRATE}
    code, told, _ = desk.sweep("--yes")
    assert [one["problem"] for one in told["things"] if not one["removed"]] == []
    assert code == 0
    assert {one["region"] for one in told["things"]} == {"us-east-1", "us-west-2", "global"}
    state = aws_box.emulator.state()
    assert [state[kind] for kind in ("templates", "security_groups", "roles", "instance_profiles", "volumes")] == [
        []
    ] * 5
    assert not aws_box.living()
    assert not ec2.describe_addresses()["Addresses"]
    assert vpc not in {one["VpcId"] for one in ec2.describe_vpcs()["Vpcs"]}


def test_another_controllers_things_are_shown_and_touched_only_with_foreign(
    desk: Desk, aws_box: Any, room: Any
) -> None:
    theirs = claim(room)
    (desk.directory.path / "job.json").unlink()
    code, told, _ = desk.sweep(str(desk.file), "--yes")
    assert (code, {one["standing"] for one in told["things"]}) == (0, {"foreign"})
    assert aws_box.living() == [theirs.id]
    assert desk.sweep(str(desk.file), "--yes", "--foreign")[0] == 0
    assert not aws_box.living()
    assert aws_box.emulator.state()["roles"] == []


@pytest.mark.parametrize(
    ("fault", "places"),
    [
        ({"service": "ec2", "code": "UnauthorizedOperation"}, {"us-east-1 machines", "us-east-1 addresses"}),
        ({"service": "iam", "code": "AccessDenied"}, {"global roles", "global instance profiles"}),
        ({"service": "s3", "code": "AccessDenied", "status": 403}, {"s3://bucket/jobs/digits"}),
    ],
)
def test_what_cannot_be_asked_is_named_and_never_called_empty(
    desk: Desk, aws_box: Any, fault: dict[str, Any], places: set[str]
) -> None:
    assert desk.sweep()[0] == 0, "nothing is there"
    aws_box.emulator.faults.set([fault])
    code, told, _ = desk.sweep()
    assert (code, told["things"]) == (5, [])
    assert places <= {one["where"] for one in told["unasked"]}
    assert all(one["why"] for one in told["unasked"])


def test_credentials_that_are_not_there_are_named(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    code, told, _ = desk.sweep()
    assert (code, told["things"]) == (5, [])
    assert {"us-east-1 machines", "global roles"} <= {one["where"] for one in told["unasked"]}


def test_a_permission_that_is_missing_hides_nothing_else(desk: Desk, aws_box: Any, room: Any) -> None:
    node = claim(room)
    desk.events.emit("claim", epoch=1)
    denied = {"service": "ec2", "action": "DescribeVolumes", "code": "UnauthorizedOperation"}
    aws_box.emulator.faults.set([denied])
    code, told, _ = desk.sweep("--yes")
    assert (code, [one["where"] for one in told["unasked"]]) == (5, ["us-east-1 volumes"])
    assert "the permission ec2:DescribeVolumes is missing" in told["unasked"][0]["why"]
    assert node.id not in aws_box.living()


def test_a_name_that_nobody_knows_is_one_line(desk: Desk) -> None:
    code, _, said = desk.sweep("--job", "digit")
    assert (code, said.splitlines()[0].startswith("failover: no job 'digit'")) == (2, True)
