"""A job's clouds as ``failover serve`` hands them to its flow: no call without the lock, no machine beyond a limit.

The methods are replaced on the cloud itself, and the cloud is not wrapped: its optional abilities are found by type.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final

from provisioner.clouds.base import Accounted, Cloud
from provisioner.controller.serving.database import insist
from provisioner.controller.serving.seats import Seats
from provisioner.model import Failure, FailureKind, Launch, Node, Offer, Scope

FULL_S: Final = 30.0
"""How long all jobs look elsewhere after a limit of --machines had no room for one, in seconds."""
LIMIT_CODE: Final = "MachineLimit"
GUARDED: Final = ("prepare", "adopt", "inspect", "dismantle")
BY_TERRAFORM: Final = ("prepare", "adopt", "dismantle")
TERRAFORM_AT_ONCE: Final = 3
"""Most calls that may start Terraform at the same time: with a provider it takes half a gigabyte."""
_terraform = threading.BoundedSemaphore(TERRAFORM_AT_ONCE)


def guarded(cloud: Cloud, job: str, seats: Seats, check: Callable[[], None]) -> Cloud:
    """Return the same cloud. ``check`` ends this process where the lock is lost."""
    account = cloud.account if isinstance(cloud, Accounted) else ""
    claim, release = cloud.claim, cloud.release

    def claimed(offer: Offer, launch: Launch) -> Node | Failure:
        full = insist(lambda: seats.book(job, launch.token, offer.cloud, account))
        if full:
            advice = "wait for another job's end, or raise --machines"
            return Failure(FailureKind.NO_CAPACITY, Scope.ACCOUNT, LIMIT_CODE, full, advice, FULL_S)
        check()
        answer = claim(offer, launch)
        if isinstance(answer, Failure):
            insist(lambda: seats.free(launch.token))
        return answer

    def released(node: Node) -> None:
        check()
        release(node)
        insist(lambda: seats.free(node.token))

    for name in GUARDED:
        _replace(cloud, name, _checked(getattr(cloud, name), check, alone=name in BY_TERRAFORM))
    _replace(cloud, "claim", claimed)
    _replace(cloud, "release", released)
    return cloud


def _checked(call: Callable[..., Any], check: Callable[[], None], *, alone: bool) -> Callable[..., Any]:
    def checked(*args: Any) -> Any:
        with _terraform if alone else nullcontext():
            check()
            return call(*args)

    return checked


def _replace(cloud: Cloud, name: str, call: Callable[..., Any]) -> None:
    setattr(cloud, name, call)
