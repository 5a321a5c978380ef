"""The one contract that every cloud fulfils. A cloud is a room: found by entry point, imported when used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from provisioner.model import Failure, Launch, Money, Node, NodeState, Offer, Owned


@dataclass(frozen=True, slots=True)
class Request:
    """What the job asks of a machine. Empty ``gpus`` means any. ``cuda`` is e.g. ``(12, 4)`` or None."""

    gpus: tuple[str, ...] = ()
    count: int = 1
    min_vram_gb: float = 0.0
    cuda: tuple[int, int] | None = None


@runtime_checkable
class Cloud(Protocol):
    """Get, watch and give back machines of one cloud. Every method is idempotent and has its own deadlines."""

    name: ClassVar[str]

    def offers(self, request: Request) -> Sequence[Offer]:
        """List what could run the job, from the catalog and live stock. Raises CloudError."""
        ...

    def prepare(self, region: str) -> None:
        """Make the substrate of a region (network, role, launch template). Free of charge. Raises CloudError."""
        ...

    def claim(self, offer: Offer, launch: Launch) -> Node | Failure:
        """Get the machine, or say why not. Never two machines for one ``launch.token``.

        After a doubtful answer (time-out, lost connection, a repeat after a crash) it looks up what the token made
        before it tries again.
        """
        ...

    def adopt(self, node: Node) -> None:
        """Let Terraform take the machine over, and let go of a dead one that it still holds. Never replaces a machine.

        A cloud without Terraform does nothing.
        """
        ...

    def release(self, node: Node) -> None:
        """Make the machine go away; returns when the cloud confirms it. Gone already is fine. Raises CloudError."""
        ...

    def inspect(self, node: Node) -> NodeState:
        """Say how the cloud sees the machine: GONE by its own word, UNLISTED where it only does not show it.

        Raises Unreachable when the cloud does not answer.
        """
        ...

    def owned(self) -> Sequence[Owned]:
        """List everything at the cloud that carries our tags for this job, whatever any state file says.

        What cannot be asked hides nothing else, but an empty list is given only when all was asked. Raises CloudError.
        """
        ...

    def dismantle(self) -> None:
        """Remove what ``prepare`` made for this job, in every region. Idempotent.

        Raises CloudError for what is left, and for a place that cannot be asked.
        """
        ...


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a cloud shows of a running machine's future. None: it does not say.

    ``balance`` is what the account can spend, ``price_per_hour`` the machine's; ``idle`` counts free cards of its kind,
    which ``kind`` names.
    """

    balance: Money | None = None
    price_per_hour: Money | None = None
    idle: int | None = None
    kind: str = ""


@runtime_checkable
class ListsPartly(Protocol):
    """A cloud of several places, of which ``owned`` may hear some only."""

    def heard(self, region: str) -> bool:
        """Say whether the last ``owned`` has heard of everything in a region."""
        ...


@runtime_checkable
class Foretells(Protocol):
    """A cloud that knows of a running machine what the machine cannot."""

    def outlook(self, node: Node) -> Outlook:
        """Look now. Raises CloudError."""
        ...


@runtime_checkable
class Quotas(Protocol):
    """A cloud whose quotas can be asked before a machine is."""

    def over_quota(self, offers: Sequence[Offer]) -> Mapping[str, Failure]:
        """Return, by ``Offer.key``, why an offer would be refused: the quota, its limit, what is used, and the link.

        What cannot be told (no permission, no answer) is not in it. Never raises; answers are at most 10 minutes old.
        """
        ...


@runtime_checkable
class Explains(Protocol):
    """A cloud that knows why a machine has ended."""

    def why_gone(self, node: Node) -> str:
        """Return the cloud's own words for a machine's end, e.g. that it took spot capacity back; empty: none.

        Raises CloudError.
        """
        ...


@dataclass(frozen=True, slots=True)
class Tagged:
    """A thing that carries our owner tag, of whichever job and controller.

    ``uid`` is its job's id, empty where it names none; ``since`` the Unix time at which it was made or last started,
    None where the cloud does not say; ``place`` where it was asked for, where its region does not tell.
    """

    thing: Owned
    uid: str = ""
    since: float | None = None
    place: str = ""

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """What tells it from all others."""
        return (self.thing.cloud, self.place, self.thing.region, self.thing.kind, self.thing.id)


@dataclass(frozen=True, slots=True)
class Findings:
    """What a cloud lists. ``silent`` names what could not be asked, with the reason: it is not empty, but unknown."""

    found: tuple[Tagged, ...]
    silent: Mapping[str, str]


@runtime_checkable
class Inventory(Protocol):
    """A cloud that lists, and removes, what carries our owner tag, of every job of the account."""

    def tagged(self, regions: Sequence[str]) -> Findings:
        """List it, in these regions as well as those of the configuration. Never raises for a place that is silent."""
        ...

    def remove(self, tagged: Tagged) -> None:
        """Ask that one thing goes away; a machine is gone when this returns. Gone already is fine.

        Other things may need to be asked again, while what uses them ends. Raises CloudError.
        """
        ...


@runtime_checkable
class Accounted(Protocol):
    """A cloud that can say, without asking anybody, whose account it uses."""

    @property
    def account(self) -> str:
        """A name that tells accounts apart and holds no secret, e.g. a profile or a project; empty: not known."""
        ...
