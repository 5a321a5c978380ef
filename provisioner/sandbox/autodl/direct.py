"""The emulator without a network: an httpx transport that asks it in the same process, faults included."""

from __future__ import annotations

import json
from typing import Any

import httpx

from provisioner.sandbox.autodl.emulator import AutodlEmulator
from provisioner.sandbox.autodl.faults import Fault

_API_FAULTS = ("no_stock", "power_off_lost", "snapshot_invalid")


class DirectTransport(httpx.BaseTransport):
    """Give it to ``AutodlClient(transport=...)``: with a clock of your own nothing has to wait.

    A fault that cuts a connection raises what httpx raises for it. A ``slow`` answer longer than the client's read
    time-out is done and then timed out.
    """

    def __init__(self, emulator: AutodlEmulator) -> None:
        self._emulator = emulator

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Answer one request."""
        method, path = request.method, request.url.path
        fault = self._emulator.take_fault(method, path)
        kind = fault.kind if fault is not None else ""
        if fault is not None and kind in ("status", "not_json", "dropped"):
            return self._undone(fault, request)
        if (method, path) not in self._emulator.routes:
            return httpx.Response(404, text="404 page not found", request=request)
        body = json.loads(request.read() or b"{}")
        envelope = self._emulator.call(
            method,
            path,
            request.headers.get("Authorization", ""),
            dict(request.url.params),
            body,
            fault=kind if kind in _API_FAULTS else "",
        )
        entry = {"method": method, "path": path, "status": 200, "code": envelope["code"], "fault": kind}
        self._emulator.record(entry, body)
        content = json.dumps(envelope).encode()
        if kind == "lost_answer":
            raise httpx.RemoteProtocolError("Server disconnected without sending a response.", request=request)
        if fault is not None and kind == "slow" and fault.seconds >= _read_timeout(request):
            raise httpx.ReadTimeout("timed out", request=request)
        if kind == "truncated":
            content = content[: len(content) // 2]
        return httpx.Response(200, content=content, request=request)

    @staticmethod
    def _undone(fault: Fault, request: httpx.Request) -> httpx.Response:
        if fault.kind == "dropped":
            raise httpx.ConnectError("Connection refused", request=request)
        if fault.kind == "not_json":
            return httpx.Response(200, text="<html><body>502 Bad Gateway</body></html>", request=request)
        headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
        return httpx.Response(fault.status, text="fault on purpose", headers=headers, request=request)


def _read_timeout(request: httpx.Request) -> float:
    timeouts: dict[str, Any] = request.extensions.get("timeout", {})
    return float(timeouts.get("read") or 1e9)
