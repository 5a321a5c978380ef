"""The control surface for drills and tests: JSON under ``/_control``, never part of AutoDL."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from provisioner.sandbox.autodl.emulator import AutodlEmulator
from provisioner.sandbox.autodl.faults import Fault

Change = Callable[[dict[str, Any]], Any]


def control_routes(emulator: AutodlEmulator) -> list[Route]:
    """Return the routes; each calls the method of the same sense on the emulator. A wrong body gives 400."""

    async def state(_request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(emulator.state))

    async def requests(request: Request) -> Response:
        after = request.query_params.get("after", "0")
        log = await run_in_threadpool(emulator.requests, int(after) if after.isdigit() else 0)
        return JSONResponse({"requests": log})

    async def forget_faults(_request: Request) -> Response:
        await run_in_threadpool(emulator.clear_faults)
        return JSONResponse({"ok": True})

    return [
        Route("/state", state, methods=["GET"]),
        Route("/requests", requests, methods=["GET"]),
        Route("/faults", forget_faults, methods=["DELETE"]),
        Route("/faults", _changes(lambda body: emulator.add_fault(Fault.read(body))), methods=["POST"]),
        Route("/stock", _changes(lambda body: emulator.set_stock(**body)), methods=["POST"]),
        Route(
            "/take", _changes(lambda body: emulator.take_away(body["id"], body.get("how", "vanish"))), methods=["POST"]
        ),
        Route("/account", _changes(lambda body: emulator.set_account(**body)), methods=["POST"]),
        Route("/shutdown", _changes(lambda body: emulator.guest_shutdown(body["id"])), methods=["POST"]),
        Route("/exit", _changes(lambda body: emulator.guest_exit(body["id"])), methods=["POST"]),
    ]


def _changes(change: Change) -> Callable[[Request], Any]:
    """Return an endpoint that applies a change to the emulator. A change that finds no machine gives 404."""

    async def endpoint(request: Request) -> Response:
        try:
            body = json.loads(await request.body() or b"{}")
            done = await run_in_threadpool(change, body)
        except (ValueError, TypeError, KeyError) as error:
            return JSONResponse({"ok": False, "error": f"{type(error).__name__}: {error}"}, status_code=400)
        if done is False:
            return JSONResponse({"ok": False, "error": "no such machine"}, status_code=404)
        return JSONResponse({"ok": True})

    return endpoint
