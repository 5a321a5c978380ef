"""What clouds refused lately, and how far each refusal reaches. Frozen values; the time is handed in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import takewhile
from typing import Any, Final

from provisioner.model import Failure, FailureKind, Gpu, Market, Money, Offer, Scope

_G_AND_VT: Final = frozenset({"g", "gr", "vt"})
"""Letters of the machine types that AWS's quota "G and VT" counts."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """One refusal: of which offer, and until when (Unix seconds) its scope is left alone."""

    failure: Failure
    offer: Offer
    until: float

    @property
    def target(self) -> tuple[str, ...]:
        """What is left alone. Each scope is the cloud and as many more names as it is narrow."""
        offer = self.offer
        match self.failure.scope:
            case Scope.ACCOUNT:
                return ("account", offer.cloud)
            case Scope.REGION:
                return ("region", offer.cloud, offer.region)
            case Scope.MARKET:
                return ("market", offer.cloud, offer.region, offer.market)
            case Scope.FAMILY:
                return ("family", offer.cloud, offer.region, offer.market, quota_family(offer))
            case Scope.ZONE:
                return ("zone", offer.cloud, offer.region, offer.zone)
            case Scope.TYPE:
                return ("type", offer.cloud, offer.region, offer.zone, offer.instance_type)
            case Scope.OFFER:
                return ("offer", offer.cloud, offer.region, offer.zone, offer.instance_type, offer.market)

    @property
    def name(self) -> str:
        """What is left alone, as a person reads and types it: ``aws/us-east-1/spot/P``, ``autodl``."""
        return "/".join(part or "-" for part in self.target[1:])

    def covers(self, offer: Offer) -> bool:
        """Say whether an offer lies within the scope of the refusal."""
        return self.target == Remembered(self.failure, offer, self.until).target


@dataclass(frozen=True, slots=True)
class FailureMemory:
    """Refusals by scope, each forgotten after its own time. ``remember`` returns a new memory."""

    entries: tuple[Remembered, ...] = ()

    def remember(self, failure: Failure, offer: Offer, *, now: float) -> FailureMemory:
        """Add a refusal that came at ``now`` (Unix seconds). Of two for one scope the longer one stays."""
        new = Remembered(failure, offer, now + failure.ttl_s)
        same = [entry for entry in self.entries if entry.target == new.target]
        if any(entry.until > new.until for entry in same):
            return self
        return FailureMemory((*(entry for entry in self.entries if entry not in same), new))

    def blocking(self, offer: Offer, now: float) -> Remembered | None:
        """Return the refusal that still covers an offer, the longest if there are several."""
        found = [entry for entry in self.entries if now < entry.until and entry.covers(offer)]
        return max(found, key=lambda entry: entry.until, default=None)

    def blocks(self, offer: Offer, now: float) -> Failure | None:
        """Return why an offer is left alone at ``now``, or None."""
        entry = self.blocking(offer, now)
        return entry.failure if entry else None

    def forget(self, now: float) -> FailureMemory:
        """Drop what is over."""
        return FailureMemory(tuple(entry for entry in self.entries if now < entry.until))

    def as_json(self) -> list[dict[str, Any]]:
        """Return plain values for JSON; ``from_json`` reads them back as the same memory."""
        return [
            {"failure": failure_json(entry.failure), "offer": offer_json(entry.offer), "until": entry.until}
            for entry in self.entries
        ]

    @classmethod
    def from_json(cls, data: list[dict[str, Any]]) -> FailureMemory:
        """Read what ``as_json`` gave. Raises KeyError or ValueError for anything else."""
        return cls(
            tuple(
                Remembered(failure_from(entry["failure"]), offer_from(entry["offer"]), float(entry["until"]))
                for entry in data
            )
        )


def quota_family(offer: Offer) -> str:
    """Return what one quota of a region and market counts together: of AWS the family, elsewhere the GPU model.

    AWS counts P5 and P6 with the other P on demand, and apart from them on the spot market.
    """
    if offer.cloud != "aws":
        return offer.gpu.name
    letters = "".join(takewhile(str.isalpha, offer.instance_type))
    generation = offer.instance_type[len(letters) : len(letters) + 1]
    if letters == "p" and offer.market is Market.SPOT and generation in {"5", "6"}:
        return f"P{generation}"
    return "G" if letters in _G_AND_VT else letters.upper()


def offer_json(offer: Offer) -> dict[str, Any]:
    """Return an offer as plain values for JSON."""
    return {
        "cloud": offer.cloud,
        "region": offer.region,
        "zone": offer.zone,
        "instance_type": offer.instance_type,
        "market": str(offer.market),
        "gpu": {"name": offer.gpu.name, "count": offer.gpu.count, "vram_gb": offer.gpu.vram_gb},
        "price_per_hour": money_json(offer.price_per_hour),
        "available": offer.available,
    }


def money_json(money: Money | None) -> dict[str, str] | None:
    """Return money as plain values; the amount stays a text, so that nothing is rounded."""
    return None if money is None else {"amount": str(money.amount), "currency": money.currency}


def offer_from(data: Mapping[str, Any]) -> Offer:
    """Read what ``offer_json`` gave. Raises KeyError or ValueError for anything else."""
    gpu, price = data["gpu"], data["price_per_hour"]
    return Offer(
        data["cloud"],
        data["region"],
        data["zone"],
        data["instance_type"],
        Gpu(gpu["name"], gpu["count"], gpu["vram_gb"]),
        Market(data["market"]),
        None if price is None else Money(Decimal(price["amount"]), price["currency"]),
        data["available"],
    )


def failure_json(failure: Failure) -> dict[str, Any]:
    """Return a refusal as plain values for JSON."""
    return {
        "kind": str(failure.kind),
        "scope": str(failure.scope),
        "code": failure.code,
        "message": failure.message,
        "advice": failure.advice,
        "ttl_s": failure.ttl_s,
        "elsewhere": list(failure.elsewhere),
    }


def failure_from(data: Mapping[str, Any]) -> Failure:
    """Read what ``failure_json`` gave. Raises KeyError or ValueError for anything else."""
    return Failure(
        FailureKind(data["kind"]),
        Scope(data["scope"]),
        data["code"],
        data["message"],
        data["advice"],
        data["ttl_s"],
        tuple(data.get("elsewhere", ())),
    )
