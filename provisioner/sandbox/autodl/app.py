"""The emulator over HTTP: AutoDL's paths, faults on the way, and the control surface under ``/_control``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from provisioner.sandbox.autodl.control import control_routes
from provisioner.sandbox.autodl.emulator import AutodlEmulator
from provisioner.sandbox.autodl.faults import Fault
from provisioner.sandbox.autodl.replies import bad_token
from provisioner.sandbox.autodl.settings import EmulatorConfig, Hooks

_API_FAULTS = ("no_stock", "power_off_lost", "snapshot_invalid")


def create_app(
    config: EmulatorConfig | None = None, *, emulator: AutodlEmulator | None = None, hooks: Hooks | None = None
) -> Starlette:
    """Return the server. The emulator is ``app.state.emulator``; its clock runs while the server does."""
    account = emulator or AutodlEmulator(config, hooks=hooks)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        account.open()
        yield
        await run_in_threadpool(account.close)

    app = Starlette(
        routes=[Mount("/_control", routes=control_routes(account)), Mount("/", app=DeveloperApi(account))],
        lifespan=lifespan,
    )
    app.state.emulator = account
    return app


class DeveloperApi:
    """AutoDL's own paths, as an ASGI application. Logical errors are HTTP 200; an unknown path is 404."""

    def __init__(self, emulator: AutodlEmulator) -> None:
        self._emulator = emulator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, with whatever fault is due."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        body = _json_object(await request.body())
        path, method = request.url.path, request.method
        fault = await run_in_threadpool(self._emulator.take_fault, method, path)
        response = await self._answer(request, path, body, fault)
        entry = {
            "method": method,
            "path": path,
            "query": dict(parse_qsl(request.url.query)),
            "status": response.status_code,
            "code": _code_of(response),
            "fault": fault.kind if fault else "",
        }
        await run_in_threadpool(self._emulator.record, entry, body)
        if fault is not None and fault.kind in ("lost_answer", "dropped"):
            await _hang_up(receive, send)
        elif fault is not None and fault.kind == "truncated":
            await _truncated(response)(scope, receive, send)
        else:
            await response(scope, receive, send)

    async def _answer(self, request: Request, path: str, body: Any, fault: Fault | None) -> Response:
        kind = fault.kind if fault else ""
        if fault is not None and kind == "status":
            headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
            return PlainTextResponse("fault on purpose", status_code=fault.status, headers=headers)
        if kind == "not_json":
            return HTMLResponse("<html><body>502 Bad Gateway</body></html>")
        if kind == "dropped":
            return PlainTextResponse("")
        if fault is not None and kind == "slow":
            await asyncio.sleep(fault.seconds)
        if (request.method, path) not in self._emulator.routes:
            return PlainTextResponse("404 page not found", status_code=404)
        envelope = await run_in_threadpool(
            self._emulator.call,
            request.method,
            path,
            request.headers.get("Authorization", ""),
            dict(request.query_params),
            body,
            fault=kind if kind in _API_FAULTS else "",
        )
        return JSONResponse(envelope)


def _json_object(content: bytes) -> dict[str, Any] | None:
    """Read a body; an empty one is an empty object, and what is no object is None."""
    if not content:
        return {}
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _code_of(response: Response) -> str:
    return str(json.loads(bytes(response.body))["code"]) if isinstance(response, JSONResponse) else ""


def _truncated(response: Response) -> ASGIApp:
    """Send half of a body under the length of the whole; the server then closes the connection."""
    body = bytes(response.body)

    async def send_half(_scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body[: len(body) // 2], "more_body": True})
        await _hang_up(receive, send)

    return send_half


async def _hang_up(receive: Receive, send: Send) -> None:
    """Close the connection under the client. Only uvicorn lets us at it; elsewhere the answer is cut to nothing."""
    transport = getattr(getattr(receive, "__self__", None), "transport", None)
    if transport is not None:
        transport.close()
        await receive()  # until uvicorn has noticed: it would answer 500 for us
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def create_wechat_app(token: str, clock: Any, *, per_minute: int = 5, per_day: int = 50) -> Starlette:
    """Return AutoDL's message service, which lives at an address of its own: 5 a minute, 50 a day."""
    sent: list[float] = []

    async def message(request: Request) -> Response:
        now = clock()
        body = _json_object(await request.body()) or {}
        code, text = "Success", ""
        if request.headers.get("Authorization", "") != token:
            code, text = "AuthorizeFailed", bad_token().message
        elif not isinstance(body.get("title"), str) or not isinstance(body.get("content"), str):
            code, text = "RequestParameterIsWrong", "请求参数错误"
        elif sum(now - at < 60 for at in sent) >= per_minute or sum(now - at < 86400 for at in sent) >= per_day:
            code, text = "BadRequest", "发送频率超限"
        else:
            sent.append(now)
        return JSONResponse({"code": code, "data": None, "msg": text})

    return Starlette(routes=[Route("/api/v1/wechat/message/send", message, methods=["POST"])])
