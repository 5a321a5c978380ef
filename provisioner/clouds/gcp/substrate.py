"""The prepared region at Google Cloud: what a claim reads of it, and how new it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol, TypeAlias

from provisioner.clouds import substrate

NEW_S: Final = 180.0
"""How long a new service account may take to be known everywhere, in seconds."""


class Made(Protocol):
    """What a stack made: ``provisioner.terraform.stack.GcpSubstrate`` is one."""

    @property
    def network(self) -> str:
        """Link of the network."""
        ...

    @property
    def subnetwork(self) -> str:
        """Link of its subnet in the region; empty where the network needs none."""
        ...

    @property
    def service_account(self) -> str:
        """E-mail of the account that machines run as; empty: none."""
        ...

    @property
    def network_tag(self) -> str:
        """Tag that the firewall rules ask for."""
        ...

    @property
    def image(self) -> str:
        """Link of the machine image."""
        ...


Stack: TypeAlias = substrate.Stack[Made]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared region."""

    network: str
    subnetwork: str
    service_account: str
    network_tag: str
    image: str


class Substrate(substrate.PreparedRegion[Made, Prepared]):
    """One region of one job at Google Cloud. What was removed behind our back shows when a claim is refused for it."""

    module: ClassVar[str] = "gcp_region"

    @property
    def new(self) -> bool:
        """Whether the region was prepared a moment ago: Google may not have heard everywhere of what was made."""
        try:
            return self._now() - float(self._note()["at"]) < NEW_S
        except (ValueError, KeyError, TypeError):
            return False

    def _of(self, made: Made) -> Prepared:
        return Prepared(made.network, made.subnetwork, made.service_account, made.network_tag, made.image)

    def _read(self, note: Mapping[str, Any]) -> Prepared:
        return Prepared(**note)
