"""Where requests go and what they are signed with: addresses, keys, and nothing of the environment by accident."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from provisioner.checkpoint.opening import _private, bucket_address
from provisioner.checkpoint.store import Credentials, Store, open_store
from provisioner.errors import ConfigError, StoreError, Unauthorized, Unreachable
from tests.scripted import Answer, Asked, Scripted, error, scripted

KEY = Credentials("AKIAOWN", "canary-secret")


@pytest.fixture
def server() -> Iterator[Scripted]:
    with scripted() as running:
        yield running


@pytest.fixture(scope="session")
def private_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(*form).decode()


@pytest.fixture
def account(private_key: str) -> dict[str, str]:
    return {
        "type": "service_account",
        "client_email": "job@project.iam.gserviceaccount.com",
        "private_key_id": "canary-id",
        "private_key": private_key,
        "token_uri": "https://oauth2.googleapis.com/token",
    }


def put(store: Store, server: Scripted) -> Asked:
    server.asked.clear()
    store.put("k", b"x")
    return server.asked[-1]


@pytest.mark.parametrize(
    ("bucket", "endpoint", "address", "in_host"),
    [
        ("b", "http://127.0.0.1:9000", "http://127.0.0.1:9000", False),
        ("b", "https://minio.example.com", "https://minio.example.com", False),
        ("b", "https://oss-cn-hangzhou.aliyuncs.com", "https://b.oss-cn-hangzhou.aliyuncs.com", True),
        ("b", "https://b.oss-cn-hangzhou.aliyuncs.com", "https://b.oss-cn-hangzhou.aliyuncs.com", True),
        (
            "b-1250000000",
            "https://cos.ap-beijing.myqcloud.com",
            "https://b-1250000000.cos.ap-beijing.myqcloud.com",
            True,
        ),
        ("b", "https://s3.eu-west-1.amazonaws.com", "https://b.s3.eu-west-1.amazonaws.com", True),
        ("b", "https://s3.cn-north-1.amazonaws.com.cn", "https://b.s3.cn-north-1.amazonaws.com.cn", True),
        ("b.with.dots", "https://s3.eu-west-1.amazonaws.com", "https://s3.eu-west-1.amazonaws.com", False),
        ("b", "https://b.tos.example.com:8443", "https://b.tos.example.com:8443", True),
        ("b", "https://bb.example.com", "https://bb.example.com", False),
    ],
)
def test_the_bucket_stands_in_the_host_where_a_service_wants_it_or_the_endpoint_says_so(
    bucket, endpoint, address, in_host
):
    assert bucket_address(bucket, endpoint) == (address, in_host)


@pytest.mark.parametrize(
    ("region", "host"),
    [
        (None, "b.s3.us-east-1.amazonaws.com"),
        ("eu-west-1", "b.s3.eu-west-1.amazonaws.com"),
        ("cn-north-1", "b.s3.cn-north-1.amazonaws.com.cn"),
    ],
)
def test_without_an_endpoint_it_is_aws_in_its_region_whatever_the_process_environment_says(monkeypatch, region, host):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_REGION", "ap-south-1")
    store = open_store("s3://b/p", region=region, credentials=KEY, environ={})
    assert urlsplit(store.sign("k", 60)).hostname == host
    assert urlsplit(open_store("s3://b/p", credentials=KEY).sign("k", 60)).hostname == "127.0.0.1"


@pytest.mark.parametrize(
    ("address", "unsigned"),
    [
        ("https://s3.example.com", True),
        ("http://127.0.0.1:9000", True),
        ("http://[::1]:9000", True),
        ("http://localhost:9000", True),
        ("http://10.0.0.5:9000", False),
        ("http://minio.lan:9000", False),
    ],
)
def test_bytes_are_signed_where_somebody_could_change_them_on_the_way(address, unsigned):
    assert _private(urlsplit(address)) is unsigned


def test_a_key_that_was_given_is_used_alone(server, monkeypatch):
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIAOTHER",
        "AWS_SECRET_ACCESS_KEY": "other",
        "AWS_SESSION_TOKEN": "session-of-another",
        "AWS_SKIP_SIGNATURE": "true",
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1",
    }.items():
        monkeypatch.setenv(name, value)
    asked = put(open_store("s3://b/p", endpoint=server.url, credentials=KEY), server)
    assert "Credential=AKIAOWN/" in asked.headers["authorization"]
    assert "x-amz-security-token" not in asked.headers
    session = Credentials("AKIAOWN", "canary-secret", "session-of-ours")
    asked = put(open_store("s3://b/p", endpoint=server.url, credentials=session), server)
    assert asked.headers["x-amz-security-token"] == "session-of-ours"


def test_the_environment_that_was_given_counts(server):
    environ = {
        "AWS_ACCESS_KEY_ID": "AKIAENV",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_SESSION_TOKEN": "its-session",
        "AWS_ENDPOINT_URL": server.url,
    }
    asked = put(open_store("s3://b/p", environ=environ), server)
    assert "Credential=AKIAENV/" in asked.headers["authorization"]
    assert asked.headers["x-amz-security-token"] == "its-session"
    assert asked.path == "/b/p/k"


def test_a_key_is_renewed_before_it_ends(server):
    ends = iter([timedelta(seconds=30), timedelta(hours=1), timedelta(hours=1)])
    given = []

    def renewed():
        given.append(f"ASIA{len(given)}")
        key, end = given[-1], datetime.now(UTC) + next(ends)
        return {"access_key_id": key, "secret_access_key": "s", "token": "t", "expires_at": end}

    store = open_store("s3://b/p", endpoint=server.url, credentials=renewed, environ={})
    used = []
    for _ in range(4):
        used.append(put(store, server).headers["authorization"].split("Credential=")[1][:5])
        time.sleep(0.15)  # obstore asks for no second key within a tenth of a second
    assert used == ["ASIA0", "ASIA1", "ASIA1", "ASIA1"]


@pytest.mark.parametrize(
    ("raised", "kind", "told"),
    [
        (Unreachable("canary"), Unreachable, "no answer from where the key is renewed"),
        (ValueError("canary"), Unauthorized, "the key cannot be renewed (ValueError)"),
    ],
)
@pytest.mark.parametrize("uri", ["s3://b/p", "gs://b/p"])
def test_a_key_that_cannot_be_renewed_is_told_without_its_text(server, uri, raised, kind, told):
    def renewed():
        raise raised

    store = open_store(uri, endpoint=server.url, credentials=renewed, environ={}, retry_s=0)
    with pytest.raises(kind) as caught:
        store.put("k", b"x")
    assert told in str(caught.value)
    assert "canary" not in str(caught.value) + caught.value.hint
    assert server.asked == []


@pytest.mark.parametrize(
    ("status", "kind", "tries"), [(503, Unreachable, 3), (500, Unreachable, 3), (404, Unauthorized, 1)]
)
def test_the_machines_role_is_asked_again_while_its_service_is_busy(server, status, kind, tries):
    pauses: list[float] = []
    environ = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": server.url}
    server.script(*[error(status)] * 2, Answer(200, b"token"), Answer(200, b"role"), error(404))
    store = open_store("s3://b/p", endpoint=server.url, environ=environ, sleep=pauses.append)
    with pytest.raises(Unauthorized, match="no key was given and this machine has no role"):
        store.put("k", b"x")
    assert len([asked for asked in server.asked if asked.path == "/latest/api/token"]) == tries
    assert len(pauses) == tries - 1
    server.script(error(status))
    store = open_store("s3://b/p", endpoint=server.url, environ=environ, retry_s=0)
    with pytest.raises(kind):
        store.put("k", b"x")


def test_no_machine_is_asked_for_a_role_where_the_environment_says_there_is_none(server):
    environ = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": server.url, "AWS_EC2_METADATA_DISABLED": "true"}
    store = open_store("s3://b/p", endpoint=server.url, environ=environ)
    with pytest.raises(Unauthorized, match="cannot write s3://b/p/k: no key was given") as caught:
        store.put("k", b"x")
    assert caught.value.hint
    assert server.asked == []


def test_a_container_gets_the_role_that_its_variables_lead_to(server, tmp_path: Path):
    (tmp_path / "token").write_text("pod-token")
    environ = {
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{server.url}/v2/credentials/job",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(tmp_path / "token"),
    }
    role = {"AccessKeyId": "ASIAPOD", "SecretAccessKey": "s", "Token": "t", "Expiration": "2099-01-01T00:00:00Z"}
    server.rule = lambda asked: Answer(
        200, json.dumps(role | {"RoleArn": "a"}).encode() if "/v2/" in asked.path else b""
    )
    asked = put(open_store("s3://b/p", endpoint=server.url, environ=environ), server)
    assert server.asked[0].headers["authorization"] == "pod-token"
    assert "Credential=ASIAPOD/" in asked.headers["authorization"]


def test_a_web_identity_that_cannot_be_exchanged_is_told_as_such(tmp_path: Path):
    (tmp_path / "token").write_text("canary")
    environ = {
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"),
        "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/job",
        "AWS_ENDPOINT_URL_STS": "https://127.0.0.1:1",
    }
    store = open_store("s3://b/p", environ=environ, retry_s=0)
    with pytest.raises(Unreachable, match="no answer from the service that gives the key") as caught:
        store.put("k", b"x")
    assert "canary" not in str(caught.value)


def test_nonsense_from_the_place_of_the_role_is_an_error_of_ours(server):
    """obstore breaks off with a panic, which is no Exception: a login page in the way is enough for that."""
    server.rule = lambda asked: Answer(200, b"<html>log in</html>\n<p>here")
    environ = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": server.url}
    store = open_store("s3://b/p", endpoint=server.url, environ=environ, retry_s=0)
    with pytest.raises((StoreError, Unauthorized)) as caught:
        store.put("k", b"x")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("code", ["SecondLevelDomainForbidden", "PathStyleDomainForbidden", "InvalidPathAccess"])
def test_a_service_that_refuses_paths_gets_its_setting_named(server, code):
    server.script(error(403, code))
    store = open_store("s3://b/p", endpoint=server.url, credentials=KEY, environ={})
    with pytest.raises(StoreError, match="wants the bucket in the host name") as caught:
        store.put("k", b"x")
    assert f"http://b.127.0.0.1:{server.server_port}" in caught.value.hint
    assert store.requests == 1


def test_a_service_account_signs_its_own_requests_and_links(server, account):
    key = Credentials.google(json.dumps(account), "account.json")
    store = open_store("gs://b/p", endpoint=server.url, credentials=key, environ={})
    asked = put(store, server)
    assert asked.path == "/b/p%2Fk"
    assert asked.headers["authorization"].startswith("Bearer ey")
    assert store.create("k", b"x") is True
    assert server.asked[-1].headers["x-goog-if-generation-match"] == "0"
    assert "X-Goog-Signature=" in store.sign("k", 60)
    shown = repr(key) + repr(store)
    assert "canary" not in shown
    assert account["private_key"][60:90] not in shown


@pytest.mark.parametrize("name", ["GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT"])
def test_google_accounts_are_found_by_the_variables_of_googles_tools(server, account, tmp_path: Path, name):
    path = tmp_path / "account.json"
    path.write_text(json.dumps(account | {"gcs_base_url": server.url}))
    environ = {name: str(path)}
    assert "X-Goog-Signature=" in open_store("gs://b/p", environ=environ).sign("k", 60)
    environ = {"GOOGLE_SERVICE_ACCOUNT_KEY": path.read_text()}
    assert "X-Goog-Signature=" in open_store("gs://b/p", environ=environ).sign("k", 60)


@pytest.mark.parametrize("way", ["endpoint", "variable", "bare variable"])
def test_an_emulator_is_asked_without_a_key_and_its_links_are_plain(server, way):
    environ = {
        "endpoint": {},
        "variable": {"STORAGE_EMULATOR_HOST": server.url},
        "bare variable": {"STORAGE_EMULATOR_HOST": server.url.removeprefix("http://")},
    }[way]
    store = open_store("gs://b/p", endpoint=server.url if way == "endpoint" else None, environ=environ)
    assert put(store, server).headers["authorization"].strip() == "Bearer"
    assert store.sign("a b/k", 60) == f"{server.url}/b/p/a%20b/k"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"type": "external_account"}', "of the kind external_account cannot be used here"),
        ("{canary", "not in the form of Google's credentials"),
        (None, "No such file or directory"),
    ],
)
def test_a_google_account_that_cannot_be_read_is_one_line_about_the_variable(tmp_path: Path, content, told):
    path = tmp_path / "account.json"
    if content:
        path.write_text(content)
    with pytest.raises(ConfigError, match=told) as caught:
        open_store("gs://b/p", environ={"GOOGLE_APPLICATION_CREDENTIALS": str(path)})
    assert "GOOGLE_APPLICATION_CREDENTIALS" in str(caught.value)
    assert "canary" not in str(caught.value) + caught.value.hint


def test_a_key_that_is_broken_shows_nothing_of_itself(account):
    for text in (
        '{"type": "service_account", "private_key": "canary"}',
        json.dumps(account | {"private_key": "canary"}),
    ):
        with pytest.raises((ConfigError, StoreError)) as caught:
            open_store("gs://b/p", credentials=Credentials.google(text, "key"), environ={}, retry_s=0).put("k", b"x")
        assert "canary" not in str(caught.value) + caught.value.hint


def test_a_key_of_the_other_cloud_is_told(account):
    with pytest.raises(ConfigError, match="this is a key for S3"):
        open_store("gs://b/p", credentials=KEY, environ={})
    with pytest.raises(ConfigError, match="this is a key for Google Cloud"):
        open_store("s3://b/p", credentials=Credentials.google(json.dumps(account), "key"), environ={})


@pytest.mark.parametrize("uri", ["", "bucket/p", "ftp://b/p", "s3://", "gs:///p", "file://host/p", "file:relative"])
def test_what_is_no_store_is_refused(uri):
    with pytest.raises(ConfigError, match="no such store"):
        open_store(uri)
