"""``failover serve``."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import click

from provisioner.cli import metrics, streams
from provisioner.cli.sweep import duration
from provisioner.cli.timeline import line
from provisioner.errors import ExitCode

DESCRIPTORS, DESCRIPTORS_A_JOB = 512, 8
"""Open files of a controller, and of each of its jobs: measured are 4 at AutoDL (`benchmarks/scale.py`); AWS keeps more
connections."""
SWITCH_S = 0.05
"""For how long a thread waits for the interpreter before it presses, in seconds. By Python's default of 0.005 the
waiting threads of 1,000 jobs do nothing but press once they have fallen behind, and never catch up."""


def _limits(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    from provisioner.clouds import names

    found = {}
    for value in values:
        name, _, most = value.rpartition("=")
        if not name or not most.isdecimal():
            raise click.BadParameter(f"{value!r}: write CLOUD=N or CLOUD/ACCOUNT=N, e.g. aws=8")
        if name.partition("/")[0] not in names():
            raise click.BadParameter(f"{value!r}: no such cloud here; there are {', '.join(names())}")
        found[name] = int(most)
    return found


@click.command()
@click.option("--jobs", type=click.IntRange(1), default=200, show_default=True, help="Most jobs at once, here.")
@click.option(
    "--machines",
    multiple=True,
    metavar="CLOUD[/ACCOUNT]=N",
    callback=_limits,
    help="Most machines at once at a cloud or account, of all jobs of the queue. May be given again.",
)
@click.option("--once", is_flag=True, help="End when the queue is empty: 0, or 1 where a job has failed.")
@click.option(
    "--sweep-every", metavar="DURATION", callback=duration, default="10m", show_default=True, help="0s: no sweep."
)
@click.option(
    "--sweep-older",
    metavar="DURATION",
    callback=duration,
    default="15m",
    show_default=True,
    help="The sweep leaves alone what is younger than this.",
)
@click.option("--json", "as_json", is_flag=True, help="Print each event as a line of JSON on stdout.")
@metrics.options
def serve(
    *,
    jobs: int,
    machines: dict[str, int],
    once: bool,
    sweep_every: float,
    sweep_older: float,
    as_json: bool,
    metrics_port: int | None,
    metrics_address: str,
) -> int:
    """Run the jobs that were submitted, many at once.

    The queue is a file in the state directory, for one controller; with FAILOVER_DATABASE_URL it is a PostgreSQL
    database, for several that share the work and take over from each other. SIGTERM or Ctrl-C ends the controller only:
    machines train on, and the next controller goes on with the jobs.
    """
    from provisioner.controller.serving.jobs import State
    from provisioner.controller.serving.server import ServeOptions, Server

    leave = threading.Event()
    ended_by: list[int] = []

    def end(number: int, _frame: object) -> None:
        ended_by.append(number)
        leave.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    _allow_descriptors(jobs)
    sys.setswitchinterval(SWITCH_S)
    options = ServeOptions(jobs, machines, once, sweep_every, sweep_older)
    show = _printer(as_json=as_json)
    with metrics.served(metrics_port, metrics_address) as hear:

        def both(job: str, event: Mapping[str, object]) -> None:
            hear(job, event)
            show(job, event)

        server = Server(options, os.environ, show=both, stop=_lost)
        server.serve(leave)
    if ended_by:
        streams.tell("failover: this controller ends; the jobs go on, and the next one takes them up: failover serve")
        _end_now(0 if ended_by[0] == signal.SIGTERM and not once else int(ExitCode.INTERRUPTED))
    server.close()
    failed = [name for name, state in server.ended.items() if state is State.FAILED]
    if failed:
        streams.tell(f"failover: failed: {', '.join(sorted(failed))}")
    return int(ExitCode.JOB_FAILED) if failed else 0


def _allow_descriptors(jobs: int) -> None:
    """Raise this process's own limit of open files, often 1024, to what so many jobs need, as far as it may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS + DESCRIPTORS_A_JOB * jobs
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _lost(why: str) -> None:
    """End as a kill would: not a step more is made without the jobs' locks."""
    streams.tell(f"failover: {why}; other controllers go on with the jobs, start this one again")
    _end_now(int(ExitCode.COME_AGAIN))


def _end_now(code: int) -> None:
    streams.settle()
    os._exit(code)


def _printer(*, as_json: bool) -> Any:
    lock = threading.Lock()

    def show(job: str, event: Mapping[str, object]) -> None:
        if as_json:
            with lock, streams.unread():
                click.echo(json.dumps({"time": time.time(), **event, "served": job}, ensure_ascii=False, default=str))
            return
        text = _words(event)
        if text:
            with lock:
                streams.tell(f"{time.strftime('%H:%M:%S')}  {job + ': ' if job else ''}{text}")

    return show


def _words(event: Mapping[str, object]) -> str | None:
    if event.get("kind") == "told":
        return str(event["words"])
    if event.get("kind") == "served":
        return f"{event['state']}" + (f": {event['reason']}" if event["reason"] else "")
    return line(event)
