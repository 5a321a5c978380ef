"""One HTTP exchange with AutoDL: what is sent, how an answer is read, what is worth a second try.

Logical errors come as HTTP 200, so the envelope's ``code`` decides; a status speaks only where no envelope does. Reads
are repeated with exponential back-off and jitter. Writes are never repeated here: after a doubtful answer the caller
looks what became of it.
"""

from __future__ import annotations

import hashlib
import json
import ssl
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

import httpx
from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential_jitter

from provisioner.clouds.autodl.errors import BUSY, Doubtful, failure_for, refusal
from provisioner.errors import CloudError, ConfigError, Unreachable
from provisioner.model import Failure, FailureKind, Scope

T = TypeVar("T")
Sleep = Callable[[float], None]
Clock = Callable[[], float]

DEFAULT_BASE_URL = "https://api.autodl.com"
_BIGGEST_ANSWER = 16 * 1024 * 1024
_LONGEST_WORD = 300


class UnusableError(Exception):
    """An answer without sense: no envelope, or the wrong shape inside. ``wait_s``: what the server asks for.

    ``error`` is what to raise when no further try is made; with ``wait_out`` a read ends in Unreachable all the same.
    """

    def __init__(
        self, reason: str, *, wait_s: float = 0.0, error: CloudError | None = None, wait_out: bool = False
    ) -> None:
        """Keep the reason, which holds nothing of the answer's body."""
        super().__init__(reason)
        self.wait_s = wait_s
        self.error = error
        self.wait_out = wait_out


def checked_token(token: str) -> str:
    """Return the token without blanks around it. Raises ConfigError, which never quotes it."""
    token = token.strip()
    if not token:
        raise ConfigError(
            "AUTODL_TOKEN is empty", hint="copy the developer token from AutoDL's console: account, settings"
        )
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise ConfigError(
            "AUTODL_TOKEN holds a blank or a character that no token has",
            hint="set the token alone, without 'Bearer' and without quotes",
        )
    return token


def token_of(environ: Mapping[str, str]) -> str:
    """Return the developer token of an environment. Raises ConfigError where there is none."""
    if "AUTODL_TOKEN" not in environ:
        raise ConfigError(
            "AUTODL_TOKEN is not set", hint="copy the developer token from AutoDL's console: account, settings"
        )
    return checked_token(environ["AUTODL_TOKEN"])


def checked_base_url(base_url: str) -> str:
    """Return the address without a slash at its end. Raises ConfigError for what is no http(s) address."""
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host or url.userinfo or url.query or url.fragment:
        raise ConfigError("AutoDL's base_url is not an address like https://api.autodl.com (without user, ? and #)")
    return base_url.rstrip("/")


@cache
def _tls() -> ssl.SSLContext:
    """Return what all connections of this process trust: each of its own would take 0.8 MB and 35 ms of CPU."""
    return httpx.create_ssl_context()


