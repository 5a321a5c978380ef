"""Reading behind links: TLS, proxies, redirects, servers that are busy, silent, gone or not what they were."""

from __future__ import annotations

import http.server
import socket
import ssl
import subprocess
import threading
import time

import pytest

from provisioner.errors import Abandoned, StoreError, Unreachable
from provisioner.node.data_links import Link, LinkDead, NoRanges, Reader, SourceChanged

BODY = bytes(range(256)) * 4096
SIZE = len(BODY)


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_):
        return

    def do_GET(self):
        self.server.asked.append((self.path, self.headers.get("Range")))
        self.server.peers.add(self.client_address)
        reply = self.server.replies.pop(0) if self.server.replies else {}
        if reply.get("hang_up"):
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        body, status, start = reply.get("body", BODY), reply.get("status", 200), 0
        if status == 200 and (part := self.headers.get("Range")) and not reply.get("whole"):
            start, end = (int(number) for number in part.removeprefix("bytes=").split("-"))
            status, total, body = 206, len(body), body[start : end + 1]
        self.send_response(status)
        headers = {"Content-Length": str(len(body)), "ETag": '"e"'}
        if status == 206:
            headers["Content-Range"] = f"bytes {start}-{start + len(body) - 1}/{total}"
        for name, value in (headers | reply.get("headers", {})).items():
            self.send_header(name, value)
        self.end_headers()
        time.sleep(reply.get("silent_s", 0))
        self.wfile.write(body[: reply.get("cut", len(body))])
        if "cut" in reply or reply.get("close_after"):
            self.close_connection = True

    def do_CONNECT(self):
        """Be a proxy for TLS."""
        self.server.asked.append((self.path, "CONNECT"))
        host, _, port = self.path.rpartition(":")
        self.send_response(200)
        self.end_headers()
        with socket.create_connection((host, int(port))) as far:
            threads = [
                threading.Thread(target=copied, args=pair, daemon=True)
                for pair in ((far, self.connection), (self.connection, far))
            ]
            for thread in threads:
                thread.start()
            threads[0].join(5)
        self.close_connection = True


