"""The sandbox's Compute Engine instances as others see them: as machines, as facts for metadata, as use of quotas."""

from __future__ import annotations

from provisioner.sandbox.gce import places, requests
from provisioner.sandbox.gce.faults import Call
from provisioner.sandbox.gce.metadata import GceFacts
from provisioner.sandbox.gce.world import PROJECT_NUMBER, Resource, last


def machine_id(instance: Resource) -> str:
    """Return the id of an instance's machine in the sandbox."""
    return f"gce-{instance['id']}"


def attributes(instance: Resource) -> dict[str, str]:
    """Return an instance's own metadata."""
    return {item["key"]: item.get("value", "") for item in instance["metadata"].get("items") or ()}


def needs(call: Call) -> dict[str, float]:
    """Return what a machine takes of which quota."""
    shape = places.MACHINE_TYPES[call.machine_type]
    found: dict[str, float] = {places.cpu_metric(shape): shape.cpus, "CPUS_ALL_REGIONS": shape.cpus}
    for card, count in call.accelerators.items():
        found[places.metric_of(card, call.market)] = count
        found["GPUS_ALL_REGIONS"] = found.get("GPUS_ALL_REGIONS", 0.0) + count
    return found


def facts(instance: Resource, project: str) -> GceFacts:
    """Return what the instance's metadata server tells."""
    account: Resource = next(iter(instance.get("serviceAccounts") or ()), {})
    interface = instance["networkInterfaces"][0]
    scheduling = instance["scheduling"]
    email = account.get("email", "")
    return GceFacts(
        instance_id=instance["id"],
        name=instance["name"],
        project=project,
        project_number=PROJECT_NUMBER,
        zone=last(instance["zone"]),
        machine_type=last(instance["machineType"]),
        image=instance["disks"][0].get("source", ""),
        private_ip=interface["networkIP"],
        public_ip=next((config["natIP"] for config in interface.get("accessConfigs") or ()), ""),
        network=last(interface["network"]),
        email=requests.default_account() if email == "default" else email,
        scopes=tuple(account.get("scopes") or ()),
        scheduling={
            "automatic-restart": str(bool(scheduling.get("automaticRestart"))).upper(),
            "on-host-maintenance": scheduling.get("onHostMaintenance", ""),
            "preemptible": str(bool(scheduling.get("preemptible"))).upper(),
        },
        tags=tuple(instance["tags"].get("items") or ()),
        attributes=attributes(instance),
    )


def deletes(instance: Resource) -> bool:
    """Say whether a machine is deleted when it is preempted or its time is up."""
    return bool(instance["scheduling"].get("instanceTerminationAction") == "DELETE")


def ahead_s(instance: Resource) -> float:
    """Return how long a preemption is announced before the power button is pressed, in seconds."""
    return float((instance["scheduling"].get("preemptionNoticeDuration") or {}).get("seconds", 0))


def call_of(instance: Resource, project: str) -> Call:
    """Return what was asked for a machine, as rules and quotas see it."""
    return requests.describe("instances.insert", project, last(instance["zone"]), instance, "")
