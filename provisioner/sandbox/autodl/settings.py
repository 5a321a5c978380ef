"""How the emulator is set up, and the interface to whatever runs its machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

Profile = Literal["unverified", "personal", "enterprise"]


class Hooks(Protocol):
    """Who runs the machines. Calls come one at a time, in order, and outside of the emulator's lock.

    The other way, a machine tells ``AutodlEmulator.guest_shutdown`` or ``guest_exit``.
    """

    def on_start(self, instance_id: str, command: str, env: Mapping[str, str]) -> None:
        """Run ``command`` (a shell line, may be empty) as the machine's start command."""
        ...

    def on_stop(self, instance_id: str) -> None:
        """End every process of the machine. It may have none (any more)."""
        ...


class NoMachines:
    """Hooks that run nothing."""

    def on_start(self, instance_id: str, command: str, env: Mapping[str, str]) -> None:
        """Run nothing."""

    def on_stop(self, instance_id: str) -> None:
        """End nothing."""


@dataclass(frozen=True, slots=True)
class Delays:
    """How long things take, in seconds before the speed factor. Only their order of size is known."""

    creating: float = 1.0
    starting: float = 3.0
    shutting_down: float = 2.0
    image_save: float = 5.0
    image_pull: float = 0.0
    container_step: float = 1.0
    snapshot_valid: float = 0.0


@dataclass(frozen=True, slots=True)
class EmulatorConfig:
    """An account and its surroundings. Money is in 1/1000 yuan."""

    token: str = field(default="sandbox-developer-token", repr=False)
    profile: Profile = "enterprise"
    assets: int = 1_000_000
    blocked: int = 0
    vouchers: int = 0
    delays: Delays = Delays()
    speed: float = 1.0
    """Delays are divided by it. Billing and expiry are not."""
    lose_power_off_while_starting: bool = True
    lenient_get_body: bool = False
    seed: int = 0
    """Of the random ids and ports."""
