"""An HTTP server on loopback that answers what a test tells it, and remembers what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_PART = 32 * 1024
MODIFIED = "Wed, 21 Oct 2015 07:28:00 GMT"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request. ``headers`` have names in lower case."""

    verb: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """``length`` is what the header says, where that is not the truth; ``reset`` breaks the connection instead."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None
    reset: bool = False


def error(status: int, code: str = "Injected") -> Answer:
    """Answer as S3 does, with the account's key in the text."""
    text = f"<Error><Code>{code}</Code><Message>AKIACANARY0000000001 canary-secret</Message></Error>"
    return Answer(status, text.encode())


class Scripted(ThreadingHTTPServer):
    """``rule`` gives the answer to each request."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.rule: Callable[[Asked], Answer] = lambda _: Answer()
        self.asked: list[Asked] = []
        self.on_part: Callable[[int], None] = lambda _: None
        """Is called for each part of a body, with its size."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def script(self, *answers: Answer) -> None:
        """Give these answers, the last one for ever."""
        left = list(answers)
        lock = threading.Lock()

        def rule(_: Asked) -> Answer:
            with lock:
                return left.pop(0) if len(left) > 1 else left[0]

        self.rule = rule


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Scripted
    wbufsize = -1  # headers and body leave in one piece

    def _serve(self) -> None:
        body = b""
        left = int(self.headers.get("Content-Length") or 0)
        while left and (part := self.rfile.read1(min(left, _PART))):
            self.server.on_part(len(part))
            body += part
            left -= len(part)
        asked = Asked(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
        self.server.asked.append(asked)
        answer = self.server.rule(asked)
        if answer.reset:
            self.close_connection = True
            self.connection.close()
            return
        length = len(answer.body) if answer.length is None else answer.length
        known = {"Content-Length": str(length), "ETag": '"e"', "Last-Modified": MODIFIED, "x-goog-generation": "1"}
        try:
            self.send_response(answer.status)
            for name, value in (known | answer.headers).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)
            self.wfile.flush()
        except OSError:
            self.close_connection = True
        if answer.length is not None:
            self.close_connection = True

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def scripted() -> Iterator[Scripted]:
    """Run one."""
    server = Scripted()
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
