"""Requests to the sandbox's Google Cloud: who asks for what, where."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from provisioner.sandbox.gce import places, requests
from provisioner.sandbox.gce.faults import Call, Refused
from provisioner.sandbox.gce.world import Resource, last
from provisioner.sandbox.wire import Environ

_PLACE = re.compile(r"(global|aggregated|regions/[^/]+|zones/[^/]+)(?:/([A-Za-z]+)(?:/([^/]+))?(?:/([^/]+))?)?")
_VERBS = {"GET": "get", "DELETE": "delete", "PATCH": "patch", "PUT": "update"}
_OPERATIONS = {"global": "globalOperations", "regions": "regionOperations", "zones": "zoneOperations"}


@dataclass(frozen=True, slots=True)
class Request:
    """A request to Compute Engine. ``method`` is Google's name, e.g. ``instances.insert``."""

    method: str
    project: str
    scope: str
    collection: str
    name: str
    action: str
    query: Mapping[str, str]
    body: Resource = field(repr=False)

    @property
    def place(self) -> str:
        """The zone or region."""
        return self.scope.partition("/")[2]

    @property
    def reads(self) -> bool:
        """Whether it changes nothing."""
        return self.method.rpartition(".")[2] in {"get", "list", "aggregatedList", "getSerialPortOutput"}

    def digest(self) -> str:
        """Return a digest of what is asked, for telling whether a second request is the same."""
        named = {key: value for key, value in self.query.items() if key != "requestId"}
        text = json.dumps([self.scope, self.collection, self.name, self.body, named], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def call(self) -> Call:
        """Return it as the rules see it."""
        request_id = self.query.get("requestId", "")
        if self.method == "instances.insert":
            return requests.describe(self.method, self.project, self.place, self.body, request_id)
        zonal = self.scope.startswith("zones/")
        return Call(
            method=self.method,
            project=self.project,
            region=places.region_of(self.place) if zonal else self.place,
            zone=self.place if zonal else "",
            name=self.name or str(self.body.get("name") or ""),
            request_id=request_id,
        )


def read(verb: str, path: str, query: Mapping[str, str], body: Resource) -> Request:
    """Read a request to Compute Engine. Raises Refused (404)."""
    found = re.fullmatch(r"/compute/v1/projects/([^/]+)(?:/(.*?))?/?", path)
    if found is None:
        raise Refused("notFound", f"The requested URL {path} was not found on this server.")
    project, rest = found.group(1), found.group(2) or ""
    if rest in ("", "zones", "regions"):
        method = f"{rest}.list" if rest else "projects.get"
        return Request(method, project, "global", rest, "", "", query, body)
    place = _PLACE.fullmatch(rest)
    if place is None:
        raise Refused("notFound", f"The requested URL {path} was not found on this server.")
    scope, collection, name, action = (part or "" for part in place.groups())
    if scope == "aggregated":
        return Request(f"{collection}.aggregatedList", project, scope, collection, "", "", query, body)
    kind = scope.partition("/")[0]
    if not collection:
        return Request(f"{kind}.get", project, scope, "", "", "", query, body)
    said = action or ("list" if verb == "GET" and not name else "insert" if verb == "POST" else _VERBS.get(verb, verb))
    said = "getSerialPortOutput" if said == "serialPort" else said
    method = f"{_OPERATIONS[kind] if collection == 'operations' else collection}.{said}"
    return Request(method, project, scope, collection, name, action, query, body)


def method_of(root: str, verb: str, path: str) -> str:
    """Return Google's name of a method of IAM, Resource Manager or Storage, as far as rules need it."""
    said = {"GET": "get", "POST": "create", "PUT": "setIamPolicy", "DELETE": "delete", "PATCH": "patch"}.get(verb, verb)
    if root == "/storage/v1/":
        return f"buckets.{'getIamPolicy' if path.endswith('/iam') and verb == 'GET' else said}"
    action = path.rpartition(":")[2] if ":" in last(path) else said
    return f"{'serviceAccounts' if '/serviceAccounts' in path else 'projects'}.{action}"


def read_body(environ: Environ) -> Resource:
    """Return the JSON object of a request. Raises Refused (400)."""
    raw = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    try:
        value = json.loads(raw or b"{}")
    except ValueError:
        raise Refused("parseError", "Parse Error") from None
    return value if isinstance(value, dict) else {}
