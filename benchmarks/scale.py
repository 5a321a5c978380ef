"""What `failover serve` costs with many jobs that are all alive: `python benchmarks/scale.py [--jobs 10 100 1000]`.

One controller, unchanged, as a process of its own. What it talks to is on loopback and real HTTP: the sandbox's AutoDL
and an S3 server that count what they are asked (`scale_world.py`). A machine is the lightest that there is, an entry in
a table whose heartbeats change every 5 s; no training runs. Jobs have the policy's defaults: a look every 10 s.

For each number of jobs all are submitted at once and taken up. Then nothing happens for --window seconds, while all are
alive: from this steady state come memory, CPU, requests, threads, open files, the database and the time between two
looks at a job (which is `policy.poll` and one round through the controller). Then the world changes at one moment: up
to 10 machines vanish, as many fall silent, 5 jobs are submitted; what is timed is the controller's next step.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from provisioner.config import parse
from provisioner.controller.directory import cache_root
from provisioner.controller.runtime import runtime_wheels
from provisioner.controller.serving.database import Database
from provisioner.controller.serving.jobs import JobStore

TOKEN = "scale-token"  # noqa: S105 - of the sandbox's AutoDL
LOST_AFTER_S = 60.0
HIT, NEW = 10, 5
"""Most machines that vanish, and that fall silent; jobs that are submitted to a controller that is busy."""
LONGEST_S = 1500.0
Figures = dict[str, float]


@dataclass
class Stand:
    """One controller and its world, in a folder of their own."""

    folder: Path
    environ: dict[str, str]
    ports: Mapping[str, int]
    store: JobStore
    server: subprocess.Popen[bytes] | None = None
    _read: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)

    def submit(self, name: str) -> float:
        """Put one job into the queue; return when."""
        assert self.store.submit(name, str(self.folder / f"{name}.yaml"), self.config(name))
        return time.time()

    def config(self, name: str) -> bytes:
        """Return a job's file."""
        autodl = {"mode": "pro", "base_url": f"http://127.0.0.1:{self.ports['autodl']}", "gpus": ["4090D"]}
        autodl |= {"image_uuid": "base-image-l2t43iu6uk"}
        store = {"store": "s3://scale/jobs", "endpoint": f"http://127.0.0.1:{self.ports['store']}"}
        job = {"name": name, "command": ["train"], "steps": 10_000_000}
        made = {"job": job, "primary": {"autodl": autodl}, "fallback": [{"local": {}}], "checkpoint": store}
        return yaml.safe_dump(made | {"policy": {"lost_after": f"{LOST_AFTER_S:g}s"}}).encode()

    def serve(self, jobs: int) -> None:
        """Start the controller."""
        command = [
            sys.executable,
            "-m",
            "provisioner.cli",
            "serve",
            "--jobs",
            str(jobs),
            "--json",
            "--sweep-every",
            "0s",
        ]
        with (self.folder / "events").open("wb") as out, (self.folder / "words").open("wb") as words:
            self.server = subprocess.Popen(
                command, env=self.environ, stdin=subprocess.DEVNULL, stdout=out, stderr=words
            )

    def world(self, what: str, **query: str) -> Any:
        """Ask the world."""
        asked = "&".join(f"{name}={value}" for name, value in query.items())
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.ports['store']}/_world/{what}?{asked}", timeout=60
        ) as answer:
            return json.loads(answer.read())

    def told(self) -> list[dict[str, Any]]:
        """Return all events so far."""
        with (self.folder / "events").open("rb") as lines:
            lines.seek(self._read)
            for line in lines:
                if line.endswith(b"\n"):
                    self._read += len(line)
                    event = json.loads(line)
                    if event["kind"] != "heartbeat" or event["first"]:
                        self.events.append(event)
        return self.events

    def count(self, kind: str) -> int:
        """Return how many events of a kind there were. A job that has ended is a fault of the benchmark's."""
        told = self.told()
        assert not any(one["kind"] == "served" for one in told), [one for one in told if one["kind"] == "served"][:2]
        return sum(one["kind"] == kind for one in told)

    def wait(self, done: Callable[[], bool], what: str, seconds: float = LONGEST_S) -> None:
        """Wait for the controller."""
        until = time.monotonic() + seconds
        assert self.server is not None
        while not done():
            words = (self.folder / "words").read_text("utf-8", "replace")[-3000:]
            assert self.server.poll() is None, f"the controller ended: {words}"
            assert time.monotonic() < until, f"waited {seconds:g} s for {what}: {words}"
            time.sleep(0.5)

    def process(self) -> Figures:
        """Return what the controller has and has used so far."""
        assert self.server is not None
        proc = Path(f"/proc/{self.server.pid}")
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        used = (proc / "stat").read_text().rpartition(")")[2].split()
        return {
            "cpu": (int(used[11]) + int(used[12])) / os.sysconf("SC_CLK_TCK"),
            "rss": int(status["VmRSS"].split()[0]) * 1024,
            "threads": int(status["Threads"]),
            "fds": len([*(proc / "fd").iterdir()]),
        }

    def database(self) -> float:
        """Return the bytes of the queue and of the flows' recorded steps."""
        state = Path(self.environ["FAILOVER_STATE_DIR"])
        return sum(path.stat().st_size for name in ("jobs", "flows") for path in state.glob(f"{name}.sqlite*"))


