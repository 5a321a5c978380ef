"""One controller a job: a lock that does not rest on the workflow engine and that a dead or cut-off process loses.

On PostgreSQL it is an advisory lock of one session. The server ends a session that says nothing for ``IDLE_S``: a
controller that was stopped loses its jobs, and finds out before its next effect. On SQLite there is one controller.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import select
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final, Protocol

from provisioner.controller.serving.database import VARIABLE, Database
from provisioner.errors import CloudError, ConfigError, FailoverError

IDLE_S: Final = 15
"""After so long without a word PostgreSQL ends the session that holds the locks, in seconds."""
BEAT_S: Final = 3.0
SEND_MS: Final = 6000
"""A server that acknowledges nothing for so long is taken for gone: sooner than it lets go of the locks."""
GRACE_S: Final = 3.0
"""How long a job that was another controller's is left alone after its lock was free, in seconds."""


_HELD: Final = (
    "SELECT classid::bigint, objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


class Lost(FailoverError):
    """The locks are gone: others may run the jobs."""


class Locks(Protocol):
    """The jobs that this controller may run."""

    grace_s: float

    def free(self, keys: Collection[str]) -> list[str]:
        """Return those that nobody holds, without touching them. Raises Lost."""
        ...

    def take(self, key: str) -> bool:
        """Take a job's lock, if it is free. Raises Lost."""
        ...

    def watch(self, lost: Callable[[str], object]) -> None:
        """Look after the locks from a thread of its own; call ``lost(why)`` when they are gone."""
        ...

    def give(self, key: str) -> None:
        """Let go of a job. Raises Lost."""
        ...

    def check(self) -> None:
        """Raise Lost unless all locks are held at this moment."""
        ...

    def close(self) -> None:
        """Let go of all."""
        ...


class FileLocks:
    """The one controller of a state root. The jobs' own locks are those of their folders."""

    grace_s = 0.0

    def __init__(self, root: Path) -> None:
        """Become the controller. Raises ConfigError where there is another one."""
        self._file = (root / "serve.lock").open("a+", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            owner = self._file.read().strip() or "unknown"
            self._file.close()
            message = f"process {owner} serves {root} already"
            raise ConfigError(
                message, hint=f"for several controllers set {VARIABLE} to a PostgreSQL database"
            ) from None
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def free(self, keys: Collection[str]) -> list[str]:
        """There is nobody else."""
        return [*keys]

    def take(self, key: str) -> bool:
        """There is nobody else."""
        del key
        return True

    def watch(self, lost: Callable[[str], object]) -> None:
        """They are not lost while this process lives."""

    def give(self, key: str) -> None:
        """There is nobody else."""

    def check(self) -> None:
        """The kernel lets go of it only when this process ends."""

    def close(self) -> None:
        """Make way."""
        self._file.close()


class SessionLocks:
    """Advisory locks of one session with PostgreSQL. Safe to use from several threads."""

    grace_s = GRACE_S

    def __init__(self, database: Database, name: str) -> None:
        """Open the session. Raises CloudError, and ConfigError for a server that is too old."""
        import psycopg

        self._error = psycopg.Error
        self._lock = threading.RLock()
        self._closed = threading.Event()
        url = database.url.set(drivername="postgresql").render_as_string(hide_password=False)
        try:
            self._session = psycopg.connect(
                url,
                autocommit=True,
                connect_timeout=10,
                application_name=f"gpu-failover {name}"[:63],
                keepalives_idle=5,
                keepalives_interval=2,
                keepalives_count=3,
                tcp_user_timeout=SEND_MS,
            )
            if self._session.info.server_version < 140000:  # 14.0 has idle_session_timeout
                raise ConfigError(f"{database}: PostgreSQL 14 or newer is needed", hint="upgrade the server")
            self._session.execute(f"SET idle_session_timeout = '{IDLE_S}s'")
        except psycopg.Error as error:
            raise CloudError(_words(error), hint=f"look at {VARIABLE}, and whether the server runs") from None

    def free(self, keys: Collection[str]) -> list[str]:
        """Return those that nobody holds, without touching them. Raises Lost."""
        held = set(self._rows(_HELD))
        return [key for key in keys if divmod(number(key), 1 << 32) not in held]

    def take(self, key: str) -> bool:
        """Take a job's lock, if it is free. Raises Lost."""
        return bool(self._ask("SELECT pg_try_advisory_lock(%s)", number(key)))

    def give(self, key: str) -> None:
        """Let go of a job. Raises Lost."""
        self._ask("SELECT pg_advisory_unlock(%s)", number(key))

    def check(self) -> None:
        """Ask the server: what it answers in this session, it answers to the holder of the locks. Raises Lost."""
        self._ask("SELECT 1")

    def watch(self, lost: Callable[[str], object]) -> None:
        """Keep the session alive from a thread of its own; call ``lost(why)`` when it is gone."""

        def beat() -> None:
            while not self._closed.is_set():
                try:
                    select.select([self._session.fileno()], [], [], BEAT_S)  # readable: the server has hung up
                    self.check()
                except (Lost, OSError, ValueError, self._error) as error:
                    if not self._closed.is_set():
                        lost(str(error))
                    return

        threading.Thread(target=beat, name="locks", daemon=True).start()

    def close(self) -> None:
        """Let go of all."""
        self._closed.set()
        self._session.close()

    def _ask(self, query: str, *values: int) -> object:
        return self._rows(query, *values)[0][0]

    def _rows(self, query: str, *values: int) -> list[tuple[Any, ...]]:
        try:
            with self._lock:
                return self._session.execute(query.encode(), values).fetchall()
        except self._error as error:
            raise Lost(f"the locks of the jobs are lost: {_words(error)}") from None


def gone(database: Database, keys: Collection[str]) -> set[str]:
    """Return the jobs of a shared database whose lock nobody holds. Raises CloudError."""
    session = SessionLocks(database, "list")
    try:
        return set(session.free(keys))
    finally:
        session.close()


def number(key: str) -> int:
    """Return the number that PostgreSQL knows a lock by: 63 bits of the key's hash."""
    return int.from_bytes(hashlib.sha256(f"gpu-failover {key}".encode()).digest()[:8], "big") >> 1


def _words(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