def copied(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.replies, self.asked, self.peers = [], [], set()

    def handle_error(self, *_):
        return


@pytest.fixture
def serve():
    running = []

    def start(context=None):
        server = Server()
        if context:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        running.append((server, thread))
        return server

    yield start
    for server, thread in running:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def server(serve):
    return serve()


@pytest.fixture
def reader(request):
    made = Reader(threading.Event(), **getattr(request, "param", {}))
    yield made
    made.close()


def url(server, scheme="http", host="127.0.0.1"):
    return f"{scheme}://{host}:{server.server_port}/a%20b?X-Amz-Signature=canary"


def read(reader, at, start=0, end=SIZE):
    got = bytearray()
    reader.read(Link("s3://bucket/a", at, SIZE, '"e"'), start, end, lambda _place, data: got.extend(data))
    return bytes(got)


def test_one_connection_serves_many_requests_and_is_made_anew_when_the_server_has_closed_it(server, reader):
    for start in (0, 1000, 5000):
        assert read(reader, url(server), start, start + 700) == BODY[start : start + 700]
    assert len(server.peers) == 1
    server.replies = [{"close_after": True}]
    began = time.monotonic()
    assert read(reader, url(server)) + read(reader, url(server)) == BODY * 2
    assert time.monotonic() - began < 1
    assert len(server.peers) == 2
    assert server.asked[0] == ("/a%20b?X-Amz-Signature=canary", "bytes=0-699")


def test_what_passes_is_tried_again_where_it_broke(server, reader):
    server.replies = [
        {"status": 503, "headers": {"Retry-After": "0"}}, {"hang_up": True}, {"cut": 100_000}, {"status": 500},
    ]  # fmt: skip
    assert read(reader, url(server)) == BODY
    assert [part for _, part in server.asked][:3] == [None, None, None]
    assert server.asked[-1][1] is not None, "it is not begun anew"


@pytest.mark.parametrize(
    ("replies", "part", "kind", "says"),
    [
        ([{"status": 403}], (0, len(BODY)), LinkDead, "the link to it is dead or refused (403); the next machine"),
        ([{"status": 404}], (0, len(BODY)), SourceChanged, "it is gone, or another, since it was listed (404)"),
        ([{"status": 451}], (0, len(BODY)), StoreError, "the server answers 451"),
        ([{"headers": {"ETag": '"f"'}}], (0, len(BODY)), SourceChanged, "it has changed since it was listed"),
        ([{"cut": 1000}, {"headers": {"ETag": '"f"'}}], (0, len(BODY)), SourceChanged, "it has changed since"),
        ([{"body": BODY + b"x"}], (0, 10), SourceChanged, f"it has {len(BODY) + 1} bytes now, and had {len(BODY)}"),
        ([{"body": BODY[:-1]}], (0, len(BODY)), SourceChanged, f"it has {len(BODY) - 1} bytes now"),
        ([{"whole": True}], (5, 10), NoRanges, ""),
        ([{"status": 302, "headers": {"Location": "/b?token=canary"}}] * 9, (0, 5), StoreError, "leads on and on"),
        ([{"status": 302, "headers": {"Location": "file:///etc/passwd"}}], (0, 5), StoreError, "that is not https"),
    ],
)
def test_what_does_not_pass_ends_with_the_objects_name_and_never_the_link(replies, part, kind, says, server, reader):
    server.replies = list(replies)
    with pytest.raises(kind) as caught:
        read(reader, url(server), *part)
    assert says in str(caught.value)
    assert "canary" not in str(caught.value) + repr(caught.value)
    assert "canary" not in repr(Link("a", url(server), 1))
    if kind is not NoRanges:
        assert str(caught.value).startswith("s3://bucket/a: ")


@pytest.mark.parametrize("reader", [{"quiet_s": 0.1, "patience_s": 0.5}], indirect=True)
def test_a_server_that_is_silent_or_away_is_given_up_in_time(server, reader):
    server.replies = [{"silent_s": 1.0}] * 20
    with pytest.raises(Unreachable, match="nothing came for 0 s "):
        read(reader, url(server))
    away = url(server).replace(str(server.server_port), "1")
    with pytest.raises(Unreachable, match="Connection refused"):
        read(reader, away)


def test_a_request_to_stop_ends_the_waiting(server):
    cancel = threading.Event()
    reader = Reader(cancel)
    server.replies = [{"status": 503, "headers": {"Retry-After": "10"}}]
    threading.Timer(0.2, cancel.set).start()
    began = time.monotonic()
    with pytest.raises(Abandoned):
        read(reader, url(server))
    assert time.monotonic() - began < 3
    reader.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=DNS:localhost", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
        capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("no openssl here")
    return folder


@pytest.fixture
def secure(serve, certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    return serve(context)


def test_tls_is_checked(secure, certificate, monkeypatch, reader):
    at = url(secure, "https", "localhost")
    with pytest.raises(StoreError, match="the server's certificate is not accepted") as caught:
        read(reader, at)
    assert "ca-certificates" in caught.value.hint
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert.pem"))
    trusting = Reader(threading.Event())
    assert read(trusting, at) == BODY
    secure.replies = [{"status": 302, "headers": {"Location": "http://127.0.0.1:1/a"}}]
    with pytest.raises(StoreError, match="that is not https"):
        read(trusting, at)
    trusting.close()


def test_the_proxy_of_the_environment_is_used(server, serve, secure, certificate, monkeypatch):
    proxy = serve()
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")
    for scheme in ("http", "https"):
        monkeypatch.setenv(f"{scheme}_proxy", f"http://127.0.0.1:{proxy.server_port}")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert.pem"))
    reader = Reader(threading.Event())
    assert read(reader, url(server)) == BODY
    assert proxy.asked[-1][0] == url(server), "a plain proxy is asked with the whole address"
    assert server.asked == []
    assert read(reader, url(secure, "https", "localhost")) == BODY
    assert proxy.asked[-1] == (f"localhost:{secure.server_port}", "CONNECT")
    reader.close()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    direct = Reader(threading.Event())
    assert read(direct, url(server)) == BODY
    assert len(server.asked) == 1
    direct.close()
