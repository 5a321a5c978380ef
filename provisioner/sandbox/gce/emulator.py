"""Google Cloud in a box: Compute Engine v1, and of IAM, Resource Manager and Storage what a job's substrate needs.

:class:`GceEmulator` is a WSGI application that speaks REST as google-cloud-compute and Terraform's provider do. Calls
are accepted and become operations; machines really run their ``startup-script``, with a metadata server each. It is
our own, true to Google's documents and to what users reported; what it cannot prove stands in docs/sandbox.md.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
import urllib.parse
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from werkzeug.serving import BaseWSGIServer, make_server

from provisioner.sandbox.gce import requests
from provisioner.sandbox.gce.facts import call_of, machine_id
from provisioner.sandbox.gce.faults import Call, GceFault, GceFaults, Refused
from provisioner.sandbox.gce.identity import Identity
from provisioner.sandbox.gce.instances import NOTICE_S, Instances
from provisioner.sandbox.gce.metadata import GceMetadata
from provisioner.sandbox.gce.reads import Reader
from provisioner.sandbox.gce.resources import Resources
from provisioner.sandbox.gce.wire import Request, method_of, read, read_body
from provisioner.sandbox.gce.world import SETTLE_S, Operation, Resource, World, fingerprint, last
from provisioner.sandbox.machines import Machines
from provisioner.sandbox.wire import Environ, Handler, StartResponse, lose


class GceEmulator:
    """One Google Cloud project on one loopback port. ``faults`` may be set at any time."""

    def __init__(
        self,
        machines: Machines,
        *,
        project: str = "sandbox-project",
        boot_s: float = 1.0,
        end_s: float = 0.3,
        refuse_s: float = 0.3,
        held_s: float = 2.0,
        token: str | None = None,
    ) -> None:
        """Set how long booting and ending take, in seconds.

        ``refuse_s`` is how long an insert lasts that is accepted and refused later, ``held_s`` how long its name stays
        taken after that. Every request must carry ``token``, by default a fresh one: a launch runs its script as this
        user, so on a host with other users the port alone must not be enough.
        """
        self.faults = GceFaults()
        self.project = project
        self.token = token or "ya29.sandbox-" + secrets.token_urlsafe(24)
        self.url = ""
        self._machines = machines
        self._world = World(project)
        self._identity = Identity(project)
        self._instances = Instances(
            self._world,
            machines,
            self.faults,
            accounts=self._identity.emails,
            boot_s=boot_s,
            end_s=end_s,
            refuse_s=refuse_s,
            held_s=held_s,
        )
        self._resources = Resources(self._world, self._instances.usage)
        self._reader = Reader(self._world, self._resources, lambda one: machines.console(machine_id(one)))
        self._seen: dict[tuple[str, str], tuple[str, Operation]] = {}
        self._server: BaseWSGIServer | None = None

    # --- the server ---------------------------------------------------------------------------------------------------

    def start(self) -> str:
        """Serve on a free loopback port; return its URL."""
        self._server = make_server("127.0.0.1", 0, self, threaded=True, request_handler=Handler)
        self.url = self._world.base = f"http://127.0.0.1:{self._server.server_port}"
        self._world.clear()
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="gce", daemon=True
        ).start()
        return self.url

    def env(self) -> dict[str, str]:
        """Return what Google's tools, and ours, need in their environment to come here instead of to Google."""
        return {
            "GOOGLE_COMPUTE_CUSTOM_ENDPOINT": f"{self.url}/compute/v1/",
            "GOOGLE_IAM_CUSTOM_ENDPOINT": f"{self.url}/v1/",
            "GOOGLE_CLOUD_RESOURCE_MANAGER_CUSTOM_ENDPOINT": f"{self.url}/v1/",
            "GOOGLE_STORAGE_CUSTOM_ENDPOINT": f"{self.url}/storage/v1/",
            "GOOGLE_OAUTH_ACCESS_TOKEN": self.token,
        }

    def stop(self) -> None:
        """Stop serving, with every machine."""
        self._instances.clear()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        fault: GceFault | None = None
        try:
            status, answer, fault = self._answer(environ)
        except Refused as refused:
            status, answer = refused.status, json.dumps(refused.body()).encode()
        if fault is not None and fault.lost:
            return lose(environ)
        headers = [("Content-Type", "application/json; charset=UTF-8"), ("Content-Length", str(len(answer)))]
        start_response(f"{status} {HTTPStatus(status).phrase}", headers)
        return [answer]

    def _answer(self, environ: Environ) -> tuple[int, bytes, GceFault | None]:
        body = read_body(environ)  # read first: a connection that is kept open must be empty
        if not secrets.compare_digest(environ.get("HTTP_AUTHORIZATION", "").encode(), f"Bearer {self.token}".encode()):
            raise Refused("authError", "Request had invalid authentication credentials.")
        path = environ.get("PATH_INFO", "")
        query = dict(urllib.parse.parse_qsl(environ.get("QUERY_STRING", "")))
        verb = environ["REQUEST_METHOD"]
        for root, serve in (("/v1/", self._identity.answer), ("/storage/v1/", self._identity.storage)):
            if path.startswith(root):
                fault = self._fault(Call(method=method_of(root, verb, path), project=self.project))
                with self._world.lock:
                    answer = serve(verb, path.removeprefix(root), query, body)
                    return 200, json.dumps(answer).encode(), fault
        request = read(verb, path, query, body)
        call = request.call()
        fault = self._fault(call)
        if request.action == "wait":
            return 200, json.dumps(self._world.wait(request.scope, request.name)).encode(), fault
        with self._world.lock:
            return 200, json.dumps(self._serve(request, call, fault)).encode(), fault

    def _fault(self, call: Call) -> GceFault | None:
        """Return the rule for a call. Raises Refused where it says that the call is not accepted."""
        fault = self.faults.hit(call)
        if fault is None:
            return None
        refusal = fault.refusal(call)
        if not fault.later:
            time.sleep(fault.delay or 0.0)
        if refusal is not None:
            if call.method == "instances.insert":
                self.faults.note(call, refusal.reason)
            raise refusal
        return fault

    # --- Compute Engine -----------------------------------------------------------------------------------------------

    def _serve(self, request: Request, call: Call, fault: GceFault | None) -> Resource:
        if request.collection == "images":
            return self._reader.image(request)
        if request.project != self.project:
            raise Refused("notFound", f"Failed to find project {request.project}")
        return self._reader.answer(request) if request.reads else self._change(request, call, fault)

    def _change(self, request: Request, call: Call, fault: GceFault | None) -> Resource:
        """Do what changes something, once: a request id that came before gets the operation that it became."""
        self._reader.check_place(request)
        key, digest = (request.method, call.request_id), request.digest()
        if call.request_id:
            requests.check_request_id(call.request_id)
            before = self._seen.get(key)
            if before is not None and before[0] != digest:
                text = f"The request ID '{call.request_id}' was used already, for another request."
                raise Refused("invalid", f"Invalid value for field 'requestId': '{call.request_id}'. {text}")
            if before is not None:
                if request.method == "instances.insert":
                    self.faults.note(call, f"again {before[1].content['name']}")
                return self._world.operation(request.scope, before[1].content["name"])
        operation = self._work(request, call, fault)
        if call.request_id:
            self._seen[key] = (digest, operation)
        return self._world.operation(request.scope, operation.content["name"])

    def _work(self, request: Request, call: Call, fault: GceFault | None) -> Operation:
        scope, collection, name = request.scope, request.collection, request.name
        action = request.method.rpartition(".")[2]
        failure = fault.failure(call) if fault is not None and request.method != "instances.insert" else None
        if failure is not None and fault is not None:
            operation = self._world.begin(scope, action, self._world.path(scope, collection, call.name))
            return self._world.finish(operation, failure, in_s=SETTLE_S if fault.delay is None else fault.delay)
        if collection == "instances" and action in ("insert", "delete"):
            if action == "delete":
                return self._instances.delete(request.place, name)
            try:
                return self._instances.insert(call, request.body, fault)
            except Refused as refused:
                self.faults.note(call, refused.reason)
                raise
        if action == "setLabels":
            return self._resources.label(scope, collection, name, request.body)
        if collection == "instances":
            return self._act(action, self._world.get(scope, collection, name), request)
        if action == "insert":
            return self._resources.make(scope, collection, request.body)
        if action == "delete":
            return self._resources.delete(scope, collection, name)
        return self._resources.change(scope, collection, name, request.body)

    def _act(self, action: str, instance: Resource, request: Request) -> Operation:
        if action == "stop":
            return self._instances.stop(instance)
        if action == "start":
            return self._instances.start(instance)
        if action == "reset":
            return self._instances.reset_button(instance)
        if action in ("setMetadata", "setTags"):
            key = action.removeprefix("set").lower()
            if request.body.get("fingerprint") != instance[key]["fingerprint"]:
                raise Refused("conditionNotMet", "Supplied fingerprint does not match current metadata fingerprint.")
            instance[key] = {**request.body, "fingerprint": fingerprint(request.body)}
        elif action == "setDeletionProtection":
            instance["deletionProtection"] = request.query.get("deletionProtection") != "false"
        else:
            raise Refused("notFound", f"Method not found: instances.{action}", 404)
        path = self._world.path(request.scope, "instances", instance["name"])
        return self._world.finish(self._world.begin(request.scope, action, path, instance["id"]))

    # --- controls -----------------------------------------------------------------------------------------------------

    def take(self, machine: str) -> None:
        """Take a machine away without a word: spot capacity reclaimed, or a host that died. Raises KeyError."""
        self._instances.take(machine)

    def interrupt(self, machine: str, notice_s: float = NOTICE_S) -> None:
        """Preempt a machine with a notice of ``notice_s`` seconds. Raises KeyError."""
        self._instances.interrupt(machine, notice_s)

    def metadata(self, machine: str) -> GceMetadata | None:
        """Return the metadata server of a running machine."""
        return self._instances.metadata(machine)

    def set_quota(self, metric: str, limit: float, region: str = "") -> None:
        """Set a quota of a region, or of the project (``CPUS_ALL_REGIONS``, ``GPUS_ALL_REGIONS``)."""
        with self._world.lock:
            self._world.quotas[region, metric] = float(limit)

    def add_bucket(self, name: str) -> None:
        """Make a Cloud Storage bucket that has a policy, and nothing else."""
        with self._world.lock:
            self._identity.add_bucket(name)

    def state(self) -> dict[str, Any]:
        """Return what the project holds beside what every project has, in JSON values."""
        with self._world.lock:
            return {
                "project": self.project,
                "instances": [self._state_of(one) for _, one in self._world.everywhere("instances")],
                "disks": [f"{last(scope)}/{one['name']}" for scope, one in self._world.everywhere("disks")],
                "networks": self._own("networks"),
                "subnetworks": self._own("subnetworks"),
                "firewalls": self._own("firewalls"),
                "service_accounts": sorted(self._identity.emails()),
                "bindings": self._identity.bindings(),
                "buckets": self._identity.buckets(),
            }

    def _state_of(self, instance: Resource) -> dict[str, Any]:
        call = call_of(instance, self.project)
        return {
            "id": machine_id(instance),
            "name": instance["name"],
            "zone": call.zone,
            "type": call.machine_type,
            "cards": call.attachment,
            "market": call.market,
            "state": instance["status"],
            "alive": self._machines.alive(machine_id(instance)),
            "labels": instance["labels"],
        }

    def _own(self, collection: str) -> list[str]:
        names = {one["name"] for _, one in self._world.everywhere(collection)}
        return sorted(name for name in names if not name.startswith("default"))

    def reset(self) -> None:
        """Forget everything: faults, quotas, machines, resources, request ids."""
        with self._world.lock:
            self._instances.clear()
            self._identity.clear()
            self._seen.clear()
            self.faults.clear()
            self._world.clear()
