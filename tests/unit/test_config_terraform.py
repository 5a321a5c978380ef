"""Where Terraform's states are: one word or one address, and what is wrong with the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.config import ConfigMistakes, parse, state_store

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
