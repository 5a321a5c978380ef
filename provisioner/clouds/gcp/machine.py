"""How a machine is asked for: its name, labels, request id and body, all functions of recorded values. No I/O.

A repeat of a claim is therefore the same request, and what one claim makes cannot stand in the way of another: each has
a name of its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from provisioner import catalog
from provisioner.model import TAG_EPOCH, TAG_JOB, TAG_OWNER, TAG_TOKEN, TAG_UID, JobRef, Launch, Market, Offer

_HYPERDISK_ONLY: Final = ("a3-ultragpu-", "a4-", "a4x-", "g4-")
_NAME_LETTERS: Final = 63
_RUN_LEAST_S, _RUN_MOST_S = 30.0, 120 * 24 * 3600.0
"""What Google takes as the longest run of a machine."""
_TOKEN_LETTERS: Final = 8
NOTICE_S: Final = 120
"""The one notice of a preemption that Google takes beside none, in seconds."""
NOTICE_ATTRIBUTE: Final = "failover-preemption-notice-s"
"""Tells the node how long its notice is: Google's own metadata do not."""
LABEL_OWNER, LABEL_JOB, LABEL_UID, LABEL_EPOCH, LABEL_TOKEN = (
    tag.replace(":", "-") for tag in (TAG_OWNER, TAG_JOB, TAG_UID, TAG_EPOCH, TAG_TOKEN)
)


@dataclass(frozen=True, slots=True)
class Place:
    """What a region was prepared with, and what the configuration adds. Links are relative or whole."""

    network: str
    subnetwork: str
    service_account: str
    network_tag: str
    image: str
    disk_gb: int
    preemption_notice: bool = False


def machine_name(launch: Launch) -> str:
    """Return the name of one claim's machine, at most 63 letters: the placement's name and the token's beginning."""
    name, tail = launch.node_name, f"-{launch.token[:_TOKEN_LETTERS]}"
    if len(name) + len(tail) > _NAME_LETTERS:
        tail = f"-{launch.job.uid}-e{launch.epoch}{tail}"
        name = f"failover-{launch.job.name}"[: _NAME_LETTERS - len(tail)].rstrip("-")
    return name + tail


def substrate_prefix(job: JobRef) -> str:
    """Return how the names of a job's networks, subnets and firewall rules begin."""
    return f"failover-{job.name}-{job.uid}"


def account_prefix(job: JobRef) -> str:
    """Return how the ids of a job's service accounts begin: they have 30 letters at most."""
    return f"fo-{job.uid}-"


def request_id(token: str, repeat: int = 0) -> str:
    """Return the UUID of a request. ``repeat`` counts operations that ended in a fault of Google's that passes.

    An operation that has failed is remembered under its id: asking again with it is answered with the old failure.
    """
    whole = uuid.UUID(hex=token)
    return str(uuid.uuid5(whole, str(repeat)) if repeat or not whole.int else whole)


def labels(tags: Mapping[str, str]) -> dict[str, str]:
    """Return tags as labels: ``failover:job`` becomes ``failover-job``."""
    return {key.replace(":", "-").lower(): value.lower() for key, value in tags.items()}


def split_type(instance_type: str) -> tuple[str, str, int]:
    """Return machine type, and kind and number of the cards to add: none where they are built in.

    ``n1-standard-8+1xT4`` is ``("n1-standard-8", "nvidia-tesla-t4", 1)``.
    """
    machine, _, cards = instance_type.partition("+")
    count, _, card = cards.partition("x")
    if not card:
        return machine, "", 0
    known = catalog.machine("gcp", instance_type)
    return machine, known.accelerator if known else f"nvidia-tesla-{card.lower()}", int(count)


def joined_type(machine_type: str, cards: Mapping[str, int]) -> str:
    """Return what ``split_type`` takes apart, from an instance's own accelerators."""
    if not machine_type.startswith("n1-") or not cards:  # other machines list the cards that are built in
        return machine_type
    names = {one.accelerator: one.gpu for name, one in catalog.machines("gcp").items() if "+" in name}
    return "+".join([machine_type, *(f"{count}x{names.get(kind, kind)}" for kind, count in cards.items())])


def body(place: Place, offer: Offer, launch: Launch) -> dict[str, Any]:
    """Return the instance to be made, as the REST reference writes it.

    It ends by itself (``maxRunDuration``), its disk goes with it, and no key of the project opens it.
    """
    machine_type, card, count = split_type(offer.instance_type)
    zone, found = f"zones/{offer.zone}", labels(launch.tags)
    notice = place.preemption_notice and offer.market is Market.SPOT
    asked: dict[str, Any] = {
        "name": machine_name(launch),
        "machineType": f"{zone}/machineTypes/{machine_type}",
        "labels": found,
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "initializeParams": {
                    "sourceImage": place.image,
                    "diskSizeGb": str(place.disk_gb),
                    "diskType": f"{zone}/diskTypes/{_disk_type(machine_type)}",
                    "labels": found,
                },
            }
        ],
        "networkInterfaces": [_interface(place)],
        "scheduling": _scheduling(offer.market, launch.ttl_s, notice=notice),
        "shieldedInstanceConfig": {
            "enableSecureBoot": False,  # NVIDIA's driver is not signed on the images that there are
            "enableVtpm": True,
            "enableIntegrityMonitoring": True,
        },
        "metadata": {
            "items": [{"key": key, "value": value} for key, value in _metadata(launch, notice=notice).items()]
        },
    }
    if place.network_tag:
        asked["tags"] = {"items": [place.network_tag]}
    if place.service_account:
        scope = "https://www.googleapis.com/auth/cloud-platform"  # what it may do is said by IAM
        asked["serviceAccounts"] = [{"email": place.service_account, "scopes": [scope]}]
    if card:
        kind = f"{zone}/acceleratorTypes/{card}"
        asked["guestAccelerators"] = [{"acceleratorType": kind, "acceleratorCount": count}]
    return asked


def _interface(place: Place) -> dict[str, Any]:
    """An address of its own is for the way out; the firewall lets nothing in."""
    where = {"subnetwork": place.subnetwork} if place.subnetwork else {"network": place.network}
    return {**where, "accessConfigs": [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}]}


def _scheduling(market: Market, ttl_s: float, *, notice: bool) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "provisioningModel": "SPOT" if market is Market.SPOT else "STANDARD",
        "instanceTerminationAction": "DELETE",
        "onHostMaintenance": "TERMINATE",  # a machine with cards cannot be moved while it runs
        "automaticRestart": False,
        "maxRunDuration": {"seconds": str(int(min(max(ttl_s, _RUN_LEAST_S), _RUN_MOST_S)))},
    }
    return asked | ({"preemptionNoticeDuration": {"seconds": str(NOTICE_S)}} if notice else {})


def _metadata(launch: Launch, *, notice: bool) -> dict[str, str]:
    asked = {
        "startup-script": launch.user_data,
        "enable-oslogin": "TRUE",
        "block-project-ssh-keys": "TRUE",
        "install-nvidia-driver": "True",
    }
    return asked | ({NOTICE_ATTRIBUTE: str(NOTICE_S)} if notice else {})


def _disk_type(machine_type: str) -> str:
    return "hyperdisk-balanced" if machine_type.startswith(_HYPERDISK_ONLY) else "pd-balanced"
