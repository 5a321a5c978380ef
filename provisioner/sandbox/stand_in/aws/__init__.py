"""AWS: boto3 at AWS_ENDPOINT_URL."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from provisioner.sandbox.stand_in import Cloud, Provider, State


def _open(config: State) -> Cloud:
    # boto3 is loaded when the cloud is first needed: Terraform often starts a provider for its schema alone.
    from provisioner.sandbox.stand_in.aws.cloud import Cloud as AwsCloud

    return AwsCloud(config.get("region"))


PROVIDER: Final = Provider(
    schema=Path(__file__).with_name("schema.json"),
    open=_open,
    endpoints=("AWS_ENDPOINT_URL",),
    in_place={
        "aws_launch_template": frozenset(
            {
                "block_device_mappings",
                "description",
                "iam_instance_profile",
                "image_id",
                "instance_initiated_shutdown_behavior",
                "instance_market_options",
                "key_name",
                "metadata_options",
                "tag_specifications",
                "update_default_version",
                "vpc_security_group_ids",
            }
        ),
        "aws_iam_role": frozenset({"assume_role_policy", "description"}),
        "aws_iam_role_policy": frozenset({"policy"}),
        "aws_security_group": frozenset({"ingress", "egress"}),
    },
    free=frozenset({"tags"}),
    counters={"aws_launch_template": ("latest_version", "default_version")},
)
