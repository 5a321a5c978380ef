"""The ledger of a job: a line for each machine that began or ended, in ``spending.jsonl`` of its folder.

The workflow's database holds the same and can only be read by its engine, by one process, for one run. The ledger is
read by anybody at any time: by ``failover cost``, and by every controller that keeps a limit over all jobs. A line that
is written again after a crash says the same, and counts once. It begins with the first run that this release starts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from provisioner.controller.billing import charge, seconds_in
from provisioner.controller.records import Choice
from provisioner.model import Money, Node, Owned
from provisioner.telemetry import events

FILE = "spending.jsonl"


@dataclass(frozen=True, slots=True)
class Terms:
    """What a run was started with: its budgets, and yuan for one dollar."""

    budget: Money | None = None
    per_day: Money | None = None
    usd_cny: Decimal = Decimal("7.1")

    @property
    def currency(self) -> str:
        """The budget's currency; dollars without one."""
        money = self.budget or self.per_day
        return money.currency if money is not None else "USD"


@dataclass(frozen=True, slots=True)
class Bill:
    """One machine. Times are Unix seconds; ``ended`` None while it runs, then ``ends_by`` is when it ends itself.

    ``price`` is that of an hour, ``at_most`` what bounds it where it is not known; ``likely`` is the price that the
    plan reckoned with, and ``expected`` and ``expected_h`` what the job would cost on it to its end, and take.
    """

    job: str
    run: int
    epoch: int
    node: str
    cloud: str
    region: str
    zone: str
    instance_type: str
    market: str
    price: Money | None
    at_most: Money | None
    begun: float
    ends_by: float | None = None
    ended: float | None = None
    watched: bool = False
    """Whether the job was entrusted to it: one that never was is a surplus machine."""
    problem: str = ""
    likely: Money | None = None
    expected: Money | None = None
    expected_h: float | None = None
    transfers: tuple[Mapping[str, Any], ...] = ()
    terms: Terms = field(default_factory=Terms)
    token: str = ""
    """That of its claim; empty where an earlier release entered it."""
    unanswered: bool = False
    """Its claim had no answer: there may be such a machine. ``node`` is empty where nobody has seen it."""

    @property
    def hourly(self) -> Money | None:
        """The price of an hour, or else the most that it can be."""
        return self.price or self.at_most

    @property
    def bounded(self) -> bool:
        """Whether it costs that much at most: its price is not known, or it may not be there at all."""
        return self.hourly is not None and (self.price is None or self.in_doubt)

    @property
    def in_doubt(self) -> bool:
        """Whether nobody knows if it is there."""
        return self.unanswered and not self.node

    def until(self, now: float) -> float:
        """Return when it ended, or until when it counts: a machine that nobody has seen go lasts no longer than ttl.

        It is never before it began, whatever a clock that was set back says.
        """
        if self.ended is not None:
            return max(self.begun, self.ended)
        return max(self.begun, now if self.ends_by is None else min(now, self.ends_by))

    def runs(self, now: float) -> bool:
        """Say whether it costs money now, as far as is known."""
        return self.ended is None and (self.ends_by is None or now < self.ends_by)

    def cost(self, now: float) -> Decimal | None:
        """Return what it has cost in the currency of its price; None where nothing bounds that."""
        return None if self.hourly is None else charge(self.cloud, self.hourly, self.until(now) - self.begun)

    def cost_between(self, since: float, now: float) -> Decimal | None:
        """Return what it has cost from one moment to another, not later than now."""
        if self.hourly is None:
            return None
        seconds = seconds_in(self.cloud, self.begun, self.until(now), since, now)
        return self.hourly.amount * Decimal(str(seconds)) / 3600


