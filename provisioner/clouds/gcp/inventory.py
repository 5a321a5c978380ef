"""What a project holds of a job, whatever any state file says; and how substrate is removed without one.

Machines and disks carry labels; networks, firewall rules and service accounts cannot, and are known by their names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from provisioner import catalog
from provisioner.clouds.base import Tagged
from provisioner.clouds.clock import Clock
from provisioner.clouds.gcp import release
from provisioner.clouds.gcp.api import Account
from provisioner.clouds.gcp.claim import OFF
from provisioner.clouds.gcp.compute import Compute, Disk, Machine, unix_s
from provisioner.clouds.gcp.machine import (
    LABEL_EPOCH,
    LABEL_JOB,
    LABEL_OWNER,
    LABEL_TOKEN,
    LABEL_UID,
    account_prefix,
    joined_type,
    substrate_prefix,
)
from provisioner.model import OWNER, Gpu, JobRef, Market, Money, Offer, Owned

GLOBAL: Final = "global"
_USD_GB_MONTH: Final[Mapping[str, Decimal]] = {
    "pd-standard": Decimal("0.04"),
    "pd-balanced": Decimal("0.10"),
    "pd-ssd": Decimal("0.17"),
    "hyperdisk-balanced": Decimal("0.08"),
}
"""List prices in us-central1 (cloud.google.com/compute/disks-image-pricing); what a forgotten disk costs, about."""
_HOURS_A_MONTH = 730
_NAME: Final = re.compile(r"failover-(?P<job>.+)-(?P<uid>[0-9a-f]{8})(?:-.*)?$")
_ACCOUNT: Final = re.compile(r"fo-(?P<uid>[0-9a-f]{8})-")


def machines_and_disks(compute: Compute, job: JobRef) -> list[Owned]:
    """List a job's machines, stopped ones too, and disks, in every zone of the project. Raises CloudError."""
    label = (LABEL_UID, job.uid)
    machines = [_machine(one) for one in compute.machines(label) if _is_ours(one.labels, job)]
    return machines + [_disk(one) for one in compute.disks(label) if _is_ours(one.labels, job)]


def inquiries(compute: Compute, regions: Sequence[str]) -> list[tuple[str, Callable[[], list[Tagged]]]]:
    """Return, by kind, the questions for all that is ours in a project, of every job. Calls raise CloudError."""
    ours, place = (LABEL_OWNER, OWNER), compute.account.project

    def machines() -> list[Tagged]:
        return [_tagged(_machine(one), one.labels, one.since, place) for one in compute.machines(ours)]

    def disks() -> list[Tagged]:
        return [_tagged(_disk(one), one.labels, one.since, place) for one in compute.disks(ours)]

    def subnetworks(region: str) -> list[Tagged]:
        return _of_names("subnetwork", region, _subnetworks(compute, region), place)

    def service_accounts() -> list[Tagged]:
        return [
            Tagged(Owned("gcp", GLOBAL, "service_account", email, "available"), match["uid"], place=place)
            for email in _all_emails(compute.account)
            if (match := _ACCOUNT.match(email))
        ]

    return [
        ("machines", machines),
        ("disks", disks),
        ("firewall rules", lambda: _of_names("firewall", GLOBAL, compute.firewalls(), place)),
        *((f"subnetworks of {region}", partial(subnetworks, region)) for region in regions),
        ("networks", lambda: _of_names("network", GLOBAL, compute.networks(), place)),
        ("service accounts", service_accounts),
    ]


def remove(compute: Compute, tagged: Tagged, clock: Clock, bucket: str | None) -> None:
    """Remove one thing; of an account also its rights on the bucket. Raises CloudError, also for what is in use."""
    thing = tagged.thing
    zone, _, name = thing.id.rpartition("/")
    removals: Mapping[str, Callable[[], object]] = {
        "machine": lambda: release.terminate(compute, zone, name, clock),
        "volume": lambda: compute.delete_disk(zone, name),
        "firewall": lambda: compute.delete_firewall(name),
        "subnetwork": lambda: compute.delete_subnetwork(thing.region, name),
        "network": lambda: compute.delete_network(name),
        "service_account": lambda: _remove_emails(compute.account, [name], bucket),
    }
    removals[thing.kind]()


def substrate(compute: Compute, job: JobRef, regions: Sequence[str]) -> list[Owned]:
    """List a job's firewall rules, subnets and networks. Raises CloudError."""
    found = [_named("firewall", GLOBAL, name, job) for name in _own(compute.firewalls(), job)]
    for region in regions:
        found += [_named("subnetwork", region, name, job) for name in _own(_subnetworks(compute, region), job)]
    return found + [_named("network", GLOBAL, name, job) for name in _own(compute.networks(), job)]


def accounts(account: Account, job: JobRef) -> list[Owned]:
    """List a job's service accounts. Raises CloudError."""
    return [_named("service_account", GLOBAL, email, job) for email in _emails(account, job)]


def remove_substrate(compute: Compute, job: JobRef, regions: Sequence[str]) -> None:
    """Ask that firewall rules, subnets and networks go away, in an order in which they can. Machines must be gone."""
    for name in _own(compute.firewalls(), job):
        compute.delete_firewall(name)
    for region in regions:
        for name in _own(_subnetworks(compute, region), job):
            compute.delete_subnetwork(region, name)
    for name in _own(compute.networks(), job):
        compute.delete_network(name)


