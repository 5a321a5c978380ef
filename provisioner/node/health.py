"""Is the node of this machine alive? Exit code 0 or 1, for a container's HEALTHCHECK and for people.

The node leaves a sign of life: an empty file, whose time of change is when the next sign is due at the latest. That
needs no room on the disk. A store that is away makes no node unhealthy: it is the node's own rhythm that counts.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

DIRECTORY = Path("/run/failover/node")
"""Where the node works, unless ``FAILOVER_RUN`` or an option says otherwise."""


def sign(root: Path, within_s: float, clock: Callable[[], float] = time.time) -> None:  # noqa: TID251 - two processes ask
    """Leave a sign of life in the node's directory and promise the next one ``within_s`` seconds. Never raises."""
    path = root / "alive"
    due = clock() + within_s
    with contextlib.suppress(OSError):  # a read-only or dying disk: the node goes on, and its health says so
        try:
            os.utime(path, (due, due))
        except FileNotFoundError:
            path.touch(mode=0o600)
            os.utime(path, (due, due))


def trouble(root: Path, clock: Callable[[], float] = time.time) -> str:  # noqa: TID251
    """Return one line that says what is wrong; empty when the node is alive."""
    path = root / "alive"
    try:
        late = clock() - path.stat().st_mtime
    except OSError as error:
        return f"no sign of life of a node at {path}: {error.strerror}"
    return f"the node's sign of life is {late:.0f} s overdue ({path})" if late > 0 else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Say what is wrong on stderr; return 1 then, else 0."""
    parser = argparse.ArgumentParser(prog="python -m provisioner.node.health", description="Is the node alive?")
    default = Path(os.environ["FAILOVER_RUN"], "node") if os.environ.get("FAILOVER_RUN") else DIRECTORY
    parser.add_argument("--directory", type=Path, default=default, help="where the node works (default: %(default)s)")
    line = trouble(parser.parse_args(argv).directory)
    if line:
        sys.stderr.write(f"{line}\n")
    return 1 if line else 0


if __name__ == "__main__":
    sys.exit(main())
