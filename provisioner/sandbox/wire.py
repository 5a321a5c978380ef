"""Requests and answers on the wire of the sandbox's AWS: who asks for what, where; how an answer is sent or lost."""

from __future__ import annotations

import hashlib
import io
import re
import socket
import urllib.parse
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

from werkzeug.serving import WSGIRequestHandler

from provisioner.sandbox.faults import Call, error_body

ACCOUNT = "123456789012"
LAUNCHES = ("RunInstances", "RequestSpotInstances", "CreateFleet", "RequestSpotFleet", "StartInstances")
_SIGNED = re.compile(r"Credential=([^/,]+)/\d{8}/([a-z0-9-]+)/([a-z0-9-]+)/")

Answer = tuple[str, list[tuple[str, str]], bytes]
"""Status line, headers, body."""
Environ = dict[str, Any]
StartResponse = Callable[..., Any]


class Handler(WSGIRequestHandler):
    """Keeps connections open, and keeps quiet."""

    protocol_version = "HTTP/1.1"

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - the base class names it
        """Say nothing: the launch log has what matters."""


def read(environ: Environ) -> tuple[Call, dict[str, str], str]:
    """Return the call, its form parameters, and the id of the access key it is signed with (not verified)."""
    signed = _SIGNED.search(environ.get("HTTP_AUTHORIZATION", ""))
    key, region, service = signed.groups() if signed else ("", "", "s3")
    path = environ.get("PATH_INFO", "")
    params: dict[str, str] = {}
    if environ.get("CONTENT_TYPE", "").startswith("application/x-www-form-urlencoded"):
        raw = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(raw)
        params = dict(urllib.parse.parse_qsl(raw.decode(), keep_blank_values=True))
    target = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]
    action = params.get("Action") or target or environ["REQUEST_METHOD"]
    if service == "ec2" and action in LAUNCHES:
        return _launch(action, region, params), params, key
    return Call(service=service, action=action, region=region, path=path), params, key


def _launch(action: str, region: str, params: dict[str, str]) -> Call:
    """Find type, zone and market of a launch, in the request or in its launch template."""
    from moto import backends  # loaded by now: this is asked behind the emulator's front

    backend: Any = backends.get_backend("ec2")[ACCOUNT][region]

    def first(*names: str) -> str:
        return next((params[name] for name in names if params.get(name)), "")

    override, spec = "LaunchTemplateConfigs.1.Overrides.1.", "LaunchSpecification."
    configured = "LaunchTemplateConfigs.1.LaunchTemplateSpecification.LaunchTemplateId"
    template_id = first("LaunchTemplate.LaunchTemplateId", configured)
    template_name = first("LaunchTemplate.LaunchTemplateName")
    data: dict[str, Any] = {}
    for template in list(backend.launch_templates.values()):
        if template_id == template.id or (template_name and template_name == template.name):
            data = template.latest_version().data
    interface = "NetworkInterface.1.SubnetId"
    subnet = first("SubnetId", spec + "SubnetId", interface, spec + interface, override + "SubnetId")
    for nic in data.get("NetworkInterfaces") or []:
        subnet = subnet or nic.get("SubnetId") or ""
    zone = first("Placement.AvailabilityZone", spec + "Placement.AvailabilityZone", override + "AvailabilityZone")
    zones = {found.id: found.availability_zone for by_zone in backend.subnets.values() for found in by_zone.values()}
    market = first("InstanceMarketOptions.MarketType", "TargetCapacitySpecification.DefaultTargetCapacityType")
    market = market or (data.get("InstanceMarketOptions") or {}).get("MarketType") or ""
    return Call(
        service="ec2",
        action=action,
        region=region,
        itype=first("InstanceType", spec + "InstanceType", override + "InstanceType") or data.get("InstanceType") or "",
        az=zone or zones.get(subnet, ""),
        subnet=subnet,
        market="spot" if action.startswith("RequestSpot") or market == "spot" else "on-demand",
        token=params.get("ClientToken", ""),
    )


def scope(call: Call) -> tuple[str, str, str]:
    """Return within what a client token counts: the zone where the request names one, else the region."""
    return call.region, call.az, call.token


def digest(params: dict[str, str]) -> str:
    """Return a digest of a request, for telling whether a second one is the same."""
    return hashlib.sha256(urllib.parse.urlencode(sorted(params.items())).encode()).hexdigest()


def refusal(call: Call, status: int, code: str, text: str) -> Answer:
    """Return an error as the service of the call spells it."""
    content_type, body = error_body(call.service, code, text)
    return f"{status} {HTTPStatus(status).phrase}", [("Content-Type", content_type)], body


def send(start_response: StartResponse, answer: Answer) -> Iterable[bytes]:
    """Send an answer."""
    status, headers, body = answer
    kept = [(name, value) for name, value in headers if name.lower() != "content-length"]
    has_length = any(name.lower() == "content-length" for name, _ in headers)
    length = next((value for name, value in headers if name.lower() == "content-length"), str(len(body)))
    start_response(status, [*kept, ("Content-Length", length if has_length and not body else str(len(body)))])
    return [body]


def lose(environ: Environ) -> Iterable[bytes]:
    """Cut the connection instead of answering."""
    connection: socket.socket = environ["werkzeug.socket"]
    connection.shutdown(socket.SHUT_RDWR)
    raise ConnectionAbortedError
