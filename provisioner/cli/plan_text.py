"""A plan as text of 80 columns, and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from provisioner.cli.plan_passed import passed_rows
from provisioner.errors import ConfigError
from provisioner.model import Money

if TYPE_CHECKING:
    from provisioner.controller.copy_prices import CopyPrice
    from provisioner.model import Offer
    from provisioner.planner import PassedOver, Plan, Ranked, Terms

WIDTH = 80
ROWS = 20


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain values. Costs are dollars to the end of the job, hours its expected time."""
    from provisioner.planner import offer_json

    return {
        "offers": [_ranked_json(number, one) for number, one in enumerate(plan.ranked, 1)],
        "passed_over": [
            {
                "offer": None if one.offer is None else offer_json(one.offer),
                "subject": one.subject,
                "reason": one.reason,
            }
            for one in plan.passed_over
        ],
        "notes": list(plan.notes),
    }


def copy_json(copy: CopyPrice) -> dict[str, Any]:
    """Return the price of copies to a replica as plain values."""
    from provisioner.planner import money_json

    return {"uri": copy.uri, "cloud": copy.cloud, "region": copy.region, "per_gb": money_json(copy.per_gb)}


def print_plan(plan: Plan, copies: Sequence[CopyPrice], *, whole: bool) -> None:
    """Print the ranking with cost and time, what was passed over, and notes; ``whole`` leaves nothing out."""
    rows = list(_rows(plan.ranked))
    shown = rows if whole else rows[:ROWS]
    if shown:
        click.echo(_columns("try", "machine", "market", "an hour", "to the end", "time"))
    place = ""
    for block, lines in shown:
        if block != place:
            click.echo(block)
            place = block
        click.echo("\n".join(lines))
    if len(shown) < len(rows):
        left = len(rows) - len(shown)
        click.echo(f"... and {left} {'row' if left == 1 else 'rows'} more: --all shows them")
    _print_list("passed over", passed_rows(plan.passed_over, whole=whole), whole=whole)
    _print_list("copies", _copy_rows(copies), whole=whole)
    _print_list("notes", plan.notes, whole=True)


def explained(plan: Plan, wanted: str, terms: Terms) -> str:
    """Return why one offer stands where it stands, with its numbers. Raises ConfigError for an offer that is none."""
    parts = []
    for found in _find(plan, wanted):
        if isinstance(found, tuple):
            number, one = found
            parts.append(f"{one.offer.key}: {_ordinal(number)} of {len(plan.ranked)}, at {one.block}")
            parts += [*_wrapped(one.reason), *(line for told in _account(one, terms) for line in _wrapped(told))]
        else:
            parts += [f"{found.subject}: passed over", *_wrapped(found.reason)]
    return "\n".join(parts)


def explained_json(plan: Plan, wanted: str, terms: Terms) -> dict[str, Any]:
    """Return the same as plain values."""
    from provisioner.planner import offer_json

    offers, passed = [], []
    for found in _find(plan, wanted):
        if isinstance(found, tuple):
            number, one = found
            offers.append({**_ranked_json(number, one), "account": list(_account(one, terms))})
        else:
            offer = None if found.offer is None else offer_json(found.offer)
            passed.append({"offer": offer, "subject": found.subject, "reason": found.reason})
    return {"offers": offers, "passed_over": passed}


def _account(one: Ranked, terms: Terms) -> Iterator[str]:
    from provisioner.planner import account

    return account(one, terms)


def _find(plan: Plan, wanted: str) -> list[tuple[int, Ranked] | PassedOver]:
    """Find the offers that a person means: by key, or by cloud, zone or region, type, and market, as far as given."""
    ranked = [(number, one) for number, one in enumerate(plan.ranked, 1) if _means(wanted, one.offer.key)]
    passed = [one for one in plan.passed_over if _means(wanted, one.subject) or _means_type(wanted, one)]
    found: list[tuple[int, Ranked] | PassedOver] = [*ranked, *passed]
    if found:
        return found
    from provisioner.config.names import did_you_mean

    parts = wanted.count("/") + 1
    keys = [
        _short(key) for key in (*(one.offer.key for one in plan.ranked), *(one.subject for one in plan.passed_over))
    ]
    keys = ["/".join(key.split("/")[:parts]) for key in keys]
    message = f"the plan has no offer {wanted}"
    raise ConfigError(message, hint=did_you_mean(wanted, keys) or "write CLOUD/ZONE/TYPE, as in `failover plan --json`")


def _means(wanted: str, key: str) -> bool:
    """Say whether every part that a person wrote is a part of the key, in its order."""
    parts = iter(key.split("/"))
    return all(part in parts for part in wanted.split("/"))


