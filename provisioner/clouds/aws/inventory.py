"""What the account holds under a job's tags, whatever any state file says; and how substrate is removed without one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from provisioner.catalog import price_ceiling
from provisioner.clouds.aws import release
from provisioner.clouds.aws.api import Account, Region, ended, filters, tags_of
from provisioner.clouds.base import Tagged
from provisioner.clouds.clock import Clock
from provisioner.model import (
    OWNER,
    TAG_EPOCH,
    TAG_JOB,
    TAG_OWNER,
    TAG_TOKEN,
    TAG_UID,
    Gpu,
    JobRef,
    Market,
    Money,
    Offer,
    Owned,
)

if TYPE_CHECKING:
    from mypy_boto3_iam import IAMClient

PATH: Final = "/failover/"
"""IAM path of every role and instance profile that the region module makes."""
GLOBAL: Final = "global"
_GP3_USD_GB_MONTH = Decimal("0.08")
"""List price of gp3 in us-east-1 (aws.amazon.com/ebs/pricing); what a forgotten disk costs, about."""
_HOURS_A_MONTH = 730
_ADDRESS = Money(Decimal("0.005"), "USD")
"""What a public IPv4 address costs an hour, used or not (aws.amazon.com/vpc/pricing)."""
_NAME: Final = re.compile(r"(?:failover-)?(?:(?P<job>.*)-)?(?P<uid>[0-9a-f]{8})-")


def job_tags(job: JobRef) -> dict[str, str]:
    """Return the tags by which everything of a job is found."""
    return {TAG_OWNER: OWNER, TAG_JOB: job.name, TAG_UID: job.uid}


def owned_in(region: Region, job: JobRef) -> list[Owned]:
    """List a job's machines, disks, spot requests and substrate in a region. Raises CloudError."""
    return [one.thing for ask in _MADE_BY_US.values() for one in ask(region, job_tags(job))]


def of_anyone(account: Account, region: str, kind: str) -> list[Tagged]:
    """List what is ours in a region, of every job. ``kind`` is one of ``KINDS``. Raises CloudError."""
    return KINDS[kind](account.region(region), {TAG_OWNER: OWNER})


_LISTINGS: Final = {
    "launch_template": ("describe_launch_templates", "LaunchTemplates", "LaunchTemplateId"),
    "security_group": ("describe_security_groups", "SecurityGroups", "GroupId"),
    "vpc": ("describe_vpcs", "Vpcs", "VpcId"),
}


def roles_of_anyone(account: Account) -> list[Tagged]:
    """List every role under our path, of all jobs. Raises CloudError."""
    iam = account.iam()
    pages = iam.get_paginator("list_roles")
    found: list[Any] = account.call("ListRoles", lambda: list(pages.paginate(PathPrefix=PATH)))
    roles = [role for page in found for role in page["Roles"]]
    return [_of_name("role", role["RoleName"], role.get("CreateDate")) for role in roles]


def profiles_of_anyone(account: Account) -> list[Tagged]:
    """List every instance profile under our path, of all jobs. Raises CloudError."""
    iam = account.iam()
    pages = iam.get_paginator("list_instance_profiles")
    found: list[Any] = account.call("ListInstanceProfiles", lambda: list(pages.paginate(PathPrefix=PATH)))
    profiles = [profile for page in found for profile in page["InstanceProfiles"]]
    return [_of_name("instance_profile", one["InstanceProfileName"], one.get("CreateDate")) for one in profiles]


def remove(account: Account, tagged: Tagged, clock: Clock) -> None:
    """Remove one thing. Raises CloudError, also for what is still in use."""
    thing = tagged.thing
    if thing.kind == "role":
        _remove_role(account, account.iam(), thing.id)
    elif thing.kind == "instance_profile":
        _remove_profile(account, account.iam(), thing.id)
    else:
        _remove_in(account.region(thing.region), tagged, clock)


def _remove_in(region: Region, tagged: Tagged, clock: Clock) -> None:
    thing = tagged.thing
    if thing.kind == "machine":
        release.terminate(region, thing.id, clock)
    elif thing.kind == "spot_request":
        region.cancel_spot_requests([thing.id])
    elif thing.kind == "vpc":
        _remove_network(region, thing.id, job_tags(JobRef(thing.job, tagged.uid)))
    else:
        operation, name = _REMOVALS[thing.kind]
        region.remove(operation, **{name: thing.id})


