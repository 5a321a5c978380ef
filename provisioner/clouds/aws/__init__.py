"""AWS: EC2 machines, claimed by boto3 from what Terraform prepared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from provisioner.clouds.aws.cloud import AwsCloud

__all__ = ["AwsCloud"]


def __getattr__(name: str) -> Any:
    """Import the cloud, and boto3 with it, when it is asked for."""
    if name == "AwsCloud":
        from provisioner.clouds.aws.cloud import AwsCloud

        return AwsCloud
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
