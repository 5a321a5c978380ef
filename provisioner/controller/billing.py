"""What a machine costs: price times time, billed as its cloud does. The one sum for the report, the limits and the CLI.

A machine counts from its launch, as its cloud tells it, to its confirmed release. Clouds begin a little later and end a
little earlier, so this is an upper bound by seconds.
"""

from __future__ import annotations

from decimal import Decimal

from provisioner.model import LEAST_BILLED_S, Money


def seconds_in(cloud: str, begun: float, ended: float, since: float, until: float) -> float:
    """Return how much of a machine's billed time lies between two moments, in seconds; all moments are Unix time."""
    billed_to = max(begun + LEAST_BILLED_S.get(cloud, 0.0), ended)
    return max(0.0, min(billed_to, until) - max(begun, since))


def charge(cloud: str, price: Money, seconds: float) -> Decimal:
    """Return what a machine costs that was ours for so long, in the currency of its price an hour."""
    return price.amount * Decimal(str(max(LEAST_BILLED_S.get(cloud, 0.0), seconds))) / 3600


def convert(money: Money, currency: str, usd_cny: Decimal) -> Decimal:
    """Return an amount in another of the two currencies; ``usd_cny``: yuan for one dollar."""
    if money.currency == currency:
        return money.amount
    return money.amount / usd_cny if currency == "USD" else money.amount * usd_cny
