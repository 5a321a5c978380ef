"""The store behind a proxy that loses answers, refuses and limits; moto is the S3 server behind it."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

from provisioner.checkpoint import epochs, layout
from provisioner.checkpoint.restore import committed, restore
from provisioner.checkpoint.save import Saver
from provisioner.checkpoint.store import Credentials, Store, open_store
from provisioner.errors import Fenced, StoreError, Unauthorized, Unreachable
from provisioner.model import JobRef
from tests import servers
from tests.ruled_proxy import Rule, RuledProxy, ruled

KEY = Credentials("AKIACANARY0000000001", "canary-secret-key")
JOB = JobRef("digits", "1a2b3c4d")


@pytest.fixture(scope="module")
def moto_port() -> Iterator[int]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield server.get_host_and_port()[1]
    server.stop()


@pytest.fixture
def proxy(moto_port: int, request: pytest.FixtureRequest) -> Iterator[RuledProxy]:
    bucket = f"b{abs(hash(request.node.nodeid)) % 10**10}"
    connection = http.client.HTTPConnection("127.0.0.1", moto_port)
    connection.request("PUT", f"/{bucket}")
    assert connection.getresponse().status == 200
    connection.close()
    with ruled(f"127.0.0.1:{moto_port}", bucket) as server:
        yield server


def job_store(proxy: Any, **options: Any) -> Store:
    options = {
        "endpoint": proxy.url,
        "region": "us-east-1",
        "credentials": KEY,
        "retry_s": 10,
        "timeout_s": 5,
    } | options
    return open_store(f"s3://{proxy.bucket}/prefix", environ={}, **options).at("digits")


def once(status: int, *, method: str = "PUT", ends: str = "/owner.json", times: int = 1) -> Rule:
    left = [times]

    def rule(verb: str, path: str, _headers: dict[str, str]) -> int | None:
        if verb == method and path.endswith(ends) and left[0] > 0:
            left[0] -= 1
            return status
        return None

    return rule


@pytest.mark.parametrize(
    "fault", [once(0), once(-500), once(-503, times=2), once(409), once(409, times=2), once(500), once(0, times=3)]
)
def test_r01_the_own_write_whose_answer_was_lost_is_the_own(proxy, fault):
    store = job_store(proxy)
    proxy.rule = fault
    assert epochs.take(store, 4, "mine", "node", sleep=lambda _s: None) == ""
    assert json.loads(store.get(layout.owner(4)) or b"{}")["token"] == "mine"
    assert epochs.newest_epoch(store) == epochs.newest_used(store) == 4
    with pytest.raises(Fenced, match="epoch 4 belongs to another node"):
        epochs.take(store, 4, "other", "node", sleep=lambda _s: None)
    with pytest.raises(Fenced, match="epoch 4 owns the job"):
        epochs.take(store, 3, "older", "node", sleep=lambda _s: None)


@pytest.mark.parametrize("fault", [once(0, times=3), once(-500, times=4), lambda *_: None])
def test_r01_of_many_nodes_at_once_exactly_one_owns(proxy, fault):
    proxy.rule = fault

    def attempt(token: str) -> bool:
        try:
            epochs.take(job_store(proxy), 1, token, "node")
        except Fenced:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        won = list(pool.map(attempt, [f"token-{number}" for number in range(6)]))
    assert won.count(True) == 1
    epochs.check(job_store(proxy), 1, f"token-{won.index(True)}")


@pytest.mark.parametrize("status", [501, 400])
def test_a_store_that_refuses_conditional_writes_still_fences(proxy, status):
    proxy.rule = lambda _verb, _path, headers: status if "if-none-match" in headers else None
    line = epochs.take(job_store(proxy), 1, "mine", "node", sleep=lambda _s: None)
    assert "refuses conditional writes" in line
    with pytest.raises(Fenced):
        epochs.take(job_store(proxy), 1, "other", "node", sleep=lambda _s: None)


def test_a_store_that_ignores_conditions_is_found_out_by_reading_back(proxy):
    """The later writer wins; the earlier one learns it at its next look, before it commits anything."""
    store = job_store(proxy)
    store.put(layout.owner(1), b'{"token": "mine"}')
    epochs.check(store, 1, "mine")
    store.put(layout.owner(1), b'{"token": "other"}')
    with pytest.raises(Fenced):
        epochs.check(store, 1, "mine")


def test_r01_a_node_whose_ownership_and_commits_lose_their_answers_trains_to_the_end(proxy, node_job):
    lost: set[str] = set()

    def rule(verb: str, path: str, _headers: dict[str, str]) -> int | None:
        if verb == "PUT" and path not in lost and path.endswith(("owner.json", "done.json", "-000004.json")):
            lost.add(path)
            return 0
        return None

    proxy.rule = rule
    node = node_job.start(
        4,
        node_job.trainer(steps=30, pause=0.02),
        steps=30,
        store={
            "uri": f"s3://{proxy.bucket}/prefix",
            "endpoint": proxy.url,
            "region": "us-east-1",
            "credentials": {"access_key_id": KEY.access_key_id, "secret_access_key": KEY.secret_access_key},
        },
    )
    assert node.wait() == 0, node.text()
    store = job_store(proxy)
    assert epochs.newest_used(store) == 4
    assert len(lost) >= 3
    assert committed(store)[0] == (4, 30)
    assert KEY.secret_access_key not in node.text() + node.log()


@pytest.fixture(params=["moto", "fake-gcs"])
def limited(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[RuledProxy, dict[str, Any]]]:
    """A service before which a rule stands, and how a node opens it."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(servers.started(request.param, tmp_path / "server"))
        except servers.NotInstalledError as missing:
            pytest.skip(str(missing))
        assert server.endpoint is not None
        proxy = stack.enter_context(ruled(server.endpoint.removeprefix("http://"), server.bucket))
        key = server.credentials.as_json() if server.credentials else None
        yield proxy, {"uri": server.uri("prefix"), "endpoint": proxy.url, "region": "us-east-1", "credentials": key}


