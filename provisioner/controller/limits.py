"""Money and time: what the job has cost so far, and whether that is enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol

from provisioner.controller.records import Begun, Claimed, Placement
from provisioner.controller.report import cost, surplus_cost
from provisioner.model import Money

DEADLINE, BUDGET = "the job's deadline", "the job's budget"


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

    def __init__(self, policy: Policy) -> None:
        """Take the policy."""
        self.policy = policy

    def reached(self, begun: Begun, past: Sequence[Placement], current: Claimed | None, now: float) -> str:
        """Return the limit that is reached as one line, or nothing.

        Where only a bound of a price is known (spot), the bound counts. A machine without even that counts as nothing;
        the report names it.
        """
        limit = self.first(begun, past, current)
        return limit.line if limit is not None and now >= limit.at else ""

    def first(self, begun: Begun, past: Sequence[Placement], current: Claimed | None) -> Limit | None:
        """Return the limit that comes first, as things go on; None where none will."""
        found = [limit for limit in (self._deadline(begun), self._budget(past, current)) if limit is not None]
        return min(found, key=lambda limit: limit.at, default=None)

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
        beside = current.beside if current is not None else ()
        spent = [*cost(past).items(), *surplus_cost(beside).items()]
        left = budget.amount - sum((self._convert(amount, name) for name, amount in spent), Decimal(0))
        if left <= 0:
            return Limit(float("-inf"), BUDGET, line)
        hourly = until_now = Decimal(0)
        for claimed in (current, *beside):
            if claimed is not None and claimed.node is not None and claimed.price is not None:
                rate = self._convert(claimed.price.amount, claimed.price.currency)
                hourly += rate
                until_now += rate * Decimal(str(claimed.node.claimed_at))
        if hourly <= 0:
            return None
        return Limit(float((left * 3600 + until_now) / hourly), BUDGET, line)

    def _convert(self, amount: Decimal, currency: str) -> Decimal:
        budget = self.policy.budget
        if budget is None or currency == budget.currency:
            return amount
        rate = Decimal(str(self.policy.usd_cny))
        return amount / rate if currency == "CNY" else amount * rate
