"""The cloud's word that this machine will go away, from the EC2 metadata service (version 2).

Source: EC2 user guide, "Spot Instance interruption notices" and "EC2 instance rebalance recommendations". A service
that cannot be reached, is slow or answers 503 is asked again and again: it is never given up, and never waited for.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit

DEFAULT_ENDPOINT = "http://169.254.169.254"
NOTICE_S = 120.0
"""What EC2 gives between the notice and the end, in seconds."""
_TOKEN_S = 21600


@dataclass(frozen=True, slots=True)
class Notice:
    """``deadline`` is Unix time. A rebalance recommendation is advice: nothing has to end."""

    kind: str
    deadline: float | None
    final: bool


class MetadataAway(Exception):
    """The metadata service gave no usable answer."""


class Ec2Metadata:
    """Asks for notices. ``timeout_s`` is for each request."""

    def __init__(self, endpoint: str, *, timeout_s: float = 1.0, clock: Callable[[], float] = time.time) -> None:
        """Ask nothing yet."""
        parts = urlsplit(endpoint)
        self._host = parts.hostname or ""
        self._port = parts.port or 80
        self._base = parts.path.rstrip("/")
        self._timeout_s = timeout_s
        self._clock = clock
        self._token = ""

    def look(self) -> Notice | None:
        """Return the strongest notice there is. Raises MetadataAway."""
        action = self._get("/latest/meta-data/spot/instance-action")
        if action is not None:
            kind = action.get("action")
            deadline = _unix(action.get("time"))
            return Notice(f"spot {kind}", deadline or self._clock() + NOTICE_S, final=True)
        rebalance = self._get("/latest/meta-data/events/recommendations/rebalance")
        return Notice("rebalance recommendation", None, final=False) if rebalance is not None else None

    def _get(self, path: str) -> dict[str, object] | None:
        for _ in range(2):
            if not self._token:
                headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_S)}
                status, body = self._ask("PUT", "/latest/api/token", headers)
                if status != 200:
                    raise MetadataAway(f"the token request got {status}")
                self._token = body.decode("latin-1").strip()
            status, body = self._ask("GET", path, {"X-aws-ec2-metadata-token": self._token})
            if status == 401:  # the token has run out
                self._token = ""
                continue
            if status == 404:
                return None
            if status != 200:
                raise MetadataAway(f"{path} got {status}")
            return _object(body)
        raise MetadataAway("a fresh token was refused")

    def _ask(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        try:
            connection.request(method, self._base + path, headers=dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read(65536)
        except (OSError, http.client.HTTPException) as error:
            raise MetadataAway(type(error).__name__) from error
        finally:
            connection.close()


def source(cloud: str, environ: Mapping[str, str] = os.environ) -> Ec2Metadata | None:
    """Return where notices come from on this cloud, None where there is no such place."""
    endpoint = environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT")
    if cloud != "aws":
        return None
    return Ec2Metadata(endpoint or DEFAULT_ENDPOINT)


class Watcher:
    """Asks every ``every_s`` seconds in a thread of its own, and calls ``on_notice`` once for each kind."""

    def __init__(
        self,
        metadata: Ec2Metadata,
        on_notice: Callable[[Notice], None],
        *,
        report: Callable[[str], None],
        every_s: float = 2.0,
    ) -> None:
        """Start nothing yet."""
        self._metadata = metadata
        self._on_notice = on_notice
        self._report = report
        self._every_s = every_s
        self._seen: set[str] = set()
        self._away = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="notices", daemon=True)

    def start(self) -> None:
        """Begin; the caller is never held up."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more."""
        self._stop.set()

    def look(self) -> None:
        """Ask once, now. Says so, once, when the service is away, and when it is back. Never raises."""
        try:
            notice = self._metadata.look()
        except MetadataAway as away:
            if not self._away:
                self._report(f"the metadata service cannot be asked for notices ({away}); asking on")
            self._away = True
            return
        if self._away:
            self._report("the metadata service answers again")
        self._away = False
        if notice is not None and notice.kind not in self._seen:
            self._seen.add(notice.kind)
            self._on_notice(notice)

    def _run(self) -> None:
        self.look()
        while not self._stop.wait(self._every_s):
            self.look()


def _object(body: bytes) -> dict[str, object]:
    try:
        value = json.loads(body)
    except ValueError as error:
        raise MetadataAway("the answer is not JSON") from error
    return value if isinstance(value, dict) else {}


def _unix(text: object) -> float | None:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
