"""Answers that are not Google's, or not whole: of a proxy, of a page to log in. They say nothing of a machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from provisioner.clouds.clock import Clock
from provisioner.clouds.gcp import inventory
from provisioner.clouds.gcp.api import Account
from provisioner.clouds.gcp.compute import Compute
from provisioner.clouds.gcp.errors import NoAnswer
from provisioner.errors import CloudError
from provisioner.model import JobRef

JOB = JobRef("digits", "1a2b3c4d")
GONE = {"error": {"code": 404, "message": "The resource was not found", "errors": [{"reason": "notFound"}]}}


class Wire(ThreadingHTTPServer):
    """Answers every call alike, at Compute Engine's address and at IAM's."""

    daemon_threads = True
    status, text = 200, b"{}"

    def compute(self) -> Compute:
        address = f"http://127.0.0.1:{self.server_port}"
        places = {
            "GOOGLE_COMPUTE_CUSTOM_ENDPOINT": f"{address}/compute/v1/",
            "GOOGLE_IAM_CUSTOM_ENDPOINT": f"{address}/v1/",
        }
        account = Account("p", {**places, "GOOGLE_OAUTH_ACCESS_TOKEN": "ready"}, Clock(sleep=lambda _: None))
        return Compute(account, for_s=0.0)


class _Handler(BaseHTTPRequestHandler):
    server: Wire

    def _serve(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.text)))
        self.end_headers()
        self.wfile.write(self.server.text)

    do_GET = do_POST = do_DELETE = _serve

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def wire() -> Iterator[Wire]:
    with Wire(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


def calls(compute: Compute) -> dict[str, Callable[[], object]]:
    return {
        "insert": lambda: compute.insert("us-central1-a", {"name": "x"}, "0" * 32),
        "operation": lambda: compute.operation("us-central1-a", "x"),
        "machine": lambda: compute.machine("us-central1-a", "x"),
        "delete": lambda: compute.delete_machine("us-central1-a", "x"),
        "disk": lambda: compute.disk("us-central1-a", "x"),
        "quotas": lambda: compute.region_quotas("us-central1"),
    }


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (404, b"<html>404: no such site</html>"),
        (404, b'{"error": "unknown host"}'),
        (500, b'{"error": "upstream"}'),
        (500, b'{"error": {"errors": null}}'),
        (502, b'"bad gateway"'),
        (200, b"<html>please log in</html>"),
        (200, b"\xff\xfe"),
        (200, b"[]"),
        (200, b"{}"),
    ],
)
def test_what_a_proxy_answers_is_no_answer(wire: Wire, status: int, text: bytes) -> None:
    """Above all it does not mean that a machine is gone, or stands still: it may be training."""
    wire.status, wire.text = status, text
    for call in calls(wire.compute()).values():
        with pytest.raises(NoAnswer):
            call()


def test_gone_is_googles_word(wire: Wire) -> None:
    wire.status, wire.text = 404, json.dumps(GONE).encode()
    compute = wire.compute()
    assert compute.machine("us-central1-a", "x") is None
    assert compute.delete_machine("us-central1-a", "x") is None
    lists: list[Callable[[], object]] = [compute.firewalls, lambda: compute.machines(("a", "b"))]
    for call in lists:  # a project that went away in the middle is an error, and one that a run knows how to end with
        with pytest.raises(CloudError):
            call()


@pytest.mark.parametrize("text", [b"<html>please log in</html>", b"[]", b'"x"', b""])
def test_half_a_list_of_accounts_is_not_an_empty_one(wire: Wire, monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    wire.text = text
    account = wire.compute().account
    call = account.call
    monkeypatch.setattr(account, "call", lambda ask: call(ask, 0.0))
    with pytest.raises(NoAnswer):
        inventory.accounts(account, JOB)
