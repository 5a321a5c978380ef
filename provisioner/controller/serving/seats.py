"""How many machines the queue's jobs may have at one cloud or account: each books a seat before it claims."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sa

from provisioner.controller.serving.database import answered
from provisioner.controller.serving.jobs import METADATA, JobStore

SEATS: Final = sa.Table(
    "failover_seats",
    METADATA,
    sa.Column("root", sa.String(16), primary_key=True),
    sa.Column("token", sa.String(64), primary_key=True),
    sa.Column("job", sa.String(64), nullable=False, index=True),
    sa.Column("cloud", sa.String(32), nullable=False),
    sa.Column("account", sa.String(128), nullable=False),
)
_LOCK: Final = 0x6661696C  # "fail": one count at a time


class Seats:
    """``limits`` are the most machines, by ``cloud`` or ``cloud/account``, over all controllers."""

    def __init__(self, store: JobStore, limits: Mapping[str, int] | None = None) -> None:
        """Take the queue, whose database it shares."""
        self.database = store.database
        self._engine, self._root, self._shared = store.engine, store.root, store.database.shared
        self._limits = dict(limits or {})

    @answered
    def book(self, job: str, token: str, cloud: str, account: str) -> str:
        """Book a machine before it is claimed; asked again for the same token, it is booked once.

        Return the limit that has no room for it, or nothing.
        """
        with self._engine.begin() as connection:
            if self._shared:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            else:
                connection.execute(sa.text("BEGIN IMMEDIATE"))
            if connection.execute(sa.select(SEATS.c.job).where(*self._of(token))).first() is not None:
                return ""
            if full := self._full(connection, cloud, account):
                return full
            values = {"root": self._root, "token": token, "job": job, "cloud": cloud, "account": account}
            connection.execute(sa.insert(SEATS).values(**values))
        return ""

    @answered
    def free(self, token: str) -> None:
        """Note that a machine is gone, or never was."""
        with self._engine.begin() as connection:
            connection.execute(sa.delete(SEATS).where(*self._of(token)))

    @answered
    def free_all(self, job: str) -> None:
        """Note that a job has no machine any more."""
        with self._engine.begin() as connection:
            connection.execute(sa.delete(SEATS).where(SEATS.c.root == self._root, SEATS.c.job == job))

    @answered
    def taken(self, job: str) -> bool:
        """Say whether a job has a machine, or is about to."""
        query = sa.select(SEATS.c.token).where(SEATS.c.root == self._root, SEATS.c.job == job)
        with self._engine.begin() as connection:
            return connection.execute(query).first() is not None

    def _full(self, connection: sa.Connection, cloud: str, account: str) -> str:
        for name, most in self._limits.items():
            of_cloud, _, of_account = name.partition("/")
            if of_cloud != cloud or of_account not in {"", account}:
                continue
            where = [SEATS.c.cloud == cloud, *([SEATS.c.account == account] if of_account else [])]
            count = connection.execute(sa.select(sa.func.count()).select_from(SEATS).where(*where)).scalar() or 0
            if count >= most:
                return f"{name}: {count} machines of at most {most}"
        return ""

    def _of(self, token: str) -> tuple[Any, Any]:
        return SEATS.c.root == self._root, SEATS.c.token == token
