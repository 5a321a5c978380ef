"""The sandbox's control API: JSON over HTTP on a loopback port, below a path that is a secret.

| request | does |
|---|---|
| ``GET state`` | everything: machines that run, the clouds' holdings, faults, launches, events, ``left`` |
| ``GET``, ``PUT``, ``POST``, ``DELETE`` ``faults`` | read, replace, put before, remove AWS's rules |
| ``GET``, ``PUT``, ``POST``, ``DELETE`` ``faults/gcp`` | the same for Google Cloud's |
| ``GET launches`` | every launch asked of AWS and Google Cloud: type, zone, market, token, outcome |
| ``GET writes`` | every object that was written to S3 or removed there: time, method, path |
| ``POST take`` ``{"cloud": "aws", "id": null}`` | take a machine away, the newest by default |
| ``POST notice`` ``{"seconds": null, "id": null, "cloud": "aws"}`` | spot notice, the machine goes after ``seconds`` |
| ``POST stock`` ``[{"region": .., "gpu": .., "idle": ..}]`` | set AutoDL's idle cards |
| ``POST quotas`` ``[{"metric": .., "region": .., "limit": ..}]`` | set Google Cloud's quotas |
| ``POST metadata/<id>`` ``{"status": 503, "seconds": 40}`` | break a metadata endpoint for a while |
| ``POST metadata/<id>`` ``{"rebalance": true}`` | recommend to move; at Google Cloud: announce maintenance |
| ``POST controller`` ``{"pid": 4711}`` | name the process that ``kill_controller`` of a scenario kills |
| ``POST machines/<id>/reboot`` | press the reset button |
| ``POST machines/<id>/kill`` | pull the plug behind the cloud's back |
| ``GET machines/<id>/console`` | the console log, as text |
| ``POST reset`` | back to the beginning of the scenario |
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from werkzeug.exceptions import BadRequest, HTTPException, NotFound
from werkzeug.routing import Map, Rule
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server
from werkzeug.wrappers import Request, Response

from provisioner.sandbox.gce.metadata import GceMetadata
from provisioner.sandbox.scenario import Quota

if TYPE_CHECKING:
    from provisioner.sandbox.server import Sandbox

_URLS = Map(
    [
        Rule("/state", endpoint="state", methods=["GET"]),
        Rule("/faults", endpoint="faults", defaults={"cloud": "aws"}, methods=["GET", "PUT", "POST", "DELETE"]),
        Rule("/faults/<cloud>", endpoint="faults", methods=["GET", "PUT", "POST", "DELETE"]),
        Rule("/launches", endpoint="launches", methods=["GET"]),
        Rule("/writes", endpoint="writes", methods=["GET"]),
        Rule("/take", endpoint="take", methods=["POST"]),
        Rule("/notice", endpoint="notice", methods=["POST"]),
        Rule("/stock", endpoint="stock", methods=["POST"]),
        Rule("/quotas", endpoint="quotas", methods=["POST"]),
        Rule("/metadata/<machine_id>", endpoint="metadata", methods=["POST"]),
        Rule("/controller", endpoint="controller", methods=["POST"]),
        Rule("/machines/<machine_id>/reboot", endpoint="reboot", methods=["POST"]),
        Rule("/machines/<machine_id>/kill", endpoint="kill", methods=["POST"]),
        Rule("/machines/<machine_id>/console", endpoint="console", methods=["GET"]),
        Rule("/reset", endpoint="reset", methods=["POST"]),
    ]
)


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - the base class names it
        """Say nothing."""


class Control:
    """Serves the control API of a sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        """Take the sandbox to steer."""
        self._sandbox = sandbox
        self._secret = secrets.token_urlsafe(24)
        self._server: BaseWSGIServer | None = None

    def start(self) -> str:
        """Serve on a free loopback port; return the base URL, which holds the secret."""
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_Quiet)
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="control", daemon=True
        ).start()
        return f"http://127.0.0.1:{self._server.server_port}/{self._secret}"

    def stop(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        prefix = f"/{self._secret}"
        path = environ.get("PATH_INFO", "")
        if not secrets.compare_digest(path[: len(prefix)].encode(), prefix.encode()):
            return NotFound()(environ, start_response)
        environ["PATH_INFO"] = path[len(prefix) :] or "/"
        request = Request(environ)
        try:
            name, values = _URLS.bind_to_environ(environ).match()
            answer = getattr(self, f"_{name}")(request, **values)
        except HTTPException as error:
            return error(environ, start_response)
        except ValidationError as error:
            answer = _json({"error": str(error)}, 422)
        except LookupError as error:
            answer = _json({"error": f"unknown: {error}"}, 404)
        return answer(environ, start_response)

    def _state(self, _: Request) -> Response:
        return _json(self._sandbox.state())

    def _launches(self, _: Request) -> Response:
        return _json(self._sandbox.launches())

    def _writes(self, _: Request) -> Response:
        return _json(self._sandbox.aws.writes)

    def _faults(self, request: Request, cloud: str) -> Response:
        faults = self._sandbox.faults(cloud)
        if request.method == "PUT":
            faults.set(_body(request, list))
        elif request.method == "POST":
            faults.add(_body(request, list))
        elif request.method == "DELETE":
            faults.set([])
        return _json(faults.rules())

    def _take(self, request: Request) -> Response:
        body = _body(request, dict)
        return _json({"id": self._sandbox.take(body.get("cloud", "aws"), body.get("id"))})

    def _notice(self, request: Request) -> Response:
        body = _body(request, dict)
        seconds = body.get("seconds")
        given = None if seconds is None else float(seconds)
        return _json({"id": self._sandbox.notice(given, body.get("id"), body.get("cloud", "aws"))})

    def _stock(self, request: Request) -> Response:
        self._sandbox.set_stock(_body(request, list))
        return _json({})

    def _quotas(self, request: Request) -> Response:
        for row in _body(request, list):
            quota = Quota.model_validate(row)
            self._sandbox.gcp.set_quota(quota.metric, quota.limit, quota.region)
        return _json({})

    def _metadata(self, request: Request, machine_id: str) -> Response:
        body = _body(request, dict)
        metadata = self._sandbox.metadata(machine_id)
        if metadata is None:
            raise LookupError(machine_id)
        if "status" in body:
            metadata.break_down(int(body["status"]), float(body.get("seconds", 0)))
        if body.get("rebalance"):
            metadata.maintain() if isinstance(metadata, GceMetadata) else metadata.rebalance()
        return _json({"url": metadata.url})

    def _controller(self, request: Request) -> Response:
        pid = _body(request, dict).get("pid")
        if not isinstance(pid, int):
            raise BadRequest("pid must be a number")
        self._sandbox.name_controller(pid)
        return _json({})

    def _reboot(self, _: Request, machine_id: str) -> Response:
        self._sandbox.machines.reboot(machine_id)
        return _json({})

    def _kill(self, _: Request, machine_id: str) -> Response:
        self._sandbox.machines.kill(machine_id)
        return _json({})

    def _console(self, _: Request, machine_id: str) -> Response:
        return Response(self._sandbox.machines.console(machine_id), mimetype="text/plain")

    def _reset(self, _: Request) -> Response:
        self._sandbox.reset()
        return _json({})


def _json(value: Any, status: int = 200) -> Response:
    return Response(json.dumps(value), status, mimetype="application/json")


def _body(request: Request, kind: type) -> Any:
    try:
        value = json.loads(request.get_data() or b"{}")
    except ValueError as error:
        raise BadRequest(str(error)) from error
    if not isinstance(value, kind):
        message = f"the body must be a JSON {kind.__name__}"
        raise BadRequest(message)
    return value
