"""What it costs to send a GB from one place to another, by list prices. An estimate, never an invoice.

A GB is 10^9 bytes. The price is that of the first tier, without free allowances: the most that the list asks for.
"""

from __future__ import annotations

from decimal import Decimal

from provisioner.catalog import tables
from provisioner.model import Money

AS_OF = "2026-05"
"""The month of the list prices."""
GB = 10**9
FREE = Money(Decimal(0), "USD")
_UNMETERED = frozenset({"autodl", "local"})
"""Places that ask nothing for what leaves them: AutoDL bills no traffic, and this machine's line is the operator's."""


def egress(from_cloud: str, from_region: str, to_cloud: str, to_region: str) -> Money | None:
    """Return the price of a GB; None where the list has none for the place that the bytes leave.

    Clouds are ``aws``, ``gcp``, ``autodl``, ``local``, or anything else (``aliyun``, ``tencent``, ``other``). Only
    what leaves a place is charged for; what comes in is free everywhere. A region that is not known (empty) is taken
    for another one.
    """
    if from_cloud in _UNMETERED:
        return FREE
    if from_cloud == to_cloud and from_region and from_region == to_region:
        return FREE
    if _in_china(from_cloud, from_region):
        return None  # another price list, in another currency
    inside = from_cloud == to_cloud and not _in_china(to_cloud, to_region)
    return tables.egress_prices().get((from_cloud, "region" if inside else "internet"))


def cost(price: Money, size: int) -> Money:
    """Return what ``size`` bytes cost at a price per GB."""
    return Money(price.amount * size / GB, price.currency)


def _in_china(cloud: str, region: str) -> bool:
    return cloud == "aws" and region.startswith("cn-")
