"""What a test may do to a machine: give it a small disk that can be filled, and a clock that can be set.

Two variables of the sandbox's own environment ask for it; without them a machine has the host's disk and clock.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

DISK = "FAILOVER_SANDBOX_DISK"
"""Size of each machine's disk, as ``mount`` takes it for a tmpfs: ``200m``. The sandbox must be allowed to mount."""
CLOCK = "FAILOVER_SANDBOX_CLOCK"
"""A library for LD_PRELOAD that adds to the time of day what the machine's file in ``clocks`` says, in nanoseconds."""
CLOCKS = "clocks"
_MOUNT_S = 10.0


def disk(directory: Path) -> None:
    """Give a machine that boots for the first time a disk of its own. Raises OSError, subprocess.SubprocessError."""
    size = os.environ.get(DISK)
    if size and not directory.exists():
        directory.mkdir(parents=True)
        argv = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(directory)]
        subprocess.run(argv, check=True, timeout=_MOUNT_S, capture_output=True)


def clock(directory: Path) -> dict[str, str]:
    """Return what a machine's processes need in their environment to go by its own clock."""
    library = os.environ.get(CLOCK)
    if not library:
        return {}
    file = directory.parent.parent / CLOCKS / directory.name
    file.parent.mkdir(exist_ok=True)
    if not file.exists():
        file.write_bytes(bytes(8))
    return {"LD_PRELOAD": library, "FAILOVER_TEST_CLOCK": str(file)}
