"""Money and time: what the job has cost so far, and whether that is enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol

from provisioner.clock import now as unix_now
from provisioner.controller.billing import convert
from provisioner.controller.daily import Daily
from provisioner.controller.ledger import Bill
from provisioner.controller.records import Begun, Claimed, Placement
from provisioner.controller.report import cost, surplus_cost
from provisioner.controller.warnings import Share
from provisioner.model import Money

DEADLINE, BUDGET = "the job's deadline", "the job's budget"


NOTICE_S = 120.0
"""What a day's budget that ends at once leaves for a last checkpoint, in seconds."""


@dataclass(frozen=True, slots=True)
class Limit:
    """When a limit of the policy ends the job (Unix time), what it is, and the line that says so then."""

    at: float
    kind: str
    line: str


class Policy(Protocol):
    """The part of the configuration that limits a job."""

    @property
    def budget(self) -> Money | None:
        """Most that the job may cost, over all clouds."""
        ...

    @property
    def usd_cny(self) -> Decimal:
        """Yuan for one dollar, for a budget in one currency and costs in the other."""
        ...

    @property
    def deadline(self) -> float | None:
        """Seconds from the start of the run to its latest end."""
        ...


class Limits:
    """Says when a job must end."""

    def __init__(
        self,
        policy: Policy,
        daily: Daily | None = None,
        now: Callable[[], float] = unix_now,
        entered: Callable[[], Sequence[Bill]] = tuple,
    ) -> None:
        """Take the policy, and the days' budgets. ``entered`` tells what the run's ledger has."""
        self.policy = policy
        self._entered = entered
        self.daily = daily
        self._now = now
        self._not_before: dict[tuple[object, ...], float] = {}

    def reached(self, begun: Begun, past: Sequence[Placement], current: Claimed | None, now: float) -> str:
        """Return the limit that is reached as one line, or nothing.

        Where only a bound of a price is known (spot), the bound counts. A machine without even that counts as nothing;
        the report names it.
        """
        limit = self.first(begun, past, current)
        return limit.line if limit is not None and now >= limit.at else ""

    def first(self, begun: Begun, past: Sequence[Placement], current: Claimed | None) -> Limit | None:
        """Return the limit that comes first, as things go on; None where none will.

        A day's budget ends a machine, not the job: without a machine it is no limit.
        """
        found = [limit for limit in (self._deadline(begun), self._budget(past, current)) if limit is not None]
        if current is not None:
            found += self._days()
        return min(found, key=lambda limit: limit.at, default=None)

    def shares(self, begun: Begun, past: Sequence[Placement], current: Claimed | None) -> Iterator[Share]:
        """Yield how much of each limit is used now."""
        now, policy = self._now(), self.policy
        if policy.deadline is not None:
            used = (now - begun.at) / policy.deadline
            yield Share(DEADLINE, used, f"{used:.0%} of the deadline of {policy.deadline:.0f} s have passed")
        if policy.budget is not None:
            spent, hourly, until_now = self._spent(past, current)
            amount = spent + (hourly * Decimal(str(now)) - until_now) / 3600
            used = float(amount / policy.budget.amount)
            yield Share(BUDGET, used, f"{used:.0%} of the budget of {policy.budget} are used")
        for day in self.daily.days() if self.daily is not None else ():
            used = float(day.spent / day.budget.amount)
            key = f"{day.kind} of {day.budget} until {day.ends:.0f}"
            yield Share(key, used, f"{used:.0%} of {day.kind}, {day.budget}, are used", day.ends)

    def _days(self) -> Iterator[Limit]:
        """Yield the days' budgets that end.

        One that is all but used up when it is first seen, since somebody has lowered it, leaves time to save.
        """
        now = self._now()
        for day in self.daily.days() if self.daily is not None else ():
            at, key = day.used_up_at, (day.kind, day.budget, day.ends)
            sudden = at is not None and at < now + NOTICE_S
            not_before = self._not_before.setdefault(key, now + NOTICE_S if sudden else float("-inf"))
            if at is not None:
                yield Limit(max(at, not_before), day.kind, day.line)

    def _deadline(self, begun: Begun) -> Limit | None:
        deadline = self.policy.deadline
        if deadline is None:
            return None
        return Limit(begun.at + deadline, DEADLINE, f"deadline of {deadline:.0f} s reached")

    def _budget(self, past: Sequence[Placement], current: Claimed | None) -> Limit | None:
        budget = self.policy.budget
        if budget is None:
            return None
        line = f"budget of {budget} reached"
        spent, hourly, until_now = self._spent(past, current)
        left = budget.amount - spent
        if left <= 0:
            return Limit(float("-inf"), BUDGET, line)
        if hourly <= 0:
            return None
        return Limit(float((left * 3600 + until_now) / hourly), BUDGET, line)

    def _spent(self, past: Sequence[Placement], current: Claimed | None) -> tuple[Decimal, Decimal, Decimal]:
        """Return what was spent before this machine; an hour of all that runs; and that hour times its beginning."""
        beside = current.beside if current is not None else ()
        found = [*cost(past).items(), *surplus_cost(beside).items()]
        spent = sum((self._convert(amount, name) for name, amount in found), Decimal(0))
        hourly = until_now = Decimal(0)
        for claimed in (current, *beside):
            if claimed is not None and claimed.node is not None and claimed.price is not None:
                rate = self._convert(claimed.price.amount, claimed.price.currency)
                hourly += rate
                until_now += rate * Decimal(str(claimed.node.claimed_at))
        now = self._now()
        for bill in self._others(past, current):
            if bill.hourly is not None and bill.runs(now):
                rate = self._convert(bill.hourly.amount, bill.hourly.currency)
                hourly += rate
                until_now += rate * Decimal(str(bill.begun))
            elif bill.hourly is not None:
                spent += self._convert(bill.cost(now) or Decimal(0), bill.hourly.currency)
        return spent, hourly, until_now

    def elsewhere(self, past: Sequence[Placement]) -> Decimal:
        """Return what others have cost, in dollars, see ``_others``; not a machine that the job has now."""
        now, found = self._now(), Decimal(0)
        for bill in self._others(past, None):
            amount = bill.cost(now) if bill.unanswered or not bill.runs(now) else None
            if amount is not None and bill.hourly is not None:
                found += convert(Money(amount, bill.hourly.currency), "USD", Decimal(str(self.policy.usd_cny)))
        return found

    def _others(self, past: Sequence[Placement], current: Claimed | None) -> Iterator[Bill]:
        """Yield the machines that the ledger has and the records have not, or not with a price.

        A claim that was not answered may have made one; one of them may have been found and given back.
        """
        claims = [claimed for placement in past for claimed in (placement.claimed, *placement.claims)]
        claims += [current, *current.beside] if current is not None else []
        nodes = [one.surplus.node if one.surplus is not None else one.node for one in claims if one.price is not None]
        known = {(node.offer.cloud, node.id) for node in nodes if node is not None and node.id}
        yield from (bill for bill in self._entered() if (bill.cloud, bill.node) not in known)

    def _convert(self, amount: Decimal, currency: str) -> Decimal:
        budget = self.policy.budget
        if budget is None:
            return amount
        return convert(Money(amount, currency), budget.currency, Decimal(str(self.policy.usd_cny)))
