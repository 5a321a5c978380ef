"""What it means for the next machine when one could not start the job, by the cause that the machine gave."""

from __future__ import annotations

from typing import Final

from provisioner.model import Failure, FailureKind, Scope

DRIVER_TTL_S: Final = 6 * 3600.0
NO_IMAGE: Final = "no_image"
"""The registry has no such image for us, which another machine does not change."""
OLD_DRIVER: Final = "old_driver"


def driver_failure(cause: str, reason: str) -> Failure | None:
    """Return the refusal that a too old driver amounts to: this type of machine in this zone, for this job's image."""
    if cause != OLD_DRIVER:
        return None
    advice = "choose an image with an older CUDA, or a machine image with a newer driver"
    return Failure(FailureKind.INVALID, Scope.TYPE, "DriverTooOld", reason, advice, DRIVER_TTL_S)
