"""The tables of `transfer.py`, as Markdown that reads well in a terminal, too."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from benchmarks.contenders import BEST, NAMES, OURS
from tests import servers

MIB = 2**20


class Measured(Protocol):
    """A row as `transfer.py` has it."""

    server: str
    line: str
    title: str
    shape: str
    bytes: int
    costs: dict[str, dict[str, list[dict[str, float]]]]
    failures: dict[str, int]
    again: dict[str, list[dict[str, float]]]


def text(rows: Sequence[Measured], about: str) -> str:
    """Return the whole report."""
    parts = [about, _speed(rows), _again(rows), _memory(rows), _settings()]
    return "\n\n".join(part for part in parts if part)


def machine(scratch: Path) -> str:
    """Describe what it ran on, without naming the machine or its paths."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    argv = ["df", "--output=fstype", str(scratch)]
    disk = "".join(subprocess.run(argv, capture_output=True, text=True, check=False).stdout.splitlines()[1:])
    return (
        f"Machine: {os.cpu_count()} cores ({cpu()}), {memory:.0f} GiB of memory, {platform.system()} "
        f"{platform.release()}; data and servers on {disk or 'a disk'}. Clients and servers share the cores. "
        f"Python {platform.python_version()}, boto3 {importlib.metadata.version('boto3')}, obstore "
        f"{importlib.metadata.version('obstore')}, rclone {_version('rclone')}, s5cmd {_version('s5cmd')}, SeaweedFS "
        f"{_version('weed')}."
    )


def cpu() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _version(program: str) -> str:
    try:
        argv = [servers.program(program), "version"]
        said = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=20).stdout
    except (OSError, servers.NotInstalledError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"(?<![\d.])\d+\.\d+(\.\d+)?", said)
    return found[0] if found else ""


def _speed(rows: Sequence[Measured]) -> str:
    others = [name for name in NAMES if name != OURS and any(name in row.costs for row in rows)]
    table = [["server", "line", "tree", "", f"**{OURS}**", *others, "ratio"]]
    for row in rows:
        for verb in ("put", "get"):
            times = {name: _seconds(row, name, verb) for name in (OURS, *others)}
            best = min((seconds for name, seconds in times.items() if seconds and name != OURS), default=0.0)
            ours = times[OURS]
            ratio = f"**{best / ours:.2f}**" if best and ours else ""
            marks = [_mark(row, name, seconds) for name, seconds in times.items()]
            table.append([row.server, row.line, row.title, verb, *marks, ratio])
    words = (
        "Seconds, medians. The ratio is the time of the fastest of the others to ours: 1.00 is as fast, more is faster."
    )
    return f"{words}\n\n{markdown_table(table)}"


def _seconds(row: Measured, name: str, verb: str) -> float:
    costs = row.costs.get(name, {}).get(verb, [])
    return statistics.median(cost["seconds"] for cost in costs) if costs else 0.0


def _mark(row: Measured, name: str, seconds: float) -> str:
    failed = f" ({row.failures[name]} failed)" if row.failures.get(name) else ""
    return f"{seconds:.2f}{failed}" if seconds else f"—{failed}"


def _again(rows: Sequence[Measured]) -> str:
    table = [["server", "line", "tree", "first save", "what changed", "bytes", "of the first", "time", "of the first"]]
    for row in rows:
        if not row.again:
            continue
        first = statistics.median(cost["seconds"] for cost in row.costs[OURS]["put"])
        for how, costs in row.again.items():
            sent = statistics.median(cost["uploaded"] for cost in costs)
            seconds = statistics.median(cost["seconds"] for cost in costs)
            what = how if how == "unchanged" else f"{costs[0]['changed'] / row.bytes:.0%} {how}"
            shares = f"{sent / row.bytes:.1%}", f"{seconds:.2f} s", f"{seconds / first:.0%}"
            table.append([row.server, row.line, row.title, f"{first:.2f} s", what, f"{sent / MIB:.1f} MiB", *shares])
    return "Saved again by ours:\n\n" + markdown_table(table) if len(table) > 1 else ""


def _memory(rows: Sequence[Measured]) -> str:
    """Largest resident set and CPU seconds (median) of the process, over all servers and lines."""
    table = [["tree", "", *NAMES]]
    for title in dict.fromkeys(row.title for row in rows):
        for verb in ("put", "get"):
            cells = []
            for name in NAMES:
                costs = [cost for row in rows if row.title == title for cost in row.costs.get(name, {}).get(verb, [])]
                peak = max((cost["peak_bytes"] for cost in costs), default=0)
                cpu = statistics.median(cost["cpu_s"] for cost in costs) if costs else 0
                cells.append(f"{peak / MIB:.0f} MiB, {cpu:.1f} s" if costs else "—")
            table.append([title, verb, *cells])
    return "Peak memory, and CPU seconds (median), of each tool's process:\n\n" + markdown_table(table)


def _settings() -> str:
    words = []
    for name, shapes in BEST.items():
        each = "; ".join(f"{shape} {s.jobs}/{s.parts}/{s.part_mib}" for shape, s in shapes.items())
        words.append(f"{name}: {each}")
    return "Settings (files at once / parts of a file at once / MiB of a part):\n\n" + "\n".join(
        f"- {w}" for w in words
    )


def markdown_table(rows: Sequence[Sequence[Any]]) -> str:
    """Return a table, its first row the head, with columns of one width."""
    widths = [max(len(str(row[column])) for row in rows) for column in range(len(rows[0]))]

    def line(cells: Sequence[Any]) -> str:
        return "| " + " | ".join(str(cell).ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return "\n".join([line(rows[0]), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *map(line, rows[1:])])
