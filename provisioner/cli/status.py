"""``failover status``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from provisioner.cli.output import print_json, print_table
from provisioner.cli.story import Story
from provisioner.cli.timeline import line
from provisioner.cli.traffic import copy_lines

if TYPE_CHECKING:
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
        directory, _ = known(job)
        found = [_summary(directory)]
    else:
        found = [_summary(JobDirectory(root, record.name)) for record in jobs(root)]
    if as_json:
        print_json(found if job is None else {**found[0], "events": list(events_of(directory))})
        return
    if not found:
        click.echo(f"no job yet in {root}; failover run starts one", err=True)
        return
    columns = ["job", "uid", "run", "state", "controller", "epoch", "where", "step", "since"]
    print_table(columns, [[row[column] for column in columns] for row in found])
    for row in found:
        _tell_more(row)
    if job is not None:
        for words in copy_lines(found[0]["replicas"], found[0]["egress_prices_of"]):
            click.echo(f"copies: {words}")
        for event in events_of(directory):
            text = line(event)
            if text:
                at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.get("time", 0)))
                click.echo(f"{at}  {text}")


def known(name: str) -> tuple[JobDirectory, JobRecord]:
    """Return what this state directory knows of a job. Raises ConfigError for one that it does not know."""
    from provisioner.controller.directory import JobDirectory, state_root
    from provisioner.errors import ConfigError

    directory = JobDirectory(state_root(os.environ), name)
    record = directory.record()
    if record is None:
        message = f"no job {name!r} in {directory.path.parent}"
        raise ConfigError(message, hint="failover status lists the jobs")
    return directory, record


def events_of(directory: JobDirectory) -> Iterator[dict[str, Any]]:
    """Yield the controller's events, oldest first."""
    from provisioner.telemetry import events

    return events.read(directory.path / "events.jsonl")


def _tell_more(row: Mapping[str, Any]) -> None:
    for words in _arriving(row):
        click.echo(f"{row['job']}: {words}")
    if row["controller"] is not None and (advice := (row["efficiency"] or {}).get("advice")):
        click.echo(f"{row['job']}: efficiency: {advice}")
    for words in _worries(row):
        click.echo(f"{row['job']}: {words}", err=True)


def _arriving(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each thing that the machine waits for before it trains."""
    phase, progress = row["phase"], row["progress"]
    if row["controller"] is None:
        return
    if phase == "pulling" and (image := progress.get("image")):
        yield "the image is being pulled" + (f": {image['layers']} of {image['of']} layers" if image["of"] else "")
    if phase != "restoring":
        return
    for what, name in (("restore", "checkpoint"), ("data", "data")):
        if here := progress.get(what):
            yield f"{here['bytes'] / 2**20:.1f} of {here['of'] / 2**20:.1f} MiB of the {name} are here"


def _worries(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is not as it should be, a line each."""
    if row["state"] == "left":
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["last_event"]))
        tail = f"failover run {row['config']} takes it up, failover logs {row['job']} shows what came since"
        yield f"no controller runs, and this is how it was at {at}; {tail}"
    yield from row["warnings"]
    if row["suspected"]:
        yield f"its machine is suspected: {row['suspected']}"
    if row["held_back"]:
        yield f"its next machine waits: {row['held_back']}"
    if row["unknown_codes"]:
        codes = ", ".join(f"{code} ({count} x)" for code, count in row["unknown_codes"].items())
        yield f"refused with codes that are not known, please report them: {codes}"


def _summary(directory: JobDirectory) -> dict[str, Any]:
    from provisioner.catalog import EGRESS_AS_OF
    from provisioner.controller import traffic
    from provisioner.controller.warnings import standing_words

    record = directory.record()
    assert record is not None  # noqa: S101 - the caller has just read it
    story = Story.of(events_of(directory))
    copies = [traffic.from_json(copy) for beat in story.beats.values() for copy in beat.get("replicas") or []]
    sent = traffic.summed(copies)
    pid = directory.controller_pid()
    report = directory.read_json("report.json")
    result = report.get("result", "ended") if isinstance(report, dict) else "ended"
    claimed, beat = story.claimed, story.beat
    return {
        "job": record.name,
        "uid": record.uid,
        "run": record.run,
        "state": (("resting" if story.rests else "running") if pid else "left") if record.open else result,
        "warnings": standing_words(story.warned) if record.open else [],
        "controller": pid,
        "epoch": claimed.get("epoch"),
        "where": claimed.get("offer"),
        "node": claimed.get("node"),
        "phase": beat.get("phase"),
        "progress": {what: beat[what] for what in ("image", "restore", "data") if beat.get(what)},
        "step": story.step,
        "efficiency": beat.get("efficiency"),
        "suspected": story.suspected,
        "held_back": story.held_back,
        "since": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.started_at)),
        "last_event": story.at,
        "replicas": [traffic.as_json(copy) for copy in sent],
        "egress_prices_of": EGRESS_AS_OF,
        "unknown_codes": dict(story.unknown),
        "config": record.config_path,
        "leaked": report.get("leaked", []) if isinstance(report, dict) and not record.open else [],
    }
