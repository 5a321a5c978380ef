"""Launch templates and machines."""

from __future__ import annotations

import time
import uuid
from typing import Any

from botocore.exceptions import ClientError

from provisioner.sandbox.stand_in import Refused, State
from provisioner.sandbox.stand_in.aws.clients import POLL_S, SETTLE_S, Clients, given, missing, named, one, tagged, tags


class Compute(Clients):
    """Create, read, update and delete launch templates and machines."""

    def _create_launch_template(self, state: State) -> None:
        state["name"] = named(state)
        made = self._ec2.create_launch_template(
            LaunchTemplateName=state["name"],
            VersionDescription=state.get("description") or "",
            LaunchTemplateData=_template(state),
            TagSpecifications=tagged("launch-template", state),
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
        template = one(state["launch_template"])
        request = {
            "LaunchTemplate": {"LaunchTemplateId": template["id"], "Version": template.get("version") or "$Latest"},
            "InstanceType": state["instance_type"],
            "SubnetId": state["subnet_id"],
            "UserData": state["user_data"],
            "TagSpecifications": tagged("instance", state),
        }
        wanted = {name: value for name, value in request.items() if given(value)}
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
            if missing(error):
                return None
            raise
        return found[0]["Instances"][0] if found else None

    def _await(self, identity: str, wanted: str) -> None:
        end = time.monotonic() + SETTLE_S
        while (instance := self._instance(identity)) is not None:
            name = instance["State"]["Name"]
            if name == wanted:
                return
            if name == "terminated" or time.monotonic() > end:
                reason = instance.get("StateReason", {}).get("Message", f"it is {name}")
                message = f"waiting for EC2 Instance ({identity}) to be {wanted}: {reason}"
                raise Refused(message)
            time.sleep(POLL_S)


def _template(state: State) -> State:
    """Return the launch template's data as EC2 takes it."""
    profile, metadata = one(state["iam_instance_profile"]), one(state["metadata_options"])
    market = one(state["instance_market_options"])
    spot = one(market.get("spot_options"))
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
            {"DeviceName": each["device_name"], "Ebs": _disk(one(each["ebs"]))}
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
                if given(value)
            },
        }
        if market
        else None,
        "TagSpecifications": [
            {"ResourceType": each["resource_type"], "Tags": tags(each)} for each in state["tag_specifications"]
        ],
    }
    return {name: value for name, value in data.items() if given(value)}


def _disk(ebs: State) -> State:
    return {
        "VolumeType": ebs["volume_type"],
        "VolumeSize": int(ebs["volume_size"]),
        "Encrypted": ebs["encrypted"] == "true",
        "DeleteOnTermination": ebs["delete_on_termination"] == "true",
    }
