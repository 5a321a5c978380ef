"""The machines of the sandbox's Google Cloud: accepted, refused later, booted, preempted, ended."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

from provisioner.sandbox.gce import places, requests
from provisioner.sandbox.gce.facts import ahead_s, attributes, call_of, deletes, facts, machine_id, needs
from provisioner.sandbox.gce.faults import Call, GceFault, GceFaults, Refused, failed, quota_details
from provisioner.sandbox.gce.metadata import GceMetadata
from provisioner.sandbox.gce.world import Operation, Resource, World, last, now
from provisioner.sandbox.machines import Machines

NOTICE_S = 30.0
"""What Google gives from the notice to the end of a preempted machine, in seconds."""
_UNDER_WAY = ("PROVISIONING", "STAGING")
_OFF = ("TERMINATED", "STOPPED")


class Instances:
    """Instances and their disks. Public methods may be called from any thread."""

    def __init__(
        self,
        world: World,
        machines: Machines,
        faults: GceFaults,
        *,
        accounts: Callable[[], set[str]],
        boot_s: float,
        end_s: float,
        refuse_s: float,
        held_s: float,
    ) -> None:
        """Set how long booting and ending take, an insert that is refused later, and how long its name stays taken."""
        self._world, self._machines, self._faults = world, machines, faults
        self._accounts = accounts
        self._boot_s, self._end_s, self._refuse_s, self._held_s = boot_s, end_s, refuse_s, held_s
        self._metadata: dict[str, GceMetadata] = {}
        self._inserts: dict[str, Operation] = {}
        self._preempted: set[str] = set()
        self._held: set[tuple[str, str]] = set()
        self._timers: set[threading.Timer] = set()

    # --- requests; the caller holds the world's lock ------------------------------------------------------------------

    def insert(self, call: Call, body: Resource, fault: GceFault | None) -> Operation:
        """Accept a machine. Whether it can be had is told by the operation, later. Raises Refused."""
        requests.check(self._world, call, body, self._accounts())
        scope = f"zones/{call.zone}"
        path = self._world.path(scope, "instances", call.name)
        if (call.zone, call.name) in self._held or self._world.find(scope, "instances", call.name) is not None:
            raise Refused("alreadyExists", f"The resource '{path}' already exists")
        delay = fault.delay if fault is not None and fault.delay is not None else None
        failure = (fault.failure(call) if fault is not None else None) or self._over_quota(call)
        if failure is not None:
            operation = self._world.begin(scope, "insert", path)
            self._held.add((call.zone, call.name))
            self._faults.note(call, " ".join(error["code"] for error in failure["error"]["errors"]))
            self._later(self._refuse_s if delay is None else delay, lambda: self._fail(call, operation, failure))
            return operation
        made = self._make(call, copy.deepcopy(body))
        operation = self._world.begin(scope, "insert", path, made["id"])
        self._inserts[made["id"]] = operation
        self._faults.note(call, machine_id(made))
        self._later(self._boot_s / 2, lambda: self._stage(made))
        self._later(self._boot_s + (delay or 0.0), lambda: self._boot(made, operation))
        return operation

    def delete(self, zone: str, name: str) -> Operation:
        """End a machine and what goes with it. Raises Refused (404)."""
        instance = self._world.get(f"zones/{zone}", "instances", name)
        if instance["deletionProtection"]:
            path = self._world.path(f"zones/{zone}", "instances", name)
            why = f"Resource '{path}' cannot be deleted. It has deletionProtection enabled."
            raise Refused("resourceInUseByAnotherResource", f"Invalid value for field 'resource.name': '{name}'. {why}")
        operation = self._begin("delete", instance)
        self._go(instance, delete=True, operation=operation)
        return operation

    def stop(self, instance: Resource) -> Operation:
        """Shut a machine down; it stays, with its disk."""
        operation = self._begin("stop", instance)
        self._go(instance, delete=False, operation=operation)
        return operation

    def start(self, instance: Resource) -> Operation:
        """Boot a stopped machine again."""
        if instance["status"] not in _OFF:
            return self._world.finish(self._begin("start", instance))
        instance["status"] = "STAGING"
        operation = self._begin("start", instance)
        self._later(self._boot_s, lambda: self._boot(instance, operation))
        return operation

    def reset_button(self, instance: Resource) -> Operation:
        """Restart a machine in place."""
        self._machines.reboot(machine_id(instance))
        return self._world.finish(self._begin("reset", instance))

    # --- a machine's life ---------------------------------------------------------------------------------------------

    def _make(self, call: Call, body: Resource) -> Resource:
        scope = f"zones/{call.zone}"
        wanted = body.pop("disks")
        number = sum(1 for _ in self._world.everywhere("instances")) + len(self._faults.log())
        draft = requests.instance(self._world, call, body, number)
        draft["disks"] = []
        for index, one in enumerate(wanted):
            if one.get("source"):
                draft["disks"].append({**one, "index": index, "source": self._world.link(one["source"])})
                continue
            disk, attached = requests.disk(self._world, call, one, index)
            self._world.add(scope, "disks", disk)
            draft["disks"].append(attached)
        return self._world.add(scope, "instances", draft)

    def _fail(self, call: Call, operation: Operation, failure: dict[str, Any]) -> None:
        with self._world.lock:
            self._world.finish(operation, failure)
            self._later(self._held_s, lambda: self._held.discard((call.zone, call.name)))

    def _stage(self, instance: Resource) -> None:
        with self._world.lock:
            if instance["status"] == "PROVISIONING":
                instance["status"] = "STAGING"

    def _boot(self, instance: Resource, operation: Operation) -> None:
        with self._world.lock:
            if instance["status"] not in _UNDER_WAY:
                return
            self._inserts.pop(instance["id"], None)
            machine = machine_id(instance)
            metadata = GceMetadata(facts(instance, self._world.project), token=lambda: f"ya29.{instance['id']}")
            self._metadata[machine] = metadata
            instance.update(status="RUNNING", lastStartTimestamp=now())
            env = {"GCE_METADATA_HOST": metadata.host}
            script = attributes(instance).get("startup-script")
            self._machines.start(machine, script, env, self._guest_off, rerun_on_reboot=True)
            span = (instance["scheduling"].get("maxRunDuration") or {}).get("seconds")
            if span is not None:
                started = instance["lastStartTimestamp"]
                self._later(float(span), lambda: self._time_is_up(instance, started))
            self._world.finish(operation)

    def _time_is_up(self, instance: Resource, started: str) -> None:
        """End a machine at the end of its longest run."""
        with self._world.lock:
            if instance["lastStartTimestamp"] == started and instance["status"] == "RUNNING":
                self._event("compute.instances.scheduledTermination", instance)
                self._go(instance, delete=deletes(instance))

    def _guest_off(self, machine: str) -> None:
        """The guest has switched itself off, of itself or since it was asked to."""
        with self._world.lock:
            instance = self.instance(machine)
            if instance is None or instance["status"] not in ("RUNNING", "STOPPING"):
                return
            if machine in self._preempted:
                self._go(instance, delete=deletes(instance))
            elif instance["status"] == "RUNNING":
                self._event("compute.instances.guestTerminate", instance)
                self._go(instance, delete=False)

    def _go(self, instance: Resource, *, delete: bool, operation: Operation | None = None) -> None:
        """Switch a machine off, and after a while let it be TERMINATED or gone."""
        pending = self._inserts.pop(instance["id"], None)
        if pending is not None:  # as seen in piercefreeman/cloud-gpu-reliability#5
            text = f"The instance '{instance['name']}' was deleted while it was being created."
            self._world.finish(pending, failed([{"code": "OPERATION_CANCELED_BY_USER", "message": text}]))
        if instance["status"] not in _OFF:
            instance["status"] = "STOPPING"
        threading.Thread(target=self._switch_off, args=(machine_id(instance),), daemon=True).start()
        self._later(self._end_s, lambda: self._gone(instance, delete=delete, operation=operation))

    def _gone(self, instance: Resource, *, delete: bool, operation: Operation | None) -> None:
        self._switch_off(machine_id(instance))
        zone = last(instance["zone"])
        with self._world.lock:
            instance.update(status="TERMINATED", lastStopTimestamp=now())
            self._preempted.discard(machine_id(instance))
            if delete and self._world.find(f"zones/{zone}", "instances", instance["name"]) is instance:
                self._world.remove(f"zones/{zone}", "instances", instance["name"])
                self._free_disks(zone, instance)
            if operation is not None:
                self._world.finish(operation)

    def _free_disks(self, zone: str, instance: Resource) -> None:
        for attached in instance["disks"]:
            name = last(attached["source"])
            if attached.get("autoDelete"):
                self._world.remove(f"zones/{zone}", "disks", name)
            elif (disk := self._world.find(f"zones/{zone}", "disks", name)) is not None:
                disk["users"] = []

    def _switch_off(self, machine: str) -> None:
        self._machines.kill(machine)
        metadata = self._metadata.pop(machine, None)
        if metadata is not None:
            metadata.stop()

    # --- controls -----------------------------------------------------------------------------------------------------

    def take(self, machine: str) -> None:
        """Take a machine away without a word: spot capacity reclaimed, or a host that died. Raises KeyError."""
        with self._world.lock:
            instance = self._known(machine)
            spot = instance["scheduling"]["provisioningModel"] == "SPOT"
            self._event("compute.instances.preempted" if spot else "compute.instances.hostError", instance)
            self._go(instance, delete=spot and deletes(instance))

    def interrupt(self, machine: str, notice_s: float = NOTICE_S) -> None:
        """Preempt: the metadata say so and the power button is pressed; the plug is pulled after ``notice_s``.

        A machine that was asked for with a notice ahead of that runs on for so long before its button is pressed.
        """
        with self._world.lock:
            instance = self._known(machine)
            if instance["status"] != "RUNNING":
                self.take(machine)
                return
            metadata = self._metadata.get(machine)
            if metadata is not None:
                metadata.preempt()
            self._event("compute.instances.preempted", instance)
            self._preempted.add(machine)
            if ahead := ahead_s(instance):
                self._later(ahead, lambda: self._press(machine, notice_s))
            else:
                self._press(machine, notice_s)

    def _press(self, machine: str, notice_s: float) -> None:
        """Press the power button of a machine that is preempted, if it is still there."""
        with self._world.lock:
            instance = self.instance(machine)
            if instance is None or machine not in self._preempted or instance["status"] != "RUNNING":
                return
            instance["status"] = "STOPPING"
            self._machines.halt(machine)
            self._later(notice_s, lambda: self._guest_off(machine))

    def metadata(self, machine: str) -> GceMetadata | None:
        """Return the metadata server of a running machine."""
        return self._metadata.get(machine)

    def instance(self, machine: str) -> Resource | None:
        """Return the instance of a machine, or None."""
        found = (one for _, one in self._world.everywhere("instances") if machine_id(one) == machine)
        return next(found, None)

    def clear(self) -> None:
        """Forget every timer and switch every machine off."""
        for timer in list(self._timers):
            timer.cancel()
        self._timers.clear()
        for machine in list(self._metadata):
            self._switch_off(machine)
        self._held.clear()
        self._inserts.clear()
        self._preempted.clear()

    def usage(self, region: str, metric: str) -> float:
        """Return how much of a quota is used; an empty region is the whole project."""
        total = 0.0
        for scope, instance in self._world.everywhere("instances"):
            zone = last(scope)
            if instance["status"] in _OFF or (region and places.region_of(zone) != region):
                continue
            total += needs(call_of(instance, self._world.project)).get(metric, 0.0)
        return total

    def _over_quota(self, call: Call) -> dict[str, Any] | None:
        errors = []
        for metric, amount in needs(call).items():
            region = "" if metric.endswith("_ALL_REGIONS") else call.region
            limit = self._world.quotas.get((region, metric))
            if limit is None or self.usage(region, metric) + amount <= limit:
                continue
            where = f"in region {region}" if region else "globally"
            text = f"Quota '{metric}' exceeded.  Limit: {limit} {where}."
            details = [quota_details(metric, call.region, limit)]
            errors.append({"code": "QUOTA_EXCEEDED", "message": text, "errorDetails": details})
        return failed(errors) if errors else None

    def _known(self, machine: str) -> Resource:
        instance = self.instance(machine)
        if instance is None:
            raise KeyError(machine)
        return instance

    def _begin(self, kind: str, instance: Resource) -> Operation:
        scope = f"zones/{last(instance['zone'])}"
        return self._world.begin(scope, kind, self._world.path(scope, "instances", instance["name"]), instance["id"])

    def _event(self, kind: str, instance: Resource) -> None:
        """Write down what Google did to a machine: it stands among the operations of the zone."""
        operation = self._begin(kind, instance)
        operation.content.update(user="system", statusMessage=f"Instance was ended: {kind.rpartition('.')[2]}.")
        self._world.finish(operation)

    def _later(self, delay_s: float, action: Callable[[], Any]) -> None:
        def run() -> None:
            self._timers.discard(timer)
            action()

        timer = threading.Timer(delay_s, run)
        timer.daemon = True
        self._timers.add(timer)
        timer.start()
