"""Uses a store in a process that may be killed at any moment: one process for each line of JSON on its input.

This process forks, so it never touches a store itself: obstore's threads would not survive the fork.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from provisioner.checkpoint.epochs import check, take
from provisioner.checkpoint.layout import Position
from provisioner.checkpoint.restore import restore
from provisioner.checkpoint.retention import Policy, prune
from provisioner.checkpoint.save import Saver
from provisioner.checkpoint.store import Credentials, Store, open_store
from provisioner.checkpoint.sweep import sweep
from provisioner.checkpoint.tree import STANDARD, Sizes
from provisioner.errors import Fenced
from provisioner.model import JobRef

JOB = JobRef("digits", "1a2b3c4d")
PIECES = Sizes(blob=2**16, pack=2**19)


def main() -> None:
    """Say the process id of each child, then how it ended."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _end_with(json.loads(line))
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _end_with(order: dict[str, Any]) -> None:
    try:
        globals()[order["verb"]](_store(order), order)
    except Fenced as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(75)
    except BaseException:  # noqa: BLE001 - nothing of a child may get into the parent's loop
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _store(order: dict[str, Any]) -> Store:
    credentials = Credentials(*order["key"]) if order.get("key") else None
    return open_store(
        order["uri"], endpoint=order.get("endpoint"), region="us-east-1", credentials=credentials, environ={}
    ).at("digits")


def _tell(order: dict[str, Any], text: str) -> None:
    descriptor = os.open(order["announced"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, f"{text}\n".encode())
    os.close(descriptor)


def save(store: Store, order: dict[str, Any]) -> None:
    """Save, say so, and remove what is older than the last two."""
    sizes = PIECES if order.get("pieces", True) else STANDARD
    commit = Saver(store, JOB, order.get("epoch", 1), fence=lambda: None, sizes=sizes).save(
        Path(order["entry"]), order["step"]
    )
    _tell(order, str(order["step"]))
    prune(store, JOB, Policy(2), newest=commit.position)


def clean(store: Store, order: dict[str, Any]) -> None:
    """Sweep, without any grace."""
    sweep(store, grace_s=0)


def bring(store: Store, order: dict[str, Any]) -> None:
    """Restore the newest."""
    restore(store, JOB, Path(order["directory"]))


def node(store: Store, order: dict[str, Any]) -> None:
    """Take an epoch, restore, and save step after step until fenced, as the node does.

    ``stop`` is a step and the beginning of a key: there the process stops itself, as by SIGSTOP, before it writes.
    """
    epoch, token = order["epoch"], order.get("token", f"token-{order['epoch']}")
    take(store, epoch, token, "node")
    _tell(order, f"owns {epoch}")
    found = restore(store, JOB, Path(order["directory"]))
    begun = found.position.step if found else 0
    saver = Saver(store, JOB, epoch, fence=lambda: check(store, epoch, token), sizes=PIECES)
    stops_at, key = order.get("stop", (None, ""))
    put = store.put

    def put_or_stop(name: str, data: Any) -> None:
        nonlocal stops_at
        if step == stops_at and name.startswith(key):
            stops_at = None
            os.kill(os.getpid(), signal.SIGSTOP)
        put(name, data)

    store.put = put_or_stop  # type: ignore[method-assign, assignment]
    for number in range(order.get("steps", 10**6)):
        step = begun + number + 1
        entry = Path(order["entries"][step % len(order["entries"])])
        commit = saver.save(entry, step)
        _tell(order, f"{commit.position.epoch} {step}")


def measured(store: Store, order: dict[str, Any]) -> None:
    """Save and restore with few open files; say the most memory that this process has had, in MiB, after each."""
    files = order["files"] + len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    _tell(order, f"{_peak()}")
    Saver(store, JOB, 1, fence=lambda: None).save(Path(order["entry"]), 1)
    _tell(order, f"{_peak()}")
    found = restore(store, JOB, Path(order["directory"]), position=Position(1, 1))
    assert found is not None
    _tell(order, f"{_peak()}")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    main()
