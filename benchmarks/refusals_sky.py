"""SkyPilot's part of `refusals.py`, run by the Python of its own environment: one JSON argument, one JSON line out.

It calls ``sky.provision.aws.instance._create_instances``, which goes through the subnets of one region, once for each
region: a refusal of any kind blocks the zones that were tried, and SkyPilot goes on with the next region.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def main() -> int:
    """Look for a machine."""
    from sky.adaptors import aws
    from sky.provision.aws import instance

    task = json.loads(sys.argv[1])
    said = ""
    for region, subnets in task["regions"].items():
        ec2 = aws.resource("ec2", region_name=region, max_attempts=0)  # as run_instances does, to fail fast
        config: dict[str, Any] = {
            "ImageId": "ami-12c6146b",
            "InstanceType": task["type"],
            "SubnetIds": [subnets[zone] for zone in sorted(subnets)],
            "SecurityGroupIds": [],
        }
        if task["market"] == "spot":
            options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            config["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
        try:
            instance._create_instances(ec2, "bench", config, {}, 1, True, 0)  # noqa: FBT003, SLF001 - not ours
        except Exception as error:  # noqa: BLE001 - whatever it says
            said = type(error).__name__
        else:
            said = "got a machine"
            break
    print(json.dumps({"ended": time.time(), "said": said}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
