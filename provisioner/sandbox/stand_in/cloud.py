"""What the stand-in provider does: every resource of our modules, made and looked up at the emulator by boto3."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from tf.types import Unknown

from provisioner.sandbox.stand_in import Refused, State

_ACCOUNT: Final = "123456789012"
_SETTLE_S: Final = 60.0
_POLL_S: Final = 0.2
_LIVE: Final = ("pending", "running", "shutting-down", "stopping", "stopped")


def _missing(error: ClientError) -> bool:
    code = error.response["Error"]["Code"]
    return code.endswith(".NotFound") or code in {"NoSuchEntity", "InvalidInstanceID.Malformed"}


@contextmanager
def _told(doing: str) -> Iterator[None]:
    """Say what was being done, in the words of the official provider, so that the code can be found in them."""
    try:
        yield
    except ClientError as error:
        found, status = error.response["Error"], error.response["ResponseMetadata"].get("HTTPStatusCode")
        message = (
            f"{doing}: operation error {error.operation_name}, https response error StatusCode: {status}, "
            f"api error {found['Code']}: {found['Message']}"
        )
        raise Refused(message) from error
    except BotoCoreError as error:
        message = f"{doing}: request send failed: {error}"
        raise Refused(message) from error


def _given(value: Any) -> bool:
    return value is not Unknown and value not in (None, "", [])


def _one(value: Any) -> State:
    """Return the only block of a list of at most one."""
    return value[0] if value else {}


def _named(state: State) -> str:
    """Return the name, made from the prefix as the official provider does: time and a counter."""
    if _given(state.get("name")):
        return str(state["name"])
    return f"{state.get('name_prefix') or 'terraform-'}{time.time_ns()}"


def _tags(state: State) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in (state.get("tags") or {}).items()]


def _tagged(kind: str, state: State) -> list[dict[str, Any]]:
    tags = _tags(state)
    return [{"ResourceType": kind, "Tags": tags}] if tags else []


def _filters(config: State) -> list[dict[str, Any]]:
    return [{"Name": each["name"], "Values": each["values"]} for each in config.get("filter") or ()]


class Cloud:
    """The cloud at AWS_ENDPOINT_URL, as Terraform's provider would use it. Methods raise :class:`Refused`."""

    def __init__(self, region: str | None) -> None:
        """Take the region; None means the one of the environment."""
        self._region = region or boto3.Session().region_name or "us-east-1"

    def _client(self, service: str) -> Any:
        settings = Config(connect_timeout=5, read_timeout=30, retries={"total_max_attempts": 3, "mode": "standard"})
        session: Any = boto3.Session()
        endpoint = os.environ["AWS_ENDPOINT_URL"]
        return session.client(service, region_name=self._region, endpoint_url=endpoint, config=settings)

    @cached_property
    def _ec2(self) -> Any:
        return self._client("ec2")

    @cached_property
    def _iam(self) -> Any:
        return self._client("iam")

    # --- the four verbs -----------------------------------------------------------------------------------------------

    def create(self, kind: str, plan: State) -> State:
        """Make a thing; return its state."""
        made = dict(plan)
        with _told(f"creating {kind}"):
            getattr(self, f"_create_{kind.removeprefix('aws_')}")(made)
        return made

    def read(self, kind: str, state: State) -> State | None:
        """Return the state as the cloud has it; None when the thing is gone."""
        look: Callable[[State], State | None] = getattr(self, f"_read_{kind.removeprefix('aws_')}")
        with _told(f"reading {kind} ({state['id']})"):
            try:
                return look(dict(state))
            except ClientError as error:
                if _missing(error):
                    return None
                raise

    def update(self, kind: str, plan: State) -> State:
        """Change a thing in place."""
        act = getattr(self, f"_update_{kind.removeprefix('aws_')}", None)
        made = dict(plan)
        with _told(f"updating {kind} ({plan['id']})"):
            if act is not None:
                act(made)
            elif str(plan["id"]).split("-")[0] in {"vpc", "subnet", "sg", "igw", "rtb", "i"} and plan.get("tags"):
                self._ec2.create_tags(Resources=[plan["id"]], Tags=_tags(plan))
        return made

    def delete(self, kind: str, state: State) -> None:
        """Delete a thing; gone already is fine."""
        with _told(f"deleting {kind} ({state['id']})"):
            try:
                getattr(self, f"_delete_{kind.removeprefix('aws_')}")(state)
            except ClientError as error:
                if not _missing(error):
                    raise

    # --- network ------------------------------------------------------------------------------------------------------

    def _create_vpc(self, state: State) -> None:
        vpc = self._ec2.create_vpc(CidrBlock=state["cidr_block"], TagSpecifications=_tagged("vpc", state))["Vpc"]
        state.update(id=vpc["VpcId"], arn=self._arn("vpc", vpc["VpcId"]))

    def _read_vpc(self, state: State) -> State | None:
        return state if self._ec2.describe_vpcs(VpcIds=[state["id"]])["Vpcs"] else None

    def _delete_vpc(self, state: State) -> None:
        self._ec2.delete_vpc(VpcId=state["id"])

    def _create_default_security_group(self, state: State) -> None:
        wanted = [{"Name": "vpc-id", "Values": [state["vpc_id"]]}, {"Name": "group-name", "Values": ["default"]}]
        group = self._ec2.describe_security_groups(Filters=wanted)["SecurityGroups"][0]
        state.update(id=group["GroupId"], name="default")
        for rules, revoke in (
            (group["IpPermissions"], self._ec2.revoke_security_group_ingress),
            (group["IpPermissionsEgress"], self._ec2.revoke_security_group_egress),
        ):
            if rules:
                revoke(GroupId=group["GroupId"], IpPermissions=rules)

    def _read_default_security_group(self, state: State) -> State | None:
        return self._read_security_group(state)

    def _delete_default_security_group(self, state: State) -> None:
        """It goes with its VPC."""

    def _create_internet_gateway(self, state: State) -> None:
        made = self._ec2.create_internet_gateway(TagSpecifications=_tagged("internet-gateway", state))
        state["id"] = made["InternetGateway"]["InternetGatewayId"]
        self._ec2.attach_internet_gateway(InternetGatewayId=state["id"], VpcId=state["vpc_id"])

    def _read_internet_gateway(self, state: State) -> State | None:
        found = self._ec2.describe_internet_gateways(InternetGatewayIds=[state["id"]])
        return state if found["InternetGateways"] else None

    def _delete_internet_gateway(self, state: State) -> None:
        self._ec2.detach_internet_gateway(InternetGatewayId=state["id"], VpcId=state["vpc_id"])
        self._ec2.delete_internet_gateway(InternetGatewayId=state["id"])

    def _create_subnet(self, state: State) -> None:
        subnet = self._ec2.create_subnet(
            VpcId=state["vpc_id"],
            CidrBlock=state["cidr_block"],
            AvailabilityZone=state["availability_zone"],
            TagSpecifications=_tagged("subnet", state),
        )["Subnet"]
        state.update(id=subnet["SubnetId"], arn=self._arn("subnet", subnet["SubnetId"]))
        if state.get("map_public_ip_on_launch"):
            self._ec2.modify_subnet_attribute(SubnetId=state["id"], MapPublicIpOnLaunch={"Value": True})

    def _read_subnet(self, state: State) -> State | None:
        return state if self._ec2.describe_subnets(SubnetIds=[state["id"]])["Subnets"] else None

    def _delete_subnet(self, state: State) -> None:
        self._ec2.delete_subnet(SubnetId=state["id"])

    def _create_route_table(self, state: State) -> None:
        made = self._ec2.create_route_table(VpcId=state["vpc_id"], TagSpecifications=_tagged("route-table", state))
        state["id"] = made["RouteTable"]["RouteTableId"]

    def _read_route_table(self, state: State) -> State | None:
        return state if self._ec2.describe_route_tables(RouteTableIds=[state["id"]])["RouteTables"] else None

    def _delete_route_table(self, state: State) -> None:
        self._ec2.delete_route_table(RouteTableId=state["id"])

    def _create_route(self, state: State) -> None:
        self._ec2.create_route(
            RouteTableId=state["route_table_id"],
            DestinationCidrBlock=state["destination_cidr_block"],
            GatewayId=state["gateway_id"],
        )
        state["id"] = f"r-{state['route_table_id']}"

    def _read_route(self, state: State) -> State | None:
        return state if self._ec2.describe_route_tables(RouteTableIds=[state["route_table_id"]]) else None

    def _delete_route(self, state: State) -> None:
        self._ec2.delete_route(
            RouteTableId=state["route_table_id"], DestinationCidrBlock=state["destination_cidr_block"]
        )

    def _create_route_table_association(self, state: State) -> None:
        made = self._ec2.associate_route_table(RouteTableId=state["route_table_id"], SubnetId=state["subnet_id"])
        state["id"] = made["AssociationId"]

    def _read_route_table_association(self, state: State) -> State | None:
        return state if self._ec2.describe_route_tables(RouteTableIds=[state["route_table_id"]]) else None

    def _delete_route_table_association(self, state: State) -> None:
        self._ec2.disassociate_route_table(AssociationId=state["id"])

    def _create_security_group(self, state: State) -> None:
        state["name"] = _named(state)
        made = self._ec2.create_security_group(
            GroupName=state["name"],
            Description=state["description"],
            VpcId=state["vpc_id"],
            TagSpecifications=_tagged("security-group", state),
        )
        state.update(id=made["GroupId"], arn=self._arn("security-group", made["GroupId"]))
        if state["ingress"] not in (None, Unknown) and state["ingress"]:
            self._ec2.authorize_security_group_ingress(GroupId=state["id"], IpPermissions=_rules(state["ingress"]))
        else:
            state["ingress"] = []

    def _read_security_group(self, state: State) -> State | None:
        return state if self._ec2.describe_security_groups(GroupIds=[state["id"]])["SecurityGroups"] else None

    def _delete_security_group(self, state: State) -> None:
        _until(lambda: self._ec2.delete_security_group(GroupId=state["id"]), retry="DependencyViolation")

    # --- role ---------------------------------------------------------------------------------------------------------

    def _create_iam_role(self, state: State) -> None:
        state["name"] = _named(state)
        role = self._iam.create_role(
            RoleName=state["name"],
            Path=state.get("path") or "/",
            AssumeRolePolicyDocument=state["assume_role_policy"],
            Description=state.get("description") or "",
            Tags=_tags(state),
        )["Role"]
        state.update(id=state["name"], arn=role["Arn"], unique_id=role["RoleId"])

    def _read_iam_role(self, state: State) -> State | None:
        self._iam.get_role(RoleName=state["id"])
        return state

    def _update_iam_role(self, state: State) -> None:
        self._iam.update_assume_role_policy(RoleName=state["id"], PolicyDocument=state["assume_role_policy"])

    def _delete_iam_role(self, state: State) -> None:
        self._iam.delete_role(RoleName=state["id"])

    def _create_iam_role_policy(self, state: State) -> None:
        state["name"] = _named(state)
        self._update_iam_role_policy(state)
        state["id"] = f"{state['role']}:{state['name']}"

    def _read_iam_role_policy(self, state: State) -> State | None:
        self._iam.get_role_policy(RoleName=state["role"], PolicyName=state["name"])
        return state

    def _update_iam_role_policy(self, state: State) -> None:
        self._iam.put_role_policy(RoleName=state["role"], PolicyName=state["name"], PolicyDocument=state["policy"])

    def _delete_iam_role_policy(self, state: State) -> None:
        self._iam.delete_role_policy(RoleName=state["role"], PolicyName=state["name"])

    def _create_iam_instance_profile(self, state: State) -> None:
        state["name"] = _named(state)
        profile = self._iam.create_instance_profile(
            InstanceProfileName=state["name"], Path=state.get("path") or "/", Tags=_tags(state)
        )["InstanceProfile"]
        self._iam.add_role_to_instance_profile(InstanceProfileName=state["name"], RoleName=state["role"])
        state.update(id=state["name"], arn=profile["Arn"], unique_id=profile["InstanceProfileId"])

    def _read_iam_instance_profile(self, state: State) -> State | None:
        self._iam.get_instance_profile(InstanceProfileName=state["id"])
        return state

    def _delete_iam_instance_profile(self, state: State) -> None:
        self._iam.remove_role_from_instance_profile(InstanceProfileName=state["id"], RoleName=state["role"])
        self._iam.delete_instance_profile(InstanceProfileName=state["id"])

    # --- launch template and machine ----------------------------------------------------------------------------------

    def _create_launch_template(self, state: State) -> None:
        state["name"] = _named(state)
        made = self._ec2.create_launch_template(
            LaunchTemplateName=state["name"],
            VersionDescription=state.get("description") or "",
            LaunchTemplateData=_template(state),
            TagSpecifications=_tagged("launch-template", state),
        )["LaunchTemplate"]
        identity = made["LaunchTemplateId"]
        state.update(id=identity, arn=self._arn("launch-template", identity), latest_version=1, default_version=1)

    def _read_launch_template(self, state: State) -> State | None:
        found = self._ec2.describe_launch_templates(LaunchTemplateIds=[state["id"]])["LaunchTemplates"]
        return state | {"latest_version": found[0]["LatestVersionNumber"]} if found else None

    def _update_launch_template(self, state: State) -> None:
        made = self._ec2.create_launch_template_version(
            LaunchTemplateId=state["id"],
            VersionDescription=state.get("description") or "",
            LaunchTemplateData=_template(state),
        )["LaunchTemplateVersion"]["VersionNumber"]
        self._ec2.modify_launch_template(LaunchTemplateId=state["id"], DefaultVersion=str(made))
        state.update(latest_version=made, default_version=made)

    def _delete_launch_template(self, state: State) -> None:
        self._ec2.delete_launch_template(LaunchTemplateId=state["id"])

    def _create_instance(self, state: State) -> None:
        template = _one(state["launch_template"])
        request = {
            "LaunchTemplate": {"LaunchTemplateId": template["id"], "Version": template.get("version") or "$Latest"},
            "InstanceType": state["instance_type"],
            "SubnetId": state["subnet_id"],
            "UserData": state["user_data"],
            "TagSpecifications": _tagged("instance", state),
        }
        wanted = {name: value for name, value in request.items() if _given(value)}
        made = self._ec2.run_instances(MinCount=1, MaxCount=1, ClientToken=uuid.uuid4().hex, **wanted)
        state["id"] = made["Instances"][0]["InstanceId"]
        self._await(state["id"], "running")
        state.update(self._read_instance(state) or {})

    def _read_instance(self, state: State) -> State | None:
        instance = self._instance(state["id"])
        if instance is None or instance["State"]["Name"] == "terminated":
            return None
        return state | {
            "arn": self._arn("instance", state["id"]),
            "ami": instance["ImageId"],
            "availability_zone": instance["Placement"]["AvailabilityZone"],
            "instance_type": instance["InstanceType"],
            "instance_state": instance["State"]["Name"],
            "subnet_id": instance.get("SubnetId"),
            "private_ip": instance.get("PrivateIpAddress"),
            "public_ip": instance.get("PublicIpAddress") or "",
            "vpc_security_group_ids": [group["GroupId"] for group in instance.get("SecurityGroups", ())],
            "tags": {tag["Key"]: tag["Value"] for tag in instance.get("Tags", ())},
        }

    def _delete_instance(self, state: State) -> None:
        self._ec2.terminate_instances(InstanceIds=[state["id"]])
        self._await(state["id"], "terminated")

    def _instance(self, identity: str) -> Any:
        try:
            found = self._ec2.describe_instances(InstanceIds=[identity])["Reservations"]
        except ClientError as error:
            if _missing(error):
                return None
            raise
        return found[0]["Instances"][0] if found else None

    def _await(self, identity: str, wanted: str) -> None:
        end = time.monotonic() + _SETTLE_S
        while (instance := self._instance(identity)) is not None:
            name = instance["State"]["Name"]
            if name == wanted:
                return
            if name == "terminated" or time.monotonic() > end:
                reason = instance.get("StateReason", {}).get("Message", f"it is {name}")
                message = f"waiting for EC2 Instance ({identity}) to be {wanted}: {reason}"
                raise Refused(message)
            time.sleep(_POLL_S)

    # --- data ---------------------------------------------------------------------------------------------------------

    def data(self, kind: str, config: State) -> State:
        """Answer a data source."""
        found = dict(config)
        with _told(f"reading data {kind}"):
            getattr(self, f"_data_{kind.removeprefix('aws_')}")(found)
        return found

    def _data_vpc(self, config: State) -> None:
        vpcs = self._ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
        if not vpcs:
            message = "no matching EC2 VPC found"
            raise Refused(message)
        config.update(id=vpcs[0]["VpcId"], cidr_block=vpcs[0]["CidrBlock"])

    def _data_subnets(self, config: State) -> None:
        found = self._ec2.describe_subnets(Filters=_filters(config))["Subnets"]
        config.update(id=self._region, ids=[subnet["SubnetId"] for subnet in found])

    def _data_subnet(self, config: State) -> None:
        subnet = self._ec2.describe_subnets(SubnetIds=[config["id"]])["Subnets"][0]
        config.update(
            availability_zone=subnet["AvailabilityZone"],
            vpc_id=subnet["VpcId"],
            cidr_block=subnet["CidrBlock"],
            default_for_az=subnet["DefaultForAz"],
        )

    def _data_availability_zones(self, config: State) -> None:
        found = self._ec2.describe_availability_zones()["AvailabilityZones"]
        config.update(id=self._region, names=sorted(zone["ZoneName"] for zone in found))

    def _data_ssm_parameter(self, config: State) -> None:
        found = self._client("ssm").get_parameter(Name=config["name"])["Parameter"]
        config.update(id=config["name"], value=found["Value"], type=found["Type"], version=found["Version"])

    def _data_ami(self, config: State) -> None:
        images = self._ec2.describe_images(Filters=_filters(config))["Images"]
        if len(images) != 1:
            message = f"Your query returned {len(images)} results instead of one machine image"
            raise Refused(message)
        image = images[0]
        config.update(id=image["ImageId"], image_id=image["ImageId"], root_device_name=image["RootDeviceName"])
        config.update(name=image.get("Name"), owner_id=image.get("OwnerId"), state=image.get("State"))

    def _data_instances(self, config: State) -> None:
        states = {"Name": "instance-state-name", "Values": config.get("instance_state_names") or ["running"]}
        found = self._ec2.describe_instances(Filters=[*_filters(config), states])["Reservations"]
        config.update(id=self._region, ids=[each["InstanceId"] for group in found for each in group["Instances"]])

    def _arn(self, kind: str, identity: str) -> str:
        return f"arn:aws:ec2:{self._region}:{_ACCOUNT}:{kind}/{identity}"


