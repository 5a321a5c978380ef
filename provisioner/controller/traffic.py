"""What went between machines and stores, and about what that costs. Nodes report bytes, the catalog has the prices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from provisioner import catalog
from provisioner.controller.records import Transfer
from provisioner.controller.stores import Place, place
from provisioner.model import Money, Offer

if TYPE_CHECKING:
    from provisioner.config import StoreConfig


def copies(found: Sequence[StoreConfig], offer: Offer, heartbeat: Mapping[str, object]) -> tuple[Transfer, ...]:
    """Return what a machine says that it sent to each replica. A replica that nobody knows has no price."""
    listed = heartbeat.get("replicas")
    return tuple(_copies(found, offer, listed if isinstance(listed, list) else []))


def _copies(found: Sequence[StoreConfig], offer: Offer, listed: Iterable[object]) -> Iterator[Transfer]:
    for replica in listed:
        if not isinstance(replica, dict):
            continue
        uri, size = str(replica.get("uri")), _integer(replica.get("bytes")) or 0
        at = _place(found, uri)
        yield Transfer(
            uri=uri,
            bytes=size,
            step=_integer(replica.get("step")),
            cost=_cost(size, Place(offer.cloud, offer.region), at),
            behind=_integer(replica.get("behind")) or 0,
            problem=str(replica.get("error") or ""),
        )


def restored(found: Sequence[StoreConfig], offer: Offer, heartbeat: Mapping[str, object]) -> Transfer | None:
    """Return what a machine fetched at its start, and from where; None when it had nothing to restore."""
    source = heartbeat.get("restored_from")
    if not isinstance(source, dict):
        return None
    uri, size = str(source.get("uri")), _integer(source.get("bytes")) or 0
    cost = _cost(size, _place(found, uri), Place(offer.cloud, offer.region))
    return Transfer(uri, size, _integer(heartbeat.get("restored_step")), cost)


def summed(transfers: Iterable[Transfer]) -> list[Transfer]:
    """Add up by store, in the order of their first appearance: bytes and cost together, the last step and problem."""
    total: dict[str, Transfer] = {}
    for one in transfers:
        before = total.get(one.uri)
        total[one.uri] = one if before is None else _sum(before, one)
    return list(total.values())


def as_json(transfer: Transfer) -> dict[str, object]:
    """Return a transfer as plain values."""
    cost = transfer.cost
    return {
        "uri": transfer.uri,
        "step": transfer.step,
        "bytes": transfer.bytes,
        "behind": transfer.behind,
        "problem": transfer.problem,
        "egress": None if cost is None else {"amount": round(float(cost.amount), 6), "currency": cost.currency},
    }


def from_json(value: Mapping[str, Any]) -> Transfer:
    """Read back what ``as_json`` gave. Raises KeyError, TypeError."""
    cost = value["egress"]
    return Transfer(
        uri=value["uri"],
        bytes=value["bytes"],
        step=value["step"],
        cost=None if cost is None else Money(Decimal(str(cost["amount"])), cost["currency"]),
        behind=value["behind"],
        problem=value["problem"],
    )


def _sum(before: Transfer, after: Transfer) -> Transfer:
    cost = None
    if before.cost is not None and after.cost is not None:
        cost = Money(before.cost.amount + after.cost.amount, after.cost.currency)
    step = before.step if after.step is None else after.step
    return Transfer(after.uri, before.bytes + after.bytes, step, cost, after.behind, after.problem)


def _place(found: Sequence[StoreConfig], uri: str) -> Place | None:
    return next((place(store) for store in found if store.uri == uri), None)


def _cost(size: int, from_: Place | None, to: Place | None) -> Money | None:
    if size == 0:
        return Money(Decimal(0), "USD")
    price = catalog.egress(from_.cloud, from_.region, to.cloud, to.region) if from_ and to else None
    return None if price is None else catalog.egress_cost(price, size)


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
