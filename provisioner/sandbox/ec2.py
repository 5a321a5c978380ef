"""AWS in a box: EC2, S3, IAM, STS and SSM by moto, behind a fault injector, with machines that really run.

In front of moto stands :class:`AwsEmulator`, a WSGI application. It adds faults, client tokens as EC2 honours them,
the steps of an instance's life, and for every instance that comes up a machine with its own metadata endpoint.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from werkzeug.serving import BaseWSGIServer, make_server

from provisioner.sandbox import view, wire
from provisioner.sandbox.faults import Call, Fault, Faults, message
from provisioner.sandbox.machines import Machines
from provisioner.sandbox.metadata import Metadata
from provisioner.sandbox.wire import ACCOUNT, LAUNCHES, Answer, Environ, Handler, StartResponse

_UNBOUND = {"RequestLimitExceeded", "UnauthorizedOperation", "AuthFailure", "Unavailable", "InternalError"}
"""Refusals that come before EC2 looks at the client token."""


@dataclass(slots=True)
class _Token:
    """What a client token stands for: one request, and the answer once it had one."""

    digest: str
    instance_ids: tuple[str, ...] = ()
    answer: Answer | None = None


class AwsEmulator:
    """One AWS account on one loopback port. One per process: moto's state is global."""

    def __init__(
        self,
        machines: Machines,
        *,
        boot_s: float = 1.0,
        end_s: float = 0.3,
        twin_s: float = 1.0,
        launch_key: str | None = None,
    ) -> None:
        """Set how long booting, ending and a persistent request's replacement take, in seconds.

        ``launch_key`` is the only access key id that may launch: a launch runs its user data as this user, so on a
        host with other users the port alone must not be enough.
        """
        self.faults = Faults()
        self.writes: list[dict[str, Any]] = []
        """What was written to S3 or removed there, in the order in which it was done."""
        self._machines = machines
        self._boot_s, self._end_s, self._twin_s = boot_s, end_s, twin_s
        self._launch_key = launch_key
        self._tokens: dict[tuple[str, str, str], _Token] = {}
        self._metadata: dict[str, Metadata] = {}
        self._timers: set[threading.Timer] = set()
        self._launching = threading.RLock()
        self._launch = threading.local()
        self._server: BaseWSGIServer | None = None
        self._app: Any = None
        self._loading = threading.Lock()

    # --- the server ---------------------------------------------------------------------------------------------------

    def start(self) -> str:
        """Serve on a free loopback port; return the endpoint URL. moto is loaded by the first request, or preload."""
        self._server = make_server("127.0.0.1", 0, self, threaded=True, request_handler=Handler)
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="aws", daemon=True
        ).start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def preload(self) -> None:
        """Load moto in the background."""
        threading.Thread(target=self._backends, args=("ec2",), name="aws-load", daemon=True).start()

    def stop(self) -> None:
        """Stop serving; machines are the business of their owner."""
        self._cancel_timers()
        for metadata in list(self._metadata.values()):
            metadata.stop()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _moto(self) -> Any:
        with self._loading:
            if self._app is None:
                from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

                from provisioner.sandbox import fidelity

                fidelity.install(self)
                self._app = DomainDispatcherApplication(create_backend_app)
            return self._app

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        self._moto()
        call, params, key = wire.read(environ)
        fault = self.faults.hit(call)
        if fault is not None and not fault.asynchronous:
            time.sleep(fault.delay)
        if call.action in LAUNCHES:
            with self._launching:
                answer = self._answer_launch(environ, call, params, key, fault)
        elif fault is not None and fault.code is not None:
            answer = wire.refusal(call, *fault.words(call))
        else:
            answer = self._run(environ)
            self._note_write(call, answer)
        return wire.lose(environ) if fault is not None and fault.lost else wire.send(start_response, answer)

    def _answer_launch(
        self, environ: Environ, call: Call, params: dict[str, str], key: str, fault: Fault | None
    ) -> Answer:
        if self._launch_key is not None and key != self._launch_key:
            return wire.refusal(call, 401, "AuthFailure", "this access key may not launch in this sandbox")
        refused = fault if fault is not None and fault.code is not None and not fault.asynchronous else None
        if refused is not None and refused.code in _UNBOUND:
            return self._refuse(call, *refused.words(call))
        token = self._token(call, params)
        code = self._token_refusal(params, token)
        if code is not None:
            return self._refuse(call, HTTPStatus.BAD_REQUEST, code, message(code, call))
        if token is not None and token.answer is not None:
            self.faults.note(call, f"again {' '.join(token.instance_ids)}")
            return token.answer
        if refused is not None:
            return self._refuse(call, *refused.words(call))
        self._launch.ids, self._launch.fault = [], fault
        answer = self._run(environ)
        ids = tuple(self._launch.ids)
        self.faults.note(call, " ".join(ids) or answer[0])
        if token is not None and ids:
            token.instance_ids, token.answer = ids, answer
        return answer

    def _note_write(self, call: Call, answer: Answer) -> None:
        if call.service == "s3" and call.action in {"PUT", "POST", "DELETE"} and answer[0].startswith("2"):
            self.writes.append({"time": time.time(), "method": call.action, "path": call.path})

    def _refuse(self, call: Call, status: int, code: str, text: str) -> Answer:
        self.faults.note(call, code)
        return wire.refusal(call, status, code, text)

    def _run(self, environ: Environ) -> Answer:
        """Let moto do the work, whole, before a byte is sent."""
        got: list[Any] = []
        body = b"".join(self._moto()(environ, lambda status, headers, *_: got.extend((status, headers))))
        return got[0], got[1], body

    # --- client tokens ------------------------------------------------------------------------------------------------

    def _token(self, call: Call, params: dict[str, str]) -> _Token | None:
        """Return what the request's token stands for, bound now if it is new."""
        if call.action != "RunInstances" or not call.token:
            return None
        return self._tokens.setdefault(wire.scope(call), _Token(wire.digest(params)))

    def _token_refusal(self, params: dict[str, str], token: _Token | None) -> str | None:
        if token is None:
            return None
        if token.digest != wire.digest(params):
            return "IdempotentParameterMismatch"
        from provisioner.sandbox.fidelity import TERMINATED

        instances = [self.instance(instance_id) for instance_id in token.instance_ids]
        if instances and all(instance is None or instance.state_code == TERMINATED for instance in instances):
            return "IdempotentInstanceTerminated"
        return None

    # --- what happens to instances (fidelity.Observer) ----------------------------------------------------------------

    def launched(self, instance: Any) -> None:
        """Boot the instance after a while; or let it die, where a rule says that capacity ran out behind the answer."""
        getattr(self._launch, "ids", []).append(instance.id)
        fault: Fault | None = getattr(self._launch, "fault", None)
        if fault is not None and fault.asynchronous:
            code = fault.code or "Server.InsufficientInstanceCapacity"
            text = fault.message or f"{code}: Insufficient capacity to satisfy instance request"
            self._later(fault.delay or self._boot_s / 2, lambda: self.end(instance.id, code, text))
        else:
            self._later(self._boot_s, lambda: self._boot(instance, first=True))

    def started(self, instance: Any) -> None:
        """Boot a stopped instance with the disk it had."""
        from provisioner.sandbox import fidelity

        fidelity.set_state(instance, fidelity.PENDING)
        self._later(self._boot_s, lambda: self._boot(instance, first=False))

    def stopped(self, instance: Any) -> None:
        """Switch the machine off; instance and volumes stay."""
        self._switch_off(instance.id)

    def rebooted(self, instance: Any) -> None:
        """Press the machine's reset button."""
        if self._machines.alive(instance.id):
            self._machines.reboot(instance.id)

    def ended(self, instance: Any) -> None:
        """Kill the machine, then call the instance terminated; a persistent spot request gets a new one."""
        self._later(0, lambda: self._finish(instance))

    def _finish(self, instance: Any) -> None:
        from provisioner.sandbox import fidelity

        self._switch_off(instance.id)
        request = self._spot_request(instance)
        if request is not None and request.state == "active":
            request._status_code = "instance-terminated-by-user"  # noqa: SLF001 - moto has no setter
            request.state = "closed" if request.type == "one-time" else "open"
            if request.state == "open":
                self._later(self._twin_s, lambda: self._twin(instance, request))
        self._later(self._end_s, lambda: fidelity.set_state(instance, fidelity.TERMINATED))

    def _twin(self, instance: Any, request: Any) -> None:
        """Fulfil a persistent request again: the same machine, without the tags of the first."""
        if request.state != "open":
            return
        reservation = instance.ec2_backend.run_instances(
            instance.image_id,
            1,
            instance.user_data,
            [],
            instance_type=instance.instance_type,
            is_instance_type_default=False,
            subnet_id=instance.subnet_id,
            region_name=instance.region_name,
            security_group_ids=[group.id for group in instance.security_groups],
            instance_initiated_shutdown_behavior=instance.instance_initiated_shutdown_behavior,
            lifecycle="spot",
        )
        twin = reservation.instances[0]
        twin.spot_instance_request_id = request.id
        request.instance, request.state, request._status_code = twin, "active", "fulfilled"  # noqa: SLF001

    def _boot(self, instance: Any, *, first: bool) -> None:
        from provisioner.sandbox import fidelity

        if instance.state_code != fidelity.PENDING:
            return
        text = view.script(instance.user_data) if first else None
        metadata = Metadata(view.facts(instance, text or ""))
        self._metadata[instance.id] = metadata
        env = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata.url}
        fidelity.set_state(instance, fidelity.RUNNING)
        self._machines.start(instance.id, text, env, self._guest_off)

    def _guest_off(self, instance_id: str) -> None:
        """Do what the launch attribute says when the guest has switched itself off."""
        from provisioner.sandbox import fidelity

        instance = self.instance(instance_id)
        if instance is None:
            return
        code, text = "Client.InstanceInitiatedShutdown", "Client.InstanceInitiatedShutdown: Instance initiated shutdown"
        if instance.instance_initiated_shutdown_behavior == "terminate":
            self.end(instance_id, code, text)
        elif instance.state_code == fidelity.RUNNING:
            instance.stop()
            fidelity.set_reason(instance, code, text)

    def _switch_off(self, instance_id: str) -> None:
        self._machines.kill(instance_id)
        metadata = self._metadata.pop(instance_id, None)
        if metadata is not None:
            metadata.stop()

    # --- controls -----------------------------------------------------------------------------------------------------

    def end(self, instance_id: str, code: str, text: str) -> None:
        """Terminate an instance for a reason of AWS's own."""
        from provisioner.sandbox import fidelity

        instance = self.instance(instance_id)
        if instance is not None and instance.state_code not in (fidelity.SHUTTING_DOWN, fidelity.TERMINATED):
            instance.terminate()
            fidelity.set_reason(instance, code, text)

    def take(self, instance_id: str) -> None:
        """Take a machine away without a word: spot capacity reclaimed, or a host that died."""
        instance = self._known(instance_id)
        self._switch_off(instance_id)
        if instance.lifecycle == "spot":
            self.end(
                instance_id,
                "Server.SpotInstanceTermination",
                "Server.SpotInstanceTermination: Spot instance termination",
            )
        else:
            self.end(instance_id, "Server.ScheduledStop", "Server.ScheduledStop: Stopped due to a scheduled retirement")

    def interrupt(self, instance_id: str, notice_s: float = 120.0) -> None:
        """Give the spot notice, and take the machine away ``notice_s`` seconds later."""
        self._known(instance_id)
        metadata = self._metadata.get(instance_id)
        if metadata is not None:
            metadata.interrupt(notice_s)
        self._later(notice_s, lambda: self.take(instance_id))

    def metadata(self, instance_id: str) -> Metadata | None:
        """Return the metadata endpoint of a running machine."""
        return self._metadata.get(instance_id)

    def instance(self, instance_id: str) -> Any:
        """Return moto's instance, or None."""
        return next((found for found in self.instances() if found.id == instance_id), None)

    def instances(self) -> list[Any]:
        """Return the instances of every region, ended ones too, oldest first."""
        found = [i for backend in self._backends("ec2") for i in backend.all_instances()]
        return sorted(found, key=lambda instance: instance.launch_time)

    def _known(self, instance_id: str) -> Any:
        instance = self.instance(instance_id)
        if instance is None:
            raise KeyError(instance_id)
        return instance

    def _spot_request(self, instance: Any) -> Any:
        key = getattr(instance, "spot_instance_request_id", None)
        return instance.ec2_backend.spot_instance_requests.get(key)

    def _backends(self, service: str) -> list[Any]:
        self._moto()
        from moto import backends

        return list(backends.get_backend(service)[ACCOUNT].values())

    def object(self, suffix: str) -> list[tuple[str, bytes]]:
        """Return key and content of every S3 object whose key matches the regular expression ``suffix`` at its end."""
        pattern = re.compile(f"(?:.*/)?{suffix}$")
        return [
            (key.name, key.value)
            for backend in self._backends("s3")
            for bucket in list(backend.buckets.values())
            for key in list(bucket.keys.values())
            if pattern.match(key.name)
        ]

    def state(self) -> dict[str, Any]:
        """Return what the account holds, in JSON values."""
        ec2 = self._backends("ec2")
        iam = self._backends("iam")
        return {
            "instances": [view.instance_state(instance, self._machines) for instance in self.instances()],
            "spot_requests": [
                {"id": r.id, "state": r.state, "type": r.type, "instance": r.instance_id, "tags": view.tags(r)}
                for backend in ec2
                for r in list(backend.spot_instance_requests.values())
            ],
            "volumes": [
                {"id": v.id, "state": v.status, "size_gb": v.size, "tags": view.tags(v)}
                for backend in ec2
                for v in list(backend.volumes.values())
            ],
            "templates": [t.name for backend in ec2 for t in list(backend.launch_templates.values())],
            "security_groups": sorted(
                group.name
                for b in ec2
                for vpc in list(b.groups.values())
                for group in list(vpc.values())
                if group.name != "default"
            ),
            "roles": [role.name for backend in iam for role in list(backend.roles.values())],
            "instance_profiles": [profile.name for b in iam for profile in list(b.instance_profiles.values())],
            "buckets": [name for backend in self._backends("s3") for name in list(backend.buckets)],
        }

    def reset(self) -> None:
        """Forget everything: faults, tokens, instances, objects. Machines of instances are killed."""
        self._cancel_timers()
        for instance in self.instances():
            self._switch_off(instance.id)
        self._tokens.clear()
        self.faults.clear()
        self.writes.clear()
        self.set_quotas({})
        from moto.moto_api._internal.models import moto_api_backend

        moto_api_backend.reset()

    def set_quotas(self, vcpus: Mapping[str, float]) -> None:
        """Set the account's vCPU quotas by code, in every region. They are told, not enforced: that is for the rules.

        Without one, Service Quotas does not know it.
        """
        self._moto()
        from provisioner.sandbox import fidelity

        fidelity.quotas.clear()
        fidelity.quotas.update(vcpus)

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        def run() -> None:
            self._timers.discard(timer)
            action()

        timer = threading.Timer(delay_s, run)
        timer.daemon = True
        self._timers.add(timer)
        timer.start()

    def _cancel_timers(self) -> None:
        for timer in list(self._timers):
            timer.cancel()
        self._timers.clear()
