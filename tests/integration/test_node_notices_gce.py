"""Google's notices: real node processes and the sandbox's metadata server, with real hanging requests."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from provisioner.node.notices.gce import NOTICE_ATTRIBUTE, GceMetadata, Maintenance, Preemption
from provisioner.node.notices.source import SourceAway
from provisioner.node.notices.watching import Lookout
from provisioner.sandbox.gce.metadata import GceFacts
from provisioner.sandbox.gce.metadata import GceMetadata as Server

TERMINATE, MIGRATE = "TERMINATE_ON_HOST_MAINTENANCE", "MIGRATE_ON_HOST_MAINTENANCE"


def serve(attributes: dict[str, str] | None = None) -> Server:
    facts = GceFacts(
        instance_id="1",
        name="n",
        project="p",
        project_number="1",
        zone="z",
        machine_type="m",
        image="i",
        private_ip="10.0.0.1",
        public_ip="",
        network="default",
        email="",
        scopes=(),
        scheduling={},
        attributes=attributes or {},
    )
    return Server(facts, token=lambda: "t")


@pytest.fixture
def server():
    server = serve()
    yield server
    server.stop()


class Watched:
    """A lookout over Google's two sources, and what came of it."""

    def __init__(self, host: str, *, gpu: bool = True) -> None:
        self.metadata = GceMetadata(host, timeout_s=0.5)
        self.sources = [Preemption(self.metadata), Maintenance(self.metadata, has_gpu=gpu)]
        self.stops: list[tuple[str, float, float]] = []
        self.lines: list[str] = []
        self.lookout = Lookout(self.sources, stop=self._stop, note=lambda _kind, line, **_: self.lines.append(line))

    def _stop(self, reason: str, seconds: float, _cause: object) -> None:
        self.stops.append((reason, seconds, time.monotonic()))

    def __enter__(self):
        self.lookout.start()
        return self

    def __exit__(self, *_):
        self.lookout.close()

    def until(self, ready: Callable[[], Any], timeout_s: float = 10.0) -> None:
        end = time.monotonic() + timeout_s
        while not ready():
            assert time.monotonic() < end, (self.lines, self.stops)
            time.sleep(0.01)

    def within(self, since: float) -> float:
        self.until(lambda: self.stops)
        return self.stops[0][2] - since


@pytest.mark.parametrize(("attribute", "seconds"), [(None, 30), ("120", 120), ("120s", 120), ("soon", 30)])
def test_a_preemption_is_known_at_once_and_leaves_what_the_machine_was_started_with(attribute, seconds):
    server = serve({NOTICE_ATTRIBUTE: attribute} if attribute else {})
    try:
        with Watched(server.host) as watched:
            time.sleep(1.5)  # both hang by now
            begin = time.monotonic()
            server.preempt()
            assert watched.within(begin) < 1
            reason, left, _ = watched.stops[0]
            assert reason == "notice: spot preempted"
            assert seconds - 1 < left <= seconds
    finally:
        server.stop()


@pytest.mark.parametrize(("gpu", "seconds"), [(True, 3600), (False, 60)])
def test_a_termination_for_maintenance_is_final(server, gpu, seconds):
    with Watched(server.host, gpu=gpu) as watched:
        server.maintain(TERMINATE)
        watched.until(lambda: watched.stops)
        reason, left, _ = watched.stops[0]
        assert reason == "notice: host maintenance"
        assert seconds - 2 < left <= seconds


def test_a_live_migration_is_advice_each_time_and_a_termination_after_it_is_final(server):
    with Watched(server.host) as watched:
        for turn in (1, 2):
            server.maintain(MIGRATE)
            watched.until(lambda turn=turn: len(watched.lines) == turn)
            assert "going on" in watched.lines[-1]
            server.maintain("NONE")
            time.sleep(1.5)
        assert watched.stops == []
        server.maintain(MIGRATE)
        watched.until(lambda: len(watched.lines) == 3)
        server.maintain(TERMINATE)
        watched.until(lambda: watched.stops)


