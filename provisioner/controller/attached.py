"""A second ``failover run`` of a job that runs: it shows what the first one does, and takes the job up if that dies."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from provisioner.controller.directory import JobDirectory
from provisioner.errors import ConfigError

LOOK_S = 0.5
REPORT_S = 5.0


def follow(
    directory: JobDirectory, show: Callable[[dict[str, object]], None], wait: Callable[[float], object] = time.sleep
) -> dict[str, object] | None:
    """Show events until the controller lets go of the job. Return its report; None when it has left the job open.

    Raises ConfigError for a job that has ended without a report.
    """
    told = Told(directory)
    while True:
        held = directory.controller_pid() is not None
        told.show(show)
        if not held:
            break
        wait(LOOK_S)
    record = directory.record()
    if record is None or record.open:
        return None
    for _ in range(int(REPORT_S / LOOK_S)):  # ``failover down`` writes it last
        if isinstance(report := directory.read_json("report.json"), dict):
            return report
        wait(LOOK_S)
    message = f"job {directory.name} has ended without a report"
    raise ConfigError(message, hint=f"see: failover status {directory.name}")


class Told:
    """What a job's controller tells from now on."""

    def __init__(self, directory: JobDirectory) -> None:
        """Begin where its events end."""
        self._path = directory.path / "events.jsonl"
        self._position = _size(self._path)

    def show(self, show: Callable[[dict[str, object]], None]) -> None:
        """Show what is new."""
        for event, position in _read(self._path, self._position):
            self._position = position
            show(event)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read(path: Path, position: int) -> Iterator[tuple[dict[str, object], int]]:
    """Yield the whole lines after a position, each with where it ends."""
    try:
        with path.open("rb") as file:
            file.seek(position, os.SEEK_SET)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # it is being written
                position += len(line)
                try:
                    event = json.loads(line)
                except ValueError:
                    continue
                if isinstance(event, dict):
                    yield event, position
    except OSError:
        return
