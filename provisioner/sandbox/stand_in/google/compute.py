"""Machines."""

from __future__ import annotations

import uuid
from typing import Any

from provisioner.sandbox.stand_in import Refused, State
from provisioner.sandbox.stand_in.google.rest import Missing, Rest, given, last, one, only_given


class Compute(Rest):
    """Create, read and delete machines."""

    def _create_compute_instance(self, state: State) -> None:
        path = f"projects/{state['project']}/zones/{state['zone']}/instances"
        try:
            operation = self._call("compute", "POST", path, _body(state), requestId=str(uuid.uuid4()))
        except Refused as error:
            message = f"Error creating instance: {error}"
            raise Refused(message) from error
        self._done("instance to create", path, operation)
        state["id"] = f"{path}/{state['name']}"
        state.update(self._read_compute_instance(state))

    def _read_compute_instance(self, state: State) -> State:
        found = self._compute("GET", state["id"])
        _, project, _, zone, _, name = state["id"].split("/")
        service_accounts = [
            {"email": each.get("email"), "scopes": each.get("scopes") or []}
            for each in found.get("serviceAccounts") or ()
        ]
        return state | {
            "project": project,
            "zone": zone,
            "name": name,
            "machine_type": last(found.get("machineType")),
            "instance_id": str(found.get("id", "")),
            "self_link": found.get("selfLink"),
            "current_status": found.get("status"),
            "cpu_platform": found.get("cpuPlatform"),
            "creation_timestamp": found.get("creationTimestamp"),
            "labels": found.get("labels") or None,
            "tags": (found.get("tags") or {}).get("items") or None,
            "metadata": {item["key"]: item["value"] for item in (found.get("metadata") or {}).get("items") or ()},
            "boot_disk": state.get("boot_disk") or _boot_disk(found),
            "network_interface": [_interface(each) for each in found.get("networkInterfaces") or ()],
            "guest_accelerator": [
                {"type": last(each.get("acceleratorType")), "count": each.get("acceleratorCount", 0)}
                for each in found.get("guestAccelerators") or ()
            ],
            "scheduling": [_scheduling(found.get("scheduling") or {})],
            "service_account": service_accounts,
        }

    def _delete_compute_instance(self, state: State) -> None:
        try:
            operation = self._compute("DELETE", state["id"])
        except Missing:
            return
        except Refused as error:
            message = f"Error deleting instance: {error}"
            raise Refused(message) from error
        self._done("instance to delete", state["id"], operation)

    def _data_compute_instance(self, config: State) -> None:
        path = f"projects/{config['project']}/zones/{config['zone']}/instances/{config['name']}"
        try:
            found = self._compute("GET", path)
        except Missing as error:
            message = f"{path} not found"
            raise Refused(message) from error
        config.update(
            id=path,
            self_link=found.get("selfLink"),
            instance_id=str(found.get("id", "")),
            current_status=found.get("status"),
            machine_type=last(found.get("machineType")),
        )


def _body(state: State) -> State:
    """Return a machine as ``instances.insert`` takes it."""
    zone = f"zones/{state['zone']}"
    scheduling, shielded = one(state["scheduling"]), one(state["shielded_instance_config"])
    run = one(scheduling.get("max_run_duration"))
    return only_given(
        {
            "name": state["name"],
            "machineType": f"{zone}/machineTypes/{state['machine_type']}",
            "labels": state["labels"],
            "tags": {"items": state["tags"]} if given(state["tags"]) else None,
            "metadata": {"items": [{"key": key, "value": value} for key, value in (state["metadata"] or {}).items()]},
            "disks": [_disk(one(state["boot_disk"]), zone)],
            "networkInterfaces": [
                only_given(
                    {
                        "network": each["network"],
                        "subnetwork": each["subnetwork"],
                        "accessConfigs": [{"type": "ONE_TO_ONE_NAT"} for _ in each["access_config"]],
                    }
                )
                for each in state["network_interface"]
            ],
            "guestAccelerators": [
                {"acceleratorType": f"{zone}/acceleratorTypes/{each['type']}", "acceleratorCount": int(each["count"])}
                for each in state["guest_accelerator"]
            ],
            "serviceAccounts": [
                only_given({"email": each["email"], "scopes": [_scope(scope) for scope in each["scopes"]]})
                for each in state["service_account"]
            ],
            "scheduling": only_given(
                {
                    "provisioningModel": scheduling.get("provisioning_model"),
                    "preemptible": scheduling.get("preemptible"),
                    "automaticRestart": scheduling.get("automatic_restart"),
                    "onHostMaintenance": scheduling.get("on_host_maintenance"),
                    "instanceTerminationAction": scheduling.get("instance_termination_action"),
                    "maxRunDuration": {"seconds": str(int(run["seconds"]))} if run else None,
                }
            ),
            "shieldedInstanceConfig": {
                "enableSecureBoot": bool(shielded.get("enable_secure_boot")),
                "enableVtpm": bool(shielded.get("enable_vtpm")),
                "enableIntegrityMonitoring": bool(shielded.get("enable_integrity_monitoring")),
            },
        }
    )


def _scope(name: str) -> str:
    return name if "/" in name else f"https://www.googleapis.com/auth/{name}"


def _disk(disk: State, zone: str) -> State:
    wanted = one(disk.get("initialize_params"))
    return {
        "boot": True,
        "autoDelete": disk.get("auto_delete") is not False,
        "initializeParams": only_given(
            {
                "sourceImage": wanted.get("image"),
                "diskSizeGb": str(int(wanted["size"])) if given(wanted.get("size")) else None,
                "diskType": f"{zone}/diskTypes/{wanted['type']}" if given(wanted.get("type")) else None,
                "labels": wanted.get("labels"),
            }
        ),
    }


def _boot_disk(found: Any) -> list[State]:
    """Return an imported machine's disk: what the machine itself says of it."""
    disk: Any = next((each for each in found.get("disks") or () if each.get("boot")), {})
    return [{"auto_delete": disk.get("autoDelete", True), "initialize_params": []}]


def _interface(found: Any) -> State:
    return {
        "network": found.get("network"),
        "subnetwork": found.get("subnetwork"),
        "network_ip": found.get("networkIP"),
        "access_config": [
            {"nat_ip": each.get("natIP"), "network_tier": each.get("networkTier")}
            for each in found.get("accessConfigs") or ()
        ],
    }


def _scheduling(found: Any) -> State:
    run = found.get("maxRunDuration") or {}
    return {
        "provisioning_model": found.get("provisioningModel"),
        "preemptible": found.get("preemptible", False),
        "automatic_restart": found.get("automaticRestart", False),
        "on_host_maintenance": found.get("onHostMaintenance"),
        "instance_termination_action": found.get("instanceTerminationAction"),
        "max_run_duration": [{"seconds": int(run["seconds"])}] if run.get("seconds") else [],
    }
