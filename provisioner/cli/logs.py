"""``failover logs``: what the training has printed, over all its machines."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NoReturn

import click

from provisioner.cli import streams
from provisioner.cli.status import events_of, known
from provisioner.errors import ConfigError, ExitCode, Interrupted

if TYPE_CHECKING:
    from provisioner.checkpoint.store import Store
    from provisioner.controller.directory import JobDirectory
    from provisioner.controller.training_log import Lines, TrainingLog

LOOK_S = 10.0
"""Between two looks whether a controller runs, and for the node's own word that the job is done, in seconds."""
REPORT_S = 3.0
"""How long a run that has ended may take to leave its report, in seconds."""
_AHEAD = 16
"""Pieces that are read ahead of the terminal."""
_COLOUR = rb"\x1b\[[0-9;]*m"
_CONTROL = re.compile(
    _COLOUR + rb"|\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|[\x00-\x08\x0a-\x1f\x7f]"
)


def _ago(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    """Read ``--since``."""
    if value is None:
        return None
    from pydantic_core import PydanticCustomError

    from provisioner.config.values import parse_duration

    try:
        return parse_duration(value)
    except PydanticCustomError as error:
        hint = (error.context or {}).get("hint", "")
        raise click.BadParameter(f"{error.message()}: {hint}") from None


@click.command()
@click.argument("job")
@click.option("--follow", "-f", is_flag=True, help="Wait for more, over all placements, until the job has ended.")
@click.option("--epoch", type=click.IntRange(min=1), metavar="N", help="Only this placement.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Begin with the last N lines.")
@click.option("--since", callback=_ago, metavar="10m", help="Begin with what was printed so long ago.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def logs(job: str, *, follow: bool, epoch: int | None, tail: int | None, since: float | None, as_json: bool) -> int:
    """Print what the training of JOB has printed, over all its machines, from the store.

    With --follow the exit code is that of the job, as `failover run` gives it; without, 0.
    """
    directory, record = known(job)
    from provisioner.controller.launch import open_job_store
    from provisioner.controller.run import reopened_config
    from provisioner.controller.training_log import TrainingLog

    store = open_job_store(reopened_config(directory, record, os.environ), os.environ)
    pieces: queue.Queue[Lines | str | BaseException | None] = queue.Queue(_AHEAD)
    log = TrainingLog(store, say=pieces.put, patient=follow)
    end = _End(directory, store, pieces.put)

    def work() -> None:
        try:
            after = None if since is None else time.time() - since
            for piece in _read(log, end, follow=follow, epoch=epoch, tail=tail, after=after):
                pieces.put(piece)
        except BaseException as error:  # noqa: BLE001 - it is raised again in the thread that prints
            pieces.put(error)
        else:
            pieces.put(None)

    threading.Thread(target=work, name="reader", daemon=True).start()
    _print(pieces, _Places(directory), as_json=as_json)
    return end.code if follow else 0


def _read(
    log: TrainingLog, end: _End, *, follow: bool, epoch: int | None, tail: int | None, after: float | None
) -> Iterator[Lines]:
    there = log.epochs()
    if epoch is not None and epoch not in there and not follow:
        names = ", ".join(map(str, there)) or "none"
        raise ConfigError(f"{end.job} has no placement {epoch}", hint=f"placements that left anything: {names}")
    wanted = [one for one in there if epoch in (None, one)]
    yield from log.so_far(wanted, after=after, tail=tail)
    if follow:
        yield from (piece for piece in log.follow(wanted, end, only=epoch) if piece is not None)


class _End:
    """Whether the job has ended, by the controller's record or, where that is dead, by the node's own word."""

    def __init__(self, directory: JobDirectory, store: Store, say: Callable[[str], object]) -> None:
        self.job = directory.name
        self.code = 0
        self._directory = directory
        self._store = store
        self._say = say
        self._first_epoch: int | None = None
        self._looked_at = float("-inf")
        self._alone = False

    def __call__(self) -> bool:
        record = self._directory.record()
        if record is None:  # somebody has removed the state directory: nothing will come any more
            return True
        if not record.open:
            self.code = self._reported()
            return True
        if time.monotonic() < self._looked_at + LOOK_S:
            return False
        self._looked_at = time.monotonic()
        alone = self._directory.controller_pid() is None
        if alone and not self._alone:
            self._say(f"no controller runs; the machine works on. Take it up: failover run {record.config_path}")
        self._alone = alone
        return self._done(record.started_at)

    def _done(self, started_at: float) -> bool:
        """Look for the node's last word on this run. That of an earlier run does not count."""
        if self._first_epoch is None:
            begun = [one for one in events_of(self._directory) if one["kind"] == "begin" and one["time"] >= started_at]
            self._first_epoch = int(begun[-1]["epoch"]) if begun else None
        from provisioner.checkpoint import layout

        data = self._store.get(layout.DONE)
        if data is None or self._first_epoch is None:
            return False
        try:
            done = json.loads(data)
            over = int(done["epoch"]) >= self._first_epoch
            self.code = int(ExitCode.DONE if done["result"] == "completed" else ExitCode.JOB_FAILED)
        except (ValueError, KeyError, TypeError):
            return False
        return over

    def _reported(self) -> int:
        from provisioner.cli.run import exit_code

        until = time.monotonic() + REPORT_S
        while True:
            report = self._directory.read_json("report.json")
            if isinstance(report, dict):
                taken_down = report.get("result") == "taken_down"
                return int(ExitCode.INTERRUPTED) if taken_down else exit_code(report)
            if time.monotonic() > until:
                return int(ExitCode.OUR_FAULT)
            time.sleep(0.1)


class _Places:
    """Where each placement is, by the controller's events."""

    def __init__(self, directory: JobDirectory) -> None:
        self._directory = directory

    def of(self, epoch: int) -> dict[str, str]:
        """Return cloud, region, zone, type and market, as far as they are known."""
        offer = ""
        for event in events_of(self._directory):
            if event["kind"] == "claimed" and event.get("epoch") == epoch:
                offer = str(event.get("offer") or "")
        names = ("cloud", "region", "zone", "instance_type", "market")
        values = offer.split("/", 3)
        values = [*values[:3], *values[3].rsplit("/", 1)] if len(values) > 3 else []
        return {name: value for name, value in zip(names, values, strict=False) if value != "-"}


def _print(pieces: queue.Queue[Lines | str | BaseException | None], places: _Places, *, as_json: bool) -> None:
    """Print what comes until the end. In the main thread: Ctrl-C does not wait for a store that hangs."""
    out = sys.stdout.buffer
    cleaned = _harmless if sys.stdout.isatty() else bytes
    current: int | None = None
    try:
        while (piece := pieces.get()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            if isinstance(piece, str):
                streams.tell(f"failover: {piece}")
                continue
            if not piece.lines:
                continue
            if piece.epoch != current:
                current = piece.epoch
                out.write(_heading(current, places.of(current), as_json=as_json))
            out.write(_as_json(piece) if as_json else b"".join(cleaned(line) + b"\n" for line in piece.lines))
            out.flush()
    except BrokenPipeError:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _leave(ExitCode.DONE)
    except KeyboardInterrupt:
        streams.tell("failover: interrupted; the job goes on")
        _leave(Interrupted.exit_code)


def _leave(code: int) -> NoReturn:
    """End at once: requests that are under way are not waited for."""
    streams.settle()
    os._exit(code)


def _heading(epoch: int, place: dict[str, str], *, as_json: bool) -> bytes:
    if as_json:
        return (json.dumps({"epoch": epoch, "placement": place}, ensure_ascii=False) + "\n").encode()
    cloud, where = place.get("cloud", ""), place.get("zone") or place.get("region") or ""
    kind = ", ".join(place[name] for name in ("instance_type", "market") if name in place)
    words = " ".join(word for word in (cloud, where, f"({kind})" if kind else "") if word)
    return f"[failover] placement {epoch}{': ' if words else ''}{words}\n".encode()


def _as_json(piece: Lines) -> bytes:
    objects = ({"epoch": piece.epoch, "line": line.decode("utf-8", "replace")} for line in piece.lines)
    return "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in objects).encode()


def _harmless(line: bytes) -> bytes:
    """Take out what would move the cursor or change a terminal's settings; colours stay."""
    return _CONTROL.sub(lambda found: found[0] if re.fullmatch(_COLOUR, found[0]) else b"", line)
