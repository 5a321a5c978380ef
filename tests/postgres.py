"""A PostgreSQL cluster of a test's own, on loopback. It refuses to be run by root: another user runs it then."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PASSWORD = "canary-database-password"


def programs() -> Path | None:
    """Return the folder of the newest server's programs, or None: Debian has them outside PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


def why_not() -> str:
    """Say why no server can be run here, or nothing."""
    if programs() is None:
        return "no PostgreSQL server (Debian: postgresql)"
    if os.geteuid() == 0 and not shutil.which("runuser"):
        return "root cannot run PostgreSQL, and there is no runuser"
    return ""


@contextmanager
def cluster() -> Iterator[str]:
    """Run a server and yield its URL, password included."""
    tools = programs()
    assert tools is not None
    folder = Path(tempfile.mkdtemp(prefix="failover-pg-", dir="/var/tmp" if Path("/var/tmp").is_dir() else None))
    as_user: list[str] = []
    if os.geteuid() == 0:
        user = next(name for name in ("postgres", "nobody") if _exists(name))
        shutil.chown(folder, user)
        as_user = ["runuser", "-u", user, "--"]
    data, secret, log = folder / "data", folder / "secret", folder / "log"
    secret.write_text(PASSWORD)
    if as_user:
        shutil.chown(secret, as_user[2])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def call(*command: str) -> None:
        done = subprocess.run(
            [*as_user, *command], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr + (log.read_text() if log.exists() else "")

    try:
        initdb = [str(tools / "initdb"), "-D", str(data), "-U", "failover", "--auth=scram-sha-256", "--no-sync"]
        call(*initdb, f"--pwfile={secret}", "--encoding=UTF8", "--locale=C")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -k {folder} -c fsync=off -c full_page_writes=off"
        call(str(tools / "pg_ctl"), "-D", str(data), "-l", str(log), "-w", "-t", "60", "-o", options, "start")
        yield f"postgresql://failover:{PASSWORD}@127.0.0.1:{port}/postgres"
    finally:
        stop = [*as_user, str(tools / "pg_ctl"), "-D", str(data), "-m", "immediate", "-w", "stop"]
        subprocess.run(stop, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        for _ in range(20):
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
            time.sleep(0.1)


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