class Ledger:
    """Writes one job's ledger. A disk that does not take a line never stops the job."""

    def __init__(self, folder: Path) -> None:
        """Name the file; it is created with its first line."""
        self._log = events.EventLog(folder / FILE)
        self._folder = folder
        self._read: tuple[int, list[Bill], int] = (-1, [], 0)

    def begin(self, run: int, at: float, terms: Terms) -> None:
        """Begin a run."""
        self._log.emit(
            "run", run=run, at=at, budget=_json(terms.budget), per_day=_json(terms.per_day), usd_cny=terms.usd_cny
        )

    def machine(self, bill: Bill) -> None:
        """Enter a machine that was claimed."""
        self._enter("machine", bill)

    def asked(self, bill: Bill) -> None:
        """Enter a claim that was not answered: it counts as the machine that it may have made."""
        self._enter("asked", bill)

    def absent(self, cloud: str, token: str, at: float) -> None:
        """Note that a claim that was not answered has made no machine."""
        self._log.emit("absent", cloud=cloud, token=token, at=at)

    def _enter(self, kind: str, bill: Bill) -> None:
        self._log.emit(
            kind,
            epoch=bill.epoch, node=bill.node, cloud=bill.cloud, region=bill.region, zone=bill.zone,
            instance_type=bill.instance_type, market=bill.market, price=_json(bill.price), at_most=_json(bill.at_most),
            begun=bill.begun, ends_by=bill.ends_by, likely=_json(bill.likely), expected=_json(bill.expected),
            expected_h=bill.expected_h, token=bill.token,
        )  # fmt: skip

    def unanswered(self) -> list[Bill]:
        """Return the claims, of whichever run, that may have made a machine which nobody has seen yet."""
        return [bill for bill in self._bills()[0] if bill.unanswered and bill.ended is None]

    def of_run(self) -> list[Bill]:
        """Return the bills of the newest run."""
        found, run = self._bills()
        return [bill for bill in found if bill.run == run]

    def _bills(self) -> tuple[list[Bill], int]:
        """Read the ledger, if it has grown."""
        try:
            size = (self._folder / FILE).stat().st_size
        except OSError:
            size = 0
        if size != self._read[0]:
            self._read = (size, *_read(self._folder))
        return self._read[1:]

    def ours_since(self, node: Node) -> Node:
        """Return a machine with the time since when it is ours.

        A claim that is made again after a crash gives the machine that the first one gave: it has cost money since.
        """
        cloud = node.offer.cloud
        begun = [one.begun for one in bills(self._folder) if _same(one, cloud, node.id, node.epoch) and not one.ended]
        return replace(node, claimed_at=min([node.claimed_at, *begun]))

    def watched(self, bill: Bill) -> None:
        """Note that a machine has the job. One that an earlier release claimed is entered now."""
        known = self.found(bill)
        if known is None or not known.watched:
            self._log.emit("watched", cloud=bill.cloud, node=bill.node, epoch=bill.epoch)

    def found(self, bill: Bill) -> Bill | None:
        """Return what is known of a machine that is there; enter it where it is not known."""
        known = next((one for one in bills(self._folder) if _same(one, bill.cloud, bill.node, bill.epoch)), None)
        if known is None:
            self.machine(bill)
        return known

    def moved(self, cloud: str, node: str, epoch: int, transfers: list[dict[str, object]]) -> None:
        """Note what a machine sent and fetched."""
        if transfers:
            self._log.emit("moved", cloud=cloud, node=node, epoch=epoch, transfers=transfers)

    def gone(self, cloud: str, node: str, at: float, problem: str = "") -> None:
        """Note that a machine was released, or could not be confirmed to be."""
        self._log.emit("gone", cloud=cloud, node=node, at=at, problem=problem)

    def removed(self, thing: Owned, since: float | None, at: float) -> None:
        """Note that a machine was released which only its cloud knew. ``since``: when it began, None: not known.

        One whose claim was never answered takes the place of that claim. Where that has no line either, it is entered
        with its cloud's price as what bounds it.
        """
        known = [one for one in bills(self._folder) if one.cloud == thing.cloud]
        asked = next((one for one in known if one.unanswered and is_token(thing.token, one.token)), None)
        if asked is not None and asked.ended is None:
            begun = asked.begun if since is None else min(since, at)
            self.machine(replace(asked, node=thing.id, begun=begun, unanswered=False))
        elif since is not None and not any(one.node == thing.id for one in known):
            bill = Bill(
                job=thing.job, run=0, epoch=thing.epoch or 0, node=thing.id, cloud=thing.cloud, region=thing.region,
                zone="", instance_type="", market="", price=None, at_most=thing.price_per_hour, begun=min(since, at),
            )  # fmt: skip
            self.machine(bill)
        self.gone(thing.cloud, thing.id, at)


def bill_of(node: Node, choice: Choice, ttl_s: float) -> Bill:
    """Return the bill of a machine that was just claimed, or is."""
    offer = node.offer
    return Bill(
        job=node.job.name,
        run=0,
        epoch=node.epoch,
        node=node.id,
        cloud=offer.cloud,
        region=offer.region,
        zone=offer.zone,
        instance_type=offer.instance_type,
        market=str(offer.market),
        price=offer.price_per_hour,
        at_most=choice.at_most,
        begun=node.claimed_at,
        ends_by=node.claimed_at + ttl_s,
        likely=choice.likely,
        expected=choice.expected,
        expected_h=choice.expected_h,
        token=node.token,
    )