def _until(act: Callable[[], Any], *, retry: str) -> None:
    """Repeat a call that meets something still on its way out."""
    end = time.monotonic() + _SETTLE_S
    while True:
        try:
            act()
        except ClientError as error:
            if error.response["Error"]["Code"] != retry or time.monotonic() > end:
                raise
            time.sleep(_POLL_S)
        else:
            return


def _rules(rules: list[State]) -> list[State]:
    return [
        {
            "IpProtocol": rule["protocol"],
            "FromPort": rule["from_port"],
            "ToPort": rule["to_port"],
            "IpRanges": [{"CidrIp": cidr} for cidr in rule["cidr_blocks"] or ()],
            "Ipv6Ranges": [{"CidrIpv6": cidr} for cidr in rule["ipv6_cidr_blocks"] or ()],
        }
        for rule in rules
    ]


def _template(state: State) -> State:
    """Return the launch template's data as EC2 takes it."""
    profile, metadata = _one(state["iam_instance_profile"]), _one(state["metadata_options"])
    market = _one(state["instance_market_options"])
    spot = _one(market.get("spot_options"))
    data = {
        "ImageId": state["image_id"],
        "KeyName": state["key_name"],
        "InstanceInitiatedShutdownBehavior": state["instance_initiated_shutdown_behavior"],
        "SecurityGroupIds": state["vpc_security_group_ids"],
        "IamInstanceProfile": {"Arn": profile["arn"]} if profile else None,
        "MetadataOptions": {
            "HttpEndpoint": metadata["http_endpoint"],
            "HttpTokens": metadata["http_tokens"],
            "HttpPutResponseHopLimit": int(metadata["http_put_response_hop_limit"]),
        }
        if metadata
        else None,
        "BlockDeviceMappings": [
            {"DeviceName": each["device_name"], "Ebs": _disk(_one(each["ebs"]))}
            for each in state["block_device_mappings"]
        ],
        "InstanceMarketOptions": {
            "MarketType": market["market_type"],
            "SpotOptions": {
                name: value
                for name, value in (
                    ("MaxPrice", spot.get("max_price")),
                    ("SpotInstanceType", spot.get("spot_instance_type")),
                    ("InstanceInterruptionBehavior", spot.get("instance_interruption_behavior")),
                )
                if _given(value)
            },
        }
        if market
        else None,
        "TagSpecifications": [
            {"ResourceType": each["resource_type"], "Tags": _tags(each)} for each in state["tag_specifications"]
        ],
    }
    return {name: value for name, value in data.items() if _given(value)}


def _disk(ebs: State) -> State:
    return {
        "VolumeType": ebs["volume_type"],
        "VolumeSize": int(ebs["volume_size"]),
        "Encrypted": ebs["encrypted"] == "true",
        "DeleteOnTermination": ebs["delete_on_termination"] == "true",
    }
