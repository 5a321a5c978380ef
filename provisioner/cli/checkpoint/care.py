"""``failover checkpoint ls | verify | rm | gc``: what is there, whether it is whole, and what goes."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from provisioner.cli.checkpoint.attended import Meter, attended, one_line
from provisioner.cli.checkpoint.places import EXIT_CODES, json_option, opened, place_options
from provisioner.cli.checkpoint.words import (
    DurationType,
    age_words,
    duration_words,
    metadata_words,
    plain,
    rate_words,
    size_words,
)
from provisioner.cli.output import print_json, print_table
from provisioner.cli.streams import tell
from provisioner.errors import ConfigError, ExitCode, Interrupted

if TYPE_CHECKING:
    import threading

    from provisioner.checkpoint.listing import Checkpoint, Verified
    from provisioner.checkpoint.sweep import Swept


@click.command("ls", short_help="List the checkpoints of a place.", epilog=EXIT_CODES)
@click.argument("uri", required=False)
@place_options
@json_option
@one_line
def ls_command(uri: str | None, endpoint: str | None, region: str | None, *, as_json: bool) -> int:
    """List the checkpoints below URI, newest first, damaged manifests too.

    NEW is what a checkpoint has in the store that no older one has.
    """
    place = opened(uri, endpoint, region)

    def work(_meter: Meter, _cancel: threading.Event) -> tuple[list[Checkpoint], str]:
        found = place.store.list()
        return found, "" if found else place.store.inside()

    found, hint = attended(work, label="reading", retries=place.retries)
    if as_json:
        print_json([checkpoint_json(one) for one in found])
        return 0
    if not found:
        tell(f"{place.uri}: no checkpoints{f'; {hint}' if hint else ''}")
        return 0
    jobs = len({one.job for one in found if not one.problem}) > 1
    columns = ["step", "epoch", "size", "new", "files", "age", "entry", "metadata", "state", *(["job"] if jobs else [])]
    print_table(columns, [_row(one, time.time(), jobs=jobs) for one in found])
    return 0


@click.command("verify", short_help="Check every byte of a checkpoint.", epilog=EXIT_CODES)
@click.argument("uri", required=False)
@click.option("--step", type=int, help="This checkpoint; else the newest.")
@click.option("--epoch", type=int, help="Of this placement of a job; else of the newest that has the step.")
@click.option("--all", "everything", is_flag=True, help="All of them; what they share is read once.")
@click.option("--quick", is_flag=True, help="Only look whether everything is there at its size; read nothing.")
@place_options
@json_option
@one_line
def verify_command(
    uri: str | None,
    step: int | None,
    epoch: int | None,
    endpoint: str | None,
    region: str | None,
    *,
    everything: bool,
    quick: bool,
    as_json: bool,
) -> int:
    """Read a checkpoint below URI and check every byte against its hash. Nothing is written.

    Exit code 5 when something is damaged, with a line for each pack.
    """
    if everything and step is not None:
        raise click.UsageError("--all and --step exclude each other")
    place = opened(uri, endpoint, region)
    begun = time.monotonic()

    def work(meter: Meter, cancel: threading.Event) -> tuple[list[Verified], int]:
        found = place.store.verify(step, epoch, everything=everything, quick=quick, progress=meter, cancel=cancel)
        return found, meter.total

    found, size = attended(work, label="verifying", bar=not quick, retries=place.retries)
    if as_json:
        print_json([_verdict_json(one) for one in found])
    else:
        for one in found:
            words = "whole" if not one.problems else "DAMAGED"
            click.echo(f"step {one.checkpoint.step}, epoch {one.checkpoint.epoch}: {words}")
            for problem in one.problems:
                click.echo(f"  {plain(problem)}")
    if not quick:
        seconds = time.monotonic() - begun
        tell(f"read {size_words(size)} in {seconds:.1f} s, {rate_words(size, seconds)}")
    if any(one.problems for one in found):
        tell("to mend it, push the same files with --resend; `pull` takes an older one")
        return int(ExitCode.CLOUD_REFUSED)
    return 0


@click.command("rm", short_help="Remove one checkpoint.", epilog=EXIT_CODES)
@click.argument("uri", required=False)
@click.option("--step", type=int, required=True, help="The checkpoint to remove.")
@click.option("--epoch", type=int, help="Needed when several placements of a job have the step.")
@click.option("--force", is_flag=True, help="Remove the newest checkpoint, too.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@place_options
@json_option
@one_line
def rm_command(
    uri: str | None,
    step: int,
    epoch: int | None,
    endpoint: str | None,
    region: str | None,
    *,
    force: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Remove one checkpoint below URI.

    The newest is removed only with --force. Its bytes go with a later `gc`, unless another checkpoint needs them.
    """
    place = opened(uri, endpoint, region)
    one = attended(
        lambda _meter, _cancel: place.store.remove(step, epoch, force=force, dry_run=True),
        label="looking",
        retries=place.retries,
    )
    if not yes:
        _ask(one, place.uri)
    one = attended(
        lambda _meter, _cancel: place.store.remove(step, one.epoch, force=force),
        label="removing",
        nothing="it may be removed or not",
        retries=place.retries,
    )
    if as_json:
        print_json({"uri": place.uri, "key": one.key, "step": one.step, "epoch": one.epoch})
    tell(f"removed step {one.step} of epoch {one.epoch}; `failover checkpoint gc` frees its bytes")
    return 0


