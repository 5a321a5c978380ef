"""What the account holds under a job's tags, whatever any state file says; and how substrate is removed without one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from provisioner.catalog import price_ceiling
from provisioner.clouds.aws.api import Account, Region, ended, tags_of
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


def job_tags(job: JobRef) -> dict[str, str]:
    """Return the tags by which everything of a job is found."""
    return {TAG_OWNER: OWNER, TAG_JOB: job.name, TAG_UID: job.uid}


def owned_in(region: Region, job: JobRef) -> list[Owned]:
    """List a job's machines, disks, spot requests and substrate in a region. Raises CloudError."""
    tags = job_tags(job)
    found = [_machine(region.name, i) for i in region.tagged(tags) if not ended(i)]
    found += [_volume(region.name, v) for v in region.listing("describe_volumes", "Volumes", tags) if _lasts(v)]
    requests = region.spot_requests(Filters=[{"Name": f"tag:{key}", "Values": [value]} for key, value in tags.items()])
    found += [_spot_request(region.name, r) for r in requests if r["State"] in {"open", "active"}]
    for operation, key, kind, name in _LISTINGS:
        for thing in region.listing(operation, key, tags):
            found.append(_owned(region.name, kind, str(thing[name]), "available", tags_of(thing)))
    return found


_LISTINGS: Final = (
    ("describe_launch_templates", "LaunchTemplates", "launch_template", "LaunchTemplateId"),
    ("describe_security_groups", "SecurityGroups", "security_group", "GroupId"),
    ("describe_vpcs", "Vpcs", "vpc", "VpcId"),
)


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
        profile = account.call("GetInstanceProfile", partial(iam.get_instance_profile, InstanceProfileName=name))
        for role in profile["InstanceProfile"]["Roles"]:
            remove = partial(iam.remove_role_from_instance_profile, InstanceProfileName=name, RoleName=role["RoleName"])
            account.call("RemoveRoleFromInstanceProfile", remove)
        account.call("DeleteInstanceProfile", partial(iam.delete_instance_profile, InstanceProfileName=name))
    for name in _roles(account, iam, job):
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


def _machine(region: str, instance: Mapping[str, Any]) -> Owned:
    """A stopped machine costs its disk, which is listed for itself."""
    market = Market.SPOT if instance.get("InstanceLifecycle") == "spot" else Market.ON_DEMAND
    offer = Offer("aws", region, "", str(instance["InstanceType"]), Gpu("", 0, 0), market, None)
    state = str(instance["State"]["Name"])
    price = price_ceiling(offer) if state in {"pending", "running"} else None
    return _owned(region, "machine", str(instance["InstanceId"]), state, tags_of(instance), price=price)


def _volume(region: str, volume: Mapping[str, Any]) -> Owned:
    a_month = _GP3_USD_GB_MONTH * int(volume.get("Size") or 0)
    price = Money((a_month / _HOURS_A_MONTH).quantize(Decimal("0.0001")), "USD")
    return _owned(region, "volume", str(volume["VolumeId"]), str(volume["State"]), tags_of(volume), price=price)


def _lasts(volume: Mapping[str, Any]) -> bool:
    return volume["State"] not in {"deleting", "deleted"}


def _spot_request(region: str, request: Mapping[str, Any]) -> Owned:
    return _owned(
        region, "spot_request", str(request["SpotInstanceRequestId"]), str(request["State"]), tags_of(request)
    )


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
