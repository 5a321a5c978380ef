"""How fast checkpoints move beside other tools: `python benchmarks/transfer.py [--quick]`, or `make bench-checkpoint`.

One run, one machine, the same servers and the same bytes for all: `failover checkpoint push` and `pull`, s5cmd, rclone,
boto3's transfer manager and obstore, each a process of its own, start-up included. What came back is compared after
each get. The servers are rclone's and SeaweedFS, a fresh one for each run, as they are and behind a far region
(tests/far_region.py: 40 ms a request, 40 MB/s a connection). The page cache holds all data before each transfer, and
dirty pages are written out. Tools take turns at being first; times are medians over `--runs`.

Then ours saves again: with nothing changed, and with a tenth of the bytes changed, in one stretch or scattered.

Words go to stderr, the table to stdout. A run takes about an hour and 8 GB below `--scratch`; `--quick`, with small
trees, takes two minutes and says nothing about speed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import contenders, report, trees
from benchmarks.contenders import NAMES, OURS
from tests import servers

MEASURED = Path(__file__).with_name("measured.py")
LIMIT_S = 1800


@dataclass(frozen=True, slots=True)
class Place:
    """A server, and the way to it."""

    server: servers.Server
    endpoint: str
    directory: Path


@dataclass
class Row:
    """What was measured for one server, line and tree. ``costs``: tool -> put|get -> what each run cost."""

    server: str
    line: str
    shape: str
    title: str
    bytes: int
    costs: dict[str, dict[str, list[dict[str, float]]]] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    again: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    """unchanged|contiguous|scattered -> what each save cost, with ``uploaded`` bytes and ``changed`` bytes."""


def main() -> int:
    """Measure, print; 1 where something did not come back as it was."""
    options = _options()
    rows = _measure(options) if not options.read else [Row(**row) for path in options.read for row in _load(path)]
    words = report.text(rows, report.machine(options.scratch))
    print(words)
    if options.markdown:
        options.markdown.write_text(words + "\n")
    return int(any(row.failures.get(OURS) for row in rows))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small trees, one run: to see that it works")
    parser.add_argument("--runs", type=int, help="runs of each transfer (3; with --quick 1)")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()), help="where data and servers live")
    parser.add_argument("--servers", default="rclone,seaweedfs")
    parser.add_argument("--lines", default="near,far")
    parser.add_argument("--shapes", default="one,many,small")
    parser.add_argument("--tools", default=",".join(NAMES))
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="TOOL=JOBS/PARTS/MIB",
        help="other settings for a tool, to try them",
    )
    parser.add_argument("--markdown", type=Path, help="write the table there, too")
    parser.add_argument("--json", type=Path, help="write what was measured there")
    parser.add_argument("--read", type=Path, nargs="+", help="measure nothing: make the table of such files")
    options = parser.parse_args()
    options.runs = options.runs or (1 if options.quick else 3)
    for word in options.set:
        name, _, numbers = word.partition("=")
        settings = contenders.Settings(*map(int, numbers.split("/")))
        contenders.BEST[name] = dict.fromkeys(trees.FULL, settings)
    return options


def _load(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(path.read_text())
    return rows


def _measure(options: argparse.Namespace) -> list[Row]:
    shapes = trees.QUICK if options.quick else trees.FULL
    tools = [name for name in NAMES if name in options.tools.split(",")]
    rows = []
    with tempfile.TemporaryDirectory(prefix="failover-bench-", dir=options.scratch) as scratch:
        for name in options.shapes.split(","):
            shape = shapes[name]
            data = trees.make(Path(scratch) / name, shape)
            for kind in options.servers.split(","):
                for line in options.lines.split(","):
                    _say(f"{kind} {line}, {shape.title} (load {os.getloadavg()[0]:.1f})")
                    row = Row(kind, line, name, shape.title, shape.size)
                    for run in range(options.runs):
                        turn = run % len(tools)
                        with _place(kind, line, Path(scratch) / "server") as place:
                            for tool in tools[turn:] + tools[:turn]:
                                _there_and_back(row, place, data, tool)
                            if run == options.runs - 1 and OURS in tools:
                                _again(row, place, data, shape, options.runs)
                    rows.append(row)
                    if options.json:
                        options.json.write_text(json.dumps([asdict(row) for row in rows]))
            shutil.rmtree(data)
    return rows


@contextmanager
def _place(kind: str, line: str, directory: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        server = stack.enter_context(servers.started(kind, directory))
        endpoint = server.endpoint
        assert endpoint is not None
        if line == "far":
            endpoint = stack.enter_context(servers.fronted("far_region.py", endpoint))
        yield Place(server, endpoint, directory)


def _there_and_back(row: Row, place: Place, data: Path, name: str) -> None:
    back = place.directory / "back"
    back.mkdir()
    words = []
    for verb, directory in (("put", data), ("get", back)):
        trees.warm(data)
        cost, log = _run(
            place, contenders.command(name, verb, directory, *_at(place, name), row.shape, servers.program), name
        )
        whole = not cost["exit"] and (verb == "put" or trees.same(data, back))
        if not whole:
            row.failures[name] = row.failures.get(name, 0) + 1
            _say(f"    {name} {verb}: exit {cost['exit']:.0f}, or other bytes came back: {log[-500:]}")
            break
        row.costs.setdefault(name, {}).setdefault(verb, []).append(cost)
        words.append(
            f"{verb} {cost['seconds']:.2f} s ({cost['cpu_s']:.1f} CPU, {cost['peak_bytes'] / trees.MIB:.0f} MiB)"
        )
    shutil.rmtree(back)
    _say(f"  {name:13}{', '.join(words)}")


def _again(row: Row, place: Place, data: Path, shape: trees.Shape, runs: int) -> None:
    """Save a changing copy of the tree over and over, below the prefix of ours that is there already."""
    moving = trees.copied(data, place.directory / "moving")
    for how in ("unchanged", "contiguous", "scattered"):
        for run in range(runs):
            changed = 0 if how == "unchanged" else trees.change(moving, shape, how, run)
            trees.warm(moving)
            cost, log = _run(
                place, contenders.command(OURS, "put", moving, *_at(place, OURS), row.shape, servers.program), OURS
            )
            if cost["exit"]:
                row.failures[OURS] = row.failures.get(OURS, 0) + 1
                _say(f"    save again: {log[-500:]}")
                continue
            cost |= {"uploaded": _said(log)["uploaded_bytes"], "changed": changed}
            row.again.setdefault(how, []).append(cost)
            _say(f"  again, {how:12}{cost['seconds']:.2f} s, {cost['uploaded'] / trees.MIB:.1f} MiB")
    back = place.directory / "back"
    cost, log = _run(place, contenders.command(OURS, "get", back, *_at(place, OURS), row.shape, servers.program), OURS)
    if cost["exit"] or not trees.same(moving, back):
        row.failures[OURS] = row.failures.get(OURS, 0) + 1
        _say(f"    what was saved again did not come back: {log[-500:]}")
    shutil.rmtree(back, ignore_errors=True)
    shutil.rmtree(moving)


def _at(place: Place, prefix: str) -> tuple[str, str]:
    return place.server.bucket, prefix


def _run(place: Place, command: list[str], name: str) -> tuple[dict[str, float], str]:
    """Run a tool once; return its cost and what it said."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "RCLONE_", "S3_"))}
    environ |= place.server.environ(place.endpoint) | contenders.environ(name, place.endpoint)
    environ |= {"HOME": str(place.directory), "TMPDIR": str(place.directory)}
    log = place.directory / "tool.log"
    os.sync()
    time.sleep(0.2)
    measured = subprocess.run(
        [sys.executable, "-I", "-S", str(MEASURED), str(log), *command],
        env=environ,
        stdout=subprocess.PIPE,
        check=True,
        timeout=LIMIT_S,
    )
    cost: dict[str, float] = json.loads(measured.stdout)
    return cost, log.read_text(errors="replace")


def _said(log: str) -> dict[str, Any]:
    """Return the JSON object in what ours printed; its words stand around it."""
    answer: dict[str, Any] = json.loads(log[log.index("{") : log.rindex("}") + 1])
    return answer


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
