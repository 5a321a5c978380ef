"""What the controller hands to a node: listed with its own account, read through links, on real S3 and GCS servers."""

from __future__ import annotations

import http.server
import json
import threading
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard

from provisioner.checkpoint import layout
from provisioner.checkpoint.store import open_store
from provisioner.config import parse
from provisioner.controller.data import DataLists
from provisioner.controller.launch import Launcher
from provisioner.controller.records import Begun, Claimed
from provisioner.errors import ConfigError, FailoverError, Unreachable
from provisioner.model import Gpu, Market, Node, NodeState, Offer
from provisioner.node.bootstrap import DataOrder
from provisioner.node.data import Data
from tests import rooms, servers, sweeps

BASE = 'job: {name: digits, command: "true"}\ncheckpoint: {store: "file:///tmp/x"}\nfallback: [{local: {}}]\n'


def lists(tmp_path: Path, data: str, environ: dict[str, str], more: str = "") -> DataLists:
    config = parse(f"{BASE}data:\n{data}\n{more}".encode(), "failover.yaml", tmp_path, environ)
    return DataLists(config, open_store(f"file://{tmp_path}/store").at("digits"), environ)


def refused(tmp_path: Path, data: str, environ: dict[str, str] | None = None, more: str = "") -> FailoverError:
    with pytest.raises(FailoverError) as caught:
        lists(tmp_path, data, environ or {}, more).look()
    assert "\n" not in str(caught.value)
    return caught.value


def brought(tmp_path: Path, made: DataLists, epoch: int = 1) -> dict[str, bytes]:
    """Return what a node makes of the list."""
    order = made.write(epoch)
    assert order is not None
    data = Data(
        made._store, DataOrder(**order), tmp_path / "cache", tmp_path, patiently=lambda call: call(),
        note=lambda *_args, **_fields: None, cancel=threading.Event(),
    )  # fmt: skip
    data.start()
    root = data.wait()
    assert root is not None
    found = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    data.close()
    return found


@pytest.fixture(scope="module", params=["moto", "seaweedfs", "rclone", "fake-gcs"])
def server(request, tmp_path_factory):
    try:
        with servers.started(request.param, tmp_path_factory.mktemp(request.param), "datasets") as running:
            yield running
    except servers.NotInstalledError as missing:
        pytest.skip(str(missing))


def test_a_folder_of_a_bucket_and_one_object_reach_the_machine(server, tmp_path):
    store = server.store("set")
    big = bytes(range(256)) * 90_000
    files = {"one.bin": big, "deep/er/two + 2.txt": b"two", "deep/größe": b"3", "empty": b""}
    for name, data in files.items():
        store.put(name, data)
    store.put("elsewhere/no", b"not below x")
    scheme = server.scheme
    made = lists(
        tmp_path,
        f"- {{from: '{scheme}://datasets/set/deep/', to: deep}}\n- {{from: '{scheme}://datasets/set/one.bin', to: one, "
        f"sha256: {sha256(big).hexdigest()}}}\n- {{from: '{scheme}://datasets/set/empty', to: none}}",
        server.environ(),
    )
    want = {"deep/er/two + 2.txt": b"two", "deep/größe": b"3", "one/one.bin": big, "none/empty": b""}
    assert brought(tmp_path, made) == want
    assert brought(tmp_path, made, 2) == want
    kept = zstandard.decompress((tmp_path / "list-epochs-2-data.json.zst").read_bytes()).decode()
    if server.credentials is not None:
        assert server.credentials.secret_access_key not in kept
        assert "X-Amz-Signature" in kept


def test_what_is_not_there_is_said_before_a_machine_is_rented(server, tmp_path):
    scheme = server.scheme
    error = refused(tmp_path, f"- {{from: '{scheme}://datasets/none/', to: a}}", server.environ())
    assert str(error) == f"data[0]: {scheme}://datasets/none/: there is nothing below it"
    assert isinstance(error, ConfigError)
    error = refused(tmp_path, f"- {{from: '{scheme}://datasets/none', to: a}}", server.environ())
    assert str(error) == f"data[0]: {scheme}://datasets/none: there is no such object"
    assert error.hint == "check the address; a folder ends in /"


