"""What a project of the sandbox's Google Cloud holds, and the operations that change it."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from provisioner.sandbox.gce import places
from provisioner.sandbox.gce.faults import Refused

PROJECT_NUMBER = "123456789012"
SETTLE_S = 0.05
"""How long the operation of a resource that is there at once takes, in seconds."""
_PENDING_S = 0.02
_WAIT_S = 120.0
Resource = dict[str, Any]


def now() -> str:
    """Return the time as Compute Engine writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "+00:00"


def fingerprint(value: Any) -> str:
    """Return a fingerprint: what a change must name, so that it changes what its author has seen."""
    return base64.urlsafe_b64encode(hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()[:8]).decode()


def last(link: str) -> str:
    """Return the last part of a link or path."""
    return link.rstrip("/").rpartition("/")[2]


@dataclass(slots=True)
class Operation:
    """An operation. It is done when it has been finished and its time is over."""

    content: Resource
    began: float = field(default_factory=time.monotonic)
    done_at: float | None = None


class World:
    """Resources by scope (``global``, ``regions/R``, ``zones/Z``), collection and name. Hold ``lock`` to use it."""

    def __init__(self, project: str) -> None:
        """Begin with Google's own: a default network with a subnetwork in each region, and its firewalls."""
        self.project = project
        self.base = ""
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self._numbers = itertools.count(10**18 + time.time_ns() % 10**17)
        self._resources: dict[tuple[str, str], dict[str, Resource]] = {}
        self._operations: dict[tuple[str, str], Operation] = {}
        self.quotas: dict[tuple[str, str], float] = {}
        self.clear()

    def clear(self) -> None:
        """Go back to the beginning."""
        with self.lock:
            self._resources.clear()
            self._operations.clear()
            self.quotas = {("", "CPUS_ALL_REGIONS"): 1000.0, ("", "GPUS_ALL_REGIONS"): 32.0}
            for region in places.REGIONS:
                self.quotas.update({(region, metric): limit for metric, limit in places.default_quotas().items()})
            self._furnish()

    def _furnish(self) -> None:
        network = self.path("global", "networks", "default")
        self.add("global", "networks", {"name": "default", "autoCreateSubnetworks": True, "mtu": 1460})
        for index, region in enumerate(places.REGIONS):
            subnet = {
                "name": "default",
                "network": self.link(network),
                "ipCidrRange": f"10.{128 + index}.0.0/20",
                "region": self.link(f"projects/{self.project}/regions/{region}"),
                "privateIpGoogleAccess": False,
            }
            self.add(f"regions/{region}", "subnetworks", subnet)
        for name, source, allowed in (
            ("default-allow-internal", "10.128.0.0/9", [{"IPProtocol": "tcp", "ports": ["0-65535"]}]),
            ("default-allow-ssh", "0.0.0.0/0", [{"IPProtocol": "tcp", "ports": ["22"]}]),
        ):
            rule = {"name": name, "network": self.link(network), "direction": "INGRESS", "priority": 65534}
            self.add("global", "firewalls", {**rule, "sourceRanges": [source], "allowed": allowed})

    # --- names --------------------------------------------------------------------------------------------------------

    def path(self, scope: str, collection: str, name: str) -> str:
        """Return a resource's path as messages name it."""
        return f"projects/{self.project}/{scope}/{collection}/{name}"

    def link(self, path: str) -> str:
        """Return the URL of a path or URL: a ``selfLink``, which can be followed here."""
        found = re.search(r"projects/.*", path)
        return f"{self.base}/compute/v1/{found.group(0) if found else path}"

    def number(self) -> str:
        """Return a fresh decimal id."""
        return str(next(self._numbers))

    # --- resources ----------------------------------------------------------------------------------------------------

    def items(self, scope: str, collection: str) -> list[Resource]:
        """Return the resources of a scope, by name."""
        return [value for _, value in sorted(self._resources.get((scope, collection), {}).items())]

    def everywhere(self, collection: str) -> Iterator[tuple[str, Resource]]:
        """Return scope and resource of each of a kind."""
        for (scope, kind), found in list(self._resources.items()):
            if kind == collection:
                yield from ((scope, value) for value in list(found.values()))

    def find(self, scope: str, collection: str, name: str) -> Resource | None:
        """Return a resource, or None."""
        return self._resources.get((scope, collection), {}).get(name)

    def get(self, scope: str, collection: str, name: str) -> Resource:
        """Return a resource. Raises Refused (404)."""
        found = self.find(scope, collection, name)
        if found is None:
            raise Refused("notFound", f"The resource '{self.path(scope, collection, name)}' was not found")
        return found

    def at(self, link: str) -> Resource | None:
        """Return the resource that a full or partial link names, or None."""
        found = re.search(r"(global|regions/[^/]+|zones/[^/]+)/([A-Za-z]+)/([^/]+)$", link)
        return self.find(*found.groups()) if found else None

    def add(self, scope: str, collection: str, body: Mapping[str, Any]) -> Resource:
        """Add a resource with what Google adds to each. Raises Refused (409)."""
        name = str(body["name"])
        if self.find(scope, collection, name) is not None:
            raise Refused("alreadyExists", f"The resource '{self.path(scope, collection, name)}' already exists")
        resource = {
            **body,
            "kind": f"compute#{collection.removesuffix('s')}",
            "id": self.number(),
            "creationTimestamp": now(),
            "selfLink": self.link(self.path(scope, collection, name)),
        }
        if scope != "global":
            kind, _, place = scope.partition("/")
            resource[kind.removesuffix("s")] = self.link(f"projects/{self.project}/{kind}/{place}")
        if "labels" in resource or collection in {"instances", "disks"}:
            resource["labelFingerprint"] = fingerprint(resource.get("labels", {}))
        self._resources.setdefault((scope, collection), {})[name] = resource
        return resource

    def remove(self, scope: str, collection: str, name: str) -> None:
        """Forget a resource."""
        self._resources.get((scope, collection), {}).pop(name, None)
        self.changed.notify_all()

    def users(self, link: str) -> list[str]:
        """Return the paths of what uses a network, a subnetwork or a disk."""
        wanted = _path(link)
        found = []
        for collection in ("subnetworks", "firewalls", "instances"):
            for scope, resource in self.everywhere(collection):
                if wanted in {_path(used) for used in _links(resource)}:
                    found.append(self.path(scope, collection, resource["name"]))
        return found

    # --- operations ---------------------------------------------------------------------------------------------------

    def begin(self, scope: str, kind: str, target: str, target_id: str = "") -> Operation:
        """Begin an operation of a type such as ``insert`` on a resource's path."""
        number = self.number()
        stamp = f"{time.time_ns() // 1_000_000}-{hashlib.sha256(number.encode()).hexdigest()[:13]}"
        name = f"operation-{stamp}"
        content: Resource = {
            "kind": "compute#operation",
            "id": number,
            "name": name,
            "operationType": kind,
            "targetLink": self.link(target),
            "targetId": target_id or self.number(),
            "status": "PENDING",
            "progress": 0,
            "user": f"sandbox@{self.project}.iam.gserviceaccount.com",
            "insertTime": now(),
            "startTime": now(),
            "selfLink": self.link(self.path(scope, "operations", name)),
        }
        if scope != "global":
            key, _, place = scope.partition("/")
            content[key.removesuffix("s")] = self.link(f"projects/{self.project}/{key}/{place}")
        operation = Operation(content)
        self._operations[(scope, name)] = operation
        return operation

    def finish(self, operation: Operation, failure: Mapping[str, Any] | None = None, *, in_s: float = 0.0) -> Operation:
        """End an operation, well or with the keys of a failure, ``in_s`` seconds from now."""
        operation.content.update(failure or {}, endTime=now())
        operation.done_at = time.monotonic() + in_s
        self.changed.notify_all()
        return operation

    def operation(self, scope: str, name: str) -> Resource:
        """Return an operation as it stands. Raises Refused (404). A number names one too."""
        found = self._operations.get((scope, name)) or next(
            (o for (place, _), o in self._operations.items() if place == scope and o.content["id"] == name), None
        )
        if found is None:
            raise Refused("notFound", f"The resource '{self.path(scope, 'operations', name)}' was not found")
        return seen(found)

    def wait(self, scope: str, name: str, for_s: float = _WAIT_S) -> Resource:
        """Return an operation when it is done, or as it stands after two minutes."""
        end = time.monotonic() + for_s
        with self.changed:
            while True:
                content = self.operation(scope, name)
                left = end - time.monotonic()
                if content["status"] == "DONE" or left <= 0:
                    return content
                self.changed.wait(min(left, SETTLE_S))

    def operations(self, scope: str) -> list[Resource]:
        """Return the operations of a scope, newest first."""
        found = [seen(operation) for (place, _), operation in self._operations.items() if place == scope]
        return list(reversed(found))

    # --- quotas -------------------------------------------------------------------------------------------------------

    def quota(self, region: str, metric: str, usage: float) -> Resource:
        """Return one quota as regions and projects list it."""
        return {"metric": metric, "limit": self.quotas[region, metric], "usage": usage}

    def limits(self, region: str) -> Iterable[str]:
        """Return the metrics of a region, or of the project for an empty name."""
        return sorted(metric for place, metric in self.quotas if place == region)


def seen(operation: Operation) -> Resource:
    """Return an operation as a reader sees it now: what is not over yet shows no error."""
    content = dict(operation.content)
    moment = time.monotonic()
    if operation.done_at is not None and moment >= operation.done_at:
        content.update(status="DONE", progress=100)
        operation.content.update(status="DONE", progress=100)
        return content
    for key in ("error", "httpErrorStatusCode", "httpErrorMessage", "endTime"):
        content.pop(key, None)
    if moment - operation.began >= _PENDING_S:
        content["status"] = "RUNNING"
    return content


def each(resources: Iterable[Resource], change: Callable[[Resource], Resource]) -> list[Resource]:
    """Return changed copies of resources."""
    return [change(dict(resource)) for resource in resources]


def _path(link: str) -> str:
    return link[link.find("projects/") :] if "projects/" in link else link


def _links(resource: Resource) -> list[str]:
    """Return what a resource uses."""
    found = [resource.get("network", "")]
    for interface in resource.get("networkInterfaces", ()):
        found += [interface.get("network", ""), interface.get("subnetwork", "")]
    found += [disk.get("source", "") for disk in resource.get("disks", ())]
    return [link for link in found if link]
