"""What is asked of Google Cloud for a machine, and that Google's library is loaded for nobody else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.clouds.gcp import machine
from provisioner.clouds.gcp.machine import Place, body, joined_type, machine_name, request_id, split_type
from provisioner.model import Gpu, JobRef, Launch, Market, Offer, claim_token, tags

JOB = JobRef("digits", "1a2b3c4d")
SUBNET = "regions/us-central1/subnetworks/default"
PLACE = Place("global/networks/default", SUBNET, "fo@p.iam.x", "tag", "images/x", 100)


def offer(kind: str = "n1-standard-8+1xT4", market: Market = Market.SPOT) -> Offer:
    return Offer("gcp", "us-central1", "us-central1-a", kind, Gpu("T4", 1, 16), market, None)


def launch(of: Offer, job: JobRef = JOB, epoch: int = 1) -> Launch:
    token = claim_token(job, epoch, of)
    return Launch(job, epoch, token, "#!/bin/bash\n", 3600.0, tags(job, epoch, token))


@given(
    name=st.from_regex(r"[a-z]([a-z0-9-]{0,30}[a-z0-9])?", fullmatch=True),
    epoch=st.integers(min_value=1, max_value=10**6),
)
def test_every_name_is_one_that_google_takes_and_tells_claims_apart(name: str, epoch: int) -> None:
    made = launch(offer(), JobRef(name, "1a2b3c4d"), epoch)
    told = machine_name(made)
    assert re.fullmatch(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?", told)
    assert told.startswith("failover-")
    assert f"-1a2b3c4d-e{epoch}-{made.token[:8]}" in told
    if len(made.node_name) <= 54:
        assert told == f"{made.node_name}-{made.token[:8]}"


def test_a_request_id_is_the_token_and_never_all_zero() -> None:
    token = claim_token(JOB, 1, offer())
    assert request_id(token).replace("-", "") == token
    assert len({request_id(token, repeat) for repeat in range(5)}) == 5
    assert request_id(token, 3) == request_id(token, 3)
    assert request_id("0" * 32) != "00000000-0000-0000-0000-000000000000"


def test_the_same_token_is_the_same_request() -> None:
    asked = [json.dumps(body(PLACE, offer(), launch(offer()))) for _ in range(2)]
    assert asked[0] == asked[1]


@pytest.mark.parametrize(
    ("kind", "machine_type", "cards", "disk"),
    [
        ("n1-standard-8+2xT4", "n1-standard-8", [("nvidia-tesla-t4", 2)], "pd-balanced"),
        ("n1-standard-8+1xV100", "n1-standard-8", [("nvidia-tesla-v100", 1)], "pd-balanced"),
        ("g2-standard-4", "g2-standard-4", [], "pd-balanced"),
        ("a2-highgpu-1g", "a2-highgpu-1g", [], "pd-balanced"),
        ("a3-ultragpu-8g", "a3-ultragpu-8g", [], "hyperdisk-balanced"),
    ],
)
def test_cards_are_added_to_n1_alone(kind: str, machine_type: str, cards: list[tuple[str, int]], disk: str) -> None:
    asked = body(PLACE, offer(kind), launch(offer(kind)))
    assert asked["machineType"] == f"zones/us-central1-a/machineTypes/{machine_type}"
    added = [(one["acceleratorType"], one["acceleratorCount"]) for one in asked.get("guestAccelerators", ())]
    assert added == [(f"zones/us-central1-a/acceleratorTypes/{card}", count) for card, count in cards]
    assert asked["disks"][0]["initializeParams"]["diskType"].endswith(f"/{disk}")
    assert joined_type(split_type(kind)[0], dict(cards)) == kind


def test_markets_differ_in_one_word_and_both_end_by_themselves() -> None:
    spot, standard = (body(PLACE, offer(market=one), launch(offer()))["scheduling"] for one in Market)
    assert (spot.pop("provisioningModel"), standard.pop("provisioningModel")) == ("SPOT", "STANDARD")
    assert spot == standard
    assert spot["instanceTerminationAction"] == "DELETE"
    assert spot["maxRunDuration"] == {"seconds": "3600"}
    for ttl_s, seconds in ((1.0, "30"), (1e9, "10368000")):  # as far as Google's limits go
        asked = body(PLACE, offer(), replace(launch(offer()), ttl_s=ttl_s))
        assert asked["scheduling"]["maxRunDuration"] == {"seconds": seconds}


def test_nothing_is_asked_for_that_is_not_there() -> None:
    bare = replace(PLACE, subnetwork="", service_account="", network_tag="")
    asked = body(bare, offer(), launch(offer()))
    assert asked["networkInterfaces"][0]["network"] == PLACE.network
    assert not {"serviceAccounts", "tags"} & set(asked)


def test_labels_are_what_google_takes() -> None:
    for key, value in machine.labels(launch(offer()).tags).items():
        assert re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", key)
        assert re.fullmatch(r"[a-z0-9_-]{0,63}", value)


OPENED = """
import sys
from pathlib import Path
import provisioner.cli.check, provisioner.cli.doctor, provisioner.controller.run
from provisioner import clouds
from provisioner.config import parse
text = b'''
job: {name: digits, command: "true"}
checkpoint: {store: s3://bucket/p}
fallback: [{gcp: {project: my-project, regions: [us-central1]}}, {aws: {regions: [us-east-1]}}]
'''
config = parse(text, "failover.yaml", Path("."), {})
from provisioner.clouds.base import Request
from provisioner.model import JobRef
for name in ("aws", "gcp"):
    cloud = clouds.open_cloud(name, job=JobRef("digits", "1a2b3c4d"), config=config, directory=Path("."), environ={})
    print(name, len(cloud.offers(Request(gpus=("T4",)))) > 0)
print([name for name in sys.modules if name.startswith(("google.cloud", "google.api_core", "google.auth"))])
"""


def test_googles_library_is_loaded_with_the_first_call_to_google_alone() -> None:
    """It takes three seconds; `failover --version`, a plan, and a job at AWS have no need of it."""
    done = subprocess.run([sys.executable, "-c", OPENED], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split("\n")[:-1] == ["aws True", "gcp True", "[]"]
