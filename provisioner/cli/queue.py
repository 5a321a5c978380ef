"""``failover submit``, ``list``, ``pause``, ``resume``, ``cancel``: they touch the queue alone, served or not."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provisioner.cli import streams
from provisioner.cli.output import print_json, print_table
from provisioner.errors import ConfigError

if TYPE_CHECKING:
    from provisioner.controller.ledger import Bill
    from provisioner.controller.serving.jobs import JobStore, QueuedJob


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path), metavar="FILE...")
@click.option("--json", "as_json", is_flag=True, help="Print what was submitted as JSON.")
def submit(files: tuple[Path, ...], *, as_json: bool) -> int:
    """Put the jobs of these files into the queue; failover serve runs them.

    Each runs with its file as it is now. Nothing is submitted if one of the files is wrong, or its job is there.
    """
    from provisioner.config import content_of, parse
    from provisioner.controller.serving.by_hand import refuse_if_there
    from provisioner.controller.serving.by_hand import submit as put

    contents = [(path, content_of(path)) for path in files]
    configs = [(path, text, parse(text, str(path), path.parent, os.environ)) for path, text in contents]
    names = [config.job.name for _, _, config in configs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"job {twice[0]} is in two of the files", hint="a job is known by its name: job.name")
    with _store() as store:
        for name in names:
            refuse_if_there(store, name)
        for path, text, config in configs:
            put(store, path, text, config)
            if not as_json:
                streams.tell(f"{config.job.name}: QUEUED")
    if as_json:
        print_json([{"job": name, "state": "QUEUED"} for name in names])
    return 0


@click.command("list")
@click.option("--all", "everything", is_flag=True, help="Show jobs of other state directories in the database, too.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def list_jobs(*, everything: bool, as_json: bool) -> int:
    """Show the jobs of the queue: state, place, step, cost so far, controller."""
    from provisioner.controller.ledger import bills

    with _store() as store:
        rows = store.jobs(all_roots=everything)
        left, found = _left(store, rows), []
        elsewhere = store.elsewhere() if not rows else []
        for row in rows:
            folder = store.database.root / "jobs" / row.name
            known = (
                [bill for bill in bills(folder) if bill.begun >= row.submitted_at] if row.root == store.root else None
            )
            found.append(_shown(row, known, left=row.key in left))
    if as_json:
        print_json(found)
        return 0
    if not found:
        others = len(elsewhere)
        also = f" ({others} jobs of other state directories are in the database: failover list --all)" if others else ""
        streams.tell(f"the queue is empty; failover submit FILE puts a job into it{also}")
        return 0
    head = ("job", "state", "where", "step", "cost", "controller", "since", "reason")
    print_table(head, [[row[name] for name in head] for row in found])
    return 0


@click.command()
@click.argument("job")
@click.option("--now", is_flag=True, help="Do not let its machine save a last checkpoint first.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
def cancel(job: str, *, now: bool, as_json: bool) -> int:
    """Take JOB out of the queue. Its machine may save first, for two minutes at most, and is released."""
    with _store() as store:
        _tell(store, job, store.cancel(job, gently=not now), "CANCELLED", as_json=as_json)
    return 0


@click.command()
@click.argument("job")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
def pause(job: str, *, as_json: bool) -> int:
    """Let JOB save a last checkpoint, release its machine, and keep it until failover resume."""
    with _store() as store:
        _tell(store, job, store.pause(job), "PAUSED", as_json=as_json)
    return 0


@click.command()
@click.argument("job")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
def resume(job: str, *, as_json: bool) -> int:
    """Put a paused JOB back into the queue. It goes on from its last checkpoint."""
    with _store() as store:
        _tell(store, job, store.resume(job), "QUEUED", as_json=as_json)
    return 0


@contextmanager
def _store() -> Iterator[JobStore]:
    from provisioner.controller.serving.database import Database
    from provisioner.controller.serving.jobs import JobStore

    store = JobStore(Database(os.environ))
    try:
        yield store
    finally:
        store.close()


def _tell(store: JobStore, name: str, state: str | None, wanted: str, *, as_json: bool) -> None:
    """Say what has become of a wish. Raises ConfigError where it cannot be had."""
    if state is None:
        row = store.get(name)
        if row is None:
            if any(one.name == name for one in store.elsewhere()):
                message = f"no job {name!r} in the queue of {store.database.root}: another state directory has it"
                raise ConfigError(
                    message, hint="set FAILOVER_STATE_DIR to that one; failover list --all shows all jobs"
                )
            raise ConfigError(f"no job {name!r} in the queue", hint="failover list shows the jobs")
        if row.wish == "pause" and wanted == "QUEUED":
            raise ConfigError(f"job {name} is just being paused", hint="again when failover list shows PAUSED")
        raise ConfigError(f"job {name} is {row.state}", hint="failover list shows the jobs")
    row = store.get(name) if state != wanted else None
    left = bool(row is not None and _left(store, [row]))
    if as_json:
        print_json({"job": name, "state": state, "wanted": wanted, "left": left})
    elif row is None:
        streams.tell(f"{name}: {state}")
    else:
        streams.tell(f"{name}: {state}, to be {wanted}: {_waits_for(row, wanted, left=left)}")


def _waits_for(row: QueuedJob, wanted: str, *, left: bool) -> str:
    """Say who does what the operator wants of a job that runs, and what does it at once where nobody may."""
    down = f"failover down {row.name} ends it now" if wanted == "CANCELLED" else "failover serve starts one"
    if left:
        why = f", and the last one could not take it up ({row.reason})" if row.reason else ""
        return f"no controller has it{why}; the next one sees to it, within a minute of its start; {down}"
    return f"its controller {row.controller.rpartition(':')[0]} sees to it; should that not come to an end: {down}"


def _left(store: JobStore, rows: list[QueuedJob]) -> set[str]:
    """Return the running jobs that no controller has at this moment, by key."""
    from provisioner.controller.directory import JobDirectory
    from provisioner.controller.serving.locks import gone

    running = [row for row in rows if row.state == "RUNNING"]
    if store.database.shared:
        return gone(store.database, [row.key for row in running]) if running else set()
    root = store.database.root
    return {row.key for row in running if JobDirectory(root, row.name).controller_pid() is None}


def _shown(row: QueuedJob, bills: list[Bill] | None, *, left: bool) -> dict[str, Any]:
    """Return a job's line. ``bills`` is None for a job whose folder is elsewhere."""
    from provisioner.controller.costs import costs

    now = time.time()
    running = [bill for bill in bills or () if bill.runs(now) and not bill.in_doubt]
    money = costs(bills, now) if bills else None
    controller = row.controller.rpartition(":")[0] + (" (gone)" if left else "")
    return {
        "job": row.name,
        "state": row.state.value,
        "wish": row.wish.value,
        "reason": row.reason or (f"to {row.wish.value.replace('_', ' ')}" if row.wish.value else ""),
        "where": "/".join(part for part in (running[-1].cloud, running[-1].zone or running[-1].region) if part)
        if running
        else "",
        "machine": running[-1].instance_type if running else "",
        "step": row.step,
        "cost": _cost(money),
        "spent": money["by_currency"] if money else {},
        "controller": controller if row.state == "RUNNING" else "",
        "left": left,
        "since": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.ended_at or row.began_at or row.submitted_at)),
        "config": row.config_path,
        "here": bills is not None,
    }


def _cost(money: dict[str, Any] | None) -> str:
    """Return what a job has cost as a person reads it: with the bound where a price is not known, or ``?``."""
    if money is None:
        return ""
    words = " + ".join(f"{amount:.2f} {currency}" for currency, amount in sorted(money["by_currency"].items()))
    unpriced = [name for name in money["unpriced"] if not name.startswith("local/")]
    text = " + ".join(part for part in (words, "?" if unpriced else "") if part)
    return f"at most {text}" if money["upper_bound"] else text
