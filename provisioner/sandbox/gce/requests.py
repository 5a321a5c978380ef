"""What a request to insert a machine must be, and what Compute Engine makes of it.

The checks are those that a controller can get wrong; their words are Google's as far as they were seen.
"""

from __future__ import annotations

import re
import uuid
from typing import Any

from provisioner.sandbox.gce import places
from provisioner.sandbox.gce.faults import Call, Refused
from provisioner.sandbox.gce.world import PROJECT_NUMBER, Resource, World, fingerprint, last, now

_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9_-]{0,63}")
_IMAGES = re.compile(
    r"projects/(deeplearning-platform-release|ubuntu-os-cloud|debian-cloud|cos-cloud|ml-images)/global/images/"
    r"(family/)?[a-z0-9-]+"
)
_RUN_S = (30, 120 * 24 * 3600)
_NOTICES_S = (0, 120)
_NO_UUID = "00000000-0000-0000-0000-000000000000"


def default_account() -> str:
    """Return the service account that every project has."""
    return f"{PROJECT_NUMBER}-compute@developer.gserviceaccount.com"


def check_request_id(text: str) -> None:
    """Refuse what is no UUID, or the one of zeros only."""
    try:
        fine = str(uuid.UUID(text)) == text.lower() and text != _NO_UUID
    except ValueError:
        fine = False
    if not fine:
        raise Refused("invalid", f"Invalid value for field 'requestId': '{text}'. Must be a valid UUID.")


def describe(method: str, project: str, zone: str, body: Resource, request_id: str) -> Call:
    """Return an insert as the rules see it."""
    scheduling = body.get("scheduling") or {}
    market = "spot" if scheduling.get("provisioningModel") == "SPOT" or scheduling.get("preemptible") else "on-demand"
    name = last(str(body.get("machineType") or ""))
    cards = cards_of(name, body)
    return Call(
        method=method,
        project=project,
        region=places.region_of(zone),
        zone=zone,
        name=str(body.get("name") or ""),
        machine_type=name,
        accelerators=cards,
        market=market,
        metric=places.metric_of(next(iter(cards)), market) if cards else "CPUS",
        request_id=request_id,
    )


def cards_of(machine_type: str, body: Resource) -> dict[str, int]:
    """Return the cards of a machine: its type's own, or those that the request adds."""
    shape = places.MACHINE_TYPES.get(machine_type)
    if shape is not None and shape.card:
        return {shape.card: shape.count}
    added = body.get("guestAccelerators") or ()
    return {last(one.get("acceleratorType", "")): int(one.get("acceleratorCount", 0)) for one in added}


def check(world: World, call: Call, body: Resource, accounts: set[str]) -> None:
    """Refuse a request that could never become a machine."""
    _check_names(call, body)
    _check_shape(world, call, body)
    _check_scheduling(call, body)
    _check_links(world, call, body)
    for account in body.get("serviceAccounts") or ():
        if account.get("email", "default") not in {*accounts, default_account(), "default"}:
            path = f"projects/{call.project}/serviceAccounts/{account['email']}"
            raise Refused("notFound", f"The resource '{path}' of type 'serviceAccount' was not found.", 404)


def invalid(field: str, value: Any, why: str) -> Refused:
    """Return a refusal of a field's value."""
    return Refused("invalid", f"Invalid value for field '{field}': '{value}'. {why}")


def check_labels(labels: Any, where: str = "resource.labels") -> None:
    """Refuse labels that Google does not take: lower case, digits, ``_`` and ``-``, at most 64 of them."""
    if not isinstance(labels, dict) or len(labels) > 64:
        raise invalid(where, "", "Labels must be a map with at most 64 entries.")
    for key, value in labels.items():
        if not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", key):
            raise invalid(where, "", f"Label key '{key}' violates format constraints.")
        if not _LABEL.fullmatch(str(value)):
            raise invalid(
                where,
                "",
                f"Label value '{value}' violates format constraints. The value can only contain lowercase letters, "
                "numeric characters, underscores and dashes. The value can be at most 63 characters long.",
            )


def check_name(name: str) -> None:
    """Refuse a name that is none."""
    if not _NAME.fullmatch(name):
        pattern = "(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)"
        raise invalid("resource.name", name, f"Must be a match of regex '{pattern}'")


def _check_names(call: Call, body: Resource) -> None:
    check_name(call.name)
    check_labels(body.get("labels") or {})
    for tag in (body.get("tags") or {}).get("items") or ():
        if not _NAME.fullmatch(tag):
            raise invalid("resource.tags.items[0]", tag, "Must be a match of regex.")


