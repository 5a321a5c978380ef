"""The machines of the queue's jobs: what each has cost, and how many there may be at one cloud or account."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import sqlalchemy as sa

from provisioner.controller.serving.database import answered
from provisioner.controller.serving.jobs import METADATA, JobStore
from provisioner.model import Node, Offer

MACHINES: Final = sa.Table(
    "failover_machines",
    METADATA,
    sa.Column("root", sa.String(16), primary_key=True),
    sa.Column("token", sa.String(64), primary_key=True),
    sa.Column("job", sa.String(64), nullable=False, index=True),
    sa.Column("cloud", sa.String(32), nullable=False),
    sa.Column("account", sa.String(128), nullable=False),
    sa.Column("place", sa.String(128), nullable=False),
    sa.Column("kind", sa.String(128), nullable=False),
    sa.Column("price", sa.String(32), nullable=False),
    sa.Column("currency", sa.String(8), nullable=False),
    sa.Column("asked_at", sa.Float, nullable=False),
    sa.Column("claimed_at", sa.Float),
    sa.Column("released_at", sa.Float),
)
_LOCK: Final = 0x6661696C  # "fail": one count at a time


@dataclass(frozen=True, slots=True)
class Account:
    """What the ledger tells of one job.

    ``spent`` is price times time by currency, up to now; ``unpriced`` counts machines whose price nobody told;
    ``where`` is the place of the machine that it has now.
    """

    spent: Mapping[str, Decimal]
    unpriced: int
    where: str
    kind: str

    @property
    def words(self) -> str:
        """Return the money as a person reads it."""
        text = " + ".join(f"{amount:.2f} {currency}" for currency, amount in sorted(self.spent.items()))
        if not self.unpriced:
            return text or "0"
        return f"{text} + ?" if text else "?"


class Ledger:
    """Counts machines and money. ``limits`` are the most machines, by ``cloud`` or ``cloud/account``."""

    def __init__(
        self, store: JobStore, limits: Mapping[str, int] | None = None, *, now: Callable[[], float] = time.time
    ) -> None:
        """Take the queue, whose database it shares."""
        self._engine, self._root, self._shared = store.engine, store.root, store.database.shared
        self._limits = dict(limits or {})
        self._now = now

    @answered
    def book(self, job: str, token: str, offer: Offer, account: str) -> str:
        """Book a machine before it is claimed; asked again for the same token, it is booked once.

        Return the limit that has no room for it, or nothing.
        """
        with self._engine.begin() as connection:
            if self._shared:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            else:
                connection.execute(sa.text("BEGIN IMMEDIATE"))
            known = connection.execute(sa.select(MACHINES.c.released_at).where(*self._of(token))).first()
            if known is not None and known.released_at is None:
                return ""
            if full := self._full(connection, offer.cloud, account):
                return full
            price = offer.price_per_hour
            values = {
                "job": job,
                "cloud": offer.cloud,
                "account": account,
                "place": offer.zone or offer.region,
                "kind": offer.instance_type,
                "price": "" if price is None else str(price.amount),
                "currency": "" if price is None else price.currency,
                "asked_at": self._now(),
                "claimed_at": None,
                "released_at": None,
            }
            if known is None:
                connection.execute(sa.insert(MACHINES).values(root=self._root, token=token, **values))
            else:
                connection.execute(sa.update(MACHINES).where(*self._of(token)).values(**values))
        return ""

    @answered
    def claimed(self, node: Node) -> None:
        """Note that a machine is there."""
        self._write(node.token, claimed_at=node.claimed_at)

    @answered
    def gone(self, token: str) -> None:
        """Note that a machine is gone, or never was."""
        self._write(token, MACHINES.c.released_at.is_(None), released_at=self._now())

    @answered
    def closed(self, job: str) -> None:
        """Note that a job has no machine any more."""
        where = (MACHINES.c.root == self._root, MACHINES.c.job == job, MACHINES.c.released_at.is_(None))
        with self._engine.begin() as connection:
            connection.execute(sa.update(MACHINES).where(*where).values(released_at=self._now()))

    @answered
    def has_machine(self, job: str) -> bool:
        """Say whether a job has a machine now."""
        there = (MACHINES.c.claimed_at.is_not(None), MACHINES.c.released_at.is_(None))
        query = sa.select(MACHINES.c.token).where(MACHINES.c.root == self._root, MACHINES.c.job == job, *there)
        with self._engine.begin() as connection:
            return connection.execute(query).first() is not None

    @answered
    def accounts(self) -> dict[tuple[str, str], Account]:
        """Return what every job has cost and where it is, by state root and name."""
        query = sa.select(MACHINES).where(MACHINES.c.claimed_at.is_not(None)).order_by(MACHINES.c.claimed_at)
        with self._engine.begin() as connection:
            rows = connection.execute(query).all()
        by_job: dict[tuple[str, str], list[Any]] = defaultdict(list)
        for row in rows:
            by_job[(row.root, row.job)].append(row)
        return {key: self._account(machines) for key, machines in by_job.items()}

    def _account(self, machines: list[Any]) -> Account:
        spent: dict[str, Decimal] = defaultdict(Decimal)
        unpriced, where, kind = 0, "", ""
        for row in machines:
            until = self._now() if row.released_at is None else row.released_at
            if row.released_at is None:
                where, kind = "/".join(part for part in (row.cloud, row.place) if part), row.kind
            if row.price:
                spent[row.currency] += Decimal(row.price) * Decimal(str(max(0.0, until - row.claimed_at))) / 3600
            elif row.cloud != "local":  # this machine costs nothing that we know of
                unpriced += 1
        return Account(dict(spent), unpriced, where, kind)

    def _full(self, connection: sa.Connection, cloud: str, account: str) -> str:
        for name, most in self._limits.items():
            of_cloud, _, of_account = name.partition("/")
            if of_cloud != cloud or of_account not in {"", account}:
                continue
            where = [MACHINES.c.cloud == cloud, MACHINES.c.released_at.is_(None)]
            where += [MACHINES.c.account == account] if of_account else []
            count = connection.execute(sa.select(sa.func.count()).select_from(MACHINES).where(*where)).scalar() or 0
            if count >= most:
                return f"{name}: {count} machines of at most {most}"
        return ""

    def _write(self, token: str, *where: Any, **values: Any) -> None:
        with self._engine.begin() as connection:
            connection.execute(sa.update(MACHINES).where(*self._of(token), *where).values(**values))

    def _of(self, token: str) -> tuple[Any, Any]:
        return MACHINES.c.root == self._root, MACHINES.c.token == token
