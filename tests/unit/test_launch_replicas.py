"""What a machine is told of the stores: nearest first, each with a key of its own, and what stays in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from provisioner.checkpoint.retention import Best, Policy
from provisioner.checkpoint.store import open_store
from provisioner.config import parse
from provisioner.controller.directory import JobDirectory
from provisioner.controller.launch import Launcher
from provisioner.controller.records import Published
from provisioner.errors import ConfigError
from provisioner.model import Gpu, JobRef, Market, Offer
from provisioner.node import bootstrap
from provisioner.node.stores import Stores

JOB = JobRef("digits", "1a2b3c4d")
ENVIRON = {
    "AWS_ACCESS_KEY_ID": "AKIAOWN",
    "AWS_SECRET_ACCESS_KEY": "canary-own",
    "OSS_ID": "LTAI",
    "OSS_KEY": "canary-oss",
    "AWS_REGION": "us-east-1",
}
TEXT = """\
job: {name: digits, command: "true"}
checkpoint:
  store: s3://own-bucket/p
  keep: 2
  keep_every: 500
  keep_best: {metric: acc, mode: max, count: 2}
  sweep_after: 2h
  replicas:
    - {uri: s3://copies/p, endpoint: https://oss-cn-hangzhou.aliyuncs.com,
       access_key_id_env: OSS_ID, secret_access_key_env: OSS_KEY}
primary: {autodl: {mode: pro, image_uuid: base-image-l2t43iu6uk, gpus: [RTX 4090D]}}
fallback: [{aws: {regions: [us-east-1]}}]
"""


def offer(cloud: str, region: str) -> Offer:
    return Offer(cloud, region, "", "type", Gpu("T4", 1, 16), Market.SPOT, None)


def told(tmp_path: Path, where: Offer, environ: dict[str, str] | None = None, text: str = TEXT) -> dict[str, Any]:
    environ = environ or ENVIRON
    config = parse(text.encode(), "failover.yaml", tmp_path, environ)
    store = open_store(f"file://{tmp_path}/store").at("digits")
    launcher = Launcher(JOB, config, JobDirectory(tmp_path / "state", "digits"), store, environ, None)
    return json.loads(json.dumps(launcher._bootstrap(where, 1, "token", Published((), None))))


@pytest.mark.parametrize(
    ("where", "order"),
    [
        (offer("autodl", "westDC3"), ["s3://copies/p", "s3://own-bucket/p"]),
        (offer("aws", "us-east-1"), ["s3://own-bucket/p", "s3://copies/p"]),
        (offer("local", ""), ["s3://own-bucket/p", "s3://copies/p"]),
    ],
)
def test_the_nearest_store_comes_first_and_the_node_reads_what_the_controller_writes(where, order, tmp_path):
    content = told(tmp_path, where)
    assert [replica["uri"] for replica in content["replicas"]] == order
    (tmp_path / "bootstrap.json").write_text(json.dumps(content))
    boot = bootstrap.load(tmp_path / "bootstrap.json")
    assert boot.retention == Policy(2, 500, Best("acc", "max", 2))
    assert boot.sweep_after_s == 7200
    stores = Stores(boot, {})
    (replica,) = stores.replicas()
    assert (replica.uri, replica.endpoint) == ("s3://copies/p", "https://oss-cn-hangzhou.aliyuncs.com")
    assert replica.credentials is not None
    assert replica.credentials.secret_access_key == "canary-oss"
    assert "canary-oss" in boot.secrets
    own = stores.own(timeout_s=1, retry_s=0)
    places = [store is own for store in stores.nearest_first(own, lambda _line: None)]
    assert places == [uri == "s3://own-bucket/p" for uri in order]


def test_a_machine_whose_role_reaches_the_jobs_store_gets_a_key_for_the_replica_alone(tmp_path):
    own, replica = told(tmp_path, offer("aws", "us-east-1"))["replicas"]
    assert own["credentials"] is None
    assert replica["credentials"]["access_key_id"] == "LTAI"


def test_without_replicas_nothing_is_told_of_them(tmp_path):
    text = TEXT[: TEXT.index("  replicas:")] + TEXT[TEXT.index("primary:") :]
    content = told(tmp_path, offer("aws", "us-east-1"), text=text)
    assert content["replicas"] == []
    assert content["retention"]["last"] == 2


def test_a_replica_without_a_key_for_the_machine_is_named(tmp_path):
    text = TEXT.replace(",\n       access_key_id_env: OSS_ID, secret_access_key_env: OSS_KEY", "")
    with pytest.raises(ConfigError, match=r"s3://copies/p: a machine at aws needs a key") as caught:
        told(tmp_path, offer("aws", "us-east-1"), {"AWS_REGION": "us-east-1"}, text)
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint
