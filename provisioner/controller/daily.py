"""What a day may cost: this job, and all jobs of this state directory, at all clouds.

A day is the local one of the controller's machine (``TZ``). The limit over all jobs stands in ``limits.yaml`` of the
state directory, which every controller reads at each look: ``budget_per_day: 50 USD``. Both are kept by the ledgers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Final

from provisioner.clock import now as unix_now
from provisioner.controller.billing import convert
from provisioner.controller.ledger import Bill, all_bills
from provisioner.errors import ConfigError
from provisioner.model import Money

FILE: Final = "limits.yaml"
KEY: Final = "budget_per_day"
LEAST_H: Final = 0.5
"""A machine is not begun for less of a day's budget than this many hours of it cost."""
FRESH_S: Final = 1.0
DAY, DAY_OF_ALL = "the day's budget", "the day's budget of all jobs"


@dataclass(frozen=True, slots=True)
class Day:
    """A day's budget and where it stands, in its own currency. ``ends`` is when the next day begins (Unix time)."""

    kind: str
    budget: Money
    spent: Decimal
    hourly: Decimal
    """What all running machines that count cost an hour."""
    ends: float
    at: float
    """When it stood so."""

    @property
    def left(self) -> Decimal:
        """What is left of it."""
        return self.budget.amount - self.spent

    @property
    def used_up_at(self) -> float | None:
        """When it is used up, as things go on; None where the day ends before."""
        if self.left <= 0:
            return float("-inf")
        if self.hourly <= 0:
            return None
        at = self.at + float(self.left / self.hourly) * 3600
        return at if at < self.ends else None

    @property
    def line(self) -> str:
        """Say that it is reached."""
        whose = " for all jobs" if self.kind == DAY_OF_ALL else ""
        return f"budget of {self.budget} a day{whose} reached"


def is_daily(reason: str) -> bool:
    """Say whether a placement ended for a day's budget, by the reason of its end."""
    of_node = reason.removeprefix("notice: ") in {DAY, DAY_OF_ALL}
    return of_node or (reason.startswith("budget of ") and " a day" in reason)


class Daily:
    """The days' budgets of one job."""

    def __init__(
        self,
        root: Path,
        job: str,
        budget: Money | None,
        usd_cny: Decimal,
        *,
        now: Callable[[], float] = unix_now,
        day: Callable[[float], tuple[float, float]] | None = None,
        tell: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Take the state directory. ``day`` tells begin and end of the day of a moment.

        ``tell`` is called with what is wrong with ``limits.yaml``, once.
        """
        self._root, self._job, self._budget, self._usd_cny = root, job, budget, usd_cny
        self._now = now
        self._day = day or local_day
        self._of_all: Money | None = None
        self._tell, self._problem = tell, ""
        self._seen: tuple[float, list[Day]] = (float("-inf"), [])

    def days(self) -> list[Day]:
        """Return the budgets that there are, as they stand now; the ledgers are read once a second at most."""
        now = self._now()
        if not 0 <= now - self._seen[0] < FRESH_S:
            self._seen = now, self._look()
        return self._seen[1]

    def budgets(self) -> list[tuple[str, Money]]:
        """Return what the budgets are, whatever was spent."""
        return [(day.kind, day.budget) for day in self.days()]

    def _look(self) -> list[Day]:
        self._read()
        if self._budget is None and self._of_all is None:
            return []
        bills = all_bills(self._root)
        own = [bill for bill in bills if bill.job == self._job]
        kinds = ((DAY, self._budget, own), (DAY_OF_ALL, self._of_all, bills))
        return [self._stand(kind, budget, counted) for kind, budget, counted in kinds if budget is not None]

    def rest_until(self, *prices: Money | None) -> tuple[float, str] | None:
        """Return until when no machine should be begun, and why; None where one may.

        ``prices``: of an hour of what would be begun, or was the last; the dearest that is known counts.
        """
        for day in self.days():
            least = max((self._in(price, day.budget) for price in prices if price is not None), default=Decimal(0))
            if day.left <= 0 or day.left < least * Decimal(str(LEAST_H)):
                used = f"{max(Decimal(0), day.spent):.2f} of {day.budget}"
                whose = "all jobs have" if day.kind == DAY_OF_ALL else "the job has"
                return day.ends, f"{whose} used {used} of the day's budget"
        return None

    def _stand(self, kind: str, budget: Money, bills: Sequence[Bill]) -> Day:
        now = self._now()
        begins, ends = self._day(now)
        spent = hourly = Decimal(0)
        for bill in bills:
            amount = bill.cost_between(begins, now)
            if amount is None or bill.hourly is None:
                continue
            spent += self._in(Money(amount, bill.hourly.currency), budget)
            hourly += self._in(bill.hourly, budget) if bill.runs(now) else Decimal(0)
        return Day(kind, budget, spent, hourly, ends, now)

    def _in(self, money: Money, budget: Money) -> Decimal:
        return convert(money, budget.currency, self._usd_cny)

    def _read(self) -> None:
        """Read the limit anew; one that cannot be read now stays as it was."""
        problem = ""
        try:
            self._of_all = read_limit(self._root)
        except ConfigError as error:
            problem = f"{error}; {error.hint}"
        if problem and problem != self._problem:
            self._tell(problem)
        self._problem = problem


def local_day(at: float) -> tuple[float, float]:
    """Return when the local day of a moment begins and ends, in Unix time; one with a clock change is longer or not."""
    year, month, day, *_ = time.localtime(at)
    midnights = [one for more in (-1, 0, 1, 2) for one in _midnight(year, month, day + more)]
    return max(one for one in midnights if one <= at), min(one for one in midnights if one > at)


def _midnight(year: int, month: int, day: int) -> list[float]:
    """Return when a local day begins, in Unix time: at its first midnight, if clocks go back over that and have two."""
    found = []
    for summer in (1, 0, -1):
        with suppress(OverflowError):  # the zone has no such time then
            found.append(time.mktime((year, month, day, 0, 0, 0, 0, 0, summer)))
    shown = [one for one in found if time.localtime(one)[3:5] == (0, 0)]
    return [min(shown)] if shown else found[-1:]  # where they go forward over it, there is none


def read_limit(root: Path) -> Money | None:
    """Read the budget of a day over all jobs. Raises ConfigError for a file that says something else."""
    path = root / FILE
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", hint=_advice()) from error
    import yaml
    from pydantic_core import PydanticCustomError

    from provisioner.config.values import parse_money

    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        # the others are PyYAML's own words for a date that is none, an int that is none, lists a thousand deep
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{path}{line}: not YAML", hint=_advice()) from None
    if found is None:
        return None
    if not isinstance(found, dict) or set(found) != {KEY} or not isinstance(found[KEY], str):
        raise ConfigError(f"{path}: {KEY} alone is known here, an amount with its currency", hint=_advice())
    try:
        return parse_money(found[KEY])
    except PydanticCustomError as error:
        raise ConfigError(f"{path}: {KEY}: {error.message()}", hint=_advice()) from None


def _advice() -> str:
    return f"write one line, {KEY}: 50 USD, or remove the file for no limit"
