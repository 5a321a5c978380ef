"""What it means for the next machine when one could not start the job. The words are its own or its engine's."""

from __future__ import annotations

import re
from typing import Final

from provisioner.model import Failure, FailureKind, Scope

DRIVER_TTL_S: Final = 6 * 3600.0
_DRIVER: Final = re.compile(
    r"NVIDIA driver \S+ is too old|unsatisfied condition: (cuda|driver)|driver version is insufficient"
)
_NO_IMAGE: Final = re.compile(
    r"the image \S+ cannot be pulled: .*(manifest unknown|not found|no such manifest|does not exist|invalid reference"
    r"|access (is )?denied|unauthorized|authentication required|no basic auth)",
    re.IGNORECASE,
)


def driver_failure(reason: str) -> Failure | None:
    """Return the refusal that a too old driver amounts to: this type of machine in this zone, for this job's image."""
    if not _DRIVER.search(reason):
        return None
    advice = "choose an image with an older CUDA, or a machine image with a newer driver"
    return Failure(FailureKind.INVALID, Scope.TYPE, "DriverTooOld", reason, advice, DRIVER_TTL_S)


def no_image(reason: str) -> bool:
    """Say whether the registry has no such image for us, which another machine does not change."""
    return _NO_IMAGE.search(reason) is not None
