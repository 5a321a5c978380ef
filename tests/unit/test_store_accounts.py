"""Keys: who finds them, who gets them, and that nothing shows them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from provisioner.checkpoint import accounts
from provisioner.checkpoint.credentials import Credentials
from provisioner.checkpoint.store import open_store
from provisioner.cli import doctor
from provisioner.config import StoreConfig, parse
from provisioner.controller.access import controller_credentials, node_credentials, node_endpoint
from provisioner.errors import ConfigError, Unauthorized, Unreachable
from provisioner.node.bootstrap import load
from provisioner.telemetry.events import Redactor
from tests.scripted import Answer, Asked, Scripted, scripted

PEM = "-----BEGIN PRIVATE KEY-----\nMIIcanaryline1aaaaaaaaaa\nMIIcanaryline2bbbbbbbbbb\n-----END PRIVATE KEY-----\n"
ACCOUNT = json.dumps({"type": "service_account", "client_email": "a@b", "private_key": PEM})
JOB_AT_GOOGLE = b"""
job: {name: digits, command: train}
checkpoint: {store: gs://bucket/jobs}
fallback: [{gcp: {project: my-project, regions: [us-central1]}}]
"""
OWN = {"AWS_ACCESS_KEY_ID": "AKIAOWN", "AWS_SECRET_ACCESS_KEY": "canary-own"}


@pytest.fixture
def server() -> Iterator[Scripted]:
    with scripted() as running:
        yield running


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An operator's home with no credentials in it or in the environment."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return tmp_path


def account_file(folder: Path, text: str = ACCOUNT) -> dict[str, str]:
    path = folder / "account.json"
    path.write_text(text)
    return {"GOOGLE_APPLICATION_CREDENTIALS": str(path)}


def test_a_key_shows_in_no_repr_and_in_no_line_of_a_log():
    for key in (Credentials("AKIA", "canary-secret", "canary-session"), Credentials.google(ACCOUNT, "key")):
        assert repr(key) == "Credentials()"
        redact = Redactor(key.secrets)
        for line in ["canary-secret", "canary-session", *PEM.splitlines()[1:3], json.dumps({"private_key": PEM})]:
            if any(part in line for part in key.secrets):
                assert "canary" not in redact(f"before {line} after")
    assert "canary" not in Redactor(Credentials.google(ACCOUNT, "key").secrets)(json.dumps({"private_key": PEM}))


@pytest.mark.parametrize(
    "key", [Credentials("AKIA", "s"), Credentials("AKIA", "s", "t"), Credentials.google(ACCOUNT, "key")]
)
def test_a_node_reads_the_key_that_the_controller_wrote(tmp_path: Path, key):
    raw = {
        "version": 1,
        "job": {"name": "digits", "uid": "1a2b3c4d"},
        "epoch": 1,
        "token": "token-of-1",
        "store": {"uri": "gs://bkt/p", "credentials": key.as_json()},
        "replicas": [{"uri": "s3://c/p", "credentials": Credentials("AK", "canary-replica").as_json()}],
        "command": "true",
    }
    path = tmp_path / "bootstrap.json"
    path.write_text(json.dumps(raw))
    boot = load(path)
    assert boot.credentials == key
    assert {*key.secrets, "canary-replica"} <= set(boot.secrets)
    assert "canary" not in repr(boot)


@pytest.mark.parametrize(
    ("uri", "cloud", "role"),
    [("file:///d", "local", False), ("s3://bkt/p", "aws", True), ("gs://bkt/p", "gcp", False)],
)
def test_a_machine_with_a_role_gets_no_key(uri, cloud, role):
    assert node_credentials(StoreConfig(uri=uri), cloud, OWN, role=role) is None


def test_a_machine_elsewhere_gets_the_stores_own_key():
    store = StoreConfig(uri="s3://bkt/p", access_key_id_env="OSS_ID", secret_access_key_env="OSS_KEY")
    environ = OWN | {"OSS_ID": "LTAI", "OSS_KEY": "canary-oss"}
    assert node_credentials(store, "autodl", environ, role=False) == Credentials("LTAI", "canary-oss")
    own = StoreConfig(uri="s3://bkt/p")
    assert node_credentials(own, "gcp", environ, role=False) == Credentials("AKIAOWN", "canary-own")
    with pytest.raises(ConfigError, match="that does not expire, and AWS_SESSION_TOKEN is set"):
        node_credentials(own, "autodl", OWN | {"AWS_SESSION_TOKEN": "canary"}, role=False)
    with pytest.raises(ConfigError, match="a machine at autodl needs a key for it") as caught:
        node_credentials(own, "autodl", {}, role=False)
    assert caught.value.hint.startswith("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")


def test_a_machine_outside_google_gets_a_service_accounts_key_and_nothing_else(tmp_path: Path):
    store = StoreConfig(uri="gs://bkt/p")
    for cloud in ("autodl", "aws"):
        key = node_credentials(store, cloud, account_file(tmp_path), role=False)
        assert key == Credentials(service_account=ACCOUNT)
    for text in ('{"type": "authorized_user", "refresh_token": "canary"}', '{"type": "external_account"}', "canary"):
        with pytest.raises(ConfigError, match="GOOGLE_APPLICATION_CREDENTIALS") as caught:
            node_credentials(store, "aws", account_file(tmp_path, text), role=False)
        assert "canary" not in str(caught.value) + caught.value.hint
    for environ in ({}, {"GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "none.json")}):
        with pytest.raises(ConfigError) as caught:
            node_credentials(store, "aws", environ, role=False)
        assert caught.value.hint


def test_an_emulator_needs_no_key_and_the_node_is_told_its_address():
    store, environ = StoreConfig(uri="gs://bkt/p"), {"STORAGE_EMULATOR_HOST": "127.0.0.1:4443"}
    assert node_credentials(store, "local", environ, role=False) is None
    assert node_endpoint(store, environ) == "http://127.0.0.1:4443"
    assert node_endpoint(store, {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000"}) is None
    named = StoreConfig(uri="gs://bkt/p", endpoint="http://127.0.0.1:1234")
    assert node_credentials(named, "autodl", {}, role=False) is None
    assert node_endpoint(named, environ) == "http://127.0.0.1:1234"
    aws = StoreConfig(uri="s3://bkt/p")
    assert node_endpoint(aws, {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000"}) == "http://127.0.0.1:9000"


def test_the_controller_takes_the_named_key_then_the_environment_then_the_profile(home: Path, server):
    named = StoreConfig(uri="s3://bkt/p", access_key_id_env="OSS_ID", secret_access_key_env="OSS_KEY")
    environ = OWN | {"OSS_ID": "LTAI", "OSS_KEY": "s"}
    assert controller_credentials(named, environ) == Credentials("LTAI", "s")
    own = StoreConfig(uri="s3://bkt/p")
    assert controller_credentials(own, OWN) == Credentials("AKIAOWN", "canary-own")
    assert controller_credentials(own, {}) is None
    (home / "credentials").write_text("[default]\naws_access_key_id = AKIAFILE\naws_secret_access_key = s\n")
    store = open_store("s3://bkt/p", endpoint=server.url, credentials=controller_credentials(own, {}), environ={})
    store.put("k", b"x")
    assert "Credential=AKIAFILE/" in server.asked[-1].headers["authorization"]


def test_a_key_that_is_written_anew_into_the_profile_is_taken_up(home: Path):
    def write(key: str) -> None:
        (home / "credentials").write_text(
            f"[work]\naws_access_key_id = {key}\naws_secret_access_key = s\naws_session_token = t-{key}\n"
        )

    write("ASIA1")
    renewed = accounts.own("s3://bkt/p", {"AWS_PROFILE": "work"})
    assert renewed is not None
    write("ASIA2")
    given: Any = renewed()
    assert (given["access_key_id"], given["token"]) == ("ASIA2", "t-ASIA2")
    assert timedelta(minutes=5) < given["expires_at"] - datetime.now(UTC) <= timedelta(minutes=10)


def test_a_profile_that_is_not_there_is_one_line(home: Path):
    with pytest.raises(ConfigError, match=r"the AWS profile cannot be read \(ProfileNotFound\)"):
        accounts.own("s3://bkt/p", {"AWS_PROFILE": "canary"})


def test_a_role_of_the_profile_is_assumed_when_it_is_needed_and_again_before_it_ends(home: Path, server, monkeypatch):
    (home / "credentials").write_text("[base]\naws_access_key_id = AKIABASE\naws_secret_access_key = s\n")
    (home / "config").write_text(
        "[profile job]\nrole_arn = arn:aws:iam::123456789012:role/job\nsource_profile = base\nregion = us-east-1\n"
    )
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.url)
    sessions = []

    def rule(_: Asked) -> Answer:
        sessions.append(f"ASIA{len(sessions)}")
        lives = timedelta(minutes=5) if len(sessions) == 1 else timedelta(hours=1)
        end = (datetime.now(UTC) + lives).strftime("%Y-%m-%dT%H:%M:%SZ")
        text = (
            '<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>'
            f"<AccessKeyId>{sessions[-1]}</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t"
            f"</SessionToken><Expiration>{end}</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"
        )
        return Answer(200, text.encode(), {"Content-Type": "text/xml"})

    server.rule = rule
    renewed = accounts.own("s3://bkt/p", {"AWS_PROFILE": "job"})
    assert renewed is not None
    assert server.asked == []
    ask: Any = renewed
    assert [ask()["access_key_id"] for _ in range(3)] == ["ASIA0", "ASIA1", "ASIA1"]


def test_an_identity_from_elsewhere_is_exchanged_for_a_google_token(home: Path, server):
    (home / "subject").write_text("subject-token")
    identity = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/x",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"{server.url}/v1/token",
        "credential_source": {"file": str(home / "subject")},
    }
    environ = account_file(home, json.dumps(identity))
    answer = {"access_token": "google-token", "token_type": "Bearer", "expires_in": 3600, "issued_token_type": "x"}
    server.rule = lambda asked: Answer(200, json.dumps(answer).encode() if asked.path == "/v1/token" else b"")
    store = StoreConfig(uri="gs://bkt/p", endpoint=server.url)
    credentials = controller_credentials(store, environ)
    assert server.asked == []
    opened = open_store("gs://bkt/p", endpoint=server.url, credentials=credentials, environ={})
    opened.put("k", b"x")
    opened.put("k", b"y")
    assert [asked.path for asked in server.asked] == ["/v1/token", "/bkt/p%2Fk", "/bkt/p%2Fk"]
    assert server.asked[-1].headers["authorization"] == "Bearer google-token"
    with pytest.raises(Unauthorized):
        opened.sign("k", 60)
    server.rule = lambda _: Answer(400, b'{"error": "invalid_grant", "error_description": "canary"}')
    refused = open_store(
        "gs://bkt/p", endpoint=server.url, credentials=controller_credentials(store, environ), environ={}
    )
    with pytest.raises(Unauthorized, match="the key cannot be renewed") as caught:
        refused.put("k", b"x")
    assert "canary" not in str(caught.value)


def test_a_token_service_that_does_not_answer_is_unreachable_not_unauthorized(home: Path):
    (home / "subject").write_text("canary")
    identity = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/x",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": "http://127.0.0.1:1/v1/token",
        "credential_source": {"file": str(home / "subject")},
    }
    where_gcloud_keeps_it = home / ".config" / "gcloud" / "application_default_credentials.json"
    where_gcloud_keeps_it.parent.mkdir(parents=True)
    where_gcloud_keeps_it.write_text(json.dumps(identity))
    credentials = accounts.own("gs://bkt/p", {"HOME": str(home)})
    store = open_store("gs://bkt/p", credentials=credentials, environ={}, retry_s=0)
    with pytest.raises(Unreachable, match="no answer from where the key is renewed") as caught:
        store.put("k", b"x")
    assert "canary" not in str(caught.value)


def test_the_doctor_says_that_a_persons_google_account_makes_no_start_links(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes and reads the store, so that all looks well until the first machine is to start."""
    text = json.dumps({"type": "authorized_user", "client_id": "a", "client_secret": "b", "refresh_token": "c"})
    environ = {"HOME": str(home)}
    (home / ".config/gcloud").mkdir(parents=True)
    (home / ".config/gcloud/application_default_credentials.json").write_text(text)
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
    monkeypatch.setattr(doctor, "_probed", lambda *_: [])
    config = parse(JOB_AT_GOOGLE, "failover.yaml", home, environ)
    (links,) = [one for one in doctor._stores(config, environ) if one.check == "store links"]
    assert (links.verdict, "makes no links" in links.detail, "key file" in links.fix) == ("fail", True, True)
