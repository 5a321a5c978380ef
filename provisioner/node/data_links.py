"""Read the bytes behind a link: HTTP over connections that are kept, or a file of this machine.

A link is a secret, and so is where it leads on to: no error and no line names one.
"""

from __future__ import annotations

import http.client
import os
import random
import ssl
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from provisioner.errors import Abandoned, StoreError, Unreachable

PIECE_BYTES = 256 * 1024
QUIET_S = 30.0
"""A connection over which nothing comes for so long is given up, in seconds."""
PATIENCE_S = 300.0
"""How long a server that brings nothing is asked, in seconds."""
LONGEST_PAUSE_S = 15.0
REDIRECTS = 5
RESTARTS = 5
"""How often a file is begun anew that cannot be taken up in its middle."""
_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
_REFUSED = frozenset({400, 401, 403, 410})
"""Also how stores say that a link has ended: S3 and Google with 400 or 403."""
_BROKEN = (OSError, http.client.HTTPException)

Take = Callable[[int, memoryview], None]


class LinkDead(Unreachable):
    """The link is not honoured any more. The next placement gets a new one."""


class SourceChanged(Unreachable):
    """The object is not the one of the list any more. The next placement gets a new list."""


class NoRanges(Exception):
    """The server gives the whole file where a part was asked for."""


class _Passing(Exception):
    """It may go better the next time. ``pause_s`` is what the server asks for."""

    def __init__(self, reason: str, pause_s: float = 0.0) -> None:
        super().__init__(reason)
        self.pause_s = pause_s


@dataclass(frozen=True, slots=True)
class Link:
    """Where a file is read from. ``name`` is for messages; ``etag`` empty: answers are not compared with it."""

    name: str
    url: str = field(repr=False)
    size: int | None
    etag: str = ""


