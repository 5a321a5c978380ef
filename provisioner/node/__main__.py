"""``python -m provisioner.node --bootstrap FILE``: run one placement of a job on this machine.

Exit codes: 0 done, 75 come again elsewhere, 1 the job failed, others as in :class:`provisioner.errors.ExitCode`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import FrameType

from provisioner.errors import ExitCode, FailoverError
from provisioner.node import bootstrap, health, rooms
from provisioner.node.notices.signals import STOPPING
from provisioner.node.prefetch import end_with_parent, prefetch
from provisioner.node.supervisor import START_PATIENCE_S, Supervisor
from provisioner.node.verdict import Cause


def main(argv: Sequence[str] | None = None) -> int:
    """Read the bootstrap file, run, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m provisioner.node", description="Run one placement of a job.")
    parser.add_argument("--bootstrap", type=Path, required=True, help="the JSON file that says what to do")
    parser.add_argument("--directory", type=Path, help="where to work (default: `node` beside the bootstrap file)")
    parser.add_argument(
        "--give-up", metavar="REASON", help="run nothing: only say in the store why this machine cannot"
    )
    parser.add_argument(
        "--cause", type=Cause, default=Cause.MACHINE, help="with --give-up: the cause of the end (default: machine)"
    )
    parser.add_argument(
        "--prefetch", action="store_true", help="run nothing: only bring what the node will ask for; no errors, exit 0"
    )
    arguments = parser.parse_args(argv)
    try:
        boot = bootstrap.load(arguments.bootstrap)
        root = arguments.directory or arguments.bootstrap.resolve().parent / "node"
        if arguments.prefetch:
            end_with_parent()
            prefetch(boot, root, environ=os.environ, say=lambda line: _say(f"failover: {line}"))
            return int(ExitCode.DONE)
        lock = rooms.occupy(root)
        supervisor = _supervisor(boot, root)
        health.sign(root, START_PATIENCE_S + 60.0)  # no heartbeat before the epoch is taken
    except FailoverError as error:
        _say(f"{error}. {error.hint}" if error.hint else str(error))
        return int(error.exit_code)
    except OSError as error:
        _say(f"{error.filename}: {error.strerror}")
        return int(ExitCode.COME_AGAIN)

    def stop(number: int, _frame: FrameType | None) -> None:
        supervisor.on_signal(number)

    for number in STOPPING:
        signal.signal(number, stop)
    try:
        reason = arguments.give_up
        code = supervisor.run() if reason is None else supervisor.give_up(reason, arguments.cause)
        while supervisor.next is not None:
            supervisor = _supervisor(supervisor.next, root, supervisor)
            code = supervisor.run()
        return int(code)
    finally:
        os.close(lock)


def _supervisor(boot: bootstrap.Bootstrap, root: Path, before: Supervisor | None = None) -> Supervisor:
    supervisor = Supervisor(boot, root, echo=_say, leave=os._exit, before=before)
    supervisor.heartbeat.alive = partial(health.sign, root)
    return supervisor


def _say(line: str) -> None:
    try:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
    except OSError:  # the console is gone, or its disk is full
        return


if __name__ == "__main__":
    code = int(ExitCode.OUR_FAULT)
    try:
        code = main()
    except Exception:  # noqa: BLE001 - the boundary: the traceback goes to the console, the exit code says whose fault
        traceback.print_exc()
    # Threads that wait for a store that is away must not hold up the machine's end.
    os._exit(code)
