"""Serve the cloud in a box until told to stop.

``python -m provisioner.sandbox --directory DIR [--scenario FILE] [--image NAME]``

Prints one JSON line when its ports are open: ``{"autodl": url, "aws": url, "gcp": url, "control": url, ..}``.
Its ``env`` is what a controller needs in its environment. Ends on SIGTERM or SIGINT with exit code 0 and no machine
left.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path

from provisioner.errors import ConfigError
from provisioner.sandbox.containers import find
from provisioner.sandbox.scenario import load
from provisioner.sandbox.server import Sandbox

_LOOK_S = 0.25


def main(argv: list[str] | None = None) -> int:
    """Run the server; return the exit code."""
    parent = os.getppid()
    parser = argparse.ArgumentParser(prog="python -m provisioner.sandbox", description="A cloud in a box on loopback.")
    parser.add_argument("--directory", type=Path, required=True, help="where machines and sandbox.json are kept")
    parser.add_argument("--scenario", type=Path, help="a scenario file, e.g. examples/drills/default.yaml")
    parser.add_argument(
        "--exit-with-parent",
        type=int,
        nargs="?",
        const=parent,
        metavar="PID",
        help="end when the process that started this one ends; PID, if it may have ended already",
    )
    parser.add_argument("--image", help="let machines start containers of this image, which the engine here has")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="sandbox: %(message)s", stream=sys.stderr)
    try:
        scenario = load(options.scenario) if options.scenario else None
        containers = find(options.image, options.directory) if options.image else None
    except ConfigError as error:
        print(error, file=sys.stderr)  # noqa: T201 - the command line's own words
        return int(error.exit_code)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    sandbox = Sandbox(options.directory, scenario, containers=containers)
    try:
        print(json.dumps(sandbox.start()), flush=True)  # noqa: T201 - stdout is data
        while not ended.wait(_LOOK_S):
            if options.exit_with_parent not in {None, os.getppid()}:
                break
    finally:
        sandbox.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
