"""The whole room with real Terraform, by the stand-in. The main drill goes the same way with the official provider."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from provisioner.clouds import open_cloud
from provisioner.config import load
from provisioner.errors import TerraformError
from provisioner.model import Gpu, JobRef, Launch, Market, Node, NodeState, Offer, claim_token, tags
from provisioner.terraform.provider import discover

JOB = JobRef("digits", "1a2b3c4d")
FILE = """
job: {name: digits, command: python train.py}
resources: {gpus: [T4]}
checkpoint: {store: "s3://bucket/jobs"}
fallback:
  - aws: {regions: [us-east-1], max_price: 1.5 USD}
"""
pytestmark = pytest.mark.timeout(1200)


@pytest.mark.parametrize("provider", ["stand-in"])
def test_prepare_claim_adopt_release_dismantle(
    aws_box: Any, tmp_path: Path, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {**os.environ, **aws_box.environ, "FAILOVER_TF_PROVIDER": provider}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    try:
        discover(tmp_path / "job", environ)
    except TerraformError as error:
        pytest.skip(str(error))
    (tmp_path / "failover.yaml").write_text(FILE)
    config = load(tmp_path / "failover.yaml", environ=environ)
    directory = tmp_path / "job"

    def room() -> Any:
        return open_cloud("aws", job=JOB, config=config, directory=directory, environ=environ)

    cloud = room()
    cloud.prepare("us-east-1")
    calls = len(aws_box.emulator.faults.log())
    offer = Offer("aws", "us-east-1", "us-east-1b", "g4dn.xlarge", Gpu("T4", 1, 16), Market.SPOT, None)
    token = claim_token(JOB, 1, offer)
    launch = Launch(JOB, 1, token, "#!/bin/bash\nsleep 600\n", 3600.0, tags(JOB, 1, token))
    node = room().claim(offer, launch)  # another controller, which finds the region prepared
    assert isinstance(node, Node), node
    assert aws_box.emulator.faults.log()[calls:][0]["outcome"] == node.id

    instance = cloud._account.region("us-east-1").find(node.id)
    assert instance["IamInstanceProfile"]["Arn"].split("/")[-1].startswith("failover-digits-1a2b3c4d-")
    assert len(aws_box.emulator.state()["volumes"]) == 1

    cloud.adopt(node)
    assert cloud.inspect(node) is NodeState.RUNNING
    assert aws_box.living() == [node.id]
    assert cloud._substrate("us-east-1").stack.node_id() == node.id

    room().release(node)
    assert aws_box.living() == []
    assert cloud._substrate("us-east-1").stack.node_id() == node.id, "Terraform lets go of it at its next turn"
    assert {thing.kind for thing in cloud.owned()} == {"launch_template", "security_group", "role", "instance_profile"}

    room().dismantle()
    state = aws_box.emulator.state()
    assert not any(state[kind] for kind in ("templates", "security_groups", "roles", "instance_profiles", "volumes"))
    assert len(aws_box.launches()) == 1  # nobody but the claim ever started a machine


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["stand-in", pytest.param("official", marks=pytest.mark.long)])
def test_a_region_whose_state_is_in_the_store_is_taken_down_by_another_machine(
    aws_box: Any, tmp_path: Path, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {**os.environ, **aws_box.environ, "FAILOVER_TF_PROVIDER": provider}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    store = aws_box.client("s3")
    store.create_bucket(Bucket="bucket")
    (tmp_path / "failover.yaml").write_text(FILE + "terraform: {state: store}\n")
    config = load(tmp_path / "failover.yaml", environ=environ)

    def room(machine: str) -> Any:
        return open_cloud("aws", job=JOB, config=config, directory=tmp_path / machine, environ=environ)

    def kept() -> list[str]:
        return [found["Key"] for found in store.list_objects_v2(Bucket="bucket").get("Contents", [])]

    try:
        discover(tmp_path / "a", environ)
    except TerraformError as error:
        pytest.skip(str(error))
    room("a").prepare("us-east-1")
    key = "jobs/_terraform/digits-1a2b3c4d/aws-us-east-1.tfstate"
    assert kept() == [key]
    made = room("a")._substrate("us-east-1").noted()
    room("b").prepare("us-east-1")
    assert room("b")._substrate("us-east-1").noted() == made, "it found what the other had prepared"
    room("c").dismantle()
    assert kept() == []
    assert room("a").owned() == []
    room("a").dismantle()