def test_a_server_that_knows_another_etag_costs_one_answer_and_no_notice(server):
    """As after a restart of the metadata server: the etag that we hold is of nobody."""
    metadata = GceMetadata(server.host)
    begin = time.monotonic()
    assert metadata.get("preempted", wait_s=5, etag="of another life")[0] == "FALSE"
    assert time.monotonic() - begin < 1
    value, etag = metadata.get("preempted", wait_s=1)
    assert (value, metadata.get("preempted", wait_s=1, etag=etag)) == ("FALSE", ("FALSE", etag))


def test_r30_a_server_that_says_503_is_asked_on_and_a_notice_after_it_is_seen_in_time(server):
    server.break_down(503, 4.0)
    with Watched(server.host) as watched:
        end = time.monotonic() + 4.0
        time.sleep(3.0)
        server.preempt()
        assert watched.within(end) < 5
        assert sum("asking on" in line for line in watched.lines) == 2, "each source says so once"
        watched.until(lambda: sum("answers again" in line for line in watched.lines) == 2)


class Faulty:
    """A server on a socket of its own that treats each connection as it is told."""

    def __init__(self, deed: Callable[[socket.socket], None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._taken: list[socket.socket] = []
        self._deed = deed
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def connections(self) -> int:
        return len(self._taken)

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._taken.append(connection)
            self._deed(connection)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)
        for connection in self._taken:
            connection.close()


def says(text: str, *headers: str) -> Callable[[socket.socket], None]:
    def deed(connection: socket.socket) -> None:
        connection.recv(65536)
        lines = ["HTTP/1.1 200 OK", f"Content-Length: {len(text)}", "Connection: close", *headers, "", text]
        connection.sendall("\r\n".join(lines).encode())
        connection.close()

    return deed


def silent(_connection: socket.socket) -> None:
    """Say nothing and keep the connection."""


def hang_up(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.close()


def test_an_answer_that_is_not_googles_is_no_notice():
    server = Faulty(says("TRUE"))
    try:
        with pytest.raises(SourceAway, match="not from Google"):
            GceMetadata(server.host).get("preempted")
    finally:
        server.close()


@pytest.mark.parametrize("deed", [silent, hang_up, says("TRUE")])
def test_r30_a_server_that_is_silent_hangs_up_or_is_a_strangers_holds_up_nothing(deed):
    server = Faulty(deed)
    try:
        with Watched(server.host) as watched:
            watched.until(lambda: len(watched.lines) == 2)
            begin = time.monotonic()
            watched.lookout.look(timeout_s=2.0)
            assert time.monotonic() - begin < 2.5
            asked = server.connections
            time.sleep(2.5)
            assert 2 <= server.connections - asked <= 8, "asked on, and no more often than once a second each"
            assert (len(watched.lines), watched.stops) == (2, [])
    finally:
        server.close()


def test_a_server_that_answers_every_wait_at_once_is_not_asked_without_a_pause():
    server = Faulty(says("NONE", "Metadata-Flavor: Google", "ETag: x"))
    try:
        with Watched(server.host):
            time.sleep(3.0)
        assert server.connections <= 10
    finally:
        server.close()


def test_a_preempted_node_saves_and_comes_again(node_job, server):
    node = node_job.start(
        1, node_job.trainer(pause=0.05), cloud="gcp", environ={"GCE_METADATA_HOST": server.host}, steps=1000
    )
    node.until_step(10)
    server.preempt()
    assert node.wait() == 75
    assert node.heartbeat()["end"] == {"reason": "notice: spot preempted", "exit_code": 75, "cause": "notice"}
    assert node_job.done() is None
    assert node_job.restored_state()["step"] >= 10


def test_r30_a_metadata_server_that_drops_everything_delays_neither_the_first_step_nor_the_end(node_job):
    server = Faulty(silent)
    try:
        begin = time.monotonic()
        node = node_job.start(
            1, node_job.trainer(steps=10), cloud="gcp", environ={"GCE_METADATA_HOST": server.host}, steps=10
        )
        node.until_step(1)
        first = time.monotonic() - begin
        assert node.wait() == 0
        begin = time.monotonic()
        plain = node_job.start(2, node_job.trainer(steps=20), steps=20)
        plain.until_step(11)
        assert first < time.monotonic() - begin + 2
        assert plain.wait() == 0
    finally:
        server.close()
