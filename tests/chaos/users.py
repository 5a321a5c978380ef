"""Processes that use a store and can be killed or stopped at any moment; ``dying_user.py`` is what runs in them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.servers import Server

SCRIPT = Path(__file__).with_name("dying_user.py")


class User:
    """A process that works on one order."""

    def __init__(self, users: Users, pid: int) -> None:
        self.pid = pid
        self._users = users

    def signal(self, number: int) -> None:
        """Send a signal; it may have ended already."""
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return

    def wait(self) -> int:
        """Return its exit code, or minus the signal that ended it."""
        return int(self._users.answer())


class Users:
    """Starts one process after the other, in a few milliseconds each."""

    def __init__(self, process: subprocess.Popen[str], common: dict[str, Any]) -> None:
        self._process = process
        self._common = common

    def start(self, verb: str, **order: Any) -> User:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"verb": verb, **self._common, **order}) + "\n")
        self._process.stdin.flush()
        return User(self, int(self.answer()))

    def run(self, verb: str, **order: Any) -> float:
        """Do it to its end; return how long that took, in seconds."""
        began = time.monotonic()
        assert self.start(verb, **order).wait() == 0
        return time.monotonic() - began

    def answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def announced(self) -> list[str]:
        """Return what all of them have said so far."""
        path = Path(self._common["announced"])
        return path.read_text().split("\n")[:-1] if path.exists() else []


@contextmanager
def users(
    where: Path, server: Server | None = None, prefix: str = "root", *, endpoint: str | None = None, **common: Any
) -> Iterator[Users]:
    """Prepare users of a directory below ``where``, or of a place in a server."""
    order = {"uri": f"file://{where}/store", "announced": str(where / "announced"), **common}
    if server is not None:
        key = server.credentials
        order |= {"uri": server.uri(prefix), "endpoint": endpoint or server.endpoint}
        order |= {"key": [key.access_key_id, key.secret_access_key] if key else None}
    environ = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environ,
        start_new_session=True,
    )
    try:
        yield Users(process, order)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