def _means_type(wanted: str, one: PassedOver) -> bool:
    """Say whether a person names a zone of a region where a machine type is no offer at all."""
    parts, subject = wanted.split("/"), one.subject.split("/")
    if one.offer is not None or len(parts) < 3 or len(subject) != 3:
        return False
    return (parts[0], parts[2]) == (subject[0], subject[2]) and parts[1].startswith(subject[1])


def _short(key: str) -> str:
    """Return CLOUD/ZONE/TYPE/MARKET of a key."""
    parts = key.split("/")
    return "/".join((parts[0], *parts[2:])) if len(parts) == 5 and parts[2] != "-" else key


def _ranked_json(number: int, one: Ranked) -> dict[str, Any]:
    from provisioner.planner import money_json, offer_json

    found = one.expected
    way = found.way if found is not None else None
    finite = found is not None and found.cost is not None
    return {
        "rank": number,
        "place": one.block,
        **offer_json(one.offer),
        "at_most": money_json(one.at_most),
        "expected_cost": money_json(one.cost),
        "cost_at_most": money_json(one.cost_at_most),
        "expected_hours": round(way.hours, 3) if way is not None and finite else None,
        "expected_losses": round(way.losses, 3) if way is not None and finite else None,
        "expected_egress": money_json(Money(way.egress, "USD")) if way is not None and finite else None,
        "reckoned_price": money_json(found.price) if found is not None else None,
        "price_basis": one.basis or None,
        "speed": round(way.speed, 3) if way is not None else None,
        "distance_ms": None if one.distance_ms is None else round(one.distance_ms, 1),
        "reason": one.reason,
    }


def _rows(ranked: Sequence[Ranked]) -> Iterator[tuple[str, list[str]]]:
    """Yield the place and the lines for each run of tries that differ in their zone only."""

    def same(numbered: tuple[int, Ranked]) -> tuple[object, ...]:
        one = numbered[1]
        offer = one.offer
        return (one.block, offer.instance_type, offer.market, offer.region, one.reason, one.cost)

    for _, group in groupby(enumerate(ranked, 1), key=same):
        run = list(group)
        (first, one), last = run[0], run[-1][0]
        yield one.block, _row(str(first) if first == last else f"{first}-{last}", one, [each.offer for _, each in run])


def _row(tries: str, one: Ranked, offers: Sequence[Offer]) -> list[str]:
    """Return two lines or more: the numbers, then where and why."""
    offer, found = one.offer, one.expected
    hour = "unknown"
    if offer.price_per_hour is not None:
        hour = str(offer.price_per_hour)
    elif one.at_most is not None:
        hour = f"<={one.at_most}"
    cost = "unknown"
    if one.cost is not None:
        cost = f"{one.cost.amount:.2f} USD"
    elif one.cost_at_most is not None:
        cost = f"<={one.cost_at_most.amount:.2f} USD"
    time = "unknown" if found is None else "no end" if found.cost is None else f"{found.way.hours:.1f} h"
    gpu = f"{offer.gpu.count} x {offer.gpu.name}"
    zones = " ".join(_zone(offer.region, each.zone) for each in offers)
    where = f"{offer.region} {zones}".strip()
    line = _columns(tries, offer.instance_type, offer.market, hour, cost, time)
    return [line, *_wrapped(f"{gpu}, {where}: {one.reason}", indent=" " * 8)]


def _columns(tries: str, machine: str, market: str, hour: str, cost: str, time: str) -> str:
    """Lay out a row. Columns give way to what is longer than usual."""
    return f"{tries:>7} {machine:<20} {market:<9} {hour:>13} {cost:>13} {time:>8}".rstrip()


def _copy_rows(copies: Iterable[CopyPrice]) -> Iterator[str]:
    """Yield a line for each replica and place with the price of a GB."""
    from provisioner.catalog import EGRESS_AS_OF

    for copy in copies:
        price = "unknown"
        if copy.per_gb is not None:
            price = f"{copy.per_gb} a GB, list price of {EGRESS_AS_OF}" if copy.per_gb.amount else "free"
        yield f"to {copy.uri} from {'/'.join(part for part in (copy.cloud, copy.region) if part)}: {price}"


def _print_list(title: str, lines: Iterable[str], *, whole: bool) -> None:
    told = list(lines)
    if not told:
        return
    click.echo(f"\n{title}")
    for line in told if whole else told[:ROWS]:
        click.echo("\n".join(_wrapped(line, hang="    ")))
    if len(told) > ROWS and not whole:
        click.echo(f"  ... and {len(told) - ROWS} more: --all shows them")


def _wrapped(text: str, *, indent: str = "  ", hang: str = "") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=hang or indent, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def _zone(region: str, zone: str) -> str:
    """Shorten ``us-east-1a`` and ``us-central1-a`` to ``a`` beside their region."""
    return zone.removeprefix(region).removeprefix("-") or zone


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