def test_r09_a_store_that_limits_writes_to_one_object_gets_no_storm_and_the_last_word(limited, node_job):
    proxy, store = limited
    last: dict[str, float] = {}
    blocked: dict[str, float] = {}
    refused: list[str] = []

    def rule(verb: str, path: str, _headers: dict[str, str]) -> int | None:
        if verb != "PUT" or not path.endswith("heartbeat.json"):
            return None
        now = time.monotonic()
        if now - last.get(path, -9.0) < 1.0 or now < blocked.get(path, 0.0):
            blocked[path] = now + 20
            refused.append(path)
            return 429
        last[path] = now
        return None

    proxy.rule = rule
    node = node_job.start(1, node_job.trainer(steps=1000, every=5, pause=0.05), steps=1000, heartbeat_s=1, store=store)
    node.until(lambda: [step for step in re.findall(r"step (\d+) is committed", node.log()) if int(step) >= 60], 60)
    node.process.terminate()
    began = time.monotonic()
    assert node.wait() == 75
    assert time.monotonic() - began < 25
    assert refused == []
    opened = open_store(
        store["uri"],
        endpoint=proxy.url,
        credentials=Credentials.from_json(store["credentials"]),
        environ={},
    ).at("digits")
    beat = json.loads(opened.get(layout.heartbeat(1)) or b"{}")
    assert beat["end"]["exit_code"] == 75
    assert committed(opened)[0].step >= 60


def test_a_store_that_is_away_for_a_while_delays_commits_and_not_the_training(proxy, node_job):
    node = node_job.start(
        1,
        node_job.trainer(steps=60, every=5, pause=0.05),
        steps=60,
        store={
            "uri": f"s3://{proxy.bucket}/prefix",
            "endpoint": proxy.url,
            "region": "us-east-1",
            "credentials": {"access_key_id": KEY.access_key_id, "secret_access_key": KEY.secret_access_key},
        },
    )
    node.until_committed(10)
    proxy.rule = lambda *_: 503
    node.until_step(60)
    proxy.rule = lambda *_: None
    assert node.wait() == 0
    assert committed(job_store(proxy))[0] == (1, 60)