def test_a_wrong_key_is_said_before_a_machine_is_rented(server, tmp_path):
    if server.kind in {"moto", "fake-gcs"}:
        pytest.skip("asks for no key")
    server.store("set").put("a", b"a")
    environ = server.environ() | {"AWS_SECRET_ACCESS_KEY": "wrong"}
    error = refused(tmp_path, "- {from: 's3://datasets/set/', to: a}", environ)
    assert isinstance(error, ConfigError), "a cloud that could give a machine is not to blame"
    assert "InvalidAccessKeyId" in str(error) or "SignatureDoesNotMatch" in str(error) or "403" in str(error)


class Front(http.server.BaseHTTPRequestHandler):
    """A web server of the plainest kind: no parts, no ETag, sometimes no length, and one that leads on."""

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:
        name = self.path.partition("?")[0]
        if name == "/moved.txt":
            self.send_response(302)
            self.send_header("Location", "/plain.txt?token=canary")
            self.end_headers()
        elif name in {"/plain.txt", "/endless.txt"}:
            self.send_response(200)
            if name == "/plain.txt":
                self.send_header("Content-Length", "5")
            self.end_headers()
            self.wfile.write(b"plain")
        else:
            self.send_response({"/secret": 403, "/busy": 503}.get(name, 404))
            self.end_headers()


@pytest.fixture
def front():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Front)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_files_of_plain_web_servers_come_whole(front, tmp_path):
    made = lists(
        tmp_path,
        f"- {{from: '{front}/moved.txt?download=1', to: a}}\n- {{from: '{front}/endless.txt', to: b}}\n"
        f"- {{from: '{front}/plain.txt', to: c, sha256: {sha256(b'plain').hexdigest()}}}",
        {},
    )
    assert brought(tmp_path, made) == {"a/moved.txt": b"plain", "b/endless.txt": b"plain", "c/plain.txt": b"plain"}


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("none", ConfigError, "there is no such file (404)"),
        ("secret", ConfigError, "the server refuses (403)"),
        ("busy", Unreachable, "the server answers 503"),
    ],
)
def test_a_web_server_that_refuses_is_named_without_the_query(name, kind, says, front, tmp_path):
    error = refused(tmp_path, f"- {{from: '{front}/{name}?v=canary', to: a}}")
    assert (type(error), str(error)) == (kind, f"data[0]: {front}/{name}: {says}")


def test_a_server_that_is_away_is_named(tmp_path):
    (port,) = servers.free_ports(1)
    error = refused(tmp_path, f"- {{from: 'http://127.0.0.1:{port}/x', to: a}}")
    assert str(error) == f"data[0]: http://127.0.0.1:{port}/x: no answer (ConnectError)"


def test_a_folder_of_this_machine_is_copied_and_what_has_changed_comes_again(tmp_path):
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "a b").write_text("1")
    (source / "sub/c").write_text("2")
    (source / "link").symlink_to("a b")
    made = lists(tmp_path, f"- {{from: 'file://{source}', to: here}}\n- {{from: 'file://{source}/sub/c', to: c}}", {})
    assert brought(tmp_path, made) == {"here/a b": b"1", "here/sub/c": b"2", "here/link": b"1", "c/c": b"2"}
    (source / "a b").write_text("3")
    (source / "sub/c").unlink()
    (source / "link").unlink()
    again = lists(tmp_path, f"- {{from: 'file://{source}', to: here}}", {})
    assert brought(tmp_path, again, 2) == {"here/a b": b"3"}


@pytest.mark.parametrize(
    ("data", "more", "says"),
    [
        ("{from: 'file:///nowhere/at/all', to: a}", "", "data[0]: file:///nowhere/at/all: there is no such folder or"),
        ("{from: 'file://TMP/empty', to: a}", "", "there is nothing below it"),
        ("{from: 'file://TMP/odd', to: a}", "", "'new\\nline' is no name that a disk can have"),
        ("{from: 'file://TMP/big', to: a}", "policy: {data_cache_gb: 0.5}", "data takes 1.0 GB, and 0.5 are allowed"),
    ],
)
def test_data_that_cannot_be_used_is_refused_with_its_reason(data, more, says, tmp_path):
    for name in ("empty", "odd", "big"):
        (tmp_path / name).mkdir()
    (tmp_path / "odd/new\nline").write_text("x")
    with (tmp_path / "big/zeros").open("wb") as file:
        file.truncate(10**9)
    assert says in str(refused(tmp_path, f"- {data.replace('TMP', str(tmp_path))}", more=more))


