"""How long the command line takes to answer: `python benchmarks/startup.py [runs]` prints one JSON object.

`failover --version` and `--help` are to stay under 0.2 s. Times are wall seconds of whole processes, the best and the
median of `runs` (20); the best says what the code costs, the median what the machine adds.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

LIMIT_S = 0.2
FAILOVER = Path(sys.executable).with_name("failover")


def seconds(argv: list[str], runs: int) -> dict[str, float]:
    """Time ``argv`` and return its best and median wall seconds."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, timeout=60)
        times.append(time.perf_counter() - start)
    return {"best_s": round(min(times), 4), "median_s": round(statistics.median(times), 4)}


def main() -> int:
    """Print the figures; 1 where a limit is broken."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    figures = {
        "python -c pass": seconds([sys.executable, "-c", "pass"], runs),
        "failover --version": seconds([str(FAILOVER), "--version"], runs),
        "failover --help": seconds([str(FAILOVER), "--help"], runs),
    }
    slow = [name for name, times in figures.items() if times["best_s"] > LIMIT_S]
    print(json.dumps({"runs": runs, "limit_s": LIMIT_S, "figures": figures, "over_limit": slow}, indent=2))
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
