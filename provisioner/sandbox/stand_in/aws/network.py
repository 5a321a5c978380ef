"""VPC, subnets, routes and security groups."""

from __future__ import annotations

from tf.types import Unknown

from provisioner.sandbox.stand_in import State
from provisioner.sandbox.stand_in.aws.clients import Clients, named, tagged, until


class Network(Clients):
    """Create, read and delete what a network is made of."""

    def _create_vpc(self, state: State) -> None:
        vpc = self._ec2.create_vpc(CidrBlock=state["cidr_block"], TagSpecifications=tagged("vpc", state))["Vpc"]
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
        made = self._ec2.create_internet_gateway(TagSpecifications=tagged("internet-gateway", state))
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
            TagSpecifications=tagged("subnet", state),
        )["Subnet"]
        state.update(id=subnet["SubnetId"], arn=self._arn("subnet", subnet["SubnetId"]))
        if state.get("map_public_ip_on_launch"):
            self._ec2.modify_subnet_attribute(SubnetId=state["id"], MapPublicIpOnLaunch={"Value": True})

    def _read_subnet(self, state: State) -> State | None:
        return state if self._ec2.describe_subnets(SubnetIds=[state["id"]])["Subnets"] else None

    def _delete_subnet(self, state: State) -> None:
        self._ec2.delete_subnet(SubnetId=state["id"])

    def _create_route_table(self, state: State) -> None:
        made = self._ec2.create_route_table(VpcId=state["vpc_id"], TagSpecifications=tagged("route-table", state))
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
        state["name"] = named(state)
        made = self._ec2.create_security_group(
            GroupName=state["name"],
            Description=state["description"],
            VpcId=state["vpc_id"],
            TagSpecifications=tagged("security-group", state),
        )
        state.update(id=made["GroupId"], arn=self._arn("security-group", made["GroupId"]))
        if state["ingress"] not in (None, Unknown) and state["ingress"]:
            self._ec2.authorize_security_group_ingress(GroupId=state["id"], IpPermissions=_rules(state["ingress"]))
        else:
            state["ingress"] = []

    def _read_security_group(self, state: State) -> State | None:
        return state if self._ec2.describe_security_groups(GroupIds=[state["id"]])["SecurityGroups"] else None

    def _delete_security_group(self, state: State) -> None:
        until(lambda: self._ec2.delete_security_group(GroupId=state["id"]), retry="DependencyViolation")


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
