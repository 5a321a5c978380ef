"""dstack's part of `refusals.py`, run by the Python of its own environment: one JSON argument, one JSON line out.

It calls ``AWSCompute.create_instance``, which goes through the zones of one region, once for each region: that is one
offer each to dstack, which goes on with the next one after any refusal.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def offer(region: str, task: dict[str, Any]) -> Any:
    """Return the region's offer of the machine."""
    from dstack._internal.core.models.backends.base import BackendType
    from dstack._internal.core.models.instances import (
        Disk,
        Gpu,
        InstanceAvailability,
        InstanceOfferWithAvailability,
        InstanceType,
        Resources,
    )

    resources = Resources(
        cpus=4,
        memory_mib=16384,
        gpus=[Gpu(name="T4", memory_mib=16384)],
        spot=task["market"] == "spot",
        disk=Disk(size_mib=102400),
    )
    return InstanceOfferWithAvailability(
        backend=BackendType.AWS,
        instance=InstanceType(name=task["type"], resources=resources),
        region=region,
        price=0.526,
        availability=InstanceAvailability.AVAILABLE,
        availability_zones=[*task["regions"][region]],
    )


def main() -> int:
    """Look for a machine."""
    from dstack._internal.core.backends.aws import compute
    from dstack._internal.core.backends.aws.models import AWSAccessKeyCreds, AWSConfig
    from dstack._internal.core.models.instances import InstanceConfiguration, SSHKey

    task = json.loads(sys.argv[1])
    creds = AWSAccessKeyCreds(
        access_key=os.environ["AWS_ACCESS_KEY_ID"], secret_key=os.environ["AWS_SECRET_ACCESS_KEY"]
    )
    config = AWSConfig(type="aws", regions=[*task["regions"]], creds=creds)
    image = ("ami-12c6146b", "ubuntu")  # its images are not in the emulator
    compute.AWSCompute._get_image_id_and_username = lambda _, **__: image  # noqa: SLF001 - not ours
    wanted = InstanceConfiguration(
        project_name="bench", instance_name="bench", user="bench", ssh_keys=[SSHKey(public="ssh-ed25519 AAAA bench")]
    )
    said = ""
    for region in task["regions"]:
        try:
            compute.AWSCompute(config).create_instance(offer(region, task), wanted, placement_group=None)
        except Exception as error:  # noqa: BLE001 - whatever it says
            said = f"{type(error).__name__} {error}".strip()
        else:
            said = "got a machine"
            break
    print(json.dumps({"ended": time.time(), "said": said}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
