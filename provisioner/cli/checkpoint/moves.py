"""``failover checkpoint push | pull | copy``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provisioner.cli.checkpoint.attended import Meter, attended, one_line
from provisioner.cli.checkpoint.places import EXIT_CODES, Place, json_option, opened, parted, place_options
from provisioner.cli.checkpoint.words import plain, rate_words, size_words
from provisioner.cli.output import print_json
from provisioner.cli.streams import tell
from provisioner.errors import CorruptCheckpoint, ExitCode

if TYPE_CHECKING:
    import threading

    from provisioner.checkpoint.copying import Copied
    from provisioner.checkpoint.listing import Checkpoint
    from provisioner.checkpoint.restore import Restored
    from provisioner.checkpoint.save import Commit


@click.command("push", short_help="Save a directory or file.", epilog=EXIT_CODES)
@click.argument("path", metavar="DIR", type=click.Path())
@click.argument("uri", required=False)
@click.option("--step", type=int, help="Its number; else the one at the end of DIR's name, or the next one.")
@click.option("--metadata", "pairs", multiple=True, metavar="KEY=VALUE", help="Kept with it; may be repeated.")
@click.option("--resend", is_flag=True, help="Send everything again: the store holds damaged packs.")
@click.option("--force", is_flag=True, help="Replace a step; save although a machine of the job trains right now.")
@place_options
@json_option
@one_line
def push_command(
    path: str,
    uri: str | None,
    step: int | None,
    pairs: tuple[str, ...],
    endpoint: str | None,
    region: str | None,
    *,
    resend: bool,
    force: bool,
    as_json: bool,
) -> int:
    """Save the directory or file DIR below URI; what is there already is not sent again.

    Where a job uses the place, this becomes its newest checkpoint, which it restores next.
    """
    metadata = _metadata(pairs)
    place = opened(uri, endpoint, region, make=True)

    def work(meter: Meter, cancel: threading.Event) -> Commit:
        return place.store.save(path, step, metadata, meter, replace=force, force=force, resend=resend, cancel=cancel)

    def nothing() -> str:
        doubt = "it may have been saved: `failover checkpoint ls` tells"
        return doubt if place.store.in_doubt else "nothing was saved"

    done = attended(work, label="pushing", bar=True, nothing=nothing, retries=place.retries)
    if as_json:
        print_json(
            {
                "uri": place.uri,
                "key": done.key,
                "step": done.position.step,
                "epoch": done.position.epoch,
                "entry": done.entry,
                "total_bytes": done.total_bytes,
                "uploaded_bytes": done.uploaded_bytes,
                "seconds": round(done.seconds, 3),
                "time": done.time,
            }
        )
    tell(
        f"pushed step {done.position.step}: {size_words(done.total_bytes)}, {size_words(done.uploaded_bytes)} new, "
        f"{done.seconds:.1f} s, {rate_words(done.total_bytes, done.seconds)}"
    )
    return 0


@click.command("pull", short_help="Bring a checkpoint here.", epilog=EXIT_CODES)
@click.argument("places", metavar="[URI] TARGET", nargs=-1)
@click.option("--step", type=int, help="This checkpoint and no other; else the newest that is whole.")
@click.option("--epoch", type=int, help="Of this placement of a job; else of the newest that has the step.")
@click.option(
    "--seed",
    "seeds",
    multiple=True,
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True),
    help="Take from DIR what it has already; may be repeated.",
)
@place_options
@json_option
@one_line
def pull_command(
    places: tuple[str, ...],
    step: int | None,
    epoch: int | None,
    seeds: tuple[Path, ...],
    endpoint: str | None,
    region: str | None,
    *,
    as_json: bool,
) -> int:
    """Bring a checkpoint from URI to TARGET, which is not there yet or is an empty directory.

    What was pushed, file or directory, becomes TARGET, when it is whole and every byte has matched its hash. When the
    newest is damaged, the next older one is taken and a line says so.
    """
    uri, name = parted(places, "TARGET")
    target = Path(name)
    place = opened(uri, endpoint, region)

    def work(meter: Meter, cancel: threading.Event) -> Restored:
        place.store.report = meter.say
        return place.store.restore(target, step, epoch, seeds, meter, cancel=cancel)

    done = attended(
        work,
        label="pulling",
        bar=True,
        nothing="nothing was brought",
        clean=lambda: _clear(target),
        retries=place.retries,
    )
    if as_json:
        print_json(
            {
                "uri": place.uri,
                "key": done.key,
                "step": done.position.step,
                "epoch": done.position.epoch,
                "target": str(done.directory / done.entry),
                "total_bytes": done.total_bytes,
                "fetched_bytes": done.fetched_bytes,
                "seconds": round(done.seconds, 3),
            }
        )
    tell(
        f"pulled step {done.position.step}: {size_words(done.total_bytes)}, {size_words(done.fetched_bytes)} fetched, "
        f"{done.seconds:.1f} s, {rate_words(done.total_bytes, done.seconds)}"
    )
    return 0


@click.command("copy", short_help="Copy checkpoints to another store.", epilog=EXIT_CODES)
@click.argument("places", metavar="[SRC] DST", nargs=-1)
@click.option("--step", type=int, help="This checkpoint; else the newest.")
@click.option("--epoch", type=int, help="Of this placement of a job; else of the newest that has the step.")
@click.option("--all", "everything", is_flag=True, help="All of them, newest first.")
@click.option("--force", is_flag=True, help="Replace another checkpoint of the same step, too.")
@click.option("--to-endpoint", metavar="URL", help="Address of DST's service; else --endpoint where both are s3://.")
@click.option("--to-region", metavar="NAME", help="Region of DST's bucket; else as above.")
@place_options
@json_option
@one_line
def copy_command(
    places: tuple[str, ...],
    step: int | None,
    epoch: int | None,
    to_endpoint: str | None,
    to_region: str | None,
    endpoint: str | None,
    region: str | None,
    *,
    everything: bool,
    force: bool,
    as_json: bool,
) -> int:
    """Copy checkpoints from SRC to DST, both URIs; what is there already is not sent again.

    Every byte is checked on its way. What the traffic costs is told first, where the clouds and regions are known.
    Exit code 5 when one could not be copied, for which --all goes on with the others.
    """
    if everything and step is not None:
        raise click.UsageError("--all and --step exclude each other")
    uri, name = parted(places, "DST")
    source = opened(uri, endpoint, region)
    alike = name.startswith("s3://") and source.uri.startswith("s3://")
    target = opened(
        name,
        to_endpoint or (source.endpoint if alike else None),
        to_region or (source.region if alike and not to_endpoint else None),
        make=True,
    )
    copying = _Copying(source, target, step, epoch, everything=everything, force=force)
    attended(
        copying,
        label="copying",
        bar=True,
        nothing="what was copied is whole, the rest is not there",
        retries=lambda: source.retries() + target.retries(),
    )
    if as_json:
        print_json(copying.as_json())
    size, seconds = sum(one.bytes for one in copying.copied), sum(one.seconds for one in copying.copied)
    words = f"copied {len(copying.copied)} of {len(copying.copied) + len(copying.failed)}"
    tell(f"{words}: {size_words(size)} sent, {seconds:.1f} s, {rate_words(size, seconds)}")
    return int(ExitCode.CLOUD_REFUSED) if copying.failed else 0


@dataclass(frozen=True, slots=True)
class _Failed:
    checkpoint: Checkpoint
    problem: str


class _Copying:
    """Copies one checkpoint or all, and keeps what became of each."""

    def __init__(
        self, source: Place, target: Place, step: int | None, epoch: int | None, *, everything: bool, force: bool
    ) -> None:
        self.copied: list[Copied] = []
        self.failed: list[_Failed] = []
        self.source = source
        self.target = target
        self._step = step
        self._epoch = epoch
        self._everything = everything
        self._force = force

    def __call__(self, meter: Meter, cancel: threading.Event, /) -> None:
        for one in self._chosen():
            meter.begin(f"copying step {one.step}")
            try:
                self._one(one, meter, cancel)
            except CorruptCheckpoint as error:
                if not self._everything:
                    raise
                self._fails(one, str(error), meter)

    def as_json(self) -> dict[str, object]:
        """Return what became of it as plain values."""
        return {
            "from": self.source.uri,
            "to": self.target.uri,
            "copied": [
                {
                    "step": one.position.step,
                    "epoch": one.position.epoch,
                    "key": one.key,
                    "bytes": one.bytes,
                    "packs": one.packs,
                    "seconds": round(one.seconds, 3),
                }
                for one in self.copied
            ],
            "failed": [
                {"step": one.checkpoint.step, "epoch": one.checkpoint.epoch, "key": one.checkpoint.key}
                | {"problem": one.problem}
                for one in self.failed
            ],
        }

    def _chosen(self) -> list[Checkpoint]:
        store = self.source.store
        if not self._everything:
            return [store.find(self._step, self._epoch)]
        found = [one for one in store.list() if self._epoch is None or one.epoch == self._epoch]
        return found or [store.find(None, self._epoch)]  # which says that there is none

    def _one(self, one: Checkpoint, meter: Meter, cancel: threading.Event) -> None:
        if one.problem:
            raise CorruptCheckpoint(f"{self.source.uri}/{one.key}: {one.problem}")
        meter.say(_forecast(self.source, self.target, one, self.source.store.outstanding(self.target.store, one)))
        self.copied.append(
            self.source.store.copy_to(
                self.target.store, one.step, one.epoch, replace=self._force, progress=meter, cancel=cancel
            )
        )

    def _fails(self, one: Checkpoint, problem: str, meter: Meter) -> None:
        self.failed.append(_Failed(one, problem))
        meter.say(f"step {one.step} of epoch {one.epoch} is not copied: {problem}")


def _forecast(source: Place, target: Place, one: Checkpoint, size: int) -> str:
    """Say what is going to be sent, and about what that costs."""
    words = f"step {one.step}: {size_words(size)} to send"
    if size == 0 or "file://" in {source.uri[:7], target.uri[:7]}:
        return words
    from provisioner.catalog import EGRESS_AS_OF, egress, egress_cost
    from provisioner.cli.traffic import egress_words

    begin, end = source.located(), target.located()
    price = egress(begin.cloud, begin.region, end.cloud, end.region)
    if price is None:
        return words
    cost = egress_cost(price, size)
    value = {"amount": cost.amount, "currency": cost.currency}
    return f"{words} from {begin.cloud} to {end.cloud}: {egress_words(value, EGRESS_AS_OF)}"


def _metadata(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Read ``key=value``; a value that is JSON is taken as such, any other is a text. Raises UsageError."""

    def refuse(word: str) -> Any:
        raise ValueError(word)

    found: dict[str, Any] = {}
    for pair in pairs:
        key, mark, text = pair.partition("=")
        if not key or not mark:
            raise click.UsageError(f"--metadata {plain(pair)}: write KEY=VALUE")
        try:
            found[key] = json.loads(text, parse_constant=refuse)
        except (ValueError, RecursionError):
            found[key] = text
    return found


def _clear(target: Path) -> None:
    """Remove what an interrupted pull of this process has gathered; its threads may still write."""
    import os
    import re

    from provisioner.checkpoint.restore import SCRATCH, scratch_base
    from provisioner.checkpoint.scratch import made, remove

    for _ in range(3):
        for left in made(scratch_base(target.absolute()), f"{re.escape(SCRATCH)}{os.getpid()}-"):
            remove(left)
