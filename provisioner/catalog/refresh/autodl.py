"""AutoDL: which cards stand in which region, and what those cost that the account has running.

AutoDL's API has no price list: it tells a price only for a machine that exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from provisioner.catalog.overlay import Table
from provisioner.catalog.refresh.found import Done, Found, Missed, one_line, untold
from provisioner.errors import FailoverError, Unreachable
from provisioner.model import Money

_ENOUGH = 2
"""Regions without an answer."""


class Stock(Protocol):
    """Cards of one model in one region."""

    @property
    def idle(self) -> int:
        """Those that are free."""
        ...

    @property
    def total(self) -> int:
        """All of them."""
        ...


def refresh(
    stock: Callable[[str], Mapping[str, Stock]],
    prices: Callable[[], Iterable[tuple[str, Money]]],
    regions: Sequence[str],
    *,
    now: float,
    done: Done = untold,
) -> Found:
    """Ask for the stock of every region, and for prices. ``prices`` yields AutoDL's name of a card and an hour's price.

    A region that answers with nothing is no error: AutoDL says the same of a region that it does not know. After two
    regions without any answer nothing more is asked: each of them has been tried for half a minute.
    """
    made: dict[str, Table] = {}
    missed: list[Missed] = []
    rows: list[tuple[str, ...]] = []
    silent: list[str] = []
    for region in regions:
        if len(silent) == _ENOUGH:
            missed.append(Missed("autodl", "stock", silent[-1], region))
            continue
        try:
            found = stock(region)
        except FailoverError as error:
            silent += [one_line(error)] if isinstance(error, Unreachable) else []
            missed.append(Missed("autodl", "stock", one_line(error), region))
            found = {}
        rows += [(region, gpu, str(one.idle), str(one.total)) for gpu, one in sorted(found.items())]
        done(f"autodl/{region}", len(found))
    if rows:
        made["autodl_stock"] = Table(tuple(rows), now, "AutoDL machine/region/gpu_stock")
    if len(silent) == _ENOUGH:
        return Found(made, (*missed, Missed("autodl", "prices", silent[-1])))
    try:
        seen = {gpu: f"{price.amount.normalize():f}" for gpu, price in prices() if price.amount > 0}
    except FailoverError as error:
        missed.append(Missed("autodl", "prices", one_line(error)))
        seen = {}
    else:
        if seen:
            made["autodl_prices"] = Table(tuple(sorted(seen.items())), now, "AutoDL instance/pro/snapshot")
        else:
            missed.append(Missed("autodl", "prices", "AutoDL tells a price only for a running machine, and none runs"))
    done("autodl prices", len(seen))
    return Found(made, tuple(missed))
