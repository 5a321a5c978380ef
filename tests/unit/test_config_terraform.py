"""Where Terraform's states are: one word or one address, and what is wrong with the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from provisioner.clouds.states import States
from provisioner.config import ConfigMistakes, parse, state_store
from provisioner.model import JobRef

KEY = "digits-1a2b3c4d/aws-us-east-1.tfstate"
FILE = """
job: {{name: digits, command: python train.py}}
checkpoint: {{store: "{store}", endpoint: "https://s3.example.com", access_key_id_env: OSS_KEY}}
fallback: [{{aws: {{regions: [us-east-1]}}}}]
terraform: {{{terraform}}}
"""
ENVIRON = {"OSS_KEY": "x", "AWS_SECRET_ACCESS_KEY": "y"}


def read(terraform: str, store: str = "s3://bucket/jobs"):
    return parse(FILE.format(terraform=terraform, store=store).encode(), "f.yaml", Path(), ENVIRON)


def test_states_are_on_this_machine_unless_the_file_says_otherwise():
    config = read("")
    assert state_store(config.terraform, config.checkpoint) is None


@pytest.mark.parametrize(
    ("terraform", "uri", "endpoint", "key"),
    [
        ("state: store", "s3://bucket/jobs/_terraform", "https://s3.example.com", "OSS_KEY"),
        ('state: "s3://bucket/states"', "s3://bucket/states", "https://s3.example.com", "OSS_KEY"),
        ('state: "s3://other/states"', "s3://other/states", None, "AWS_ACCESS_KEY_ID"),
        ('state: "gs://other"', "gs://other", None, "AWS_ACCESS_KEY_ID"),
        (
            'state: "s3://other/x", endpoint: "https://minio.example.com", access_key_id_env: OSS_KEY',
            "s3://other/x",
            "https://minio.example.com",
            "OSS_KEY",
        ),
    ],
)
def test_a_bucket_of_the_checkpoints_keeps_its_settings_and_another_has_its_own(terraform, uri, endpoint, key):
    config = read(terraform)
    found = state_store(config.terraform, config.checkpoint)
    assert found is not None
    assert (found.uri, found.endpoint, found.access_key_id_env) == (uri, endpoint, key)


@pytest.mark.parametrize(
    ("terraform", "store", "words"),
    [
        ("state: remote", "s3://bucket/jobs", "`remote` is no place for Terraform's states"),
        ('state: "file:///tmp/x"', "s3://bucket/jobs", "is no place for Terraform's states"),
        ('state: "s3://key:word@bucket/x"', "s3://bucket/jobs", "holds credentials"),
        ('state: "s3://bucket/jobs/digits/tf"', "s3://bucket/jobs", "the job's machines may write there"),
        ('state: "s3://bucket/jobs/digits"', "s3://bucket/jobs", "the job's machines may write there"),
        ("state: store", "file:///tmp/x", "is a directory"),
        ('state: "s3://other", access_key_id_env: NOT_SET', "s3://bucket/jobs", "NOT_SET is not set"),
    ],
)
def test_a_place_that_cannot_serve_is_named_with_its_line(terraform, store, words):
    with pytest.raises(ConfigMistakes) as caught:
        read(terraform, store)
    mistakes = [mistake for mistake in caught.value.mistakes if mistake.field.startswith("terraform")]
    assert [words in mistake.message for mistake in mistakes] == [True]
    assert mistakes[0].line == 5
    assert "word@" not in str(caught.value)


BUCKETS = {
    "aws": ("s3://bucket/p", {}, {}, {"key": f"p/{KEY}", "region": "us-east-1", "use_path_style": False}),
    "aws in china": (
        "s3://bucket",
        {"region": "cn-north-1"},
        {},
        {"key": KEY, "region": "cn-north-1", "use_path_style": False},
    ),
    "oss": (
        "s3://bucket/p",
        {"endpoint": "https://oss-cn-hangzhou.aliyuncs.com"},
        {},
        {
            "endpoints": {"s3": "https://oss-cn-hangzhou.aliyuncs.com"},
            "use_path_style": False,
            "skip_s3_checksum": True,
        },
    ),
    "cos, the bucket in its host": (
        "s3://b-125/p",
        {"endpoint": "https://b-125.cos.ap-shanghai.myqcloud.com", "region": "ap-shanghai"},
        {},
        {"endpoints": {"s3": "https://cos.ap-shanghai.myqcloud.com"}, "use_path_style": False, "region": "ap-shanghai"},
    ),
    "minio": (
        "s3://bucket/p",
        {"endpoint": "http://10.0.0.5:9000/"},
        {},
        {"endpoints": {"s3": "http://10.0.0.5:9000"}, "use_path_style": True, "skip_metadata_api_check": True},
    ),
    "the sandbox": (
        "s3://bucket/p",
        {},
        {"AWS_ENDPOINT_URL": "http://127.0.0.1:5000", "AWS_REGION": "eu-west-1"},
        {"endpoints": {"s3": "http://127.0.0.1:5000"}, "use_path_style": True, "region": "eu-west-1"},
    ),
    "a region's own address": (
        "s3://bucket/p",
        {"endpoint": "https://s3.eu-west-1.amazonaws.com", "region": "eu-west-1"},
        {},
        {"endpoints": {"s3": "https://s3.eu-west-1.amazonaws.com"}, "use_path_style": False},
    ),
}


@pytest.mark.parametrize("case", BUCKETS)
def test_terraform_finds_a_bucket_where_the_checkpoints_are_found(tmp_path, case):
    store, settings, environ, wanted = BUCKETS[case]
    data = {
        "job": {"name": "digits", "command": "true"},
        "checkpoint": {"store": store, **settings},
        "fallback": [{"aws": {"regions": ["us-east-1"]}}],
        "terraform": {"state": store},
    }
    config = parse(json.dumps(data).encode(), "f.yaml", tmp_path, environ)
    remote = States(config, JobRef("digits", "1a2b3c4d"), tmp_path, environ).at("aws-us-east-1", store)
    assert remote is not None
    assert remote.settings["use_lockfile"] is True
    assert {name: remote.settings.get(name) for name in wanted} == wanted
    at_amazon = case.startswith("a")
    assert ("skip_metadata_api_check" in remote.settings) is not at_amazon
    assert ("endpoints" in remote.settings) is ("endpoint" in settings or bool(environ))


def test_an_account_of_google_reaches_terraform_by_the_environment_alone(tmp_path):
    data = {
        "job": {"name": "digits", "command": "true"},
        "checkpoint": {"store": "gs://bucket/p"},
        "fallback": [{"gcp": {"project": "my-project", "regions": ["us-central1"]}}],
        "terraform": {"state": "store"},
    }
    config = parse(json.dumps(data).encode(), "f.yaml", tmp_path, {}, for_start=False)
    key = tmp_path / "key.json"
    pem = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {"type": "service_account", "client_email": "a@b.example", "private_key": pem.decode()}
    key.write_text(json.dumps({**account, "private_key_id": "1"}))
    for environ, env in (
        ({"GOOGLE_SERVICE_ACCOUNT": str(key)}, {"GOOGLE_BACKEND_CREDENTIALS": str(key)}),
        ({"STORAGE_EMULATOR_HOST": "http://127.0.0.1:1"}, {"GOOGLE_OAUTH_ACCESS_TOKEN": "emulator"}),
    ):
        states = States(config, JobRef("digits", "1a2b3c4d"), tmp_path, {**environ, "HOME": str(tmp_path)})
        remote = states.at("gcp-us-central1", "store")
        assert remote is not None
        assert remote.env == env
        assert remote.settings == {"bucket": "bucket", "prefix": "p/_terraform/digits-1a2b3c4d/gcp-us-central1"}
        assert remote.uri == "gs://bucket/p/_terraform/digits-1a2b3c4d/gcp-us-central1/default.tfstate"
