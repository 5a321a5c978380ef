"""The node's directories. Each start gets fresh ones: what an earlier run left is never read, uploaded or trusted."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from provisioner.checkpoint.scratch import remove
from provisioner.errors import FailoverError

RUNS = "runs"
PREFETCHED = "prefetched"
"""Among the runs: what came while the image was pulled. Its bytes are seeds until something is restored."""


class Occupied(FailoverError):
    """Another node process runs in this directory."""


@dataclass(frozen=True, slots=True)
class Rooms:
    """Directories and files of one start."""

    root: Path
    """Stays over restarts: local log, event log, the record of the child."""
    run: Path

    @property
    def checkpoints(self) -> Path:
        """Where the command puts finished checkpoints."""
        return self.run / "checkpoints"

    @property
    def restored(self) -> Path:
        """Below it stands what was restored."""
        return self.run / "restored"

    @property
    def work(self) -> Path:
        """The command's working directory."""
        return self.run / "work"

    @property
    def python(self) -> Path:
        """What is on the command's PYTHONPATH."""
        return self.run / "python"

    @property
    def status_file(self) -> Path:
        """Where the command may say its step."""
        return self.run / "status.json"

    @property
    def efficiency_file(self) -> Path:
        """Where the command may say how well it uses the machine."""
        return self.run / "efficiency.json"

    @property
    def advice_file(self) -> Path:
        """Where the node says how often to save, and when to stop."""
        return self.run / "advice.json"

    @property
    def done_file(self) -> Path:
        """What the command touches when it is really done."""
        return self.run / "done"

    @property
    def child(self) -> Path:
        """Remembers the command's process."""
        return self.root / "child.json"

    def seeds(self) -> list[Path]:
        """Return directories that may hold bytes of a checkpoint already. Nothing in them is trusted unseen."""
        runs = [self.run, *(path for path in self.run.parent.iterdir() if path != self.run)]
        return [path for run in runs for path in (run / "checkpoints", run / "restored") if path.is_dir()]

    def forget_earlier(self, *, keep_last: bool) -> None:
        """Remove what earlier runs left, but for the last one if ``keep_last``. What cannot be removed stays."""
        earlier = [path for path in self.run.parent.iterdir() if path != self.run and path.is_dir()]
        earlier.sort(key=lambda path: path.stat().st_mtime)
        for path in earlier[: -1 if keep_last else None]:
            try:
                remove(path)
            except OSError:  # a folder of somebody else
                shutil.rmtree(path, ignore_errors=True)

    def forget_prefetched(self) -> None:
        """Remove what came before the node ran. What cannot be removed stays."""
        with contextlib.suppress(OSError):
            remove(self.run.parent / PREFETCHED)


def prepare(root: Path, epoch: int) -> Rooms:
    """Make the directories of this start. Raises OSError when the disk does not take them."""
    runs = root / RUNS
    runs.mkdir(parents=True, exist_ok=True, mode=0o700)
    rooms = Rooms(root, Path(tempfile.mkdtemp(prefix=f"e{epoch}-", dir=runs)))
    for path in (rooms.checkpoints, rooms.restored, rooms.work):
        path.mkdir()
    rooms.forget_earlier(keep_last=True)
    return rooms


def occupy(root: Path) -> int:
    """Lock the directory for this process and return the lock's descriptor. A file left by a dead one is no lock.

    Raises Occupied when a living process holds it.
    """
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = root / "lock"
    with contextlib.suppress(FileExistsError, OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # a read-only file will do
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise Occupied(f"{root}: another node process runs here") from None
    return descriptor