def _check_shape(world: World, call: Call, body: Resource) -> None:
    field = "resource.machineType"
    shapes = {one.name: one for one in places.machine_types_in(call.zone)}
    shape = shapes.get(call.machine_type)
    if shape is None:
        why = f"Machine type with name '{call.machine_type}' does not exist in zone '{call.zone}'."
        raise invalid(field, body.get("machineType", ""), why)
    for added in body.get("guestAccelerators") or ():
        card = last(added.get("acceleratorType", ""))
        if card not in places.cards_in(call.zone):
            path = world.path(f"zones/{call.zone}", "acceleratorTypes", card)
            raise Refused("notFound", f"The resource '{path}' was not found")
        if shape.family != "n1" and card != shape.card:
            raise Refused("badRequest", f"[{shape.name}, {card}] features are not compatible for creating instance.")


def _check_scheduling(call: Call, body: Resource) -> None:
    scheduling = body.get("scheduling") or {}
    if call.accelerators and scheduling.get("onHostMaintenance") != "TERMINATE":
        raise Refused("unsupportedOperation", "Instances with guest accelerators do not support live migration.")
    if call.market == "spot" and scheduling.get("automaticRestart"):
        why = "Scheduling must have automaticRestart be false when preemptible is true."
        raise invalid("resource.scheduling.automaticRestart", "true", why)
    span = (scheduling.get("maxRunDuration") or {}).get("seconds")
    if span is not None and not _RUN_S[0] <= int(span) <= _RUN_S[1]:
        why = f"Must be between {_RUN_S[0]} and {_RUN_S[1]} seconds."
        raise invalid("resource.scheduling.maxRunDuration", span, why)
    notice = (scheduling.get("preemptionNoticeDuration") or {}).get("seconds")
    if notice is not None and (int(notice) not in _NOTICES_S or call.market != "spot"):
        why = "Must be 0 or 120 seconds, for a VM instance that has the spot provisioning model."
        raise invalid("resource.scheduling.preemptionNoticeDuration", notice, why)
    if scheduling.get("instanceTerminationAction") and call.market != "spot" and span is None:
        why = "You cannot specify a termination action for a VM instance that has the standard provisioning model."
        raise invalid("resource.scheduling.instanceTerminationAction", "", why)


def _check_links(world: World, call: Call, body: Resource) -> None:
    interfaces = body.get("networkInterfaces") or ()
    if not interfaces:
        raise Refused("required", "Invalid value for field 'resource.networkInterfaces': ''. At least one is required.")
    for index, interface in enumerate(interfaces):
        for kind in ("network", "subnetwork"):
            link = interface.get(kind)
            if link and world.at(link) is None:
                field = f"resource.networkInterfaces[{index}].{kind}"
                raise invalid(field, link, f"The referenced {kind} resource cannot be found.")
    disks = body.get("disks") or ()
    if not any(disk.get("boot") for disk in disks):
        raise Refused("invalid", "Invalid value for field 'resource.disks': ''. Boot disk must be specified.")
    for disk in disks:
        image = (disk.get("initializeParams") or {}).get("sourceImage")
        if image and image_of(image, call.project) is None:
            raise Refused("notFound", f"The resource '{image[image.find('projects/') :]}' was not found")
        check_labels((disk.get("initializeParams") or {}).get("labels") or {}, "resource.disks[0].labels")


def image_of(link: str, project: str) -> Resource | None:
    """Return the image that a link to an image or to a family names, None where there is none."""
    path = link[link.find("projects/") :] if "projects/" in link else f"projects/{project}/{link.lstrip('/')}"
    if not _IMAGES.fullmatch(path):
        return None
    owner, name = path.split("/")[1], last(path)
    family = "/family/" in path
    name = f"{name}-v20261101" if family else name
    return {
        "kind": "compute#image",
        "id": str(int.from_bytes(name.encode()[:7], "big")),
        "name": name,
        "family": last(path) if family else name.rpartition("-v")[0] or name,
        "status": "READY",
        "diskSizeGb": "50",
        "architecture": "X86_64",
        "creationTimestamp": "2026-11-01T00:00:00.000-07:00",
        "selfLink": f"projects/{owner}/global/images/{name}",
    }


