"""Run a command and say what it cost: `python -I -S benchmarks/measured.py LOG COMMAND...` prints one JSON object.

A process of its own, because the kernel hands the peak memory of the process that forks down to the child: the child
of a small process shows its own. Its output goes to the file LOG. ``peak_bytes`` is the largest resident set of any one
process in it; ``seconds`` runs from before the fork until after the end.
"""

import json
import os
import sys
import time


def main() -> int:
    """Run it, wait, print."""
    with open(sys.argv[1], "wb") as log:  # noqa: PTH123 - pathlib would make this process larger
        start = time.perf_counter()
        pid = os.posix_spawnp(
            sys.argv[2],
            sys.argv[2:],
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, log.fileno(), 1), (os.POSIX_SPAWN_DUP2, log.fileno(), 2)],
        )
        _, status, used = os.wait4(pid, 0)
        seconds = time.perf_counter() - start
    cost = {
        "exit": os.waitstatus_to_exitcode(status),
        "seconds": seconds,
        "cpu_s": used.ru_utime + used.ru_stime,
        "peak_bytes": used.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
    }
    print(json.dumps(cost))
    return 0


if __name__ == "__main__":
    sys.exit(main())
