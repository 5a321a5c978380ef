"""The state directory of one job: small JSON files, the workflow's database, a lock. Everything is 0600 in 0700.

It is below ``$FAILOVER_STATE_DIR``, else ``$XDG_STATE_HOME/gpu-failover``, else ``~/.local/state/gpu-failover``.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from provisioner.errors import ConfigError
from provisioner.model import JobRef

LOCK_TRIES, LOCK_PAUSE_S = 4, 0.1


def state_root(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder that holds one folder per job."""
    env = os.environ if environ is None else environ
    if env.get("FAILOVER_STATE_DIR"):
        return Path(env["FAILOVER_STATE_DIR"]).expanduser()
    home = env.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    return Path(home) / "gpu-failover"


def cache_root(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder for what can be fetched again.

    ``$FAILOVER_CACHE_DIR``, else ``$XDG_CACHE_HOME/gpu-failover``, else ``~/.cache/gpu-failover``.
    """
    env = os.environ if environ is None else environ
    if env.get("FAILOVER_CACHE_DIR"):
        return Path(env["FAILOVER_CACHE_DIR"]).expanduser()
    home = env.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(home) / "gpu-failover"


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What is remembered of a job between two starts of the controller.

    ``run`` counts the starts that began a new workflow; ``open`` says whether the last one has not ended.
    """

    name: str
    uid: str
    run: int
    open: bool
    config_path: str
    started_at: float

    @property
    def ref(self) -> JobRef:
        """The job's name and uid."""
        return JobRef(self.name, self.uid)

    @property
    def workflow_id(self) -> str:
        """The id under which the workflow engine knows this run."""
        return f"{self.name}-{self.uid}-{self.run}"


class Held(ConfigError):
    """Another controller runs the job."""


class JobDirectory:
    """One job's folder."""

    def __init__(self, root: Path, name: str) -> None:
        """Name the folder; nothing is created yet."""
        self.name = name
        self.path = root / "jobs" / name

    def create(self) -> None:
        """Make the folder, readable by its owner only. Raises ConfigError where it cannot be written."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.chmod(0o700)
        except OSError as error:
            message = f"state directory {self.path}: {error.strerror or error}"
            raise ConfigError(message, hint="set FAILOVER_STATE_DIR to a folder that can be written") from error

    def record(self) -> JobRecord | None:
        """Read what is remembered of the job, or None."""
        try:
            data = self.read_json("job.json")
            return JobRecord(**data) if isinstance(data, dict) else None
        except (ValueError, TypeError) as error:
            message = f"{self.path / 'job.json'} is damaged"
            raise ConfigError(message, hint="remove it: the job's id stands in the store") from error

    def remember(self, record: JobRecord) -> None:
        """Write the record, atomically."""
        self.write_json("job.json", asdict(record))

    def close(self) -> None:
        """Mark the run as ended."""
        record = self.record()
        if record is not None:
            self.remember(replace(record, open=False))

    def read_json(self, name: str) -> object:
        """Read one of the folder's JSON files; None when it is not there."""
        try:
            return json.loads((self.path / name).read_text("utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write_json(self, name: str, value: object) -> None:
        """Write a JSON file atomically, 0600."""
        self.write_text(name, json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n")

    def write_text(self, name: str, text: str) -> Path:
        """Write a file atomically, 0600, and return its path."""
        return self.write_bytes(name, text.encode())

    def write_bytes(self, name: str, content: bytes) -> Path:
        """Write a file atomically, 0600, and return its path."""
        target = self.path / name
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:  # mkstemp creates 0600
                file.write(content)
            Path(temporary).replace(target)
        except OSError:  # a full disk fills with what each try leaves
            Path(temporary).unlink(missing_ok=True)
            raise
        return target

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the job for this process. The kernel lets go of it when the process dies, however it dies.

        Raises Held when another controller has it.
        """
        with (self.path / "lock").open("a+", encoding="utf-8") as file:
            for tries_left in reversed(range(LOCK_TRIES)):
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if tries_left:  # who only asks for the controller holds it for a moment, too
                        time.sleep(LOCK_PAUSE_S)
                        continue
                    file.seek(0)
                    owner = file.read().strip() or "unknown"
                    message = f"job {self.name} is already run by process {owner}"
                    hint = f"follow it with: failover run, or failover logs {self.name} -f"
                    raise Held(message, hint=hint) from error
            with suppress(OSError):  # whose it is, for others; a full disk takes no lock
                os.ftruncate(file.fileno(), 0)
                os.write(file.fileno(), str(os.getpid()).encode())
            yield

    def controller_pid(self) -> int | None:
        """Return the process that runs this job now, or None."""
        try:
            with (self.path / "lock").open("r", encoding="utf-8") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return int(file.read() or 0) or None
        except (FileNotFoundError, ValueError):
            pass
        return None


def new_uid() -> str:
    """Draw a job's id: 8 hex digits."""
    return secrets.token_hex(4)


def jobs(root: Path) -> list[JobRecord]:
    """List every job that the state root knows, by name; a damaged record is left out (by its name it says so)."""
    found = []
    for path in sorted(root.glob("jobs/*/job.json")):
        with suppress(ConfigError):
            record = JobDirectory(root, path.parent.name).record()
            found += [record] if record is not None and record.run > 0 else []  # 0: only ever planned
    return found
