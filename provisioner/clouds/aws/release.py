"""Make a machine go away, and believe it only when EC2 says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from provisioner.clouds.aws.api import Region
from provisioner.clouds.clock import Clock
from provisioner.errors import CloudError

CONFIRM_S: Final = 600.0
"""Machines with GPUs may take minutes to end."""
_POLL_FIRST_S, _POLL_MOST_S = 0.5, 5.0


def terminate(region: Region, instance_id: str, clock: Clock, confirm_s: float = CONFIRM_S) -> None:
    """Terminate a machine and what would start it again; return when it has ended. Raises CloudError.

    A persistent spot request is cancelled first, else it replaces the machine by one without our tags; a replacement
    that came before is terminated too. A machine that EC2 does not list is terminated all the same: a list may lag
    behind. One that it does not know then is gone.
    """
    instance = region.find(instance_id)
    request_id = _cancel_request(region, instance)
    doomed = [instance_id]
    if request_id:
        doomed += [str(twin["InstanceId"]) for twin in region.of_spot_request(request_id)]
    region.terminate(dict.fromkeys(doomed))
    for one in dict.fromkeys(doomed):
        _confirm(region, one, clock, confirm_s)


def _cancel_request(region: Region, instance: Mapping[str, Any] | None) -> str:
    """Cancel the machine's spot request if it is persistent; return its id."""
    request_id = str((instance or {}).get("SpotInstanceRequestId") or "")
    if not request_id:
        return ""
    requests = region.spot_requests(SpotInstanceRequestIds=[request_id])
    lasting = [r for r in requests if r.get("Type") == "persistent" and r["State"] in {"open", "active", "disabled"}]
    region.cancel_spot_requests([str(request["SpotInstanceRequestId"]) for request in lasting])
    return request_id if lasting else ""


def _confirm(region: Region, instance_id: str, clock: Clock, confirm_s: float) -> None:
    until = clock.tick() + confirm_s
    pause_s = _POLL_FIRST_S
    while True:
        instance = region.find(instance_id)
        state = "terminated" if instance is None else str(instance["State"]["Name"])
        if state == "terminated":
            return
        if clock.tick() >= until:
            message = f"{region.name}: {instance_id} is still {state} {confirm_s:.0f} s after it was terminated"
            raise CloudError(message, hint="look at the EC2 console; it may cost money until it has ended")
        clock.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _POLL_MOST_S)
