"""The stores of a job: replicas as people write them, stores that lie in each other, and machines without a key."""

# ruff: noqa: E501 - the lines as the operator reads them
from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.config import Config, ConfigMistakes, parse
from provisioner.config.checkpoint import CheckpointConfig, KeepBestConfig, StoreConfig

KEY = {"GOOGLE_APPLICATION_CREDENTIALS": "/keys/store.json"}


def text(*lines: str, store: str = "s3://my-bucket/failover", machines: str = "aws: {regions: [us-east-1]}") -> bytes:
    """Return a failover.yaml whose checkpoint section begins in line 2; ``lines`` follow from line 4 on."""
    body = ["job: {name: digits, command: true-as-text}", "checkpoint:", f"  store: {store}", *lines]
    return "\n".join([*body, f"fallback: [{{{machines}}}]", ""]).encode()


def read(content: bytes, environ: dict[str, str] | None = None) -> Config:
    return parse(content, "failover.yaml", Path(), environ or {})


def lines_of(content: bytes, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigMistakes) as caught:
        read(content, environ)
    assert caught.value.exit_code == 2
    return str(caught.value).splitlines()


def test_a_replica_is_a_uri_or_a_section():
    config = read(
        text(
            "  keep_every: 1000",
            "  keep_best: {metric: val_loss, mode: min}",
            "  sweep_after: 30m",
            "  replicas:",
            "    - gs://other/failover",
            "    - {uri: s3://third, endpoint: https://oss-cn-hangzhou.aliyuncs.com, access_key_id_env: OSS_ID}",
        ),
        KEY | {"OSS_ID": "id"},
    )
    first, second = config.checkpoint.replicas
    assert (first.uri, first.endpoint, first.access_key_id_env) == ("gs://other/failover", None, "AWS_ACCESS_KEY_ID")
    assert (second.uri, second.access_key_id_env) == ("s3://third", "OSS_ID")
    assert config.checkpoint.keep_best == KeepBestConfig(metric="val_loss", mode="min", count=1)
    assert (config.checkpoint.keep_every, config.checkpoint.sweep_after) == (1000, 1800)
    assert Config.model_validate_json(config.model_dump_json()) == config


def test_a_file_without_the_new_keys_means_what_it_meant():
    checkpoint = read(text()).checkpoint
    assert (checkpoint.keep, checkpoint.keep_every, checkpoint.keep_best) == (3, None, None)
    assert (checkpoint.sweep_after, checkpoint.replicas) == (3600, ())


def test_the_jobs_own_store_has_the_form_of_the_others():
    section = CheckpointConfig(store="s3://bucket/p", region="r", access_key_id_env="A", secret_access_key_env="B")
    assert section.main == StoreConfig(
        uri="s3://bucket/p", region="r", access_key_id_env="A", secret_access_key_env="B"
    )


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (
            ["  replicas: [gs://aaa, s3://my-bucket/failover/]"],
            "4: checkpoint.replicas[1]: this is checkpoint.store once more; name another store, or remove it",
        ),
        (
            ["  replicas:", "    - gs://aaa/b", "    - {uri: gs://aaa//b, region: us-east1}"],
            "6: checkpoint.replicas[1]: this is replicas[0] once more; name another store, or remove it",
        ),
        (
            ["  replicas: [s3://my-bucket]"],
            "4: checkpoint.replicas[0]: checkpoint.store lies inside this; give each store a prefix or bucket of its own",
        ),
        (
            ["  replicas:", "    - s3://my-bucket/failover/copy"],
            "5: checkpoint.replicas[0]: this lies inside checkpoint.store; give each store a prefix or bucket of its own",
        ),
        (
            ["  replicas: [{uri: s3://my-bucket/failover, endpoint: https://s3.us-east-1.amazonaws.com}]"],
            "4: checkpoint.replicas[0]: this is checkpoint.store once more; name another store, or remove it",
        ),
        (
            ["  endpoint: https://oss.example.com", "  replicas:", "    - uri: s3://my-bucket/failover",
             "      endpoint: https://my-bucket.oss.example.com:443/"],
            "6: checkpoint.replicas[0]: this is checkpoint.store once more; name another store, or remove it",
        ),
        (
            ["  replicas: [file:///srv/copies]"],
            "4: checkpoint.replicas[0]: machines at AWS cannot reach a directory of this machine; write s3://bucket/prefix",
        ),
        (
            ["  replicas: [{uri: s3://aaa, access_key_id_env: NOT_SET}]"],
            "4: checkpoint.replicas[0].access_key_id_env: the environment variable NOT_SET is not set; export NOT_SET before you start failover, or leave the key out",
        ),
        (
            ["  replicas: [oss://a]"],
            "4: checkpoint.replicas[0]: no store is called `oss://`; write s3://bucket/prefix, gs://bucket/prefix or file:///directory",
        ),
        (
            ["  replicas: [5]"],
            "4: checkpoint.replicas[0]: this is neither a URI nor a section; write gs://bucket/prefix, or uri: and more keys below it",
        ),
        (
            ["  replicas: gs://aaa"],
            "4: checkpoint.replicas: `gs://aaa` is not a list; write [one, two], or one line each beginning with -",
        ),
        (
            ["  replicas: [{url: gs://a}]"],
            "4: checkpoint.replicas[0].url: unknown key; did you mean `uri`?",
        ),
        (
            ["  keep_best: {metric: loss}"],
            "4: checkpoint.keep_best.mode: this is missing; for example mode: min",
        ),
        (
            ["  keep_best: {metric: loss, mode: lowest}"],
            "4: checkpoint.keep_best.mode: `lowest` is not one of the choices; write min or max",
        ),
        (["  keep_every: 0"], "4: checkpoint.keep_every: `0` is out of range; write at least 1"),
        (
            ["  sweep_after: 3600"],
            "4: checkpoint.sweep_after: a number without its unit; write 3600s for seconds, or 10m, 1h30m, 2d",
        ),
    ],
)  # fmt: skip
def test_a_mistake_in_the_stores_is_one_line_with_its_place(lines, says):
    assert lines_of(text(*lines), KEY) == [f"failover.yaml:{says}"]


def test_stores_beside_each_other_and_at_different_services_are_two():
    read(text("  replicas: [s3://my-bucket/failover2, {uri: s3://my-bucket/failover, endpoint: https://a.example}]"))


def test_a_link_to_the_stores_directory_is_the_same_place(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "link").symlink_to("store")
    content = text(f"  replicas: [file://{tmp_path}/link/]", store=f"file://{tmp_path}/store", machines="local: {}")
    (line,) = lines_of(content)
    assert "this is checkpoint.store once more" in line


@pytest.mark.parametrize("lines", [[], ["  replicas: [gs://other]"]])
def test_google_storage_is_a_store_when_its_key_is_named(lines):
    content = text(*lines, store="gs://my-bucket/failover")
    assert read(content, KEY).checkpoint.store == "gs://my-bucket/failover"
    for line in lines_of(content):
        assert "machines at AWS get no key for `gs://" in line
        assert "GOOGLE_APPLICATION_CREDENTIALS" in line
    read(text(*lines, store="gs://my-bucket/failover", machines="local: {}"))
    emulator = text("  endpoint: http://127.0.0.1:4443", store="gs://my-bucket/failover")
    assert read(emulator).checkpoint.endpoint
