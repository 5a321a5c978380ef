"""``failover run FILE``, killed with -9 right after its n-th recorded step: ``python dying_controller.py FILE N``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from provisioner.controller.run import Controller


def main(config: str, deadly: int) -> None:
    """Run, and die on time."""

    def after_step(count: int, name: str) -> None:
        print(f"{count} {name}", flush=True)
        if count == deadly:
            os.kill(os.getpid(), signal.SIGKILL)

    Controller(Path(config), after_step=after_step).run()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