class Reader:
    """Reads for several threads, each over a connection of its own."""

    def __init__(
        self,
        cancel: threading.Event,
        *,
        patience_s: float = PATIENCE_S,
        quiet_s: float = QUIET_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask nobody yet. ``cancel`` ends every read with Abandoned."""
        self._cancel = cancel
        self._patience_s = patience_s
        self._quiet_s = quiet_s
        self._monotonic = monotonic
        self._kept = threading.local()
        self._proxies = getproxies()
        self._tls: ssl.SSLContext | None = None
        self._opened: list[http.client.HTTPConnection] = []
        self.renew: Callable[[Link], Link | None] = lambda _dead: None
        """Gives another link in the place of one that is dead, if there is one."""

    def close(self) -> None:
        """Close the connections of all threads. None of them may read any more."""
        while self._opened:
            self._opened.pop().close()

    def read(self, link: Link, start: int, end: int | None, take: Take) -> None:
        """Hand the bytes from ``start`` to ``end`` (None: all there are) to ``take(place, bytes)``, in order.

        A connection that breaks is taken up where it broke. Raises NoRanges, LinkDead, SourceChanged, Unreachable,
        StoreError, Abandoned, and what ``take`` raises.
        """
        course = _Course(link, start, end, self._monotonic)
        while not self._goes_through(course, take):
            if self._cancel.wait(course.pause_s(self._patience_s)):
                raise Abandoned("told to stop while the data came")

    def _goes_through(self, course: _Course, take: Take) -> bool:
        pieces = self._pieces(course.link, course.at, course.end)
        try:
            while (piece := course.next_of(pieces)) is not None:
                if self._cancel.is_set():
                    raise Abandoned("told to stop while the data came")
                take(course.at, piece)
                course.came(len(piece))
            return not course.reason
        except LinkDead:
            other = self.renew(course.link)
            if other is None:
                raise
            course.link = other
            return False
        finally:
            pieces.close()

    def _pieces(self, link: Link, start: int, end: int | None) -> Generator[memoryview, None, None]:
        if urlsplit(link.url).scheme == "file":
            return _of_a_file(link, start, end)
        return self._of_a_server(link, start, end)

    def _of_a_server(self, link: Link, start: int, end: int | None) -> Generator[memoryview, None, None]:
        whole = start == 0 and (end is None or end == link.size)
        answer = self._ask(link, "" if whole else f"bytes={start}-{'' if end is None else end - 1}")
        done = False
        try:
            _check(link, answer, start, whole=whole)
            left = None if end is None else end - start
            buffer = memoryview(bytearray(PIECE_BYTES if left is None else max(1, min(PIECE_BYTES, left))))
            while left is None or left > 0:
                count = answer.readinto(buffer if left is None else buffer[:left])
                if count == 0:
                    break
                if left is not None:
                    left -= count
                yield buffer[:count]
            if left:
                raise _Passing("the connection ended early")
            answer.read(1)  # the end of the last chunk, where there are chunks
            done = answer.isclosed()
        finally:
            if not done:
                self._drop()

    def _ask(self, link: Link, part: str) -> http.client.HTTPResponse:
        url = link.url
        for _ in range(REDIRECTS + 1):
            answer = self._request(link, url, part)
            if answer.status not in {301, 302, 303, 307, 308}:
                return answer
            to = urljoin(url, answer.getheader("Location") or "")
            self._drop()
            if urlsplit(to).scheme != "https" and urlsplit(to).scheme != urlsplit(url).scheme:
                raise StoreError(f"{link.name}: the server leads on to an address that is not https")
            url = to
        raise StoreError(f"{link.name}: the server leads on and on")

    def _request(self, link: Link, url: str, part: str) -> http.client.HTTPResponse:
        headers = {"Accept-Encoding": "identity", "User-Agent": "gpu-failover"} | ({"Range": part} if part else {})
        parts = urlsplit(url)
        target = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
        for fresh in (False, True):
            connection, used, absolute = self._connection(link, parts)
            try:
                connection.request("GET", f"http://{parts.netloc}{target}" if absolute else target, headers=headers)
                return connection.getresponse()
            except ssl.SSLCertVerificationError as error:
                self._drop()
                raise StoreError(
                    f"{link.name}: the server's certificate is not accepted ({error.verify_message})",
                    hint="install ca-certificates on the machine, or set SSL_CERT_FILE",
                ) from None
            except _BROKEN:
                self._drop()
                if fresh or not used:  # a server may close a connection that rested: that is no failure
                    raise
        raise AssertionError

    def _connection(self, link: Link, parts: SplitResult) -> tuple[http.client.HTTPConnection, bool, bool]:
        """Return this thread's connection, whether it was used before, and whether it leads to a plain proxy."""
        try:
            host, port = parts.hostname or "", parts.port
        except ValueError:
            host, port = "", None
        if parts.scheme not in {"http", "https"} or not host:
            raise StoreError(f"{link.name}: its link is no address")
        proxy = None if proxy_bypass(host) else self._proxies.get(parts.scheme)
        absolute = bool(proxy) and parts.scheme == "http"
        wanted = (parts.scheme, host, port)
        if getattr(self._kept, "to", None) == wanted:
            return self._kept.connection, True, absolute
        self._drop()
        via = urlsplit(proxy if "://" in proxy else f"http://{proxy}") if proxy else None
        at = (via.hostname or "", via.port) if via else (host, port)
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            if self._tls is None:
                self._tls = ssl.create_default_context()
            connection = http.client.HTTPSConnection(*at, timeout=self._quiet_s, context=self._tls)
            if via:
                connection.set_tunnel(host, port)
        else:
            connection = http.client.HTTPConnection(*at, timeout=self._quiet_s)
        self._kept.connection, self._kept.to = connection, wanted
        self._opened.append(connection)
        return connection, False, absolute

    def _drop(self) -> None:
        """Close this thread's connection."""
        if getattr(self._kept, "to", None) is not None:
            self._kept.connection.close()
            self._opened.remove(self._kept.connection)
            self._kept.to = None


class _Course:
    """How far one read has come, over all its tries."""

    def __init__(self, link: Link, start: int, end: int | None, monotonic: Callable[[], float]) -> None:
        self.link = link
        self.at = start
        self.end = end
        self.reason = ""
        """Why the last try has failed."""
        self._start = start
        self._monotonic = monotonic
        self._last = monotonic()
        self._failures = self._restarts = 0
        self._asked_s = 0.0

    def next_of(self, pieces: Iterator[memoryview]) -> memoryview | None:
        """Return the next piece; None at the end, and where the try has failed."""
        self.reason = ""
        try:
            return next(pieces, None)
        except (*_BROKEN, _Passing) as error:
            self.reason, self._asked_s = _reason(error), getattr(error, "pause_s", 0.0)
            restart = self.end is None and self.at > self._start
        except NoRanges:
            if self._start or self.end not in {None, self.link.size}:
                raise
            self.reason, restart = "the server gives no parts", True
        if restart:  # it cannot be taken up in its middle
            self.at = self._start
            self._restarts += 1
        self._failures += 1
        return None

    def came(self, count: int) -> None:
        """Take note of bytes that were taken."""
        self.at += count
        self._failures, self._last = 0, self._monotonic()

    def pause_s(self, patience_s: float) -> float:
        """Return how long to wait before the next try, in seconds. Raises Unreachable when that is of no use."""
        if self._restarts > RESTARTS:
            words = f"the connection broke {self._restarts} times, and it cannot be taken up in its middle"
            raise Unreachable(f"{self.link.name}: {words}")
        if self._monotonic() - self._last > patience_s:
            raise Unreachable(f"{self.link.name}: nothing came for {patience_s:.0f} s ({self.reason})")
        grown = min(LONGEST_PAUSE_S, 0.25 * 2.0 ** min(self._failures, 10))
        return max(self._asked_s, grown * random.uniform(0.5, 1.0))  # noqa: S311 - spreads tries, guards nothing


def _check(link: Link, answer: http.client.HTTPResponse, start: int, *, whole: bool) -> None:
    """Raise for an answer that is not what was asked for."""
    status = answer.status
    if status in {404, 412, 416}:
        raise SourceChanged(f"{link.name}: it is gone, or another, since it was listed ({status})")
    if status in _REFUSED:
        raise LinkDead(f"{link.name}: the link to it is dead or refused ({status}); the next machine gets a new one")
    if status in _BUSY:
        told = answer.getheader("Retry-After") or ""
        raise _Passing(f"the server answers {status}", min(LONGEST_PAUSE_S, float(told)) if told.isdecimal() else 0.0)
    if status not in {200, 206}:
        raise StoreError(f"{link.name}: the server answers {status}")
    if status == 200 and not whole:
        raise NoRanges
    etag = answer.getheader("ETag")
    if link.etag and etag and etag != link.etag:
        raise SourceChanged(f"{link.name}: it has changed since it was listed")
    if status == 206:
        span, _, total = (answer.getheader("Content-Range") or "").partition("/")
        if not span.startswith(f"bytes {start}-"):
            raise _Passing("another part came than was asked for")
    else:
        total = answer.getheader("Content-Length") or ""
    if link.size is not None and total.isdecimal() and int(total) != link.size:
        raise SourceChanged(f"{link.name}: it has {total} bytes now, and had {link.size} when it was listed")


def _of_a_file(link: Link, start: int, end: int | None) -> Generator[memoryview, None, None]:
    path = unquote(urlsplit(link.url).path)
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - the name may be no UTF-8
            _unchanged(link, os.fstat(file.fileno()))
            file.seek(start)
            buffer = memoryview(bytearray(PIECE_BYTES))
            left = (link.size or 0) if end is None else end - start
            while left > 0:
                count = file.readinto(buffer[:left])
                if not count:
                    raise SourceChanged(f"{link.name}: it is shorter than when it was listed")
                left -= count
                yield buffer[:count]
            _unchanged(link, os.fstat(file.fileno()))
    except OSError as error:
        raise SourceChanged(f"{link.name}: it cannot be read any more ({error.strerror})") from None


def _unchanged(link: Link, now: os.stat_result) -> None:
    if link.etag and link.etag != f"{now.st_ino:x}-{now.st_mtime_ns:x}-{now.st_size:x}":
        raise SourceChanged(f"{link.name}: it has changed since it was listed")


def _reason(error: Exception) -> str:
    """Return why a connection failed. The library's own text may name the address."""
    if isinstance(error, _Passing):
        return str(error)
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
