"""How well the hazard foretells losses, and what it does for the interval: `python benchmarks/hazard.py DIR`.

DIR holds traces of spot availability as JSON, `{"metadata": {"gap_seconds": s}, "data": [0, 1, ...]}`; those of
"Can't Be Late" (NSDI 2024) are at github.com/skypilot-org/spot-traces. They have no licence, so they are not part of
this project.

Foretelling: at each sample at which the machine is there, what chance does a model give that it is gone at the next?
The score is the log-loss per hour (lower is better), mean over the traces. Each model learns from what went before in
the same trace, and from nothing else.

Interval: seconds trained through a trace, as a share of what the best fixed interval would have got, chosen for that
trace with hindsight. The moment of a loss is drawn within its gap: at samples of ten minutes an interval that happens
to fit between them would win otherwise.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from provisioner.hazard import Seen, life
from provisioner.node.interval import interval_s

COSTS_S = (1, 5, 30, 120)
RESTORE_S = 60.0
FIXED_S = (10, 20, 30, 45, 60, 90, 120, 180, 240, 300, 420, 600, 900, 1200, 1800, 2700, 3600)


class Life(NamedTuple):
    """One machine's time in seconds, and whether it was taken back (else the trace ends)."""

    seconds: float
    lost: bool


class Trace(NamedTuple):
    """One zone's lives. ``gap_s`` is the time between two samples."""

    name: str
    gap_s: float
    lives: tuple[Life, ...]


def read(folder: Path) -> list[Trace]:
    """Read every trace of one machine in which one was there at some time."""
    found = []
    for path in sorted(folder.rglob("*.json")):
        raw = json.loads(path.read_text(encoding="utf-8"))
        if max(raw["data"], default=0) != 1:
            continue
        gap, samples, lives = float(raw["metadata"]["gap_seconds"]), 0, []
        for here, there in zip(raw["data"], raw["data"][1:], strict=False):
            samples += here
            if here and not there:
                lives.append(Life(samples * gap, lost=True))
                samples = 0
        if samples:
            lives.append(Life(samples * gap, lost=False))
        if lives:
            found.append(Trace(str(path.relative_to(folder)), gap, tuple(lives)))
    return found


def log_loss(trace: Trace, rate: Callable[[Seen, float], float]) -> float:
    """Return the log-loss per hour. ``rate(seen, age in hours)`` gives losses an hour."""
    loss, hours, seen, gap_h = 0.0, 0.0, Seen(), trace.gap_s / 3600.0
    for one in trace.lives:
        samples = round(one.seconds / trace.gap_s)
        for sample in range(samples):
            survives = math.exp(-rate(seen, sample * gap_h) * gap_h)
            chance = 1.0 - survives if one.lost and sample == samples - 1 else survives
            loss -= math.log(max(chance, 1e-12))
        hours += samples * gap_h
        seen += life(one.seconds / 3600.0, lost=one.lost)
    return loss / hours


def hindsight(trace: Trace) -> float:
    """Return the constant rate that suits the trace best."""
    return sum(one.lost for one in trace.lives) * 3600.0 / sum(one.seconds for one in trace.lives)


def calibration(traces: Sequence[Trace]) -> list[tuple[str, float, float]]:
    """Return, by age, losses an hour as foretold and as they came."""
    edges = (0.0, 0.25, 1.0, 4.0, 16.0, float("inf"))
    foretold, came, hours = [0.0] * 5, [0] * 5, [0.0] * 5
    for trace in traces:
        seen, gap_h = Seen(), trace.gap_s / 3600.0
        for one in trace.lives:
            samples = round(one.seconds / trace.gap_s)
            for sample in range(samples):
                at = next(n for n in range(5) if edges[n] <= sample * gap_h < edges[n + 1])
                foretold[at] += seen.rate_at(sample * gap_h) * gap_h
                hours[at] += gap_h
                came[at] += one.lost and sample == samples - 1
            seen += life(one.seconds / 3600.0, lost=one.lost)
    return [(f"{edges[n]:g} to {edges[n + 1]:g} h", foretold[n] / hours[n], came[n] / hours[n]) for n in range(5)]


def trained(lives: Sequence[Life], cost_s: float, choose: Callable[[Seen, float], float]) -> float:
    """Return the seconds of training that last. ``choose(seen, age in seconds)`` gives the next interval."""
    total, seen = 0.0, Seen()
    for one in lives:
        at = RESTORE_S
        while at + (step := choose(seen, at)) + cost_s <= one.seconds:
            total, at = total + step, at + step + cost_s
        if not one.lost:
            total += max(0.0, one.seconds - at)
        seen += life(one.seconds / 3600.0, lost=one.lost)
    return total


def fixed(every_s: float) -> Callable[[Seen, float], float]:
    """Return the choice of one interval for all time."""
    return lambda _seen, _at: every_s


def shares(traces: Sequence[Trace], cost_s: float) -> list[float]:
    """Return, by trace, what our intervals train as a share of the best fixed interval."""
    found, draw = [], random.Random(7)
    for trace in traces:
        lives = [Life(one.seconds - draw.random() * trace.gap_s, lost=True) if one.lost else one for one in trace.lives]
        best = max(trained(lives, cost_s, fixed(every)) for every in FIXED_S)
        ours = trained(lives, cost_s, lambda seen, at: interval_s(cost_s, seen.rate_at(at / 3600.0)))
        if best > 0.0:
            found.append(ours / best)
    return found


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    traces = read(parser.parse_args().folder)
    if not traces:
        parser.error("no trace of one machine in that folder")
    models: dict[str, Callable[[Trace], float]] = {
        "constant, one in six hours": lambda trace: log_loss(trace, lambda _seen, _age: 1.0 / 6.0),
        "constant, best with hindsight": lambda trace: log_loss(trace, lambda _seen, _age: hindsight(trace)),
        "Gamma-Poisson": lambda trace: log_loss(trace, lambda seen, _age: seen.rate),
        "Gamma-Poisson by age (ours)": lambda trace: log_loss(trace, lambda seen, age: seen.rate_at(age)),
    }
    print(f"{len(traces)} traces, {sum(one.lost for trace in traces for one in trace.lives)} losses\n")
    print("| model | log-loss per hour |\n|---|---|")
    for name, score in models.items():
        print(f"| {name} | {statistics.fmean(map(score, traces)):.3f} |")
    print("\n| age | losses an hour, foretold | came |\n|---|---|---|")
    for age, foretold, came in calibration(traces):
        print(f"| {age} | {foretold:.2f} | {came:.2f} |")
    print("\n| cost of a save | trained, share of the best fixed interval: mean | worst trace |\n|---|---|---|")
    for cost in COSTS_S:
        found = shares(traces, float(cost))
        print(f"| {cost} s | {statistics.fmean(found):.3f} | {min(found):.3f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
