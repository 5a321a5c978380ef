"""The metadata endpoint of one EC2 machine (IMDSv2) on a loopback port of its own.

``AWS_EC2_METADATA_SERVICE_ENDPOINT`` points the machine's SDKs and our node at it.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_TTL = "X-aws-ec2-metadata-token-ttl-seconds"
_TOKEN = "X-aws-ec2-metadata-token"  # noqa: S105 - a header's name
_LONGEST_TTL_S = 21600
_CREDENTIALS_LIFE = timedelta(hours=6)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the machine can learn about itself. ``role`` is asked each time: a profile may be attached later."""

    instance_id: str
    region: str
    zone: str
    instance_type: str
    image_id: str
    private_ip: str
    life_cycle: str
    user_data: str
    role: Callable[[], str | None]
    tokens_required: bool = True


def _utc(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Metadata:
    """Serve one machine's metadata until :meth:`stop`."""

    def __init__(
        self, facts: Facts, *, access_key: Callable[[], str] = lambda: "ASIA" + secrets.token_hex(8).upper()
    ) -> None:
        """Bind a free loopback port and serve at once. ``access_key`` makes the id of the role's temporary key."""
        self._facts = facts
        self._access_key = access_key
        self._tokens: dict[str, float] = {}
        self._notices: dict[str, str] = {}
        self._broken: tuple[int, float] = (0, 0.0)
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                owner._answer(self)

            def do_PUT(self) -> None:
                owner._grant(self)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
                """Say nothing: a machine polls every few seconds."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="metadata", daemon=True).start()

    def stop(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    def interrupt(self, in_s: float, action: str = "terminate") -> None:
        """Announce the end of a spot machine ``in_s`` seconds ahead, on the clock of this host."""
        at = _utc(datetime.now(UTC) + timedelta(seconds=in_s))
        self._notices["spot/instance-action"] = json.dumps({"action": action, "time": at})
        self._notices["spot/termination-time"] = at

    def rebalance(self) -> None:
        """Recommend to move: the early, softer notice."""
        self._notices["events/recommendations/rebalance"] = json.dumps({"noticeTime": _utc(datetime.now(UTC))})

    def withdraw(self) -> None:
        """Take every notice back."""
        self._notices.clear()

    def break_down(self, status: int, for_s: float) -> None:
        """Answer every request with ``status`` for ``for_s`` seconds, as an overloaded service does."""
        self._broken = (status, time.monotonic() + for_s)

    def _grant(self, request: BaseHTTPRequestHandler) -> None:
        if self._is_broken(request):
            return
        try:
            life = int(request.headers.get(_TTL, ""))
        except ValueError:
            life = 0
        if request.path != "/latest/api/token" or not 1 <= life <= _LONGEST_TTL_S:
            _send(request, HTTPStatus.BAD_REQUEST, "")
            return
        token = secrets.token_urlsafe(32)
        self._tokens[token] = time.monotonic() + life
        _send(request, HTTPStatus.OK, token, {_TTL: str(life)})

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        if self._is_broken(request):
            return
        token = request.headers.get(_TOKEN)
        valid = token is not None and self._tokens.get(token, 0.0) > time.monotonic()
        if not valid and (token is not None or self._facts.tokens_required):
            _send(request, HTTPStatus.UNAUTHORIZED, "")
            return
        found = self._find(request.path.split("?")[0].rstrip("/"))
        _send(request, HTTPStatus.NOT_FOUND if found is None else HTTPStatus.OK, found or "")

    def _is_broken(self, request: BaseHTTPRequestHandler) -> bool:
        status, until = self._broken
        if time.monotonic() >= until:
            return False
        _send(request, status, "")
        return True

    def _find(self, path: str) -> str | None:
        facts = self._facts
        if path == "/latest/user-data":
            return facts.user_data
        if path == "/latest/dynamic/instance-identity/document":
            return json.dumps(self._identity())
        name = path.removeprefix("/latest/meta-data/")
        if name.startswith("iam/security-credentials"):
            return self._credentials(name.removeprefix("iam/security-credentials").strip("/"))
        fixed = {
            "ami-id": facts.image_id,
            "instance-id": facts.instance_id,
            "instance-type": facts.instance_type,
            "instance-life-cycle": facts.life_cycle,
            "local-ipv4": facts.private_ip,
            "placement/availability-zone": facts.zone,
            "placement/region": facts.region,
            "services/domain": "amazonaws.com",
            "services/partition": "aws",
        }
        return self._notices.get(name) or fixed.get(name)

    def _identity(self) -> dict[str, str]:
        facts = self._facts
        return {
            "instanceId": facts.instance_id,
            "region": facts.region,
            "availabilityZone": facts.zone,
            "instanceType": facts.instance_type,
            "imageId": facts.image_id,
            "privateIp": facts.private_ip,
            "accountId": "123456789012",
            "architecture": "x86_64",
        }

    def _credentials(self, name: str) -> str | None:
        role = self._facts.role()
        if role is None or name not in {"", role}:
            return None
        if not name:
            return role
        now = datetime.now(UTC)
        return json.dumps(
            {
                "Code": "Success",
                "Type": "AWS-HMAC",
                "LastUpdated": _utc(now),
                "AccessKeyId": self._access_key(),
                "SecretAccessKey": secrets.token_hex(20),
                "Token": secrets.token_urlsafe(48),
                "Expiration": _utc(now + _CREDENTIALS_LIFE),
            }
        )


def _send(request: BaseHTTPRequestHandler, status: int, text: str, headers: dict[str, str] | None = None) -> None:
    body = text.encode()
    request.send_response(status)
    for name, value in {"Content-Type": "text/plain", **(headers or {}), "Content-Length": str(len(body))}.items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(body)
