"""Make a machine and its disk go away, and believe it only when Google answers 404."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from provisioner.clouds.clock import Clock
from provisioner.clouds.gcp.compute import Compute, Operation
from provisioner.clouds.gcp.errors import Refused, error_of
from provisioner.clouds.gcp.reading import failure_of
from provisioner.clouds.meaning import passing
from provisioner.errors import CloudError

CONFIRM_S: Final = 600.0
"""Machines with cards may take minutes to end."""
_POLL_FIRST_S, _POLL_MOST_S = 0.5, 5.0


def terminate(compute: Compute, zone: str, name: str, clock: Clock, confirm_s: float = CONFIRM_S) -> None:
    """Delete a machine, and its disk if that did not go with it; return when both are gone. Raises CloudError.

    A machine that Google does not list is deleted all the same: a list may lag behind. One that it does not know then
    is gone.
    """
    until = clock.tick() + confirm_s
    machine = _Thing(
        f"machine {zone}/{name}",
        lambda: compute.machine(zone, name) is not None,
        lambda: compute.delete_machine(zone, name),
    )
    disk = _Thing(
        f"disk {zone}/{name}", lambda: compute.disk(zone, name) is not None, lambda: compute.delete_disk(zone, name)
    )
    for thing in (machine, disk):
        thing.remove(compute, clock, until)


class _Thing:
    """Something that is to be deleted: how to look for it, and how to ask for its end."""

    def __init__(self, name: str, there: Callable[[], bool], delete: Callable[[], Operation | None]) -> None:
        self.name = name
        self.there = there
        self.delete = delete

    def remove(self, compute: Compute, clock: Clock, until: float) -> None:
        """Ask, wait, look; ask again if the operation failed for a reason that passes."""
        operation: Operation | None = None
        pause_s, asked = _POLL_FIRST_S, False
        while not asked or self.there():
            try:
                operation = self._step(compute, operation)
                asked = True
            except Refused as error:
                if not passing(error.failure):
                    raise
            if asked and operation is None and not self.there():
                return
            if clock.tick() >= until:
                message = f"{self.name} is still there although its deletion was asked for"
                raise CloudError(message, hint="look at the Compute Engine console; it may cost money until it is gone")
            clock.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _POLL_MOST_S)

    def _step(self, compute: Compute, operation: Operation | None) -> Operation | None:
        if operation is None:
            return self.delete()
        try:
            operation = compute.operation(operation.zone, operation.name)
        except LookupError:
            return None
        if not operation.done:
            return operation
        if operation.problems:
            failure = failure_of(operation.problems, project=compute.account.project)
            if not passing(failure):
                raise error_of(failure)
        return None  # done, and if the thing is still there, asked for anew
