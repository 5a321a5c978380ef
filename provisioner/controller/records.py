"""What the workflow records of each step. Frozen, small, without secrets: these values stand in its database.

A run outlives an upgrade of this program: a new field goes to the end of its record and has a default, and the record
reads its older pickles by ``model.unpickle``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from provisioner.model import Ending, Failure, Money, Node, Offer, unpickle

if TYPE_CHECKING:  # `failover status` reads no configuration, and starts quickly
    from provisioner.planner import FailureMemory, Standing


@dataclass(frozen=True, slots=True)
class Begun:
    """The start of a run. ``first_epoch`` is one more than the highest epoch that the store has seen."""

    at: float
    first_epoch: int
    first_attempt: int = 0
    """Counts on from here, so that no token of an earlier run that placed nothing comes again: EC2 would refuse it."""

    def __setstate__(self, state: Sequence[object]) -> None:
        """Read a pickle, also one of an earlier version."""
        unpickle(self, state)


@dataclass(frozen=True, slots=True)
class Published:
    """What every node of the job needs, as keys in the store: (wheel key, sha256) pairs and the packed workdir."""

    wheels: tuple[tuple[str, str], ...]
    workdir_key: str | None
    bundle: tuple[str, ...] | None = None
    """The node's own Python: its key in the store and its SHA-256. A pickle of an earlier version may hold more."""
    no_bundle: str = ""
    """Why there is none, where one was wanted."""

    def __setstate__(self, state: Sequence[object]) -> None:
        """Read a pickle, also one of an earlier version."""
        unpickle(self, state)


@dataclass(frozen=True, slots=True)
class Asked:
    """Offers of some clouds at one moment; ``problems``: the clouds that could not answer.

    ``again``: it is worth asking once more before going elsewhere. ``stop``: end the job, and why. ``passed``: offers
    that are left out because a quota has no room for them.
    """

    offers: tuple[Offer, ...]
    at: float
    problems: tuple[Failure, ...] = ()
    again: bool = False
    stop: str = ""
    memory: FailureMemory | None = None
    """What all jobs knew of refusals at that moment; None where it was not asked: then this run's own claims count."""
    passed: tuple[tuple[Offer, Failure], ...] = ()
    standing: Standing | None = None
    """Where the job stood at that moment, which the ranking goes by."""
    until: float | None = None
    """When the job may have a machine again, Unix time, where a day's budget is used up; None: now."""

    def __setstate__(self, state: Sequence[object]) -> None:
        """Read a pickle, also one of an earlier version."""
        unpickle(self, state)


@dataclass(frozen=True, slots=True)
class Choice:
    """An offer in its place of the ranking. ``at_most`` bounds an hour's cost; None where nothing does."""

    offer: Offer
    at_most: Money | None = None
    reason: str = ""
    likely: Money | None = None
    """The price of an hour that the ranking reckoned with."""
    expected: Money | None = None
    expected_h: float | None = None
    """What the job is expected to cost on it to its end, and how many hours that takes."""


@dataclass(frozen=True, slots=True)
class Surplus:
    """A machine that was claimed beside a better one, and given back. ``problem``: why that is not certain."""

    node: Node
    released_at: float
    problem: str = ""

    @property
    def seconds(self) -> float:
        """How long it was ours."""
        return max(0.0, self.released_at - self.node.claimed_at)


@dataclass(frozen=True, slots=True)
class Claimed:
    """The answer to one claim."""

    offer: Offer
    at: float
    node: Node | None
    failure: Failure | None
    at_most: Money | None = None
    stop: str = ""
    surplus: Surplus | None = None
    """The machine that it gave, where another one was kept."""
    beside: tuple[Claimed, ...] = ()
    """What else is paid for while this machine runs: machines that run beside it, and those that were given back."""

    def __setstate__(self, state: Sequence[object]) -> None:
        """Read a pickle, also one of an earlier version."""
        unpickle(self, state)

    @property
    def price(self) -> Money | None:
        """The price of an hour, or else the most that it can be."""
        return self.offer.price_per_hour or self.at_most


@dataclass(frozen=True, slots=True)
class Transfer:
    """Bytes between a machine and a store. ``cost`` is an estimate by list prices; None where the list has none.

    ``step`` is the newest checkpoint that came over; ``behind`` counts commits that did not, ``problem`` says why.
    """

    uri: str
    bytes: int
    step: int | None
    cost: Money | None
    behind: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Watched:
    """How a placement went. Times are Unix seconds; None where it never came to that."""

    ending: Ending
    reason: str
    at: float
    last_seen: float | None
    first_step_at: float | None
    restored_step: int | None
    last_step: int | None
    exit_code: int | None = None
    copies: tuple[Transfer, ...] = ()
    """What this machine sent to each replica."""
    restored_from: Transfer | None = None
    """Where its checkpoint came from."""
    cause: str = ""
    """The node's own word for what ended it (docs/node.md); empty where it had none."""
    clock_ahead: float = 0.0
    """How far the machine's clock was ahead of ours, in seconds. The times here are by ours."""
    taken: bool = False
    """Its cloud took the machine: by a notice, or by its own word that it is gone."""
    rules: int = 0
    """The rules of recovery that this was recorded under. 1: a step ``recover`` follows, and ``taken`` is known."""

    def __setstate__(self, state: Sequence[object]) -> None:
        """Read a pickle, also one of an earlier version."""
        unpickle(self, state)


@dataclass(frozen=True, slots=True)
class Stood:
    """Whether a machine that is to take over is ready; if not, why."""

    ready: bool
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class Released:
    """Whether the machine is gone for certain; ``problem`` is one line when it is not."""

    at: float
    problem: str = ""
    done: dict[str, object] | None = None
    """The last word of its node, as it stands in the store then: it may have come since the placement was judged."""

    def __setstate__(self, state: Sequence[object]) -> None:
        """Read a pickle, also one of an earlier version."""
        unpickle(self, state)


@dataclass(frozen=True, slots=True)
class Recovered:
    """The next machine may be asked for, or the job ends: ``stop`` says why. ``waited`` is in seconds."""

    at: float
    waited: float = 0.0
    stop: str = ""

    def __setstate__(self, state: Sequence[object]) -> None:
        """Read a pickle, also one of an earlier version."""
        unpickle(self, state)


@dataclass(frozen=True, slots=True)
class Finished:
    """What is left at the clouds after the end: a line for each thing that should not be there."""

    at: float
    leaked: tuple[str, ...]
    money: Mapping[str, Any] | None = None
    """What the run has cost by the job's ledger, as ``costs.of_run`` gives it; None by an earlier release."""

    def __setstate__(self, state: Sequence[object]) -> None:
        """Read a pickle, also one of an earlier version."""
        unpickle(self, state)


@dataclass(frozen=True, slots=True)
class Placement:
    """One epoch of the job, whole: the claims that failed, the one that did not, and how it ended."""

    epoch: int
    claims: tuple[Claimed, ...]
    claimed: Claimed
    node: Node
    watched: Watched
    released: Released
