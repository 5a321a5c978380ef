"""What clouds refused, kept for all jobs of this state directory: one SQLite file, safe for several processes.

A refusal is remembered for the time that its kind and code deserve, and goes away by itself. It counts for the same
account of the same cloud only. What depends on a job's own settings (its image, its price limit) counts for that job
only. Losing the file costs a few calls, so nothing waits for it long and a damaged one is made anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from provisioner.clock import now as unix_now
from provisioner.model import Failure, FailureKind, Offer
from provisioner.planner import FailureMemory, Remembered, offer_json
from provisioner.planner.memory import failure_from, failure_json, offer_from

FILE: Final = "failures.sqlite"
OPERATORS: Final = frozenset({FailureKind.UNAUTHORIZED, FailureKind.INVALID})
"""What only a person mends. Who starts a run may have mended it, so an earlier run's refusals do not count for it."""
_OF_ONE_JOB: Final = frozenset({FailureKind.INVALID, FailureKind.PRICE_TOO_LOW, FailureKind.UNKNOWN})
"""What the job's own image, network or limit may have caused."""
_CODES_OF_ONE_JOB: Final = frozenset({"NoSubnet", "UnsupportedOperation", "InsufficientFreeAddressesInSubnet"})
_UNKNOWN_KEPT_S: Final = 30 * 86400.0
_BUSY_S: Final = 5.0
_VERSION: Final = 1
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS failures (
    cloud TEXT, account TEXT, job TEXT, scope TEXT, name TEXT, code TEXT,
    failure TEXT, offer TEXT, first REAL, last REAL, until REAL, count INTEGER,
    PRIMARY KEY (cloud, account, job, scope, name, code)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS unknown_codes (
    cloud TEXT, code TEXT, message TEXT, first REAL, last REAL, count INTEGER, PRIMARY KEY (cloud, code)
) WITHOUT ROWID;
"""
PROBLEMS: Final = (sqlite3.Error, OSError)
"""What the methods raise when the disk or another process is in the way: go on without."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A refusal that is still in force. Times are Unix seconds; ``job`` is empty where it counts for all jobs."""

    remembered: Remembered
    account: str
    job: str
    first: float
    last: float
    count: int

    def as_json(self, now: float) -> dict[str, Any]:
        """Return plain values."""
        failure = self.remembered.failure
        return {
            "what": self.remembered.name,
            "scope": str(failure.scope),
            "kind": str(failure.kind),
            "code": failure.code,
            "message": failure.message,
            "advice": failure.advice,
            "until": round(self.remembered.until, 3),
            "seconds_left": round(max(0.0, self.remembered.until - now), 1),
            "count": self.count,
            "first": round(self.first, 3),
            "last": round(self.last, 3),
            "cloud": self.remembered.offer.cloud,
            "account": self.account,
            "job": self.job,
            "offer": offer_json(self.remembered.offer),
        }


@dataclass(frozen=True, slots=True)
class UnknownCode:
    """A code that no table knows, and how often it came. Times are Unix seconds."""

    cloud: str
    code: str
    message: str
    first: float
    last: float
    count: int


class KnownFailures:
    """The file. Every method opens it for itself; none raises anything but :data:`PROBLEMS`."""

    def __init__(self, root: Path, now: Callable[[], float] = unix_now) -> None:
        """Take the state directory. Nothing is made before there is something to remember."""
        self.path = root / FILE
        self._now = now

    def remember(self, failure: Failure, offer: Offer, *, account: str, job: str) -> None:
        """Keep a refusal that has just come. The same one again counts up; the longer end stays."""
        now = self._now()
        new = Remembered(failure, offer, now + failure.ttl_s)
        key = (offer.cloud, account, job if _is_of(failure) else "", str(failure.scope), new.name, failure.code)
        values = (json.dumps(failure_json(failure)), json.dumps(offer_json(offer)), now, now, new.until)
        with self._writing() as file:
            file.execute("DELETE FROM failures WHERE until <= ?", (now,))
            file.execute(
                "INSERT INTO failures VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1) "
                "ON CONFLICT DO UPDATE SET failure = excluded.failure, offer = excluded.offer, last = excluded.last, "
                "until = max(until, excluded.until), count = count + 1",
                (*key, *values),
            )
            if failure.kind is FailureKind.UNKNOWN:
                file.execute("DELETE FROM unknown_codes WHERE last <= ?", (now - _UNKNOWN_KEPT_S,))
                file.execute(
                    "INSERT INTO unknown_codes VALUES (?, ?, ?, ?, ?, 1) ON CONFLICT DO UPDATE SET "
                    "message = excluded.message, last = excluded.last, count = count + 1",
                    (offer.cloud, failure.code, failure.message, now, now),
                )

    def memory(self, accounts: Mapping[str, str | None], job: str, *, since: float) -> FailureMemory:
        """Return what counts for a job now.

        ``accounts``: cloud -> the account that it uses there; None: whichever. ``since`` is when its run began (Unix
        seconds): what only a person mends counts from then on.
        """
        found = []
        for entry in self.entries():
            cloud = entry.remembered.offer.cloud
            mended = entry.remembered.failure.kind in OPERATORS and entry.last < since
            same = cloud in accounts and accounts[cloud] in (None, entry.account)
            if same and entry.job in ("", job) and not mended:
                found.append(entry.remembered)
        return FailureMemory(tuple(found))

    def entries(self) -> list[Entry]:
        """Return what is in force now, in the order of its end; for whom, the entry says."""
        now = self._now()
        columns = "failure, offer, until, account, job, first, last, count"
        rows = self._read(f"SELECT {columns} FROM failures WHERE until > ? ORDER BY until, name, code", (now,))  # noqa: S608 - constants
        return [
            Entry(Remembered(failure_from(json.loads(failure)), offer_from(json.loads(offer)), until), *rest)
            for failure, offer, until, *rest in rows
        ]

    def unknown_codes(self) -> list[UnknownCode]:
        """Return the codes of the last 30 days that no table knows."""
        since = self._now() - _UNKNOWN_KEPT_S
        rows = self._read("SELECT * FROM unknown_codes WHERE last > ? ORDER BY cloud, code", (since,))
        return [UnknownCode(*row) for row in rows]

    def forget(self, names: Sequence[str] = ()) -> list[Entry]:
        """Forget what has one of these names, or lies below it, or is of a kind of this name; everything without names.

        Return what was forgotten. What a wider refusal covers stays covered.
        """
        gone = [entry for entry in self.entries() if named(entry, names)]
        if not gone and (names or not self.path.exists()):
            return []
        with self._writing() as file:
            for entry in gone:
                failure = entry.remembered.failure
                file.execute(
                    "DELETE FROM failures WHERE account = ? AND job = ? AND scope = ? AND name = ? AND code = ?",
                    (entry.account, entry.job, str(failure.scope), entry.remembered.name, failure.code),
                )
            if not names:
                file.execute("DELETE FROM unknown_codes")
        return gone

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Open the file, made if need be, in a transaction of its own."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # the log beside it takes its mode
        file = self._open()
        try:
            file.execute("BEGIN IMMEDIATE")
            yield file
            file.execute("COMMIT")
        finally:
            file.close()  # rolls back what was not committed

    def _open(self) -> sqlite3.Connection:
        """Open the file and see that its tables are there. One that is damaged, or of another version, is emptied."""
        try:
            return self._connect()
        except sqlite3.OperationalError:
            raise  # busy, read-only, no room: not the file's fault
        except sqlite3.DatabaseError:
            for end in ("", "-wal", "-shm"):
                self.path.with_name(FILE + end).unlink(missing_ok=True)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            return self._connect()

    def _connect(self) -> sqlite3.Connection:
        file = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None)
        try:
            version = file.execute("PRAGMA user_version").fetchone()[0]
            if version != _VERSION:
                with contextlib.suppress(sqlite3.OperationalError):  # another process does it just now
                    file.execute("PRAGMA journal_mode = WAL")
                drop = "DROP TABLE IF EXISTS failures; DROP TABLE IF EXISTS unknown_codes;" if version else ""
                file.executescript(f"BEGIN IMMEDIATE;{drop}{_TABLES}PRAGMA user_version = {_VERSION};COMMIT;")
            file.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            file.close()
            raise
        return file

    def _read(self, question: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        if not self.path.exists():
            return []
        file = self._open()
        try:
            return file.execute(question, values).fetchall()
        finally:
            file.close()


def _is_of(failure: Failure) -> bool:
    """Say whether the job's own settings may be the reason."""
    return failure.kind in _OF_ONE_JOB or failure.code in _CODES_OF_ONE_JOB


def named(entry: Entry, names: Sequence[str]) -> bool:
    """Say whether an entry has one of these names, lies below one, or is of a kind of this name. No names: yes."""
    own, kind = entry.remembered.name, str(entry.remembered.failure.kind)
    wanted = [name.strip("/") for name in names]
    return not wanted or any(name in (own, kind) or own.startswith(f"{name}/") for name in wanted)
