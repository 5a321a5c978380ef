"""The servers and lines that other tests and the benchmark stand on do what they say, and leave nothing behind."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests import servers

DELAY_S = 0.05
RATE = 4e6


class Echo(BaseHTTPRequestHandler):
    """GET /N sends N bytes; PUT sends back what came."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        self._answer(bytes(range(256)) * (int(self.path[1:]) // 256))

    def do_PUT(self):
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def far():
    if not sys.platform.startswith("linux"):
        pytest.skip("the far region needs splice and epoll")
    backend = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=backend.serve_forever, daemon=True).start()
    options = ("--delay", str(DELAY_S), "--rate", str(RATE))
    with servers.fronted("far_region.py", f"http://127.0.0.1:{backend.server_port}", *options) as url:
        yield url.removeprefix("http://")
    backend.shutdown()
    backend.server_close()


def test_each_request_waits_for_the_way_and_the_connection_is_kept(far):
    connection = http.client.HTTPConnection(far, timeout=30)
    connection.connect()
    kept = connection.sock
    start = time.monotonic()
    for number in range(10):
        connection.request("PUT", "/", body=b"%d" % number * 500)
        assert connection.getresponse().read() == b"%d" % number * 500
    assert time.monotonic() - start >= 10 * DELAY_S
    assert connection.sock is kept
    connection.close()


def test_each_connection_has_its_own_rate_both_ways_and_every_byte_arrives(far):
    body = os.urandom(2_000_000)

    def there_and_back(_number: int) -> bool:
        connection = http.client.HTTPConnection(far, timeout=60)
        connection.request("PUT", "/", body=body)
        echo = connection.getresponse().read()
        connection.request("GET", "/1048576")
        more = connection.getresponse().read()
        connection.close()
        return echo == body and more == bytes(range(256)) * 4096

    start = time.monotonic()
    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(there_and_back, range(6)))
    took = time.monotonic() - start
    alone = 2 * len(body) / RATE + 1048576 / RATE
    assert took >= 0.6 * alone  # it may run half a second ahead
    assert took < 6 * alone  # and six at once are not six times as slow


@pytest.mark.parametrize("kind", ["moto", "rclone", "seaweedfs", "fake-gcs"])
def test_a_server_ends_with_its_block_and_with_the_process_that_started_it(kind, tmp_path):
    try:
        with servers.started(kind, tmp_path / "one") as server:
            assert server.process is not None
            own = server.process.pid
            server.store("x").put("a", b"1")
    except servers.NotInstalledError as missing:
        pytest.skip(str(missing))
    assert not alive(own)
    script = f"""
import pathlib, time
from tests import servers
with servers.started({kind!r}, pathlib.Path({str(tmp_path / "two")!r})) as server:
    print(server.process.pid, flush=True)
    time.sleep(60)
"""
    starter = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=servers.ROOT)
    assert starter.stdout is not None
    child = int(starter.stdout.readline())
    assert alive(child)
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    starter.stdout.close()
    if servers.dies_with_us([])[:1] and sys.platform.startswith("linux"):
        deadline = time.monotonic() + 10
        while alive(child) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not alive(child)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_is_not_installed_is_named_with_the_command_that_installs_it(monkeypatch, tmp_path):
    monkeypatch.setattr(servers, "ENVIRONMENT", tmp_path)
    with (
        pytest.raises(servers.NotInstalledError, match="weed is not installed: make servers"),
        servers.started("seaweedfs", tmp_path / "s"),
    ):
        pass