def test_more_than_the_disk_of_a_fallback_is_refused(server, tmp_path):
    if server.kind != "moto":
        pytest.skip("one server will do")
    server.store("vast").put("a", b"a")
    text = BASE.replace("file:///tmp/x", "s3://datasets/p").replace("{local: {}}", "{aws: {regions: [us-east-1]}}")
    config = parse(f"{text}data:\n- {{from: 's3://datasets/vast/', to: a}}\n".encode(), "f", tmp_path, server.environ())
    made = DataLists(config, open_store(f"file://{tmp_path}/store").at("digits"), server.environ())
    entries: list[dict[str, Any]] = [{"files": [("a", 10**12, "", "")]}]
    with pytest.raises(ConfigError, match=r"fallback\[0\].aws.disk_gb: data takes 1000.0 GB of 100 GB"):
        made._refuse_too_much(entries)


def test_the_list_is_made_anew_for_a_later_machine_and_not_for_each_claim(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source/a").write_text("1")
    now = [0.0]
    config = parse(f"{BASE}data: [{{from: 'file://{tmp_path}/source', to: a}}]".encode(), "f", tmp_path, {})
    store = open_store(f"file://{tmp_path}/store").at("digits")
    made = DataLists(config, store, {}, monotonic=lambda: now[0])

    def names() -> list[str]:
        order = made.write(1)
        assert order is not None
        data = store.get(str(order["key"]))
        assert data is not None
        return [name for name, *_ in json.loads(zstandard.decompress(data))["entries"][0]["files"]]

    assert names() == ["a"]
    (tmp_path / "source/b").write_text("2")
    assert names() == ["a"]
    now[0] = 1000.0
    assert names() == ["a", "b"]


def test_an_older_list_will_do_while_the_source_is_away_and_its_links_live(front, tmp_path):
    now, away = [0.0], [False]

    def client() -> httpx.Client:
        return httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(503))) if away[0] else httpx.Client()

    config = parse(f"{BASE}data: [{{from: '{front}/plain.txt', to: a}}]".encode(), "f", tmp_path, {})
    store = open_store(f"file://{tmp_path}/store").at("digits")
    made = DataLists(config, store, {}, client=client, monotonic=lambda: now[0])
    made.look()
    away[0], now[0] = True, 3600.0
    assert brought(tmp_path, made) == {"a/plain.txt": b"plain"}
    now[0] = 6 * 3600.0
    with pytest.raises(Unreachable):
        made.write(2)


class Running:
    """A cloud whose machine runs on."""

    def inspect(self, node: Node) -> NodeState:
        return NodeState.RUNNING


def test_the_list_of_a_machine_that_ended_without_reading_it_goes_and_no_other(tmp_path):
    (tmp_path / "x").write_bytes(b"x")
    made: Any = sweeps.world({"aws": Running()}, sweeps.aws(regions=["us-east-1"]), tmp_path / "state")
    made._background._adopt = lambda _node: None
    store = open_store(f"file://{tmp_path}/store").at("digits")
    config = parse(f"{BASE}data: [{{from: 'file://{tmp_path}/x', to: a}}]".encode(), "failover.yaml", tmp_path, {})
    made.launcher = launcher = Launcher(rooms.JOB, config, made.directory, store, {}, None)
    for epoch in (1, 2):
        launcher.data.write(epoch)
    store.put(layout.heartbeat(1), b'{"end": {"reason": "notice: spot terminate", "exit_code": 75, "cause": "notice"}}')
    offer = Offer("aws", "us-east-1", "us-east-1a", "g4dn.xlarge", Gpu("T4", 1, 16), Market.SPOT, None)
    node = Node("i-1", offer, rooms.JOB, 1, "token", time.time())
    made.watch(Claimed(offer, time.time(), node, None), node, Begun(time.time(), 1), ())
    assert store.get(layout.data(1)) is None
    assert store.get(layout.data(2)) is not None


def test_a_node_whose_data_still_come_gets_a_new_list_every_half_hour(tmp_path):
    (tmp_path / "x").write_bytes(b"x")
    now = [0.0]
    made = lists(tmp_path, f"- {{from: 'file://{tmp_path}/x', to: a}}", {})
    made._monotonic = lambda: now[0]
    made.write(1)
    written = []
    for minutes in range(0, 120, 5):
        made._store.delete([layout.data(1)])
        now[0] = minutes * 60.0
        made.keep_fresh(1, {"bytes": 5, "of": 10 if minutes < 100 else 5})
        if made._store.exists(layout.data(1)):
            written.append(minutes)
    assert written == [30, 60, 90]
    made.keep_fresh(1, None)
    assert not made._store.exists(layout.data(1)), "a node without data needs none"