def test_a_fenced_node_is_gone_within_five_seconds_though_its_upload_hangs_and_its_command_ignores_sigterm(
    proxy, node_job
):
    """The heartbeat sees the newer epoch, while the commit waits for a store that takes a pack and does not answer."""
    hanging = threading.Event()

    def rule(verb: str, path: str, _headers: dict[str, str]) -> None:
        if verb == "PUT" and "/packs/" in path:
            hanging.set()
            time.sleep(30)

    node = node_job.start(
        1,
        node_job.trainer(steps=1000, every=5, pause=0.1, on_term="ignore"),
        steps=1000,
        store={
            "uri": f"s3://{proxy.bucket}/prefix",
            "endpoint": proxy.url,
            "region": "us-east-1",
            "credentials": {"access_key_id": KEY.access_key_id, "secret_access_key": KEY.secret_access_key},
        },
    )
    node.until_committed(5)
    proxy.rule = rule
    assert hanging.wait(20)
    child, before = node.child_pid(), committed(job_store(proxy))
    epochs.take(job_store(proxy), 2, "token-of-2", "elsewhere")
    taken = time.monotonic()
    assert node.wait(timeout=15) == 75
    assert time.monotonic() - taken < 2.5 + 5  # a heartbeat sees it within 2.5 s, and five seconds from then on
    assert not Path(f"/proc/{child}").exists()
    assert committed(job_store(proxy)) == before


def test_a_save_whose_upload_fails_commits_nothing_and_the_next_try_does(proxy, tmp_path: Path):
    store = job_store(proxy, retry_s=1)
    entry = tmp_path / "step-1"
    entry.mkdir()
    for number in range(20):
        (entry / f"f{number}").write_bytes(bytes([number]) * 1000)
    saver = Saver(store, JOB, 1, fence=lambda: None)
    proxy.rule = lambda verb, path, _headers: 403 if verb == "PUT" and "/packs/" in path else None
    with pytest.raises(Unauthorized):
        saver.save(entry, 1)
    assert committed(store) == []
    proxy.rule = lambda *_: None
    saver.save(entry, 1)
    assert restore(store, JOB, tmp_path / "r") is not None


@pytest.mark.parametrize(
    ("status", "kind"), [(403, Unauthorized), (401, Unauthorized), (503, Unreachable), (400, StoreError)]
)
@pytest.mark.parametrize("call", ["get", "put", "create", "objects", "folders", "exists"])
def test_refusals_are_typed_one_line_and_without_the_key(proxy, status, kind, call):
    store = job_store(proxy, retry_s=1)
    proxy.rule = lambda *_: status
    arguments = ("x", b"y") if call in {"put", "create"} else ("x",)
    with pytest.raises(kind) as caught:
        getattr(store, call)(*arguments)
    text = str(caught.value) + caught.value.hint
    assert "\n" not in text
    assert f"s3://{proxy.bucket}/prefix/digits/x" in text
    assert "CANARY" not in text
    assert caught.value.__cause__ is None


def test_a_store_that_is_not_there_is_unreachable():
    store = open_store("s3://b/p", endpoint="http://127.0.0.1:1", credentials=KEY, retry_s=1, environ={})
    with pytest.raises(Unreachable):
        store.get("x")


class Role(BaseHTTPRequestHandler):
    """The metadata service of a machine with a role."""

    def do_PUT(self):
        self._answer(b"token")

    def do_GET(self):
        assert self.headers["X-aws-ec2-metadata-token"] == "token"
        if self.path.rstrip("/").endswith("security-credentials"):
            self._answer(b"the-role")
        else:
            self._answer(
                json.dumps(
                    {
                        "Code": "Success",
                        "Type": "AWS-HMAC",
                        "AccessKeyId": "ASIAROLE",
                        "SecretAccessKey": "s",
                        "Token": "session-of-the-role",
                        "LastUpdated": "2024-01-01T00:00:00Z",
                        "Expiration": "2099-01-01T00:00:00Z",
                    }
                ).encode()
            )

    def _answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_without_a_key_the_machines_role_is_used(proxy):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Role)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    seen: list[str] = []

    def rule(_verb: str, _path: str, headers: dict[str, str]) -> None:
        seen.append(headers.get("x-amz-security-token", ""))

    proxy.rule = rule
    store = open_store(
        f"s3://{proxy.bucket}/prefix",
        endpoint=proxy.url,
        region="us-east-1",
        environ={"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{server.server_port}"},
    )
    store.put("x", b"1")
    server.shutdown()
    server.server_close()
    assert seen == ["session-of-the-role"]


def test_a_link_reads_one_object_without_a_key(proxy):
    store = job_store(proxy)
    store.put("epochs/1/bootstrap.json", b"{}")
    link = store.sign("epochs/1/bootstrap.json", 60)
    connection = http.client.HTTPConnection("127.0.0.1", proxy.server_port)
    connection.request("GET", link.removeprefix(proxy.url))
    answer = connection.getresponse()
    assert answer.read() == b"{}"
    connection.close()
    assert KEY.secret_access_key not in link
