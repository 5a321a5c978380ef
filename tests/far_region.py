"""A far region between a client and an S3 server: `python tests/far_region.py 127.0.0.1:PORT` prints its own port.

Each HTTP request waits ``--delay`` (0.04) seconds before it is passed on: one round trip. Each connection moves at
most ``--rate`` (40e6) bytes a second each way, as one TCP stream over a long distance does; 0 is unlimited. Connections
are kept alive. Answers are not read, only moved.

It shares two cores with the client and the server that are measured, so bytes go from socket to socket by ``splice``
and never enter Python; only the heads of requests are looked at. It needs Linux, and a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import heapq
import os
import re
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable

_PIPE_BYTES = 2**20
_HEAD_BYTES = 2**16
_PACED_BYTES = 2**19
"""How much may go at once where the rate is limited: 13 ms at 40 MB/s."""
_LATE_S = 0.005
"""How much of a time in which nothing came may be caught up: the timers of the loop are not exact."""
_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:\s*chunked", re.IGNORECASE)
_FOREVER = 1 << 62


class End:
    """One socket and what the kernel last said about it (edge-triggered)."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.fd = sock.fileno()
        self.readable = False
        self.writable = False


class Flow:
    """One direction of a connection."""

    def __init__(self, source: End, target: End, rate: float) -> None:
        self.source = source
        self.target = target
        self.rate = rate
        self.out, self.into = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # the default is enough, only slower
            fcntl.fcntl(self.into, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self.inside = 0
        self.not_before = 0.0
        self.ended = False
        self.closed = False

    def pump(self, limit: int) -> int:
        """Move up to ``limit`` bytes as far as both sockets allow. Returns how many were taken from the source."""
        taken = 0
        while self._drain():
            moved = self._fill(limit - taken)
            if moved == 0:
                break
            taken += moved
        return taken

    def _drain(self) -> bool:
        """Empty the pipe into the target; False: it takes no more now."""
        while self.inside:
            if not self.target.writable:
                return False
            try:
                self.inside -= os.splice(self.out, self.target.fd, self.inside)
            except BlockingIOError:
                self.target.writable = False
        return True

    def _fill(self, limit: int) -> int:
        """Fill the pipe from the source. Returns the bytes; 0: none now, or none ever again."""
        if self.ended or limit <= 0 or not self.source.readable:
            return 0
        size = min(limit, _PIPE_BYTES)
        now = time.monotonic()
        if self.rate:
            if self.not_before > now:
                return 0
            size = min(size, _PACED_BYTES)
        try:
            self.inside = os.splice(self.source.fd, self.into, size)
        except BlockingIOError:
            self.source.readable = False
            return 0
        if self.rate:
            self.not_before = max(self.not_before, now - _LATE_S) + self.inside / self.rate
        self.ended = self.inside == 0
        return self.inside

    def finish(self) -> None:
        """Tell the target that nothing more comes, once everything has gone."""
        if self.ended and not self.inside and not self.closed:
            self.closed = True
            with contextlib.suppress(OSError):
                self.target.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        os.close(self.out)
        os.close(self.into)


class Connection:
    """A client's connection and its twin at the server."""

    def __init__(self, client: End, server: End, delay: float, rate: float) -> None:
        self.client = client
        self.server = server
        self.delay = delay
        self.up = Flow(client, server, rate)
        self.down = Flow(server, client, rate)
        self.body = 0
        self.head = b""
        self.head_due = 0.0
        self.requests = 0
        self.alarm = 0.0  # when the loop comes back by itself; 0: never
        self.over = False

    def step(self) -> float | None:
        """Move what can be moved. Returns when to come back although no socket speaks; None: not needed."""
        wake = self._requests()
        self.down.pump(_FOREVER)
        self.up.finish()
        self.down.finish()
        if self.down.closed or (self.up.closed and self.down.ended and not self.down.inside):
            self.over = True
        paced = [self.down] if self.head_due or not self.body else [self.up, self.down]
        for flow in paced:
            if not flow.ended and not flow.inside and flow.source.readable and flow.not_before:
                wake = min(wake or flow.not_before, flow.not_before)
        return wake

    def _requests(self) -> float | None:
        while True:
            if self.head_due:
                if time.monotonic() < self.head_due:
                    return self.head_due
                if not self.server.writable:
                    return None
                try:
                    self.head = self.head[self.server.sock.send(self.head) :]
                except BlockingIOError:
                    self.server.writable = False
                    return None
                if self.head:
                    continue
                self.head_due = 0.0
            self.body -= self.up.pump(self.body)
            if self.body or self.up.inside or self.up.ended or not self.client.readable:
                return None
            if not self._read_head():
                return None

    def _read_head(self) -> bool:
        """Take the head of the next request, all of it and nothing more."""
        try:
            seen = self.client.sock.recv(_HEAD_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            self.client.readable = False
            return False
        if not seen:
            self.up.ended = True
            return False
        end = seen.find(b"\r\n\r\n")
        if end < 0:
            if len(seen) >= _HEAD_BYTES:
                raise ConnectionError("the head of a request is too long")
            self.client.readable = False  # the rest makes a new edge
            return False
        self.head = self.client.sock.recv(end + 4)
        length = _LENGTH.search(self.head)
        self.body = int(length.group(1)) if length else 0
        if _CHUNKED.search(self.head):
            self.body = _FOREVER  # its end is not looked for: later requests of this connection wait no more
            print(
                "far region: a chunked request; the rest of its connection is only paced", file=sys.stderr, flush=True
            )
        self.head_due = time.monotonic() + self.delay
        self.requests += 1
        return True

    def close(self) -> None:
        for flow in (self.up, self.down):
            flow.close()
        self.client.sock.close()
        self.server.sock.close()


class Proxy:
    """The event loop."""

    def __init__(self, target: tuple[str, int], delay: float, rate: float) -> None:
        self.target = target
        self.delay = delay
        self.rate = rate
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.listener.setblocking(False)
        self.port: int = self.listener.getsockname()[1]
        self.poll = select.epoll()
        self.poll.register(self.listener, select.EPOLLIN)
        self.ends: dict[int, tuple[End, Connection]] = {}
        self.timers: list[tuple[float, int, Connection]] = []
        self.serial = 0
        self.requests = 0

    def serve(self) -> None:
        """Serve until a signal raises."""
        while True:
            timeout = max(0.0, self.timers[0][0] - time.monotonic()) if self.timers else None
            for fd, what in self.poll.poll(timeout):
                if fd == self.listener.fileno():
                    self._accept()
                    continue
                known = self.ends.get(fd)
                if known is None:
                    continue
                end, connection = known
                end.readable |= bool(what & (select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR))
                end.writable |= bool(what & (select.EPOLLOUT | select.EPOLLERR | select.EPOLLHUP))
                self._step(connection)
            now = time.monotonic()
            while self.timers and self.timers[0][0] <= now:
                due, _, connection = heapq.heappop(self.timers)
                if not connection.over and due == connection.alarm:
                    connection.alarm = 0.0
                    self._step(connection)

    def _step(self, connection: Connection) -> None:
        wake = self._guarded(connection.step, connection)
        if connection.over:
            for end in (connection.client, connection.server):
                del self.ends[end.fd]
            self.requests += connection.requests
            connection.close()
        elif wake is not None and not 0 < connection.alarm <= wake:
            connection.alarm = wake
            self.serial += 1
            heapq.heappush(self.timers, (wake, self.serial, connection))

    @staticmethod
    def _guarded(step: Callable[[], float | None], connection: Connection) -> float | None:
        try:
            return step()
        except OSError:  # reset by one side: the other learns it by the close
            connection.over = True
            return None

    def _accept(self) -> None:
        while True:
            try:
                client = self.listener.accept()[0]
            except BlockingIOError:
                return
            server = socket.socket()
            ends = End(client), End(server)
            server.connect_ex(self.target)  # in progress; the first write waits for it, and a refusal ends both
            connection = Connection(*ends, self.delay, self.rate)
            for end in ends:
                self.ends[end.fd] = end, connection
                self.poll.register(end.fd, select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET)


def main() -> int:
    """Serve; on SIGTERM print the number of requests and the CPU seconds spent."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("target", help="HOST:PORT of the server")
    parser.add_argument("--delay", type=float, default=0.04, help="seconds that each request waits")
    parser.add_argument("--rate", type=float, default=40e6, help="bytes a second of one connection, each way; 0: any")
    options = parser.parse_args()
    host, _, port = options.target.rpartition(":")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    proxy = Proxy((host, int(port)), options.delay, options.rate)
    print(proxy.port, flush=True)
    try:
        proxy.serve()
    finally:
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(f"{proxy.requests} requests, {used.ru_utime + used.ru_stime:.2f} s CPU", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
