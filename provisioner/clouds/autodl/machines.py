"""What the two ways of AutoDL have in common: find by name, make, look, take away, and wait between looks."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from provisioner.clouds.base import Request, Tagged
from provisioner.errors import CloudError
from provisioner.model import Failure, Money, NodeState, Offer

Sleep = Callable[[float], None]
Clock = Callable[[], float]


class AutodlSettings(Protocol):
    """The ``primary.autodl`` block of failover.yaml, as far as this room reads it."""

    @property
    def mode(self) -> str:
        """Either ``pro`` or ``elastic``."""
        ...

    @property
    def regions(self) -> Sequence[str]:
        """Region codes; empty: the platform chooses (Pro), or all (elastic)."""
        ...

    @property
    def gpus(self) -> Sequence[str]:
        """Names or Pro spec ids, in the operator's words; empty: what the job asks for."""
        ...

    @property
    def image_uuid(self) -> str | None:
        """A private or base image; None: AutoDL's PyTorch base image."""
        ...

    @property
    def max_price(self) -> Money | None:
        """Limit for one machine and hour, in CNY."""
        ...


@dataclass(frozen=True, slots=True)
class Passed:
    """An offer that is not made, and why: for the operator who wonders where it is."""

    name: str
    reason: str


class Machines(Protocol):
    """One way of getting machines at AutoDL (Pro or elastic)."""

    def offers(self, request: Request) -> tuple[list[Offer], list[Passed]]:
        """List what fits, and what was passed over. Raises CloudError."""
        ...

    def find(self, name: str) -> str | None:
        """Return the id of the oldest machine with this name. Raises CloudError."""
        ...

    def create(self, name: str, offer: Offer, command: str, image: str) -> str:
        """Make a machine and return its id. Raises Doubtful, or the typed refusal."""
        ...

    def settle(self, machine: str) -> Failure | None:
        """Wait until the platform has given it a host, or take it back and say why not."""
        ...

    def inspect(self, machine: str) -> NodeState:
        """Say what it does. Raises Unreachable."""
        ...

    def release(self, machine: str) -> None:
        """Make it go away, and return when it is gone. Raises CloudError."""
        ...

    def tagged(self, prefix: str) -> list[Tagged]:
        """List all machines of ours whose name begins with ``prefix``. Raises CloudError."""
        ...


class Patience:
    """Waits that grow from a second to ``poll_s``, until ``limit_s`` have passed."""

    def __init__(
        self, limit_s: float, poll_s: float, *, sleep: Sleep = time.sleep, clock: Clock = time.monotonic
    ) -> None:
        """Start the clock now."""
        self._sleep = sleep
        self._clock = clock
        self._poll_s = poll_s
        self._next_s = min(1.0, poll_s)
        self._end = clock() + limit_s
        self._slept = 0.0
        self._limit_s = limit_s

    def wait(self) -> bool:
        """Sleep a little and return True; or return False when the time is over."""
        if self._clock() >= self._end or self._slept >= self._limit_s:
            return False
        self._sleep(self._next_s)
        self._slept += self._next_s
        self._next_s = min(self._poll_s, self._next_s * 1.5)
        return True


def make_go(look: Callable[[], str | None], push: Callable[[str], None], patience: Patience) -> str | None:
    """Push a machine towards its end until two looks in a row do not show it; None then.

    ``look`` returns its status, None where it is not listed: a list may lag behind, and what runs on costs money.
    Return the status of one that has not gone in time.
    """
    gone = 0
    while True:
        status = look()
        gone = gone + 1 if status is None else 0
        if gone > 1 or status == "released":
            return None
        if status is not None:
            push(status)
        if not patience.wait():
            return None if gone else status


def start_command(user_data: str) -> str:
    """Wrap a script into one shell command without quotes or line breaks of its own."""
    encoded = base64.b64encode(user_data.encode()).decode()
    return f'bash -c "$(echo {encoded} | base64 -d)"'


def still_there(machine: str, status: str, limit_s: float) -> CloudError:
    """Return the error for a machine that did not go away in time."""
    return CloudError(
        f"AutoDL still shows {machine} as {status or 'there'} after {limit_s:.0f} s of trying to release it",
        hint="it may cost money: run `failover down` again, or release it in AutoDL's console",
    )


def fits(vram_gb: float, request: Request, *, named: bool) -> bool:
    """Tell whether a card has the memory that the job asks for. A named card of unknown memory gets the benefit."""
    return vram_gb >= request.min_vram_gb or (named and not vram_gb)
