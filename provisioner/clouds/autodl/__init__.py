"""AutoDL: the job's home. A thin client of its developer API, and the cloud contract on top of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from provisioner.clouds.autodl.client import AutodlClient
    from provisioner.clouds.autodl.cloud import AutodlCloud

__all__ = ["AutodlClient", "AutodlCloud"]


def __getattr__(name: str) -> Any:
    """Import the cloud and the client when they are asked for: the tables beside them need no HTTP library."""
    if name == "AutodlCloud":
        from provisioner.clouds.autodl.cloud import AutodlCloud

        return AutodlCloud
    if name == "AutodlClient":
        from provisioner.clouds.autodl.client import AutodlClient

        return AutodlClient
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