def remove_disks(compute: Compute, job: JobRef) -> None:
    """Ask that disks go away which outlived their machines."""
    living = {(one.zone, one.name) for one in compute.machines((LABEL_UID, job.uid))}
    for disk in compute.disks((LABEL_UID, job.uid)):
        if _is_ours(disk.labels, job) and (disk.zone, disk.name) not in living:
            compute.delete_disk(disk.zone, disk.name)


def remove_accounts(account: Account, job: JobRef, bucket: str | None) -> None:
    """Remove the job's service accounts, and what they may do with the bucket: else their names stay in its policy."""
    _remove_emails(account, _emails(account, job), bucket)


def _remove_emails(account: Account, emails: Sequence[str], bucket: str | None) -> None:
    if emails and bucket:
        _forget_members(account, bucket, emails)
    for email in emails:
        try:
            account.http("DELETE", "iam", f"projects/{account.project}/serviceAccounts/{email}")
        except LookupError:
            continue


def _forget_members(account: Account, bucket: str, emails: Sequence[str]) -> None:
    """Take accounts out of the bucket's policy; written back only if nobody has changed it meanwhile (etag)."""
    path = f"b/{quote(bucket, safe='')}/iam"
    try:
        policy = account.http("GET", "storage", f"{path}?optionsRequestedPolicyVersion=3")
    except LookupError:
        return
    ours = {f"serviceAccount:{email}" for email in emails}
    bindings = [one for one in policy.get("bindings", ()) if isinstance(one, dict)]
    kept = [{**one, "members": [who for who in one.get("members", ()) if who not in ours]} for one in bindings]
    if kept != bindings:
        account.http("PUT", "storage", path, {**policy, "bindings": [one for one in kept if one["members"]]})


def _emails(account: Account, job: JobRef) -> list[str]:
    return [email for email in _all_emails(account) if email.startswith(account_prefix(job))]


def _all_emails(account: Account) -> list[str]:
    found: list[str] = []
    page = ""
    while True:
        query = f"?pageSize=100{f'&pageToken={quote(page)}' if page else ''}"
        answer: Any = account.http("GET", "iam", f"projects/{account.project}/serviceAccounts{query}")
        found += [str(one.get("email", "")) for one in answer.get("accounts") or () if isinstance(one, dict)]
        page = str(answer.get("nextPageToken") or "")
        if not page:
            return found


def _subnetworks(compute: Compute, region: str) -> list[str]:
    try:
        return compute.subnetworks(region)
    except LookupError:  # a region that Google does not have
        return []


def _own(names: Sequence[str], job: JobRef) -> Iterator[str]:
    prefix = substrate_prefix(job)
    return (name for name in names if name == prefix or name.startswith(f"{prefix}-"))


def _is_ours(labels: Mapping[str, str], job: JobRef) -> bool:
    return (labels.get(LABEL_OWNER), labels.get(LABEL_JOB), labels.get(LABEL_UID)) == (OWNER, job.name, job.uid)


def _machine(machine: Machine) -> Owned:
    """A machine that stands still costs its disk, which is listed for itself."""
    region = region_of(machine.zone)
    kind = joined_type(machine.machine_type, machine.cards)
    market = Market.SPOT if machine.spot else Market.ON_DEMAND
    offer = Offer("gcp", region, machine.zone, kind, Gpu("", 0, 0), market, None)
    price = None if machine.status in OFF else catalog.price_ceiling(offer)
    return _owned("machine", region, machine.id, machine.status, machine.labels, price)


def _disk(disk: Disk) -> Owned:
    a_month = _USD_GB_MONTH.get(disk.kind, _USD_GB_MONTH["pd-balanced"]) * disk.size_gb
    price = Money((a_month / _HOURS_A_MONTH).quantize(Decimal("0.0001")), "USD")
    return _owned("volume", region_of(disk.zone), f"{disk.zone}/{disk.name}", disk.status, disk.labels, price)


def _tagged(thing: Owned, labels: Mapping[str, str], since: str, place: str) -> Tagged:
    return Tagged(thing, labels.get(LABEL_UID, ""), unix_s(since), place)


def _of_names(kind: str, region: str, names: Sequence[str], place: str) -> list[Tagged]:
    """Take job and uid from names as the region module gives them."""
    found = [(name, match) for name in names if (match := _NAME.match(name))]
    return [
        Tagged(_named(kind, region, name, JobRef(match["job"], match["uid"])), match["uid"], place=place)
        for name, match in found
    ]


def _named(kind: str, region: str, name: str, job: JobRef) -> Owned:
    return Owned("gcp", region, kind, name, "available", job.name)


def _owned(kind: str, region: str, thing_id: str, state: str, labels: Mapping[str, str], price: Money | None) -> Owned:
    epoch = labels.get(LABEL_EPOCH, "")
    return Owned(
        cloud="gcp",
        region=region,
        kind=kind,
        id=thing_id,
        state=state.lower(),
        job=labels.get(LABEL_JOB, ""),
        epoch=int(epoch) if epoch.isdigit() else None,
        token=labels.get(LABEL_TOKEN, ""),
        price_per_hour=price,
    )


def region_of(zone: str) -> str:
    """Return the region of a zone: ``us-central1`` for ``us-central1-a``."""
    return zone.rpartition("-")[0]