class Wire:
    """A connection to AutoDL. Thread-safe. The token is sent in each request's header and shown nowhere."""

    def __init__(
        self,
        token: str,
        base_url: str = DEFAULT_BASE_URL,
        *,
        transport: httpx.BaseTransport | None = None,
        timeout_s: float = 20.0,
        patience_s: float = 90.0,
        tries: int = 6,
        sleep: Sleep = time.sleep,
        clock: Clock = time.monotonic,
    ) -> None:
        """Open no connection yet.

        Args:
            token: The developer token, sent as it is.
            base_url: Where AutoDL (or the sandbox) answers.
            transport: httpx's way out; None is the network.
            timeout_s: For one exchange, from its begin to the last byte of its answer.
            patience_s: For all tries of one read together.
            tries: At most so many for one read.
            sleep: How to wait between tries.
            clock: Seconds that only grow.
        """
        self._token = checked_token(token)
        self.base_url = checked_base_url(base_url)
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._tries = tries
        self.sleep = sleep
        self.clock = clock
        self._http = httpx.Client(
            transport=transport,
            verify=_tls(),
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, 10.0)),
            headers={"Accept": "application/json", "User-Agent": "gpu-failover"},
        )

    def __repr__(self) -> str:
        """Name the address, not the token."""
        return f"Wire({self.base_url!r})"

    @property
    def account(self) -> str:
        """A digest of the token, with the address where it is not AutoDL's own. It tells accounts apart."""
        digest = f"token {hashlib.sha256(self._token.encode()).hexdigest()[:8]}"
        return digest if self.base_url == DEFAULT_BASE_URL else f"{digest} at {self.base_url}"

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def read(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        parse: Callable[[Any], T],
    ) -> T:
        """Ask, as often as patience allows, and return what ``parse`` makes of ``data``.

        ``parse`` raises UnusableError for a shape that cannot be an answer. Raises Unreachable, or the typed refusal.
        """
        started = self.clock()
        retrying = Retrying(
            retry=retry_if_exception_type(UnusableError),
            wait=_wait,
            stop=lambda state: self._enough(state, started),
            sleep=self.sleep,
            reraise=True,
        )
        try:
            return retrying(lambda: parse(self._exchange(method, path, query, body)))
        except UnusableError as unusable:
            if unusable.error is not None and not unusable.wait_out:
                raise unusable.error from None
            raise Unreachable(
                f"AutoDL at {self.base_url} gave no usable answer to {method} {path}: {unusable}",
                hint="try again later; check the network and primary.autodl.base_url",
            ) from None

    def do(self, method: str, path: str, body: Mapping[str, Any]) -> None:
        """Like ``write``, for calls whose answer tells nothing but success."""
        self.write(method, path, body, parse=lambda _data: None)

    def write(self, method: str, path: str, body: Mapping[str, Any], *, parse: Callable[[Any], T]) -> T:
        """Ask once. Raises Doubtful when the answer does not say whether it was done, or the typed refusal."""
        try:
            return parse(self._exchange(method, path, None, body))
        except UnusableError as unusable:
            error = unusable.error or Doubtful(
                f"AutoDL at {self.base_url} did not say what became of {method} {path}: {unusable}",
                hint="it may have been carried out",
            )
            raise error from None

    def _enough(self, state: RetryCallState, started: float) -> bool:
        spent = max(self.clock() - started, state.idle_for)
        return state.attempt_number >= self._tries or spent + _wait(state) > self._patience_s

    def _exchange(self, method: str, path: str, query: Mapping[str, str] | None, body: Mapping[str, Any] | None) -> Any:
        """Send one request and return ``data`` of a successful answer."""
        started = self.clock()
        try:
            with self._http.stream(
                method,
                self.base_url + path,
                params=query,
                json=body,
                headers={"Authorization": self._token},
            ) as response:
                content = self._content(response, started)
        except httpx.TimeoutException:
            raise UnusableError("timed out") from None
        except httpx.HTTPError as error:
            raise UnusableError(self._line(f"{type(error).__name__} {error}")) from None
        return self._data(response, content, f"{method} {path}")

    def _content(self, response: httpx.Response, started: float) -> bytes:
        """Read the body within the deadline, which httpx applies to each piece alone, and within a sane size."""
        content = bytearray()
        for piece in response.iter_bytes():
            content += piece
            if len(content) > _BIGGEST_ANSWER:
                raise UnusableError("the answer is too big")
            if self.clock() - started > self._timeout_s:
                raise UnusableError("timed out")
        return bytes(content)

    def _data(self, response: httpx.Response, content: bytes, call: str) -> Any:
        status = response.status_code
        envelope = _envelope(content)
        if status in (401, 403):
            message = self._line(str(envelope.get("msg") or "")) if envelope else ""
            raise refusal(failure_for("AuthorizeFailed", f"HTTP {status} {message}".strip()), call=call)
        if status == 429:
            busy = refusal(failure_for(BUSY, "too many requests"), call=call)
            raise UnusableError(BUSY, wait_s=_asked_wait(response), error=busy, wait_out=True)
        if envelope is None:
            return self._without_envelope(status, call, _asked_wait(response))
        if envelope["code"] == "Success":
            if status >= 400:
                raise UnusableError(f"HTTP {status}", wait_s=_asked_wait(response))
            return envelope.get("data")
        failure = failure_for(self._line(envelope["code"]), self._line(str(envelope.get("msg") or "")))
        if status >= 500 and failure.kind is FailureKind.UNKNOWN:
            raise UnusableError(f"HTTP {status}", wait_s=_asked_wait(response))
        error = refusal(failure, call=call)
        if failure.kind is FailureKind.UNKNOWN and failure.code in ("InternalError", "ServerError"):
            raise UnusableError(str(error), error=error)
        raise error

    @staticmethod
    def _without_envelope(status: int, call: str, wait_s: float) -> Any:
        if 300 <= status < 500 and status not in (408, 425):
            advice = "is primary.autodl.base_url right? AutoDL's developer API is at https://api.autodl.com"
            failure = Failure(FailureKind.INVALID, Scope.ACCOUNT, f"HTTP {status}", "", advice)
            raise refusal(failure, call=call)
        reason = "the answer is not JSON, or cut short" if status < 300 else f"HTTP {status}"
        raise UnusableError(reason, wait_s=wait_s)

    def _line(self, text: str) -> str:
        """Make one short line of a stranger's words, and take the token out should they hold it."""
        printable = "".join(letter if letter.isprintable() else " " for letter in text.replace(self._token, "***"))
        return " ".join(printable.split())[:_LONGEST_WORD]


def _envelope(content: bytes) -> dict[str, Any] | None:
    try:
        envelope = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(envelope, dict) or not isinstance(envelope.get("code"), str):
        return None
    return envelope


def _asked_wait(response: httpx.Response) -> float:
    """Return the seconds of a ``Retry-After`` header; its date form is not worth a parser."""
    word = response.headers.get("Retry-After", "")
    return float(word) if word.isascii() and word.isdigit() and len(word) < 9 else 0.0


_BACK_OFF = wait_exponential_jitter(initial=1, max=60, jitter=1)


def _wait(state: RetryCallState) -> float:
    """Wait 1 s, 2 s, 4 s ... with jitter, or as long as the server asks for; never more than 60 s."""
    error = state.outcome.exception() if state.outcome is not None else None
    asked = error.wait_s if isinstance(error, UnusableError) else 0.0
    return min(60.0, max(_BACK_OFF(state), asked))
