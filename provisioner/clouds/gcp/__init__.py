"""Google Cloud: Compute Engine machines, claimed by google-cloud-compute in what Terraform prepared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from provisioner.clouds.gcp.cloud import GcpCloud

__all__ = ["GcpCloud"]


def __getattr__(name: str) -> Any:
    """Import the cloud when it is asked for. Google's own library, three seconds of it, comes with the first call."""
    if name == "GcpCloud":
        from provisioner.clouds.gcp.cloud import GcpCloud

        return GcpCloud
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