_REMOVALS: Final = {
    "volume": ("delete_volume", "VolumeId"),
    "address": ("release_address", "AllocationId"),
    "launch_template": ("delete_launch_template", "LaunchTemplateId"),
    "security_group": ("delete_security_group", "GroupId"),
}


def owned_globally(account: Account, job: JobRef) -> list[Owned]:
    """List a job's roles and instance profiles, of all regions. Raises CloudError."""
    iam = account.iam()
    found = [_owned(GLOBAL, "role", name, "available", job_tags(job)) for name in _roles(account, iam, job)]
    profiles = _profiles(account, iam, job)
    return found + [_owned(GLOBAL, "instance_profile", name, "available", job_tags(job)) for name in profiles]


def remove_substrate(region: Region, job: JobRef) -> None:
    """Remove the job's launch templates, security groups and network of a region. Machines must be gone before."""
    tags = job_tags(job)
    for template in region.listing("describe_launch_templates", "LaunchTemplates", tags):
        region.remove("delete_launch_template", LaunchTemplateId=template["LaunchTemplateId"])
    for group in region.listing("describe_security_groups", "SecurityGroups", tags):
        if group["GroupName"] != "default":  # it goes with its network
            region.remove("delete_security_group", GroupId=group["GroupId"])
    for vpc in region.listing("describe_vpcs", "Vpcs", tags):
        _remove_network(region, str(vpc["VpcId"]), tags)


def remove_roles(account: Account, job: JobRef) -> None:
    """Remove the job's instance profiles and roles."""
    iam = account.iam()
    for name in _profiles(account, iam, job):
        _remove_profile(account, iam, name)
    for name in _roles(account, iam, job):
        _remove_role(account, iam, name)


def _remove_profile(account: Account, iam: IAMClient, name: str) -> None:
    profile = account.call("GetInstanceProfile", partial(iam.get_instance_profile, InstanceProfileName=name))
    for role in profile["InstanceProfile"]["Roles"]:
        remove = partial(iam.remove_role_from_instance_profile, InstanceProfileName=name, RoleName=role["RoleName"])
        account.call("RemoveRoleFromInstanceProfile", remove)
    account.call("DeleteInstanceProfile", partial(iam.delete_instance_profile, InstanceProfileName=name))


def _remove_role(account: Account, iam: IAMClient, name: str) -> None:
    policies = account.call("ListRolePolicies", partial(iam.list_role_policies, RoleName=name))
    for policy in policies["PolicyNames"]:
        account.call("DeleteRolePolicy", partial(iam.delete_role_policy, RoleName=name, PolicyName=policy))
    account.call("DeleteRole", partial(iam.delete_role, RoleName=name))


def _remove_network(region: Region, vpc_id: str, tags: Mapping[str, str]) -> None:
    for gateway in region.listing("describe_internet_gateways", "InternetGateways", tags):
        pair = {"InternetGatewayId": gateway["InternetGatewayId"]}
        if gateway.get("Attachments"):
            region.remove("detach_internet_gateway", VpcId=vpc_id, **pair)
        region.remove("delete_internet_gateway", **pair)
    for subnet in region.listing("describe_subnets", "Subnets", tags):
        region.remove("delete_subnet", SubnetId=subnet["SubnetId"])
    for table in region.listing("describe_route_tables", "RouteTables", tags):
        region.remove("delete_route_table", RouteTableId=table["RouteTableId"])
    region.remove("delete_vpc", VpcId=vpc_id)


def _roles(account: Account, iam: IAMClient, job: JobRef) -> Iterator[str]:
    """Roles cannot be listed by tag; the region module gives them a path and a prefix of at most 38 letters."""
    prefix = f"{f'{job.name}-{job.uid}'[-37:]}-"
    pages = iam.get_paginator("list_roles")
    found: list[Any] = account.call("ListRoles", lambda: list(pages.paginate(PathPrefix=PATH)))
    return (role["RoleName"] for page in found for role in page["Roles"] if role["RoleName"].startswith(prefix))


def _profiles(account: Account, iam: IAMClient, job: JobRef) -> Iterator[str]:
    prefix = f"failover-{job.name}-{job.uid}-"
    pages = iam.get_paginator("list_instance_profiles")
    found: list[Any] = account.call("ListInstanceProfiles", lambda: list(pages.paginate(PathPrefix=PATH)))
    names = (profile["InstanceProfileName"] for page in found for profile in page["InstanceProfiles"])
    return (name for name in names if name.startswith(prefix))


