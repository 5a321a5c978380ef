"""Spot interruptions and rebalance recommendations, from the EC2 metadata service (version 2).

Source: EC2 user guide, "Spot Instance interruption notices", "EC2 instance rebalance recommendations" and "Configure
the Instance Metadata Service options" (the hop limit of the answer to a PUT).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from provisioner.clock import now as unix_now
from provisioner.node.notices.asking import TIMEOUT_S, Answer, ask
from provisioner.node.notices.source import Notice, SourceAway, SourceSilent

REBALANCE = "rebalance recommendation"
DEFAULT_ENDPOINT = "http://169.254.169.254"
NOTICE_S = 120.0
"""What EC2 gives between the notice and the end, in seconds."""
HOP_LIMIT = (
    "it answers, but its tokens do not come back: the machine's hop limit is 1 and this container is on a bridge "
    "network; aws ec2 modify-instance-metadata-options --http-put-response-hop-limit 2"
)
_TOKEN_S = 21600


class Ec2:
    """Asks every two seconds: the service cannot be waited for. ``timeout_s`` is for each request."""

    name = "the EC2 metadata service"
    every_s = 2.0

    def __init__(
        self,
        endpoint: str = DEFAULT_ENDPOINT,
        *,
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] = unix_now,
    ) -> None:
        """Ask nothing yet. ``clock`` gives Unix seconds."""
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._clock = clock
        self._token = ""
        self._lock = threading.Lock()

    def watch(self, wait_s: float) -> Notice | None:  # noqa: ARG002 - part of the contract
        """Return the strongest notice there is. Raises SourceAway."""
        with self._lock:
            action = self._get("/latest/meta-data/spot/instance-action")
            if action is not None:
                deadline = _unix(action.get("time")) or self._clock() + NOTICE_S
                return Notice(f"spot {action.get('action')}", self.name, deadline)
            if self._get("/latest/meta-data/events/recommendations/rebalance") is not None:
                return Notice(REBALANCE, self.name, final=False)
            return None

    def _get(self, path: str) -> dict[str, object] | None:
        for _ in range(2):
            if not self._token:
                self._token = self._granted()
            answer = self._ask("GET", path, {"X-aws-ec2-metadata-token": self._token})
            if answer.status == 401:  # the token has run out
                self._token = ""
                continue
            if answer.status == 404:
                return None
            if answer.status != 200:
                raise SourceAway(f"{path} got {answer.status}")
            return _object(answer.body)
        raise SourceAway("a fresh token was refused")

    def _granted(self) -> str:
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_S)}
        try:
            granted = self._ask("PUT", "/latest/api/token", headers)
        except SourceSilent as silent:
            # Only the answer to this request has a hop limit: any other, 401 as well, comes back from afar.
            if self._ask("GET", "/latest/meta-data/", {}).status in {200, 401}:
                raise SourceAway(HOP_LIMIT) from silent
            raise
        if granted.status != 200:
            raise SourceAway(f"the token request got {granted.status}")
        return granted.body.decode("latin-1").strip()

    def _ask(self, method: str, path: str, headers: Mapping[str, str]) -> Answer:
        return ask(self._endpoint, method, path, headers, timeout_s=self._timeout_s)


def _object(body: bytes) -> dict[str, object]:
    try:
        value = json.loads(body)
    except ValueError as error:
        raise SourceAway("the answer is not JSON") from error
    return value if isinstance(value, dict) else {}


def _unix(text: object) -> float | None:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
