"""An S3 service with rules of its own: a proxy before moto or another server, which answers some requests itself."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

Rule = Callable[[str, str, dict[str, str]], int | None]
"""(method, path, headers) -> a status to answer instead, -N: pass it on, then answer N; 0: pass it on, then hang up."""

_PASSED_BACK = {"etag", "last-modified", "content-range", "content-type", "x-goog-generation"}


class RuledProxy(ThreadingHTTPServer):
    """Serves on a free port of 127.0.0.1.

    As an HTTP proxy (``HTTP_PROXY``) it answers for any host name; a bucket at the head of it is put into the path for
    the server behind. ``refuses_paths``: the bucket must stand in the host name, as at Aliyun OSS.
    ``ignores_conditions``: a write that asks for no object to be there is done all the same, as by `rclone serve s3`.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, backend: str, bucket: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.backend = backend
        self.bucket = bucket
        self.rule: Rule = lambda *_: None
        self.refuses_paths = False
        self.ignores_conditions = False
        self.code = "Injected"
        self.seen: list[tuple[str, str, float]] = []
        self.conditions: list[str] = []
        """Paths that a conditional write was tried on."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RuledProxy
    wbufsize = -1

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        path, in_host = self._path()
        self.server.seen.append((self.command, path, time.monotonic()))
        if "if-none-match" in headers:
            self.server.conditions.append(path)
        if self.server.refuses_paths and not in_host:
            self._answer(403, _text("SecondLevelDomainForbidden"), {})
            return
        verdict = self.server.rule(self.command, path, headers)
        if verdict is not None and verdict > 0:
            self._answer(verdict, _text(self.server.code), {})
            return
        status, answer, told = self._pass_on(path, body)
        if verdict == 0:
            self.close_connection = True
            self.connection.close()
        elif verdict is not None:
            self._answer(-verdict, b"", {})
        else:
            self._answer(status, answer, told)

    def _path(self) -> tuple[str, bool]:
        """Return the path with the bucket in it, and whether the bucket stood in the host name."""
        if self.path.startswith("/"):
            return self.path, False
        parts = urlsplit(self.path)
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        in_host = (parts.hostname or "").startswith(f"{self.server.bucket}.")
        return (f"/{self.server.bucket}{path}" if in_host else path), in_host

    def _pass_on(self, path: str, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        connection = http.client.HTTPConnection(self.server.backend, timeout=30)
        dropped = {"host", "if-none-match"} if self.server.ignores_conditions else {"host"}
        headers = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
        connection.request(self.command, path, body=body, headers=headers)
        answer = connection.getresponse()
        data = answer.read()
        told = {name: value for name, value in answer.getheaders() if name.lower() in _PASSED_BACK}
        if self.command == "HEAD":
            told["Content-Length"] = answer.getheader("Content-Length") or "0"
        connection.close()
        return answer.status, data, told

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        try:
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
            self.wfile.flush()
        except OSError:
            self.close_connection = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._serve
        raise AttributeError(name)

    def log_message(self, *_: Any) -> None:
        pass


def _text(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>AKIACANARY0000000001</Message></Error>".encode()


@contextmanager
def ruled(backend: str, bucket: str) -> Iterator[RuledProxy]:
    """Run one before ``backend`` (host:port)."""
    server = RuledProxy(backend, bucket)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