def _machines(region: Region, tags: Mapping[str, str]) -> list[Tagged]:
    return [_machine(region.name, one) for one in region.tagged(tags) if not ended(one)]


def _volumes(region: Region, tags: Mapping[str, str]) -> list[Tagged]:
    found = region.listing("describe_volumes", "Volumes", tags)
    return [_volume(region.name, one) for one in found if one["State"] not in {"deleting", "deleted"}]


def _spot_requests(region: Region, tags: Mapping[str, str]) -> list[Tagged]:
    found = region.spot_requests(Filters=filters(tags))
    made = ((one, str(one["SpotInstanceRequestId"])) for one in found if one["State"] in {"open", "active"})
    return [
        _tagged(region.name, "spot_request", name, str(one["State"]), tags_of(one), one.get("CreateTime"))
        for one, name in made
    ]


def _addresses(region: Region, tags: Mapping[str, str]) -> list[Tagged]:
    return [
        _tagged(region.name, "address", str(one["AllocationId"]), "available", tags_of(one), price=_ADDRESS)
        for one in region.addresses(tags)
    ]


def _listed(region: Region, tags: Mapping[str, str], kind: str) -> list[Tagged]:
    operation, key, name = _LISTINGS[kind]
    found = [one for one in region.listing(operation, key, tags) if one.get("GroupName") != "default"]
    return [  # a default group goes with its network
        _tagged(region.name, kind, str(one[name]), "available", tags_of(one), one.get("CreateTime")) for one in found
    ]


def _machine(region: str, instance: Mapping[str, Any]) -> Tagged:
    """A stopped machine costs its disk, which is listed for itself."""
    market = Market.SPOT if instance.get("InstanceLifecycle") == "spot" else Market.ON_DEMAND
    offer = Offer("aws", region, "", str(instance["InstanceType"]), Gpu("", 0, 0), market, None)
    state = str(instance["State"]["Name"])
    price = price_ceiling(offer) if state in {"pending", "running"} else None
    since = instance.get("LaunchTime")
    return _tagged(region, "machine", str(instance["InstanceId"]), state, tags_of(instance), since, price=price)


def _volume(region: str, volume: Mapping[str, Any]) -> Tagged:
    a_month = _GP3_USD_GB_MONTH * int(volume.get("Size") or 0)
    price = Money((a_month / _HOURS_A_MONTH).quantize(Decimal("0.0001")), "USD")
    name, state = str(volume["VolumeId"]), str(volume["State"])
    return _tagged(region, "volume", name, state, tags_of(volume), volume.get("CreateTime"), price=price)


def _of_name(kind: str, name: str, since: Any) -> Tagged:
    """Take job and uid from the name that the region module gives; a long job's name has lost its beginning there."""
    match = _NAME.match(name)
    tags = {TAG_JOB: match["job"] or "", TAG_UID: match["uid"]} if match else {}
    return _tagged(GLOBAL, kind, name, "available", tags, since)


def _tagged(
    region: str,
    kind: str,
    thing_id: str,
    state: str,
    tags: Mapping[str, str],
    since: Any = None,
    *,
    price: Money | None = None,
) -> Tagged:
    made = since.timestamp() if isinstance(since, datetime) else None
    return Tagged(_owned(region, kind, thing_id, state, tags, price=price), tags.get(TAG_UID, ""), made)


def _owned(
    region: str, kind: str, thing_id: str, state: str, tags: Mapping[str, str], *, price: Money | None = None
) -> Owned:
    epoch = tags.get(TAG_EPOCH, "")
    return Owned(
        cloud="aws",
        region=region,
        kind=kind,
        id=thing_id,
        state=state,
        job=tags.get(TAG_JOB, ""),
        epoch=int(epoch) if epoch.isdigit() else None,
        token=tags.get(TAG_TOKEN, ""),
        price_per_hour=price,
    )


_Ask: TypeAlias = Callable[[Region, Mapping[str, str]], list[Tagged]]
_MADE_BY_US: Final[Mapping[str, _Ask]] = {
    "machines": _machines,
    "volumes": _volumes,
    "spot requests": _spot_requests,
    "launch templates": partial(_listed, kind="launch_template"),
    "security groups": partial(_listed, kind="security_group"),
    "networks": partial(_listed, kind="vpc"),
}
"""What a claim or the region module makes. To list each kind is a permission of its own."""
KINDS: Final[Mapping[str, _Ask]] = {**_MADE_BY_US, "addresses": _addresses}
"""What may carry our tags in a region."""
