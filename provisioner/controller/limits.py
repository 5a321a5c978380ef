"""Money and time: what the job has cost so far, and whether that is enough."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Protocol

from provisioner.controller.records import Begun, Claimed, Placement
from provisioner.controller.report import cost
from provisioner.model import Money


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
        deadline = self.policy.deadline
        if deadline is not None and now - begun.at >= deadline:
            return f"deadline of {deadline:.0f} s reached"
        budget = self.policy.budget
        if budget is None:
            return ""
        spent = sum((self._convert(amount, name) for name, amount in cost(past).items()), Decimal(0))
        if current is not None and current.node is not None and current.price is not None:
            hours = Decimal(str(max(0.0, now - current.node.claimed_at))) / 3600
            spent += self._convert(current.price.amount * hours, current.price.currency)
        if spent >= budget.amount:
            return f"budget of {budget} reached"
        return ""

    def _convert(self, amount: Decimal, currency: str) -> Decimal:
        budget = self.policy.budget
        if budget is None or currency == budget.currency:
            return amount
        rate = Decimal(str(self.policy.usd_cny))
        return amount / rate if currency == "CNY" else amount * rate