def bills(folder: Path) -> list[Bill]:
    """Read the bills of a job's folder, oldest first. What cannot be understood is passed over."""
    return _read(folder)[0]


def _read(folder: Path) -> tuple[list[Bill], int]:
    """Return the bills, and the number of the newest run."""
    found: list[Bill] = []
    terms, run = Terms(), 0
    for line in events.read(folder / FILE):
        try:
            if line["kind"] == "run":
                run = int(line["run"])
                terms = Terms(_money(line["budget"]), _money(line["per_day"]), Decimal(str(line["usd_cny"])))
            elif line["kind"] in {"machine", "asked"}:
                _enter(found, _bill(folder.name, run, terms, line))
            elif line["kind"] == "absent":
                _strike(found, line["cloud"], line["token"], _number(line["at"]))
            else:
                _note(found, line)
        except (KeyError, TypeError, ValueError, OverflowError, InvalidOperation):
            continue
    return found, run


def all_bills(root: Path) -> list[Bill]:
    """Read the bills of every job of a state root."""
    return [bill for path in sorted(root.glob(f"jobs/*/{FILE}")) for bill in bills(path.parent)]


def _enter(found: list[Bill], bill: Bill) -> None:
    """Take a machine in. One whose claim was repeated after a crash is the same one: what was said last is recorded."""
    for position, one in enumerate(found):
        same = bool(bill.node) and _same(one, bill.cloud, bill.node, bill.epoch)
        if one.ended is None and (same or _of_one_claim(one, bill)):
            found[position] = replace(one, unanswered=True) if bill.unanswered else replace(bill, run=one.run)
            return
    found.append(bill)


def _of_one_claim(one: Bill, other: Bill) -> bool:
    return bool(one.token) and (one.cloud, one.token) == (other.cloud, other.token)


def is_token(told: str, token: str) -> bool:
    """Say whether a cloud means this token: some have room for its beginning only."""
    return bool(told) and token.startswith(told)


def _strike(found: list[Bill], cloud: str, token: str, at: float) -> None:
    """Take a claim out that has made no machine; one that did, and whose repeat was not answered, is gone."""
    for position, one in enumerate(found):
        if one.unanswered and one.ended is None and (one.cloud, one.token) == (cloud, token):
            found[position : position + 1] = [replace(one, ended=at)] if one.node else []
            return


def _note(found: list[Bill], line: Mapping[str, Any]) -> None:
    cloud, node, epoch = line["cloud"], line["node"], line.get("epoch")
    for position in reversed(range(len(found))):
        one = found[position]
        if (one.cloud, one.node) == (cloud, node) and epoch in {None, one.epoch}:
            if line["kind"] == "watched":
                found[position] = replace(one, watched=True)
            elif line["kind"] == "moved":
                found[position] = replace(one, transfers=tuple(line["transfers"]))
            elif line["kind"] == "gone" and (one.ended is None or one.problem):
                found[position] = replace(one, ended=_number(line["at"]), problem=str(line["problem"]))
            return


def _same(one: Bill, cloud: str, node: str, epoch: int) -> bool:
    return (one.cloud, one.node, one.epoch) == (cloud, node, epoch)


def _bill(job: str, run: int, terms: Terms, line: Mapping[str, Any]) -> Bill:
    return Bill(
        job=job,
        run=run,
        epoch=int(line["epoch"]),
        node=str(line["node"]),
        cloud=str(line["cloud"]),
        region=str(line["region"]),
        zone=str(line["zone"]),
        instance_type=str(line["instance_type"]),
        market=str(line["market"]),
        price=_money(line["price"]),
        at_most=_money(line["at_most"]),
        begun=_number(line["begun"]),
        ends_by=None if line["ends_by"] is None else _number(line["ends_by"]),
        likely=_money(line["likely"]),
        expected=_money(line["expected"]),
        expected_h=None if line["expected"] is None else _number(line["expected_h"]),
        terms=terms,
        token=str(line.get("token") or ""),
        unanswered=line["kind"] == "asked",
    )


def _json(money: Money | None) -> dict[str, str] | None:
    return None if money is None else {"amount": str(money.amount), "currency": money.currency}


def _money(value: Any) -> Money | None:
    if value is None:
        return None
    amount, currency = Decimal(value["amount"]), value["currency"]
    if not amount.is_finite() or amount < 0 or currency not in {"USD", "CNY"}:
        raise ValueError(value)
    return Money(amount, currency)


def _number(value: Any) -> float:
    """Return a number that time and money can be reckoned with. Raises ValueError, TypeError, OverflowError."""
    found = float(value)
    if not math.isfinite(found) or not 0 <= found < 1e11:
        raise ValueError(value)
    return found
