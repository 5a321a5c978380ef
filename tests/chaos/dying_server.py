"""``failover serve`` that is killed with -9 at one moment of its first job: ``python dying_server.py MOMENT``."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from provisioner.cli import main
from provisioner.clouds.local import LocalCloud
from provisioner.controller.serving.jobs import JobStore

MOMENTS: dict[str, tuple[type, str, bool, int]] = {
    "before the claim": (LocalCloud, "claim", True, 1),
    "after the claim": (LocalCloud, "claim", False, 1),
    "in adopt": (LocalCloud, "adopt", True, 1),
    "in watch": (LocalCloud, "inspect", True, 3),
    "before the release": (LocalCloud, "release", True, 1),
    "after the release": (LocalCloud, "release", False, 1),
    "before the end is told": (JobStore, "end", True, 1),
}
"""What is called then, whether it dies before that or after, and at which call."""


def dying(call: Callable[..., Any], *, before: bool, at: int) -> Callable[..., Any]:
    """Return the call that kills this process."""
    left = [at]

    def called(*args: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and before:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = call(*args, **options)
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    return called


if __name__ == "__main__":
    room, name, before, at = MOMENTS[sys.argv[1]]
    setattr(room, name, dying(getattr(room, name), before=before, at=at))
    sys.exit(main(["serve", "--sweep-every", "0s"]))
