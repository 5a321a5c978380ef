"""Where the queue is: SQLite in the state root, or the PostgreSQL database of ``FAILOVER_DATABASE_URL``."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from provisioner.controller.directory import state_root
from provisioner.errors import CloudError, ConfigError

T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])

VARIABLE: Final = "FAILOVER_DATABASE_URL"
FLOWS_FILE: Final = "flows.sqlite"
_BUSY_S: Final = 30.0
_CONNECT_S: Final = 10
_SHOWN: Final = frozenset(
    {"host", "port", "user", "dbname", "sslmode", "sslrootcert", "sslcert", "sslkey", "target_session_attrs", "service"}
)
"""Options of a URL that are shown; any other may hold a password, as ``password`` and ``sslpassword`` do."""


class Database:
    """The queue's database, as one state root sees it."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        """Read the setting; connect to nothing. Raises ConfigError."""
        env = os.environ if environ is None else environ
        self.root = state_root(env)
        given = env.get(VARIABLE, "").strip()
        self.url = _postgres(given) if given else _sqlite(self.root / "jobs.sqlite")
        self.shared = bool(given)
        """Whether several controllers may work on it."""

    @property
    def flows_url(self) -> str:
        """Where the steps of the flows are recorded. Has the password: it is not to be shown."""
        url = self.url if self.shared else _sqlite(self.root / FLOWS_FILE)
        return url.render_as_string(hide_password=False)

    def __str__(self) -> str:
        """Say where it is, without the password."""
        return _shown(self.url) if self.shared else str(self.url.database)

    def marked_by(self, mark: object) -> bool:
        """Say whether ``str()`` of this database was ``mark``, also with another password, user or way to connect.

        A file is always the one of the state root, by whatever name that goes now.
        """
        if not isinstance(mark, str) or "://" not in mark:
            return not self.shared
        try:
            return self.shared and _place(make_url(mark)) == _place(self.url)
        except (ArgumentError, ValueError):
            return False

    @property
    def advice(self) -> str:
        """Say where to look when it does not answer as it should."""
        if self.shared:
            return f"look at {VARIABLE}, and whether the server runs"
        return f"look at {self}: its rights, its disk, and which release wrote it; without it the queue begins empty"

    def exists(self) -> bool:
        """Say whether there can be a job in it; a shared one is not asked."""
        return self.shared or (self.root / "jobs.sqlite").exists()

    def connect(self) -> Engine:
        """Return a pool of connections; makes no connection yet. Raises ConfigError for a root that is not writable."""
        if self.shared:
            arguments = {"connect_timeout": _CONNECT_S, "application_name": "gpu-failover"}
            return sa.create_engine(
                self.url, pool_size=4, max_overflow=4, pool_pre_ping=True, hide_parameters=True, connect_args=arguments
            )
        make_root(self.root)
        for path in (self.root / "jobs.sqlite", self.root / FLOWS_FILE):
            if not path.exists():  # what is on a disk that cannot be written can still be shown
                path.touch(mode=0o600)
        return sa.create_engine(self.url, hide_parameters=True, connect_args={"timeout": _BUSY_S})

    def root_id(self) -> str:
        """Return the name of this state root in the database: a job belongs to the root that has its folder."""
        make_root(self.root)
        path = self.root / "root.id"
        if not path.exists():
            draft = self.root / f".root.{secrets.token_hex(4)}"
            draft.write_text(secrets.token_hex(8), encoding="ascii")
            with suppress(FileExistsError):
                os.link(draft, path)
            draft.unlink()
        return path.read_text("ascii").strip()


def make_root(root: Path) -> None:
    """Make the state root. Raises ConfigError where it cannot be written."""
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        message = f"state directory {root}: {error.strerror or error}"
        raise ConfigError(message, hint="set FAILOVER_STATE_DIR to a folder that can be written") from error


def answered(call: C) -> C:
    """Turn what the database's library raises into one line without the password."""

    @wraps(call)
    def asked(*args: Any, **options: Any) -> Any:
        try:
            return call(*args, **options)
        except SQLAlchemyError as error:
            raise CloudError(f"the queue's database: {first_line(error)}", hint=args[0].database.advice) from None

    return asked  # type: ignore[return-value]


def without_password(url: str) -> str:
    """Return a database's URL as it may be shown; what is no URL goes whole."""
    try:
        return _shown(make_url(url))
    except (ArgumentError, ValueError):
        return "***"


def _shown(url: URL) -> str:
    return url.set(
        query={name: value if name in _SHOWN else "***" for name, value in url.query.items()}
    ).render_as_string()


def _place(url: URL) -> tuple[object, ...]:
    host, port = url.host or url.query.get("host"), url.port or url.query.get("port") or 5432
    return host, str(port), url.database


def insist(call: Callable[[], T], *, sleep: Callable[[float], object] = time.sleep) -> T:
    """Ask or tell the queue, and again while its database does not answer: what was done must not be told as undone."""
    while True:
        try:
            return call()
        except CloudError:
            sleep(1.0)


def first_line(error: Exception) -> str:
    """Return what went wrong, without the statement that it went wrong in."""
    lines = str(getattr(error, "orig", None) or error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _sqlite(path: Path) -> URL:
    return URL.create("sqlite", database=str(path))


def _postgres(given: str) -> URL:
    hint = f"{VARIABLE}=postgresql://USER@HOST/DATABASE; without it the queue is a file in the state directory"
    try:
        url = make_url(given)
    except (ArgumentError, ValueError):
        raise ConfigError(f"{VARIABLE} is no URL of a database", hint=hint) from None
    if url.get_backend_name() not in {"postgresql", "postgres"}:
        raise ConfigError(f"{VARIABLE} is for PostgreSQL, not for {url.get_backend_name()}", hint=hint)
    if "@" in (url.host or ""):  # the end of the password
        raise ConfigError(f"{VARIABLE} has two @", hint="write an @ of the password as %40")
    return url.set(drivername="postgresql+psycopg")
