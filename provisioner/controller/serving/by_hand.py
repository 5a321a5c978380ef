"""Where the operator's commands and the queue meet: submit, ``failover run`` and ``failover down`` of a queued job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from provisioner.config import Config
from provisioner.controller.directory import Held, JobDirectory
from provisioner.controller.serving.database import VARIABLE, Database, without_password
from provisioner.controller.serving.jobs import OPEN, JobStore, QueuedJob, State
from provisioner.controller.serving.locks import SessionLocks
from provisioner.errors import CloudError, ConfigError

MARK: Final = "queue.json"
"""Says in a job's folder which database has its queue."""
_LOOK_S: Final = 0.5


def submit(store: JobStore, path: Path, content: bytes, config: Config) -> None:
    """Put a job into the queue; ``content`` is what the file held when it was checked.

    Raises ConfigError where it runs, or waits, already.
    """
    directory = JobDirectory(store.database.root, config.job.name)
    directory.create()
    try:
        with directory.lock():
            _refuse_if_elsewhere(directory, store.database)
            record, job = directory.record(), store.get(directory.name)
            if record is not None and record.open and (job is None or job.state not in OPEN):
                message = f"job {directory.name} has a run that `failover run` has begun and that has not ended"
                raise ConfigError(message, hint=f"go on with it, or take it down first: failover down {directory.name}")
            directory.write_json(MARK, {"database": str(store.database)})
            taken = store.submit(directory.name, str(path.resolve()), content)
    except Held as held:
        job = store.get(directory.name)
        if job is None or job.state not in OPEN:
            raise ConfigError(str(held), hint=f"wait for its end, or: failover down {directory.name}") from None
        taken = False
    if not taken:
        raise _there(directory.name)


def refuse_if_there(store: JobStore, name: str) -> None:
    """Raise ConfigError for a job that is in the queue and has not ended."""
    job = store.get(name)
    if job is not None and job.state in OPEN:
        raise _there(name)


def _there(name: str) -> ConfigError:
    hint = f"failover list shows it; failover cancel {name} takes it out"
    return ConfigError(f"job {name} is in the queue already", hint=hint)


@contextmanager
def opened(environ: Mapping[str, str]) -> Iterator[JobStore | None]:
    """Open the queue if there is one."""
    database = Database(environ)
    if not database.exists():
        yield None
        return
    store = JobStore(database)
    try:
        yield store
    finally:
        store.close()


def refuse_if_queued(directory: JobDirectory, environ: Mapping[str, str]) -> None:
    """Keep ``failover run`` away from what the queue has. Raises ConfigError."""
    job = queued(directory, environ)
    if job is not None:
        message = f"job {job.name} is in the queue ({job.state})"
        hint = f"failover serve runs it; to run it by hand take it out first: failover cancel {job.name}"
        raise ConfigError(message, hint=hint)


def queued(directory: JobDirectory, environ: Mapping[str, str]) -> QueuedJob | None:
    """Return a job that is in the queue and has not ended. Raises ConfigError where another queue has it."""
    if not isinstance(directory.read_json(MARK), dict):
        return None
    _refuse_if_elsewhere(directory, Database(environ))
    with opened(environ) as store:
        job = store.get(directory.name) if store is not None else None
    return job if job is not None and job.state in OPEN else None


def _refuse_if_elsewhere(directory: JobDirectory, database: Database) -> None:
    """Raise ConfigError where another queue has the job, or may have it: only one in a file can be looked into."""
    mark = directory.read_json(MARK)
    there = str(mark.get("database")) if isinstance(mark, dict) else ""
    if not there or database.marked_by(there):
        return
    if database.shared and "://" not in there:
        with opened({"FAILOVER_STATE_DIR": str(database.root)}) as store:
            job = store.get(directory.name) if store is not None else None
        if job is None or job.state not in OPEN:
            return
    shown = without_password(there) if "://" in there else there
    message = f"job {directory.name} was submitted to {shown}, and the queue is {database} now"
    forget = f"where that is no more, remove {directory.path / MARK}"
    raise ConfigError(message, hint=f"set {VARIABLE} as it was then; {forget}")


@contextmanager
def out_of_the_queue(
    directory: JobDirectory,
    environ: Mapping[str, str],
    *,
    gently: bool,
    say: Callable[[str], None],
    patience_s: float,
) -> Iterator[bool]:
    """Take a job out of the queue, and keep it from being taken up while its machines are released.

    A controller that has it sees to that before this begins. Yield whether it was in the queue. Raises CloudError for a
    controller that hangs.
    """
    job = queued(directory, environ)
    if job is None:
        yield False
        return
    store = JobStore(Database(environ))
    locks = SessionLocks(store.database, "down") if store.database.shared else None
    if locks is not None:
        locks.watch(lambda why: say(f"{why}; a controller may take the job up meanwhile"))
    try:
        state = store.cancel(job.name, gently=gently)
        until, told = time.monotonic() + patience_s, False
        while state is State.RUNNING and not _free(directory, locks, job):
            if not told:
                say(f"asking its controller ({job.controller.rpartition(':')[0]}) to take it down")
                told = True
            if time.monotonic() > until:
                message = f"{job.controller.rpartition(':')[0]} has not taken {job.name} down in {patience_s:.0f} s"
                raise CloudError(message, hint=f"kill it, then: failover down {job.name}")
            time.sleep(_LOOK_S)
            now = store.get(job.name)
            state = now.state if now is not None else None
        yield True
        if state is not State.RUNNING:
            return
        now = store.get(job.name)
        store.end(job.name, now.controller if now is not None else "", State.CANCELLED, "by failover down")
    finally:
        if locks is not None:
            locks.close()
        store.close()


def _free(directory: JobDirectory, locks: SessionLocks | None, job: QueuedJob) -> bool:
    """Take the lock of a job that no controller has."""
    return directory.controller_pid() is None if locks is None else locks.take(job.key)
