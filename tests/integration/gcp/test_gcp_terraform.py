"""The whole room with real Terraform, by the stand-in, and what the doctor says of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provisioner.cli.doctor import examine
from provisioner.clouds import open_cloud
from provisioner.config import load
from provisioner.controller.flow import HOPELESS
from provisioner.controller.refusals import as_failure
from provisioner.errors import TerraformError
from provisioner.model import Gpu, JobRef, Launch, Market, Node, NodeState, Offer, claim_token, tags
from provisioner.terraform.provider import discover

JOB = JobRef("digits", "1a2b3c4d")
FILE = """
job: {name: digits, command: python train.py}
resources: {gpus: [T4]}
checkpoint: {store: "gs://bucket/jobs"}
fallback:
  - gcp: {project: sandbox-project, regions: [us-central1]}
"""
pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]


@pytest.fixture
def room(gcp_box: Any, tmp_path: Path) -> Callable[..., Any]:
    """Open the room for one job, as often as it is asked for."""
    environ = {**os.environ, **gcp_box.environ, "FAILOVER_TF_PROVIDER": "stand-in"}
    try:
        discover(tmp_path / "job", environ, "google")
    except TerraformError as error:
        pytest.skip(str(error))

    def make(text: str = FILE) -> Any:
        (tmp_path / "failover.yaml").write_text(text)
        config = load(tmp_path / "failover.yaml", environ=environ)
        return open_cloud("gcp", job=JOB, config=config, directory=tmp_path / "job", environ=environ)

    return make


def test_prepare_claim_adopt_release_dismantle(gcp_box: Any, room: Callable[..., Any]) -> None:
    cloud = room()
    cloud.prepare("us-central1")
    assert {thing.kind for thing in cloud.owned()} == {"firewall", "service_account"}
    assert len(gcp_box.emulator.state()["bindings"]) == 1
    offer = Offer("gcp", "us-central1", "us-central1-b", "n1-standard-4+1xT4", Gpu("T4", 1, 16), Market.SPOT, None)
    token = claim_token(JOB, 1, offer)
    launch = Launch(JOB, 1, token, "#!/bin/bash\nsleep 600\n", 3600.0, tags(JOB, 1, token))
    node = room().claim(offer, launch)  # another controller, which finds the region prepared
    assert isinstance(node, Node), node

    cloud.adopt(node)
    assert cloud.inspect(node) is NodeState.RUNNING
    assert gcp_box.living() == [node.id]
    held = cloud._substrate("us-central1").stack.node_id()
    assert held.endswith(f"zones/us-central1-b/instances/{node.id.partition('/')[2]}")

    room().release(node)
    assert gcp_box.living() == []
    assert cloud._substrate("us-central1").stack.node_id() == held, "Terraform lets go of it at its next turn"
    assert {thing.kind for thing in cloud.owned()} == {"firewall", "service_account"}

    room().dismantle()
    state = gcp_box.emulator.state()
    kinds = ("networks", "firewalls", "service_accounts", "disks", "instances", "bindings")
    assert not {kind: state[kind] for kind in kinds if state[kind]}
    assert len(gcp_box.inserts()) == 1  # nobody but the claim ever started a machine


def test_a_bucket_that_is_not_there_is_named_and_ends_the_wait(room: Callable[..., Any]) -> None:
    cloud = room(FILE.replace("gs://bucket", "gs://no-such-bucket"))
    with pytest.raises(TerraformError) as caught:
        cloud.prepare("us-central1")
    failure = as_failure(caught.value)
    assert failure.message == "the bucket no-such-bucket of checkpoint.store does not exist"
    assert failure.kind in HOPELESS
    cloud.dismantle()
    assert not cloud.owned()


def test_the_doctor_looks_at_the_project_and_at_terraforms_provider(gcp_box: Any, tmp_path: Path) -> None:
    environ = {**os.environ, **gcp_box.environ, "FAILOVER_TF_PROVIDER": "stand-in"}
    (tmp_path / "failover.yaml").write_text(FILE)
    config = load(tmp_path / "failover.yaml", environ=environ)
    findings = {}
    for finding in examine(config, environ):
        findings[finding.check] = (finding.verdict, finding.detail)
        if finding.check.startswith("fallback"):
            break  # the store is somebody else's test
    assert findings["gcp"][0] == "ok"
    assert findings["gcp"][1].startswith("project sandbox-project answers")
    assert findings["terraform google"][0] == "ok"
    assert "no framework" in findings["fallback[0].gcp"][1]
