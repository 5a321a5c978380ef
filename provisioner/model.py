"""Frozen values that the rooms hand to each other. No I/O, and nothing but the standard library.

The node imports this module on a bare machine, so it stays free of third-party packages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final


class Market(StrEnum):
    """How a machine is paid for."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"


class FailureKind(StrEnum):
    """Why a cloud did not give a machine. Each cloud maps its own codes to these."""

    NO_CAPACITY = "no_capacity"
    QUOTA = "quota"
    NOT_OFFERED = "not_offered"
    PRICE_TOO_LOW = "price_too_low"
    THROTTLED = "throttled"
    UNAUTHORIZED = "unauthorized"
    INVALID = "invalid"
    NETWORK = "network"
    UNKNOWN = "unknown"


class Scope(StrEnum):
    """How far a failure reaches, narrowest first.

    OFFER is one machine type in one market of one zone, TYPE the same in any market. MARKET is one market (spot or
    on-demand) of one region; FAMILY is what one quota counts together in it: G and VT, or P, at AWS; one GPU model at
    Google Cloud.
    """

    OFFER = "offer"
    TYPE = "type"
    ZONE = "zone"
    FAMILY = "family"
    MARKET = "market"
    REGION = "region"
    ACCOUNT = "account"


class NodeState(StrEnum):
    """A machine as its cloud sees it. GONE is an answer, not an error.

    STOPPING: it is on its way out, and what runs on it may still save. UNLISTED: its cloud does not list it, and does
    not say that it has ended; a list may lag behind, so that alone is no end.
    """

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    GONE = "gone"
    UNLISTED = "unlisted"

    @property
    def is_over(self) -> bool:
        """Say whether the machine will never run again."""
        return self in {NodeState.STOPPING, NodeState.STOPPED, NodeState.GONE}


class Ending(StrEnum):
    """Why a placement ended. LOST: the machine went away. STOPPED: a notice, or the node gave up its place."""

    COMPLETED = "completed"
    FAILED = "failed"
    LOST = "lost"
    STOPPED = "stopped"
    NEVER_STARTED = "never_started"
    LIMIT = "limit"
    TAKEN_DOWN = "taken_down"
    HOMEWARD = "homeward"
    """No end yet: it is time for the job to go home, and this machine trains on until home is ready."""


@dataclass(frozen=True, slots=True)
class Money:
    """An amount in a currency, e.g. ``Money(Decimal("0.526"), "USD")``."""

    amount: Decimal
    currency: str

    def __str__(self) -> str:
        """Return ``0.526 USD``, without trailing zeros."""
        return f"{self.amount.normalize():f} {self.currency}"


@dataclass(frozen=True, slots=True)
class Gpu:
    """GPUs of one machine. ``vram_gb`` is GiB per card. ``count`` 0 means a slice of a card."""

    name: str
    count: int
    vram_gb: float


@dataclass(frozen=True, slots=True)
class Offer:
    """A machine that could run the job. ``zone`` is empty where a cloud has none or chooses itself."""

    cloud: str
    region: str
    zone: str
    instance_type: str
    gpu: Gpu
    market: Market
    price_per_hour: Money | None
    available: int | None = None
    """Free cards as the cloud reports them; None where it does not say."""

    @property
    def key(self) -> str:
        """A stable name: ``aws/us-east-1/us-east-1a/g4dn.xlarge/spot``."""
        return "/".join((self.cloud, self.region or "-", self.zone or "-", self.instance_type, self.market))


@dataclass(frozen=True, slots=True)
class Failure:
    """A cloud's refusal, typed. ``code`` is the cloud's own word; ``advice`` one line for the operator."""

    kind: FailureKind
    scope: Scope
    code: str
    message: str
    advice: str = ""
    ttl_s: float = 180.0
    """How long the planner leaves this scope alone, in seconds."""
    elsewhere: tuple[str, ...] = ()
    """Zones that the cloud itself names as having room for this very machine; they are tried next."""
    doubtful: bool = False
    """The machine was ordered and nobody knows what became of that: there may be one."""

    def __setstate__(self, state: Sequence[object]) -> None:
        """Read a pickle, also one of an earlier version."""
        unpickle(self, state)


@dataclass(frozen=True, slots=True)
class JobRef:
    """Which job: its name, and an id that is drawn once when the job is first started (8 hex digits)."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Launch:
    """What a claim needs besides the offer. ``user_data`` holds no secret but one short-lived link."""

    job: JobRef
    epoch: int
    token: str
    user_data: str
    ttl_s: float
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def node_name(self) -> str:
        """Name of the machine at its cloud: ``failover-<job>-<uid>-e<epoch>``."""
        return f"failover-{self.job.name}-{self.job.uid}-e{self.epoch}"


@dataclass(frozen=True, slots=True)
class Node:
    """A claimed machine."""

    id: str
    offer: Offer
    job: JobRef
    epoch: int
    token: str
    claimed_at: float
    """Since when it is ours, Unix time: when its cloud launched it, else when the claim was answered."""


@dataclass(frozen=True, slots=True)
class Owned:
    """A thing that carries our tags, as the cloud lists it. ``kind``: machine, volume, spot_request, ..."""

    cloud: str
    region: str
    kind: str
    id: str
    state: str
    job: str = ""
    epoch: int | None = None
    token: str = ""
    price_per_hour: Money | None = None


LEAST_BILLED_S: Final = {"aws": 60.0, "gcp": 60.0}
"""The shortest time that a cloud bills, in seconds; after it each second counts.

EC2: one minute of a Linux machine, then seconds (API reference, StartInstances). Compute Engine: one minute, then
seconds (cloud.google.com/compute/all-pricing). AutoDL: each second from power-on to power-off (its help pages); a
minimum is not known.
"""


def unpickle(record: Any, state: Sequence[object]) -> None:
    """Set the pickled values of a frozen record; a field that came after the pickle was written gets its default.

    The records of a running job outlive an upgrade of this program: new fields go to the end, and have a default.
    """
    for position, one in enumerate(fields(record)):
        if position < len(state):
            value = state[position]
        else:
            value = one.default if one.default_factory is MISSING else one.default_factory()
        object.__setattr__(record, one.name, value)


TAG_OWNER = "failover:owner"
TAG_JOB = "failover:job"
TAG_UID = "failover:uid"
TAG_EPOCH = "failover:epoch"
TAG_TOKEN = "failover:token"  # noqa: S105 - a tag's name
OWNER = "gpu-failover"


def tags(job: JobRef, epoch: int, token: str) -> dict[str, str]:
    """Return the tags that every machine of a placement carries."""
    return {TAG_OWNER: OWNER, TAG_JOB: job.name, TAG_UID: job.uid, TAG_EPOCH: str(epoch), TAG_TOKEN: token}


def claim_token(job: JobRef, epoch: int, offer: Offer, attempt: int = 0) -> str:
    """Return the idempotency token of one claim: one per (placement, offer, attempt), 32 hex digits.

    It is a function of values that the workflow has already recorded, so it is durable before the call.
    """
    text = f"{job.name}\0{job.uid}\0{epoch}\0{offer.key}\0{attempt}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]
