"""Data sources."""

from __future__ import annotations

from provisioner.sandbox.stand_in import Refused, State
from provisioner.sandbox.stand_in.aws.clients import Clients, filters


class Lookups(Clients):
    """Answer what a module looks up."""

    def _data_vpc(self, config: State) -> None:
        vpcs = self._ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
        if not vpcs:
            message = "no matching EC2 VPC found"
            raise Refused(message)
        config.update(id=vpcs[0]["VpcId"], cidr_block=vpcs[0]["CidrBlock"])

    def _data_subnets(self, config: State) -> None:
        found = self._ec2.describe_subnets(Filters=filters(config))["Subnets"]
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
        images = self._ec2.describe_images(Filters=filters(config))["Images"]
        if len(images) != 1:
            message = f"Your query returned {len(images)} results instead of one machine image"
            raise Refused(message)
        image = images[0]
        config.update(id=image["ImageId"], image_id=image["ImageId"], root_device_name=image["RootDeviceName"])
        config.update(name=image.get("Name"), owner_id=image.get("OwnerId"), state=image.get("State"))

    def _data_instances(self, config: State) -> None:
        states = {"Name": "instance-state-name", "Values": config.get("instance_state_names") or ["running"]}
        found = self._ec2.describe_instances(Filters=[*filters(config), states])["Reservations"]
        config.update(id=self._region, ids=[each["InstanceId"] for group in found for each in group["Instances"]])
