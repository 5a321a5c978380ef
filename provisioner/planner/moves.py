"""What a job saves when it goes on at another machine instead of where it is. Pure."""

from __future__ import annotations

from decimal import Decimal

from provisioner.model import Money, Offer
from provisioner.planner.deadline import Course
from provisioner.planner.expected import way
from provisioner.planner.pools import loss_rate
from provisioner.planner.terms import Terms


def course(here: Offer, terms: Terms) -> Course | None:
    """Return where a job stands that trains on this machine; None without a deadline or a known length."""
    found = way(here, terms.work, 0.0, terms.stores)
    if found is None or terms.seconds_left is None or not terms.work.known:
        return None
    return Course(terms.seconds_left / 3600.0, found.train, found.start, terms.margin_s / 3600.0)


def saving(
    here: Offer, pays_here: Money, there: Offer, pays_there: Money, terms: Terms
) -> tuple[Decimal, Decimal] | None:
    """Return (saved, cost of staying) in USD to the end of the job; None where nobody knows how fast a card is.

    Prices are for an hour. Until the other machine has proved that the command runs there, both are paid for; and the
    job starts there twice, once for that proof.
    """
    stay = way(here, terms.work, loss_rate(here, terms.seen), terms.stores)
    go = way(there, terms.work, loss_rate(there, terms.seen), terms.stores)
    if stay is None or go is None or stay.hours == float("inf") or go.hours == float("inf"):
        return None
    usd_here, usd_there = float(terms.usd(pays_here)), float(terms.usd(pays_there))
    staying = usd_here * (stay.hours - stay.start) + float(stay.egress)
    going = usd_there * (go.hours + go.start) + usd_here * 2 * go.start + float(go.egress)
    return _cents(staying - going), _cents(staying)


def _cents(dollars: float) -> Decimal:
    return Decimal(f"{dollars:.2f}")
