"""Spot or on demand under a deadline, on traces of spot availability: `python benchmarks/policy.py DIR`.

DIR holds traces as JSON, `{"metadata": {"gap_seconds": s}, "data": [0, 1, ...]}`; those of "Can't Be Late" (NSDI 2024)
are at github.com/skypilot-org/spot-traces. They have no licence, so they are not part of this project. Folders named
`preemption` are left out: what could be had is not in them.

A job of --work hours begins at random moments of a trace, which each of --seeds draws anew. Its deadline comes after
1.1, 1.25 or 1.5 times the work and one start, and one sample more. A machine trains after its start; a spot machine is
lost when the trace says so, without a step (as in the paper; the product's margin is for such steps). A machine on
demand is always to be had, and beside one that trains a spot machine can get ready, both being paid for meanwhile. A
decision is taken at each sample, which shows what is to be had until the next. Two tables: spot in one zone, on each
trace, and spot in any of the zones that were watched together, where a job moves with its start as its only cost.

The rules stand in `policy_rules.py`, and what SkyPilot and Uniform Progress were read from. The last row is the least
cost that a policy could have had which knows the trace, the same rules of play kept (`policy_best.py`).
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.policy_best import best
from benchmarks.policy_rules import ALL_ZONES, ONE_ZONE
from benchmarks.policy_world import Job, Policy, Trace, play, read, together

FACTORS = (1.1, 1.25, 1.5)
STARTS_H = (0.1, 0.3)
CELLS = [(start, factor) for start in STARTS_H for factor in FACTORS]
BEST = "the best with hindsight"
ONE = "spot alone, in one zone"
Row = dict[str, tuple[list[float], list[float]]]
"""By rule: the mean cost of each seed, and the share of its jobs that were late."""


def compare(traces: Sequence[Trace], work: float, times: int, seeds: int, cell: tuple[float, float]) -> Row:
    """Play all rules. Costs are shares of that on demand from the beginning to the end, without a change."""
    found: Row = {}
    for seed in range(1, seeds + 1):
        costs: dict[str, list[tuple[float, bool]]] = {}
        draw = random.Random(seed)
        for trace in traces:
            for _ in range(times):
                begun = trace.begun(draw.randrange(len(trace.free)))
                for name, cost, late in _played(begun, work, cell, draw):
                    costs.setdefault(name, []).append((cost, late))
        for name, jobs in costs.items():
            means, lates = found.setdefault(name, ([], []))
            means.append(statistics.fmean(cost for cost, _ in jobs))
            lates.append(statistics.fmean(late for _, late in jobs))
    return found


def _played(trace: Trace, work: float, cell: tuple[float, float], draw: random.Random) -> list[tuple[str, float, bool]]:
    start, factor = cell
    regions = tuple(zone[:-1] for zone in trace.zones)

    def job(of: Trace) -> Job:
        return Job(work, factor * (work + start) + of.gap, start, of.gap, regions if of is trace else ("",))

    rules: list[tuple[str, Policy, Trace]] = [
        (name, policy, trace) for name, policy in (ONE_ZONE if len(regions) == 1 else ALL_ZONES).items()
    ]
    if len(regions) > 1:
        alone = trace.zone(draw.randrange(len(regions)))
        rules[-1:-1] = [(ONE, ONE_ZONE["spot alone"], alone)]
    found = []
    for name, policy, where in rules:
        cost, made = play(policy, job(where), where.free)
        found.append((name, cost / (work + start), not made))
    return [*found, (BEST, best(job(trace), trace.free) / (work + start), False)]


def table(traces: Sequence[Trace], found: Sequence[Row]) -> list[str]:
    """Return the lines of a table: mean over the seeds, plus or minus their standard deviation."""
    del traces
    lines = [
        "| policy | " + " | ".join(f"{factor:g} x, {start:g} h" for start, factor in CELLS) + " |",
        "|---|" + "---|" * len(CELLS),
    ]
    for name in found[0]:
        row = []
        for cell in found:
            means, lates = cell[name]
            late = f" ({statistics.fmean(lates):.0%} late)" if any(lates) else ""
            spread = statistics.stdev(means) if len(means) > 1 else 0.0
            row.append(f"{statistics.fmean(means):.3f} ± {spread:.3f}{late}")
        lines.append(f"| {name} | " + " | ".join(row) + " |")
    return lines


def main() -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--work", type=float, default=24.0, help="hours of training")
    parser.add_argument("--times", type=int, default=1, help="beginnings for each trace and seed")
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    traces = read(given.folder)
    if not traces:
        parser.error("no trace of availability in that folder")
    zones = together(traces)
    begin = time.monotonic()
    jobs = [(traces, given.times), ([zones], given.times * 5)]
    with ProcessPoolExecutor(os.process_cpu_count() if hasattr(os, "process_cpu_count") else os.cpu_count()) as pool:
        for some, times in jobs:
            found = [*pool.map(partial(compare, some, given.work, times, given.seeds), CELLS)]
            where = f"{len(some)} traces" if len(some[0].zones) == 1 else f"{len(some[0].zones)} zones together"
            print(f"{where}, {given.seeds} seeds of {times} beginnings each, {given.work:g} h of work\n", flush=True)
            print("\n".join(table(some, found)), end="\n\n", flush=True)
    print(f"{time.monotonic() - begin:.0f} s, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
