"""Spot or on demand under a deadline, on traces of spot availability: `python benchmarks/policy.py DIR`.

DIR holds traces as JSON, `{"metadata": {"gap_seconds": s}, "data": [0, 1, ...]}`; those of "Can't Be Late" (NSDI 2024)
are at github.com/skypilot-org/spot-traces. They have no licence, so they are not part of this project. Folders named
`preemption` are left out: what could be had is not in them.

A job of --work hours begins at random moments of each trace. Its deadline comes after 1.1, 1.25 or 1.5 times the work
and one start, and one sample more. A machine trains after its start; a spot machine is lost when the trace says so,
without a step (as in the paper; the product's margin is for such steps). A machine on demand is always to be had. A
decision is taken at each sample. Where a trace counts 16 machines, all 16 must be there.

- ours: `provisioner.planner.deadline`, which `failover run` goes by. Beside a machine on demand a spot machine gets
  ready; both are paid for meanwhile. `no way back` is the same without that.
- uniform progress, from the paper's description: spot where it is there; without it, on demand while behind the
  straight line to the deadline, else idle; on demand until ahead of the line by two starts; the net before all. `eager`
  leaves on demand as soon as spot is there and it is not behind.
- greedy with a net: idle while there is no spot, then on demand to the end. greedy: without the net. on demand at the
  first loss: spot while it lasts, then on demand, which is what this project did before.
- bound: no policy can go below. All spot that the trace has until the deadline, less one start for each time, the rest
  on demand. It knows the future, and its machines on demand need no start.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from provisioner.planner.deadline import Course, Markets

FACTORS = (1.1, 1.25, 1.5)
STARTS_H = (0.1, 0.3)
SHARE = 0.3
"""Price of spot as a share of that on demand: p3.2xlarge cost 0.918 and 3.06 USD an hour."""
ENOUGH = 1e-9


class Trace(NamedTuple):
    """One zone. ``gap`` is the time between two samples in hours."""

    name: str
    gap: float
    there: tuple[bool, ...]


@dataclass(slots=True)
class Job:
    """A job on its way, in hours. ``mode``: what it has, nothing, spot or on demand; ``boot``: what its start lacks."""

    work: float
    deadline: float
    start: float
    gap: float
    at: float = 0.0
    done: float = 0.0
    mode: str = ""
    boot: float = 0.0
    beside: float | None = None
    """What is left of the start of a spot machine beside one on demand."""
    netted: bool = False
    way_back: bool = True
    there: bool = False
    """Whether a spot machine is to be had."""

    @property
    def course(self) -> Course:
        """Where it stands, as the product sees it."""
        need = self.work - self.done + (self.boot if self.mode == "od" else 0.0)
        return Course(self.deadline - self.at, need, self.start, self.gap, way_back=self.way_back)


Policy = Callable[[Job], str]
"""What to have until the next sample: "", "spot", "od", or "od+spot": spot that gets ready beside it."""


def ours(job: Job) -> str:
    """Ask the planner."""
    course = job.course
    if job.mode == "spot":
        return "spot"
    if job.mode == "od":
        return "od+spot" if job.way_back and job.there and course.back_to_spot else "od"
    if course.markets is Markets.ON_DEMAND:
        return "od"
    return "spot" if job.there else "" if course.markets is Markets.SPOT else "od"


def no_way_back(job: Job) -> str:
    """Ask the planner, and stay on demand."""
    job.way_back = False
    return ours(job)


def uniform(job: Job, *, eager: bool = False) -> str:
    """Follow the straight line from nothing to all of the work at the deadline."""
    if job.mode == "spot":
        return "spot"
    left = job.deadline - job.at - (job.work - job.done) - job.gap
    job.netted = job.netted or left < 2 * job.start
    if job.netted:
        return "od"
    pace = job.work / job.deadline
    ahead = job.done - job.at * pace
    if job.mode == "od":
        if ahead >= 2 * job.start * pace:
            return "spot" if job.there else ""
        return "spot" if eager and job.there and ahead >= 0 and job.boot <= 0 else "od"
    if job.there:
        return "spot"
    return "od" if ahead < 0 else ""


def uniform_eager(job: Job) -> str:
    """Follow the line, and leave on demand early."""
    return uniform(job, eager=True)


def greedy_with_net(job: Job) -> str:
    """Idle without spot, and go on demand for good when there is no more time."""
    if job.mode:
        return job.mode
    left = job.deadline - job.at - (job.work - job.done) - job.gap
    return "od" if left < 2 * job.start else "spot" if job.there else ""


def greedy(job: Job) -> str:
    """Take spot alone."""
    return "spot" if job.there else ""


def first_loss(job: Job) -> str:
    """Take spot, and go on demand for good when there is none."""
    return "od" if job.mode == "od" else "spot" if job.there else "od"


def on_demand(_job: Job) -> str:
    """Take no spot machine."""
    return "od"


POLICIES: dict[str, Policy] = {
    "**ours**": ours,
    "ours, no way back": no_way_back,
    "uniform progress": uniform,
    "uniform progress, eager": uniform_eager,
    "greedy with a net": greedy_with_net,
    "on demand at the first loss": first_loss,
    "greedy": greedy,
    "on demand": on_demand,
}


def play(policy: Policy, job: Job, there: Sequence[bool]) -> tuple[float, bool]:
    """Return (cost in hours on demand, whether it was done in time). A job is given up at three times its deadline."""
    cost, sample = 0.0, 0
    while job.done < job.work - ENOUGH and job.at < 3 * job.deadline:
        job.there = there[sample % len(there)]
        if not job.there:
            job.mode, job.beside = ("" if job.mode == "spot" else job.mode), None
        mode, _, beside = policy(job).partition("+")
        if mode != job.mode:
            job.mode, job.boot, job.beside = mode, (job.start if mode else 0.0), None
        if beside and job.beside is None:
            job.beside = job.start
        cost += _advance(job)
        sample += 1
    return cost, job.done >= job.work - ENOUGH and job.at <= job.deadline + ENOUGH


def _advance(job: Job) -> float:
    """Let the job go on until the next sample, or its end. Return what that costs."""
    span = job.gap
    if job.mode:
        booting = min(job.boot, span)
        span = booting + min(span - booting, job.work - job.done)
        job.boot -= booting
        job.done += span - booting
    cost = span * {"": 0.0, "spot": SHARE, "od": 1.0}[job.mode]
    if job.beside is not None:
        cost += span * SHARE
        job.beside -= span
        if job.beside <= ENOUGH:
            job.mode, job.boot, job.beside = "spot", 0.0, None
    job.at += span
    return cost


def bound(job: Job, there: Sequence[bool]) -> float:
    """Return what no policy can go below."""
    spot, run, at = 0.0, 0.0, 0.0
    for sample in range(int(job.deadline / job.gap) + 1):
        if there[sample % len(there)] and at < job.deadline:
            run += min(job.gap, job.deadline - at)
        else:
            spot, run = spot + max(0.0, run - job.start), 0.0
        at += job.gap
    spot = min(job.work, spot + max(0.0, run - job.start))
    return spot * SHARE + (job.work - spot)


def read(folder: Path) -> list[Trace]:
    """Read every trace of availability."""
    found = []
    for path in sorted(folder.rglob("*.json")):
        if "preemption" in path.parts:
            continue
        raw = json.loads(path.read_text(encoding="utf-8"))
        most = max(raw["data"], default=0)
        if most:
            there = tuple(sample >= most for sample in raw["data"])
            found.append(Trace(str(path.relative_to(folder)), raw["metadata"]["gap_seconds"] / 3600.0, there))
    return found


def compare(traces: Sequence[Trace], work: float, factor: float, start: float, times: int) -> dict[str, list[float]]:
    """Return by policy the costs, as shares of that on demand from the beginning; missed deadlines as 'NAME missed'."""
    draw = random.Random(7)
    found: dict[str, list[float]] = {name: [] for name in (*POLICIES, "bound")}
    found |= {f"{name} missed": [] for name in POLICIES}
    for trace in traces:
        for _ in range(times):
            first = draw.randrange(len(trace.there))
            there = trace.there[first:] + trace.there[:first]
            for name, policy in POLICIES.items():
                job = Job(work, factor * (work + start) + trace.gap, start, trace.gap)
                cost, made = play(policy, job, there)
                found[name].append(cost / (work + start))
                found[f"{name} missed"].append(float(not made))
            job = Job(work, factor * (work + start) + trace.gap, start, trace.gap)
            found["bound"].append(bound(job, there) / (work + start))
    return found


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--work", type=float, default=24.0, help="hours of training")
    parser.add_argument("--times", type=int, default=20, help="beginnings for each trace")
    given = parser.parse_args()
    traces = read(given.folder)
    if not traces:
        parser.error("no trace of availability in that folder")
    cells = [(start, factor) for start in STARTS_H for factor in FACTORS]
    found = {cell: compare(traces, given.work, cell[1], cell[0], given.times) for cell in cells}
    print(f"{len(traces)} traces, {given.times} beginnings each, {given.work:g} h of work\n")
    print("| policy | " + " | ".join(f"{factor:g} x, {start:g} h" for start, factor in cells) + " |")
    print("|---|" + "---|" * len(cells))
    for name in (*POLICIES, "bound"):
        row = []
        for cell in cells:
            missed = statistics.fmean(found[cell].get(f"{name} missed", [0.0]))
            late = f" ({missed:.0%} late)" if missed else ""
            row.append(f"{statistics.fmean(found[cell][name]):.3f}{late}")
        print(f"| {name} | " + " | ".join(row) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
