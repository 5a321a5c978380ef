"""A bad line before an S3 server: one request in ten or so meets one of the faults of `KINDS`, by a seeded draw.

    with FaultProxy("http://127.0.0.1:9000", rate=0.1, seed=1, hold_s=5) as line:
        ...  # line.url, line.requests, line.faults[kind]

The draws are in the order in which requests come, so with several threads the same seed gives the same mix, not the
same victims. ``hold_s`` is how long nothing is said in a `timeout`: longer than the client waits.
"""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

KINDS = (
    "reset before",  # the connection is reset, the server sees nothing
    "reset after",  # the server does it, the answer is lost
    "500",
    "503",  # SlowDown, as S3 says it
    "429",
    "timeout before",  # no answer, the server sees nothing
    "timeout after",  # the server does it, no answer
    "half answer",  # a body that ends early, or half a head where there is no body
    "length too long",  # Content-Length says more than what comes
    "length too short",  # Content-Length says less: what the client takes for the whole is not
    "slow first byte",  # late, but within the client's time
)
_XML = b'<?xml version="1.0"?>\n<Error><Code>%b</Code><Message>injected</Message></Error>'
_WORDS = {"500": b"InternalError", "503": b"SlowDown", "429": b"TooManyRequests"}
_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive", "date", "server"}


class FaultProxy(ThreadingHTTPServer):
    """Serves on a free port of 127.0.0.1 from ``with`` on. ``rate`` 0 passes everything on, and counts it."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(
        self,
        server: str,
        *,
        rate: float = 0.1,
        seed: int = 0,
        hold_s: float = 5.0,
        slow_s: float = 0.5,
        kinds: Sequence[str] = KINDS,
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.backend = server.removeprefix("http://")
        self.rate = rate
        self.hold_s = hold_s
        self.slow_s = slow_s
        self.requests = 0
        self.faults: Counter[str] = Counter()
        self._kinds = list(kinds)
        self._deck: list[str] = []
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def draw(self) -> str:
        """Count a request and return the kind of its fault, or an empty string."""
        with self._lock:
            self.requests += 1
            if self._random.random() >= self.rate:
                return ""
            if not self._deck:  # no kind comes again before all have come
                self._deck = self._random.sample(self._kinds, len(self._kinds))
            kind = self._deck.pop()
            self.faults[kind] += 1
            return kind

    def handle_error(self, *_: Any) -> None:
        """A client that went away is no news here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: FaultProxy

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        kind = self.server.draw()
        if kind in {"reset before", "timeout before"}:
            self._silence(kind)
        elif kind in _WORDS:
            self._answer(int(kind), _XML % _WORDS[kind], {"Content-Type": "application/xml"})
        else:
            status, answer, headers = self._pass_on(body)
            if kind in {"reset after", "timeout after"}:
                self._silence(kind)
            else:
                if kind == "slow first byte":
                    time.sleep(self.server.slow_s)
                self._answer(status, answer, headers, kind)

    def _silence(self, kind: str) -> None:
        if kind.startswith("timeout"):
            time.sleep(self.server.hold_s)
        else:  # a reset, not an orderly end
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def _pass_on(self, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        connection = http.client.HTTPConnection(self.server.backend, timeout=60)
        with contextlib.closing(connection):
            connection.request(self.command, self.path, body=body, headers=dict(self.headers.items()))
            answer = connection.getresponse()
            data = answer.read()
            headers = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP}
            if self.command == "HEAD":
                headers["Content-Length"] = answer.getheader("Content-Length") or "0"
        return answer.status, data, headers

    def _answer(self, status: int, body: bytes, headers: dict[str, str], kind: str = "") -> None:
        length = len(body)
        if kind == "length too long":
            length += 100
        elif kind == "length too short":
            length = max(0, length - 100) if length > 100 else length // 2
        self.send_response(status)
        for name, value in {"Content-Length": str(length), **headers}.items():
            if status != 204 or name != "Content-Length":
                self.send_header(name, value)
        if kind == "half answer":
            if not body:  # half a head
                self._headers_buffer = self._headers_buffer[: len(self._headers_buffer) // 2]  # type: ignore[has-type]
                self.flush_headers()
            body = body[: len(body) // 2]
        if kind != "half answer" or body:
            self.end_headers()
            self.wfile.write(body)
        if kind in {"half answer", "length too long", "length too short"}:
            self.close_connection = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._serve
        raise AttributeError(name)

    def log_message(self, *_: Any) -> None:
        pass