def instance(world: World, call: Call, body: Resource, number: int) -> Resource:
    """Return the machine that an insert makes, as it is before it runs."""
    zone = f"projects/{call.project}/zones/{call.zone}"
    subnet = f"projects/{call.project}/regions/{call.region}/subnetworks/default"
    scheduling: Resource = {"onHostMaintenance": "MIGRATE", "automaticRestart": call.market != "spot"}
    scheduling |= {"provisioningModel": "SPOT" if call.market == "spot" else "STANDARD"}
    scheduling |= {**(body.get("scheduling") or {}), "preemptible": call.market == "spot"}
    if "maxRunDuration" in scheduling:
        scheduling["maxRunDuration"] = {"seconds": str(scheduling["maxRunDuration"]["seconds"])}
    cards = [
        {"acceleratorType": world.link(f"{zone}/acceleratorTypes/{card}"), "acceleratorCount": count}
        for card, count in call.accelerators.items()
    ]
    metadata = body.get("metadata") or {}
    made = {
        **body,
        "status": "PROVISIONING",
        "machineType": world.link(f"{zone}/machineTypes/{call.machine_type}"),
        "scheduling": scheduling,
        "labels": body.get("labels") or {},
        "metadata": {"kind": "compute#metadata", **metadata, "fingerprint": fingerprint(metadata)},
        "tags": {**(body.get("tags") or {}), "fingerprint": fingerprint(body.get("tags") or {})},
        "networkInterfaces": [
            _interface(world, one, i, subnet, number) for i, one in enumerate(body["networkInterfaces"])
        ],
        "cpuPlatform": "Intel Cascade Lake",
        "startRestricted": False,
        "deletionProtection": bool(body.get("deletionProtection")),
        "lastStartTimestamp": now(),
        "fingerprint": fingerprint(call.name),
    }
    return made | ({"guestAccelerators": cards} if cards else {})


def _interface(world: World, wanted: Resource, index: int, subnet: str, number: int) -> Resource:
    interface = {
        **wanted,
        "kind": "compute#networkInterface",
        "name": f"nic{index}",
        "network": world.link(wanted.get("network") or "global/networks/default"),
        "subnetwork": world.link(wanted.get("subnetwork") or subnet),
        "networkIP": wanted.get("networkIP") or f"10.128.{number // 250 % 250}.{number % 250 + 2}",
        "stackType": "IPV4_ONLY",
        "fingerprint": fingerprint(wanted),
    }
    if "network" not in wanted and (found := world.at(interface["subnetwork"])) is not None:
        interface["network"] = found["network"]
    if not wanted.get("network", "").startswith(("http", "projects")) and "network" in wanted:
        interface["network"] = world.link(f"projects/{world.project}/global/networks/{last(wanted['network'])}")
    for config in interface.get("accessConfigs") or ():
        config.update(
            kind="compute#accessConfig",
            type=config.get("type") or "ONE_TO_ONE_NAT",
            name=config.get("name") or "External NAT",
            natIP=f"203.0.113.{number % 250 + 1}",
            networkTier="PREMIUM",
        )
    return interface


def disk(world: World, call: Call, wanted: Resource, index: int) -> tuple[Resource, Resource]:
    """Return a disk that an insert makes, and its attachment."""
    params = wanted.get("initializeParams") or {}
    image = image_of(params.get("sourceImage") or "", call.project)
    zone = f"projects/{call.project}/zones/{call.zone}"
    name = params.get("diskName") or (call.name if wanted.get("boot") else f"{call.name}-{index}")
    size = str(params.get("diskSizeGb") or (image or {}).get("diskSizeGb") or 10)
    made = {
        "name": name,
        "status": "READY",
        "sizeGb": size,
        "type": world.link(f"{zone}/diskTypes/{last(params.get('diskType') or 'pd-balanced')}"),
        "labels": params.get("labels") or {},
        "users": [world.link(f"{zone}/instances/{call.name}")],
        "physicalBlockSizeBytes": "4096",
    }
    if image is not None:
        made["sourceImage"] = world.link(image["selfLink"])
    attached = {
        "kind": "compute#attachedDisk",
        "type": "PERSISTENT",
        "mode": "READ_WRITE",
        "source": world.link(f"{zone}/disks/{name}"),
        "deviceName": wanted.get("deviceName") or f"persistent-disk-{index}",
        "index": index,
        "boot": bool(wanted.get("boot")),
        "autoDelete": bool(wanted.get("autoDelete")),
        "interface": "SCSI",
        "diskSizeGb": size,
    }
    return made, attached
