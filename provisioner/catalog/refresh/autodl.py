"""AutoDL: which cards stand in which region, and what those cost that the account has running.

AutoDL's API has no price list: it tells a price only for a machine that exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from provisioner.catalog.overlay import Table
from provisioner.catalog.refresh.found import Found, Missed, one_line
from provisioner.errors import FailoverError
from provisioner.model import Money


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
) -> Found:
    """Ask for the stock of every region, and for prices. ``prices`` yields AutoDL's name of a card and an hour's price.

    A region that answers with nothing is no error: AutoDL says the same of a region that it does not know.
    """
    made: dict[str, Table] = {}
    missed: list[Missed] = []
    rows: list[tuple[str, ...]] = []
    for region in regions:
        try:
            found = stock(region)
        except FailoverError as error:
            missed.append(Missed("autodl", "stock", one_line(error), region))
            continue
        rows += [(region, gpu, str(one.idle), str(one.total)) for gpu, one in sorted(found.items())]
    if rows:
        made["autodl_stock"] = Table(tuple(rows), now, "AutoDL machine/region/gpu_stock")
    try:
        seen = {gpu: f"{price.amount.normalize():f}" for gpu, price in prices() if price.amount > 0}
    except FailoverError as error:
        missed.append(Missed("autodl", "prices", one_line(error)))
    else:
        if seen:
            made["autodl_prices"] = Table(tuple(sorted(seen.items())), now, "AutoDL instance/pro/snapshot")
        else:
            missed.append(Missed("autodl", "prices", "AutoDL tells a price only for a running machine, and none runs"))
    return Found(made, tuple(missed))
