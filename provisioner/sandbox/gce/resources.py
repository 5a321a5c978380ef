"""What the sandbox's Compute Engine answers for everything that is no machine: places, networks, disks, images."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from provisioner.sandbox.gce import places, requests
from provisioner.sandbox.gce.faults import Refused
from provisioner.sandbox.gce.world import (
    PROJECT_NUMBER,
    SETTLE_S,
    Operation,
    Resource,
    World,
    fingerprint,
    last,
)

_KINDS: Mapping[str, tuple[str, ...]] = {
    "networks": ("global",),
    "firewalls": ("global",),
    "subnetworks": ("regions",),
    "disks": ("zones",),
}
"""What can be made, and in which scopes."""


class Resources:
    """Answers for one world. The caller holds its lock. ``usage`` tells how much of a quota is used."""

    def __init__(self, world: World, usage: Callable[[str, str], float]) -> None:
        """Read from, and write to, a world."""
        self._world = world
        self._usage = usage

    # --- places -------------------------------------------------------------------------------------------------------

    def project(self) -> Resource:
        """Return the project with its quotas."""
        return {
            "kind": "compute#project",
            "id": PROJECT_NUMBER,
            "name": self._world.project,
            "defaultServiceAccount": requests.default_account(),
            "commonInstanceMetadata": {"kind": "compute#metadata", "fingerprint": fingerprint({})},
            "quotas": self._quotas(""),
            "selfLink": self._world.link(f"projects/{self._world.project}"),
        }

    def _quotas(self, region: str) -> list[Resource]:
        return [self._world.quota(region, one, self._usage(region, one)) for one in self._world.limits(region)]

    def region(self, name: str) -> Resource:
        """Return a region with its quotas. Raises Refused (404)."""
        if name not in places.REGIONS:
            raise Refused("notFound", f"The resource 'projects/{self._world.project}/regions/{name}' was not found")
        path = f"projects/{self._world.project}"
        return {
            "kind": "compute#region",
            "id": str(1000 + 10 * list(places.REGIONS).index(name)),
            "name": name,
            "description": name,
            "status": "UP",
            "zones": [self._world.link(f"{path}/zones/{zone}") for zone in places.zones(name)],
            "quotas": self._quotas(name),
            "selfLink": self._world.link(f"{path}/regions/{name}"),
        }

    def zone(self, name: str) -> Resource:
        """Return a zone. Raises Refused (404)."""
        if name not in places.all_zones():
            raise Refused("notFound", f"The resource 'projects/{self._world.project}/zones/{name}' was not found")
        path = f"projects/{self._world.project}"
        return {
            "kind": "compute#zone",
            "id": str(2000 + places.all_zones().index(name)),
            "name": name,
            "description": name,
            "status": "UP",
            "region": self._world.link(f"{path}/regions/{places.region_of(name)}"),
            "availableCpuPlatforms": ["Intel Cascade Lake", "Intel Skylake"],
            "selfLink": self._world.link(f"{path}/zones/{name}"),
        }

    def scenery(self, scope: str, collection: str) -> list[Resource] | None:
        """Return the machine, accelerator or disk types of a zone; None for other collections."""
        zone = last(scope)
        if collection == "machineTypes":
            return [self._machine_type(zone, one) for one in places.machine_types_in(zone)]
        if collection == "acceleratorTypes":
            return [
                self._fixed(zone, collection, card, {"maximumCardsPerInstance": 8}) for card in places.cards_in(zone)
            ]
        if collection == "diskTypes":
            names = ("pd-standard", "pd-balanced", "pd-ssd")
            return [self._fixed(zone, collection, name, {"validDiskSize": "10GB-65536GB"}) for name in names]
        return None

    def _machine_type(self, zone: str, one: places.MachineType) -> Resource:
        content: Resource = {"guestCpus": one.cpus, "memoryMb": one.memory, "isSharedCpu": one.cpus < 1}
        content["maximumPersistentDisks"] = 128
        if one.card:
            content["accelerators"] = [{"guestAcceleratorType": one.card, "guestAcceleratorCount": one.count}]
        content["zone"] = zone  # the only one whose zone is no link
        return self._fixed(zone, "machineTypes", one.name, content)

    def _fixed(self, zone: str, collection: str, name: str, content: Resource) -> Resource:
        path = self._world.path(f"zones/{zone}", collection, name)
        return {
            "kind": f"compute#{collection.removesuffix('s')}",
            "id": str(int.from_bytes(name.encode()[-7:], "big")),
            "name": name,
            "description": name,
            "zone": self._world.link(f"projects/{self._world.project}/zones/{zone}"),
            "selfLink": self._world.link(path),
            **content,
        }

    # --- what can be made ---------------------------------------------------------------------------------------------

    def make(self, scope: str, collection: str, body: Resource) -> Operation:
        """Make a network, a subnetwork, a firewall or a disk. Raises Refused."""
        if scope.partition("/")[0] not in _KINDS.get(collection, ()):
            raise Refused("notFound", f"Method not found: {collection}.insert", 404)
        requests.check_name(str(body.get("name") or ""))
        requests.check_labels(body.get("labels") or {})
        network = body.get("network")
        if collection in ("subnetworks", "firewalls"):
            network = network or "global/networks/default"
            if self._world.at(network) is None:
                raise requests.invalid("resource.network", network, "The referenced network resource cannot be found.")
        made = self._world.add(scope, collection, {**body, **self._defaults(scope, collection, body, network)})
        if made.get("autoCreateSubnetworks"):
            for region in places.REGIONS:
                automatic = {"name": made["name"], "network": made["selfLink"], "ipCidrRange": "10.200.0.0/20"}
                self._world.add(f"regions/{region}", "subnetworks", automatic)
        path = self._world.path(scope, collection, made["name"])
        return self._world.finish(self._world.begin(scope, "insert", path, made["id"]), in_s=SETTLE_S)

    def _defaults(self, scope: str, collection: str, body: Resource, network: str | None) -> Resource:
        if collection == "disks":
            kind = last(body.get("type") or "pd-standard")
            return {
                "status": "READY",
                "users": [],
                "type": self._world.link(self._world.path(scope, "diskTypes", kind)),
            }
        found: Resource = {}
        if network is not None:
            found["network"] = (self._world.at(network) or {})["selfLink"]
        if collection == "networks":
            found = {"autoCreateSubnetworks": bool(body.get("autoCreateSubnetworks")), "mtu": body.get("mtu", 1460)}
            found["routingConfig"] = body.get("routingConfig") or {"routingMode": "REGIONAL"}
        if collection == "subnetworks":
            address = str(body.get("ipCidrRange", "10.0.0.0/24")).partition("/")[0]
            found |= {"gatewayAddress": f"{address.rpartition('.')[0]}.1", "purpose": "PRIVATE"}
            found |= {"privateIpGoogleAccess": bool(body.get("privateIpGoogleAccess")), "stackType": "IPV4_ONLY"}
            found["fingerprint"] = fingerprint(body)
        if collection == "firewalls":
            found |= {"direction": body.get("direction") or "INGRESS", "priority": body.get("priority", 1000)}
            found |= {"disabled": bool(body.get("disabled")), "logConfig": body.get("logConfig") or {"enable": False}}
        return found

    def change(self, scope: str, collection: str, name: str, body: Resource) -> Operation:
        """Change a resource in place. Raises Refused."""
        resource = self._world.get(scope, collection, name)
        kept = ("kind", "id", "name", "selfLink", "creationTimestamp")
        resource.update({key: value for key, value in body.items() if key not in kept})
        path = self._world.path(scope, collection, name)
        return self._world.finish(self._world.begin(scope, "patch", path, resource["id"]), in_s=SETTLE_S)

    def delete(self, scope: str, collection: str, name: str) -> Operation:
        """Remove what nobody uses. Raises Refused."""
        resource = self._world.get(scope, collection, name)
        path = self._world.path(scope, collection, name)
        users = self._world.users(resource["selfLink"])
        automatic = []
        if resource.get("autoCreateSubnetworks"):
            automatic = [one for one in users if one.endswith(f"/subnetworks/{name}")]
            users = [one for one in users if one not in automatic]
        if users:
            kind = collection.removesuffix("s")
            text = f"The {kind} resource '{path}' is already being used by '{users[0]}'"
            raise Refused("resourceInUseByAnotherResource", text)
        for subnetwork in automatic:
            self._world.remove("/".join(subnetwork.split("/")[2:4]), "subnetworks", name)
        self._world.remove(scope, collection, name)
        return self._world.finish(self._world.begin(scope, "delete", path, resource["id"]), in_s=SETTLE_S)

    def label(self, scope: str, collection: str, name: str, body: Resource) -> Operation:
        """Set labels; the fingerprint must be the one that the caller has seen. Raises Refused."""
        resource = self._world.get(scope, collection, name)
        requests.check_labels(body.get("labels") or {}, "labels")
        if body.get("labelFingerprint") != resource.get("labelFingerprint"):
            raise Refused("conditionNotMet", "Labels fingerprint either invalid or resource labels have changed")
        resource["labels"] = body.get("labels") or {}
        resource["labelFingerprint"] = fingerprint(resource["labels"])
        path = self._world.path(scope, collection, name)
        return self._world.finish(self._world.begin(scope, "setLabels", path, resource["id"]), in_s=SETTLE_S)
