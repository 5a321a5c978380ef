"""The metadata server of one Compute Engine machine on a loopback port of its own.

``GCE_METADATA_HOST`` points Google's clients and our node at it. A value may be waited for
(``?wait_for_change=true&last_etag=..&timeout_sec=..``), as ``instance/preempted`` and ``instance/maintenance-event``
are by a machine that wants to know its end.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

_ROOT = "/computeMetadata/v1"
_LOOK_S = 0.5
_TOKEN_LIFE_S = 3599
_FLAVOR = "Metadata-Flavor"


@dataclass(frozen=True, slots=True)
class GceFacts:
    """What the machine can learn about itself."""

    instance_id: str
    name: str
    project: str
    project_number: str
    zone: str
    machine_type: str
    image: str
    private_ip: str
    public_ip: str
    network: str
    email: str
    scopes: tuple[str, ...]
    scheduling: Mapping[str, str]
    tags: tuple[str, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict)


class GceMetadata:
    """Serve one machine's metadata until :meth:`stop`. ``token`` makes an access token of its service account."""

    def __init__(self, facts: GceFacts, *, token: Callable[[], str]) -> None:
        """Bind a free loopback port and serve at once."""
        self._facts = facts
        self._token = token
        self._events = {"preempted": "FALSE", "maintenance-event": "NONE"}
        self._changed = threading.Condition()
        self._stopped = False
        self._broken: tuple[int, float] = (0, 0.0)
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            server_version, sys_version = "Metadata Server for VM", ""

            def do_GET(self) -> None:
                try:
                    owner._answer(self)
                except (BrokenPipeError, ConnectionResetError):  # whoever waited for a change has gone
                    self.close_connection = True

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
                """Say nothing: a machine asks every few seconds."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.host = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"http://{self.host}"
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="gce-metadata", daemon=True).start()

    def stop(self) -> None:
        """Stop serving, those who wait for a change too."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()

    def preempt(self) -> None:
        """Announce the preemption."""
        self._set("preempted", "TRUE")

    def maintain(self, event: str = "TERMINATE_ON_HOST_MAINTENANCE") -> None:
        """Announce maintenance of the host, or its end (``NONE``)."""
        self._set("maintenance-event", event)

    def break_down(self, status: int, for_s: float) -> None:
        """Answer every request with ``status`` for ``for_s`` seconds, as an overloaded service does."""
        self._broken = (status, time.monotonic() + for_s)

    def _set(self, name: str, value: str) -> None:
        with self._changed:
            self._events[name] = value
            self._changed.notify_all()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        status, until = self._broken
        parts = urlsplit(request.path)
        if time.monotonic() < until:
            _send(request, status, "", "text/plain")
        elif parts.path in ("", "/"):
            _send(request, 200, "computeMetadata/\n", "application/text")
        elif request.headers.get(_FLAVOR) != "Google" or "X-Forwarded-For" in request.headers:
            _send(request, 403, "Missing required header: Metadata-Flavor: Google\n", "text/html")
        else:
            self._serve(request, parts.path, dict(parse_qsl(parts.query)))

    def _serve(self, request: BaseHTTPRequestHandler, path: str, query: Mapping[str, str]) -> None:
        value = self._find(path)
        if value is not None and query.get("wait_for_change", "").lower() == "true":
            value = self._await(path, value, query)
        if value is None:
            _send(request, 404, "", "text/html")
            return
        as_json = query.get("alt", "json" if query.get("recursive", "").lower() == "true" else "text") == "json"
        if isinstance(value, str) and not as_json:
            _send(request, 200, value, "application/text", _etag(value))
        elif as_json or path.endswith("/token"):
            _send(request, 200, json.dumps(value), "application/json", _etag(value))
        else:
            names = "\n".join(f"{name}/" if isinstance(v, dict | list) else name for name, v in _pairs(value))
            _send(request, 200, names + "\n", "application/text", _etag(value))

    def _await(self, path: str, seen: Any, query: Mapping[str, str]) -> Any:
        """Wait until the value is another one than ``last_etag`` (by default than now), at most ``timeout_sec``."""
        last = query.get("last_etag") or _etag(seen)
        end = time.monotonic() + float(query.get("timeout_sec", "inf"))
        with self._changed:
            while not self._stopped and _etag(value := self._find(path)) == last and time.monotonic() < end:
                self._changed.wait(min(_LOOK_S, max(0.0, end - time.monotonic())))
            return value

    def _find(self, path: str) -> Any:
        if not path.startswith(_ROOT):
            return None
        value: Any = self._tree()
        for part in path.removeprefix(_ROOT).strip("/").split("/"):
            if part == "":
                continue
            if isinstance(value, list):
                value = value[int(part)] if part.isdigit() and int(part) < len(value) else None
            else:
                value = value.get(part) if isinstance(value, dict) else None
            if value is None:
                return None
        return value

    def _tree(self) -> dict[str, Any]:
        facts = self._facts
        number = facts.project_number
        account = {
            "aliases": "default\n",
            "email": facts.email,
            "scopes": "\n".join(facts.scopes) + "\n",
            "token": {"access_token": self._token(), "expires_in": _TOKEN_LIFE_S, "token_type": "Bearer"},
        }
        interface = {
            "ip": facts.private_ip,
            "network": f"projects/{number}/networks/{facts.network}",
            "access-configs": [{"external-ip": facts.public_ip, "type": "ONE_TO_ONE_NAT"}],
        }
        instance = {
            "attributes": dict(facts.attributes),
            "cpu-platform": "Intel Cascade Lake",
            "hostname": f"{facts.name}.{facts.zone}.c.{facts.project}.internal",
            "id": facts.instance_id,
            "image": facts.image,
            "machine-type": f"projects/{number}/machineTypes/{facts.machine_type}",
            "name": facts.name,
            "network-interfaces": [interface],
            "scheduling": dict(facts.scheduling),
            "service-accounts": {"default": account, facts.email: account} if facts.email else {},
            "tags": json.dumps(facts.tags),
            "zone": f"projects/{number}/zones/{facts.zone}",
            **self._events,
        }
        project = {"numeric-project-id": number, "project-id": facts.project, "attributes": {}}
        return {"instance": instance, "project": project}


def _pairs(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    return [(str(index), item) for index, item in enumerate(value)]


def _etag(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _send(request: BaseHTTPRequestHandler, status: int, text: str, content_type: str, etag: str = "") -> None:
    body = text.encode()
    request.send_response(status)
    headers = {_FLAVOR: "Google", "Content-Type": content_type, "Content-Length": str(len(body)), "ETag": etag}
    for name, value in headers.items():
        if value:
            request.send_header(name, value)
    request.end_headers()
    request.wfile.write(body)