@click.command("gc", short_help="Free what no checkpoint needs any more.", epilog=EXIT_CODES)
@click.argument("uri", required=False)
@click.option(
    "--grace",
    type=DurationType(),
    default="1h",
    show_default=True,
    help="What is younger stays, and what is condemned stays as long.",
)
@click.option("--dry-run", is_flag=True, help="Only tell what would be done.")
@place_options
@json_option
@one_line
def gc_command(
    uri: str | None, grace: float, endpoint: str | None, region: str | None, *, dry_run: bool, as_json: bool
) -> int:
    """Remove bytes below URI that no checkpoint needs any more.

    It takes two runs: one condemns, the next one after the grace removes; with --grace 0 one run does both. Safe beside
    saves and other runs; a restore that is under way is spared by the grace.
    """
    place = opened(uri, endpoint, region)
    swept = attended(
        lambda _meter, _cancel: place.store.sweep(grace, dry_run=dry_run),
        label="sweeping",
        nothing="what was removed is removed, the rest is left to the next run",
        retries=place.retries,
    )
    if as_json:
        print_json({"uri": place.uri, "grace_s": grace, "dry_run": dry_run, **asdict(swept)})
    else:
        for line in _swept_lines(swept, dry_run=dry_run):
            click.echo(line)
    if swept.waiting:
        later = f"the first run {duration_words(grace)} after that" if grace else "the next run"
        tell(f"what is condemned goes with {later}, unless a checkpoint needs it by then")
    return 0


def checkpoint_json(one: Checkpoint) -> dict[str, object]:
    """Return a checkpoint as plain values; docs/checkpoints.md describes them."""
    known = not one.problem
    return {
        "step": one.step,
        "epoch": one.epoch,
        "key": one.key,
        "state": "ok" if known else "damaged",
        "problem": one.problem or None,
        "time": one.time or None,
        "entry": one.entry if known else None,
        "job": {"name": one.job.name, "uid": one.job.uid} if one.job else None,
        "total_bytes": one.total_bytes if known else None,
        "new_bytes": one.new_bytes,
        "files": one.files if known else None,
        "metadata": dict(one.metadata) if known else None,
    }


def _row(one: Checkpoint, now: float, *, jobs: bool) -> list[object]:
    known = not one.problem
    return [
        one.step,
        one.epoch,
        size_words(one.total_bytes) if known else None,
        size_words(one.new_bytes) if one.new_bytes is not None else None,
        one.files if known else None,
        age_words(now - one.time) if one.time else None,
        plain(one.entry),
        metadata_words(one.metadata),
        "ok" if known else f"damaged: {plain(one.problem)}",
        *([f"{one.job.name} {one.job.uid}" if one.job else None] if jobs else []),
    ]


def _verdict_json(one: Verified) -> dict[str, object]:
    checkpoint = one.checkpoint
    return {
        "step": checkpoint.step,
        "epoch": checkpoint.epoch,
        "key": checkpoint.key,
        "whole": not one.problems,
        "problems": list(one.problems),
    }


def _swept_lines(swept: Swept, *, dry_run: bool) -> list[str]:
    would = "would be " if dry_run else ""
    rows = [
        (f"{would}removed", swept.deleted, swept.deleted_bytes),
        (f"{would}condemned now", swept.condemned, swept.condemned_bytes),
        ("condemned and still there", swept.waiting, swept.waiting_bytes),
        ("needed, or too young", swept.kept, swept.kept_bytes),
    ]
    return [f"{words}: {count} packs, {size_words(size)}" for words, count, size in rows]


def _ask(one: Checkpoint, uri: str) -> None:
    """Ask whether to go on. Raises ConfigError where nobody can answer, Interrupted for a no."""
    what = f"{plain(one.entry)}, {size_words(one.total_bytes)}" if not one.problem else "damaged"
    try:
        agreed = click.confirm(f"remove step {one.step} of epoch {one.epoch} ({what}) from {uri}?", err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        tell()
        raise ConfigError("nobody answers; nothing is removed", hint="--yes removes without asking") from None
    if not agreed:
        raise Interrupted("nothing is removed")
