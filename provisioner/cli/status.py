"""``failover status`` and ``failover logs``."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from provisioner.cli.output import print_json, print_table
from provisioner.cli.timeline import line
from provisioner.cli.traffic import copy_lines

if TYPE_CHECKING:
    from provisioner.checkpoint.store import Store
    from provisioner.controller.directory import JobDirectory, JobRecord


@click.command()
@click.argument("names", nargs=-1, metavar="[JOB | SCOPE...]")
@click.option("--failures", is_flag=True, help="Show what clouds refused lately, and how long it is left alone.")
@click.option("--forget", is_flag=True, help="Forget that: all of it, or each SCOPE, a name or a kind in --failures.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def status(names: tuple[str, ...], *, failures: bool, forget: bool, as_json: bool) -> int:
    """Show the jobs of this state directory, or JOB alone with its events.

    With --failures: the refusals that all its jobs know of, or those of each SCOPE, e.g. aws/us-east-1/spot or quota.

    It reads the state directory and asks no cloud.
    """
    if failures and forget:
        raise click.UsageError("--failures shows and --forget forgets: give one of them")
    if failures or forget:
        from provisioner.cli import failures as known

        (known.forget if forget else known.show)(names, os.environ, as_json=as_json)
    elif len(names) > 1:
        raise click.UsageError("one JOB at a time")
    else:
        _show(names[0] if names else None, as_json=as_json)
    return 0


def _show(job: str | None, *, as_json: bool) -> None:
    from provisioner.controller.directory import JobDirectory, jobs, state_root

    root = state_root(os.environ)
    if job is not None:
        directory, _ = _known(job)
        found = [_summary(directory)]
    else:
        found = [_summary(JobDirectory(root, record.name)) for record in jobs(root)]
    if as_json:
        print_json(found if job is None else {**found[0], "events": list(_events(directory))})
        return
    columns = ["job", "uid", "run", "state", "controller", "epoch", "where", "step", "since"]
    print_table(columns, [[row[column] for column in columns] for row in found])
    for row in found:
        if row["unknown_codes"]:
            codes = ", ".join(f"{code} ({count} x)" for code, count in row["unknown_codes"].items())
            click.echo(f"{row['job']}: refused with codes that are not known, please report them: {codes}", err=True)
    if job is not None:
        for words in copy_lines(found[0]["replicas"], found[0]["egress_prices_of"]):
            click.echo(f"copies: {words}")
        for event in _events(directory):
            text = line(event)
            if text:
                at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.get("time", 0)))
                click.echo(f"{at}  {text}")


@click.command()
@click.argument("job")
@click.option("--epoch", type=int, help="Only this placement's log.")
@click.option("--follow", "-f", is_flag=True, help="Wait for more, until the job is done.")
@click.option("--json", "as_json", is_flag=True, help="Print the controller's events instead, one JSON object a line.")
def logs(job: str, *, epoch: int | None, follow: bool, as_json: bool) -> int:
    """Print what the training of JOB has printed, over all its machines, from the store."""
    if as_json and (follow or epoch is not None):
        raise click.UsageError("--json prints the controller's events: leave out --epoch and --follow")
    directory, record = _known(job)
    if as_json:
        for event in _events(directory):
            click.echo(_line(event))
        return 0
    from provisioner.controller.launch import open_job_store
    from provisioner.controller.run import reopened_config

    store = open_job_store(reopened_config(directory, record, os.environ), os.environ)

    def ended() -> bool:
        now = directory.record()
        return now is None or not now.open

    for text in _log_text(store, epoch, ended if follow else lambda: True):
        click.echo(text, nl=False)
    return 0


def _known(name: str) -> tuple[JobDirectory, JobRecord]:
    from provisioner.controller.directory import JobDirectory, state_root
    from provisioner.errors import ConfigError

    directory = JobDirectory(state_root(os.environ), name)
    record = directory.record()
    if record is None:
        message = f"no job {name!r} in {directory.path.parent}"
        raise ConfigError(message, hint="failover status lists the jobs")
    return directory, record


def _events(directory: JobDirectory) -> Iterator[dict[str, Any]]:
    from provisioner.telemetry import events

    return events.read(directory.path / "events.jsonl")


def _summary(directory: JobDirectory) -> dict[str, Any]:
    from provisioner.catalog import EGRESS_AS_OF
    from provisioner.controller import traffic

    record = directory.record()
    assert record is not None  # noqa: S101 - the caller has just read it
    last: dict[str, dict[str, Any]] = {}
    copies: dict[int, list[dict[str, Any]]] = {}
    unknown: Counter[str] = Counter()
    for event in _events(directory):
        if event["kind"] == "begin":
            last.clear()  # an earlier run is another story
            copies.clear()
            unknown.clear()
        last[event["kind"]] = event
        if event["kind"] == "refused" and event.get("failure") == "unknown":
            unknown[str(event.get("code"))] += 1
        if event["kind"] == "heartbeat":
            copies[event["epoch"]] = event.get("replicas") or []
    sent = traffic.summed(traffic.from_json(copy) for placement in copies.values() for copy in placement)
    pid = directory.controller_pid()
    report = directory.read_json("report.json")
    result = report.get("result", "ended") if isinstance(report, dict) else "ended"
    claimed = last.get("claimed", {})
    return {
        "job": record.name,
        "uid": record.uid,
        "run": record.run,
        "state": ("running" if pid else "left") if record.open else result,
        "controller": pid,
        "epoch": claimed.get("epoch"),
        "where": claimed.get("offer"),
        "node": claimed.get("node"),
        "step": last.get("heartbeat", {}).get("step"),
        "since": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.started_at)),
        "replicas": [traffic.as_json(copy) for copy in sent],
        "egress_prices_of": EGRESS_AS_OF,
        "unknown_codes": dict(unknown),
        "config": record.config_path,
        "leaked": report.get("leaked", []) if isinstance(report, dict) and not record.open else [],
    }


def _log_text(store: Store, epoch: int | None, ended: Callable[[], bool]) -> Iterator[str]:
    """Yield the parts of the log, oldest first, until the run has ended."""
    import zstandard

    from provisioner.checkpoint import layout

    seen: set[str] = set()
    while True:
        last = ended()  # before the look: what a run writes is there when it has ended
        numbers = sorted(int(name) for name in store.folders(layout.EPOCHS) if name.isdigit())
        for number in numbers if epoch is None else [epoch]:
            for part in store.objects(layout.logs(number)):
                data = None if part.key in seen else store.get(part.key)
                seen.add(part.key)
                if data is not None:
                    yield zstandard.ZstdDecompressor().stream_reader(data).read().decode("utf-8", "replace")
        if last:
            return
        time.sleep(2)


def _line(event: Mapping[str, object]) -> str:
    import json

    return json.dumps(event, ensure_ascii=False)