@contextmanager
def stand() -> Iterator[Stand]:
    """Open a world; end it and its controller."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="failover-scale-")))
        world = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("scale_world.py")), TOKEN], stdout=subprocess.PIPE
        )
        stack.callback(world.wait)
        stack.callback(world.kill)
        assert world.stdout is not None
        ports = json.loads(world.stdout.readline())
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "FAILOVER_"))}
        environ |= {"FAILOVER_STATE_DIR": str(folder / "state"), "AUTODL_TOKEN": TOKEN}
        environ |= {"AWS_ACCESS_KEY_ID": "scale", "AWS_SECRET_ACCESS_KEY": "scale"}
        made = Stand(folder, environ, ports, JobStore(Database(environ)))
        try:
            yield made
        finally:
            if made.server is not None:
                made.server.send_signal(signal.SIGKILL)
                made.server.wait()
            made.store.close()


def measure(jobs: int, window: float) -> Figures:
    """Return the figures for so many jobs."""
    with stand() as here:
        names = [f"job{number}" for number in range(jobs)]
        parse(here.config("new"), "new.yaml", here.folder, here.environ)  # a mistake would end every job
        for name in names:
            here.submit(name)
        begin = time.time()
        here.serve(jobs + NEW)
        here.wait(lambda: here.count("heartbeat") >= jobs, "all to train")
        found = {"taken_up": time.time() - begin, "begin_cpu": here.process()["cpu"]}
        time.sleep(min(15.0, window))
        found |= _steady(here, jobs, window)
        return found | _changed(here, names)


def _steady(here: Stand, jobs: int, window: float) -> Figures:
    here.world("reset")
    before, begin = here.process(), time.monotonic()
    time.sleep(window)
    counts, after, seconds = here.world("counts"), here.process(), time.monotonic() - begin
    assert counts["machines"] >= jobs, "not all of them are alive"
    hours = seconds / 3600
    looks = counts["looks"].values()
    assert len(looks) >= jobs, "not all of them were looked at"
    gaps = [later - sooner for times in looks for sooner, later in itertools.pairwise(times)]
    return {
        "look": statistics.median(gaps),
        "look_most": max(gaps),
        **{name: after[name] for name in ("rss", "threads", "fds")},
        "cpu": (after["cpu"] - before["cpu"]) / seconds,
        "store": sum(counts["store"].values()) / hours,
        "autodl": sum(counts["autodl"].values()) / hours,
        "database": here.database(),
    }


def _changed(here: Stand, names: Sequence[str]) -> Figures:
    """Change the world; return how long until the controller took the next step, and until the next machine."""
    many = min(HIT, len(names) // 3)
    gone, silent, new = names[:many], names[many : 2 * many], [f"new{number}" for number in range(NEW)]
    at = here.world("take", jobs=",".join(gone))["time"]
    here.world("silence", jobs=",".join(silent))
    submitted = {name: here.submit(name) for name in new}

    def first(kind: str, jobs: Sequence[str]) -> dict[str, float]:
        told: dict[str, float] = {}
        for event in here.told():
            if event["kind"] == kind and event["served"] in jobs and event["time"] >= at:
                told.setdefault(event["served"], event["time"])
        return told

    steps = [("ended", gone), ("claimed", gone), ("ended", silent), ("begin", new), ("claim", new)]
    here.wait(lambda: all(len(first(kind, jobs)) == len(jobs) for kind, jobs in steps), "the next steps", 300.0)
    found = {
        "gone": [when - at for when in first("ended", gone).values()],
        "replaced": [when - at for when in first("claimed", gone).values()],
        "silent": [when - at - LOST_AFTER_S for when in first("ended", silent).values()],
        "begun": [when - submitted[name] for name, when in first("begin", new).items()],
        "claims": [when - submitted[name] for name, when in first("claim", new).items()],
    }
    return {name: statistics.median(times) for name, times in found.items()} | {
        f"{name}_most": max(times) for name, times in found.items()
    }


ROWS: Mapping[str, tuple[str, float]] = {
    "look": ("between two looks at a job, median, s", 1),
    "look_most": ("the longest, s", 1),
    "gone": ("machine vanishes: until its loss is known, median, s", 1),
    "gone_most": ("the slowest, s", 1),
    "replaced": ("until the next machine is there, median, s", 1),
    "replaced_most": ("the slowest, s", 1),
    "silent": ("heartbeats end: until the loss is known, after `lost_after`, median, s", 1),
    "silent_most": ("the slowest, s", 1),
    "begun": ("job submitted: until it is begun, median, s", 1),
    "claims": ("until it asks for a machine, median, s", 1),
    "cpu": ("CPU, share of a core", 1),
    "rss": ("memory of the controller, MB", 1e-6),
    "threads": ("threads", 1),
    "fds": ("open files", 1),
    "database": ("database, MB", 1e-6),
    "store": ("requests to the store, an hour", 1),
    "autodl": ("calls of AutoDL, an hour", 1),
    "taken_up": ("all submitted at once: until all train, s", 1),
    "begin_cpu": ("CPU of that, s", 1),
}
PER_JOB: Mapping[str, tuple[str, float]] = {
    "cpu": ("CPU for a job and hour, s", 3600),
    "rss": ("memory for each further job, MB", 1e-6),
    "threads": ("threads for each further job", 1),
    "fds": ("open files for each further job", 1),
    "database": ("database for each further job, kB", 1e-3),
    "store": ("requests to the store, for a job and hour", 1),
    "autodl": ("calls of AutoDL, for a job and hour", 1),
    "begin_cpu": ("CPU to begin a job, s", 1),
}


def table(found: Mapping[int, Figures]) -> list[str]:
    """Return the lines of a table: every figure, and how it grows from one number of jobs to the next.

    What is told of each further job is the difference to the column before, over the difference in jobs; the first
    column has none. ``10 times the jobs``: by what the last column is larger than the one before it.
    """
    counts = sorted(found)
    lines = [
        f"| | {' | '.join(f'{jobs:,} jobs' for jobs in counts)} | last step |",
        "|---|" + "---|" * (len(counts) + 1),
    ]
    for key, (words, unit) in ROWS.items():
        values = [found[jobs][key] * unit for jobs in counts]
        grown = f"x {values[-1] / values[-2]:.1f}" if len(values) > 1 and values[-2] > 0 else ""
        lines.append(f"| {words} | {' | '.join(_shown(value) for value in values)} | {grown} |")
    for key, (words, unit) in PER_JOB.items():
        rates = [
            (found[more][key] - found[less][key]) / (more - less) * unit for less, more in itertools.pairwise(counts)
        ]
        lines.append(f"| {words} | | {' | '.join(_shown(rate) for rate in rates)} | |")
    return lines


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def main() -> int:
    """Measure each number of jobs, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs="+", default=[10, 100, 1000], help="at least 3 each")
    parser.add_argument("--window", type=float, default=60.0, help="seconds of steady state, more than two looks")
    given = parser.parse_args()
    runtime_wheels(cache_root())  # what the first job on a machine fetches is not to be measured
    found: dict[int, Figures] = {}
    for jobs in given.jobs:
        found[jobs] = measure(jobs, given.window)
        load = os.getloadavg()[0]
        print(f"{jobs} jobs: {json.dumps({**found[jobs], 'load': load})}", file=sys.stderr, flush=True)
    print("\n".join(table(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
