"""The queue: one row a job, and what may become of it. Every change is one conditional statement."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Engine, Row
from sqlalchemy.exc import IntegrityError

from provisioner.clock import now as unix_now
from provisioner.controller.serving.database import Database, answered
from provisioner.errors import CloudError

METADATA = sa.MetaData()
JOBS: Final = sa.Table(
    "failover_jobs",
    METADATA,
    sa.Column("root", sa.String(16), primary_key=True),
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("wish", sa.String(16), nullable=False, default=""),
    sa.Column("reason", sa.Text, nullable=False, default=""),
    sa.Column("config_path", sa.Text, nullable=False),
    sa.Column("config", sa.LargeBinary, nullable=False),
    sa.Column("workflow", sa.String(128), nullable=False, default=""),
    sa.Column("version", sa.String(32), nullable=False, default=""),
    sa.Column("controller", sa.String(128), nullable=False, default=""),
    sa.Column("step", sa.BigInteger),
    sa.Column("submitted_at", sa.Float, nullable=False),
    sa.Column("began_at", sa.Float),
    sa.Column("ended_at", sa.Float),
    sa.Column("not_before", sa.Float, nullable=False, default=0.0),
)


class State(StrEnum):
    """Where a job is. RUNNING: a controller has it, or the next one takes it up."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class Wish(StrEnum):
    """What the operator wants of a job that runs. CANCEL lets its machine save before, CANCEL_NOW does not."""

    NONE = ""
    PAUSE = "pause"
    CANCEL = "cancel"
    CANCEL_NOW = "cancel_now"


OPEN: Final = (State.QUEUED, State.RUNNING, State.PAUSED)
OVER: Final = (State.DONE, State.FAILED, State.CANCELLED)


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job of the queue. Times are Unix seconds. ``workflow`` is empty until its run has begun."""

    root: str
    name: str
    state: State
    wish: Wish
    reason: str
    config_path: str
    config: bytes
    workflow: str
    version: str
    controller: str
    step: int | None
    submitted_at: float
    began_at: float | None
    ended_at: float | None
    not_before: float

    @property
    def key(self) -> str:
        """What tells the job from all others in the database."""
        return f"{self.root}/{self.name}"


class JobStore:
    """The jobs of one state root; ``all_roots`` shows those of others, too."""

    def __init__(self, database: Database, *, now: Callable[[], float] = unix_now) -> None:
        """Open the database and make the tables. Raises ConfigError, CloudError."""
        self.database = database
        self.root = database.root_id()
        self.engine: Engine = database.connect()
        self._now = now
        self._make_tables()

    @answered
    def _make_tables(self) -> None:
        from provisioner.controller.serving import seats  # noqa: F401 - its table is made, too

        try:
            METADATA.create_all(self.engine)
        except sa.exc.DBAPIError:  # another process makes them at this moment
            METADATA.create_all(self.engine)
        with self.engine.connect() as connection:
            for table in METADATA.sorted_tables:  # one of another release may lack a column
                connection.execute(sa.select(table).limit(0))

    def close(self) -> None:
        """Let go of the database."""
        self.engine.dispose()

    # -- what the operator does ------------------------------------------------------------------------------------

    @answered
    def submit(self, name: str, config_path: str, config: bytes) -> bool:
        """Put a job into the queue; False when it is in it and has not ended."""
        values = {
            "state": State.QUEUED,
            "wish": Wish.NONE,
            "reason": "",
            "config_path": config_path,
            "config": config,
            "workflow": "",
            "version": "",
            "controller": "",
            "step": None,
            "submitted_at": self._now(),
            "began_at": None,
            "ended_at": None,
            "not_before": 0.0,
        }
        if self._change(name, OVER, values):
            return True
        try:
            with self.engine.begin() as connection:
                connection.execute(sa.insert(JOBS).values(root=self.root, name=name, **values))
        except IntegrityError:
            return False
        return True

    @answered
    def pause(self, name: str) -> State | None:
        """Pause a job. Return the state that it is in then; None where it has ended or is not known."""
        if self._change(name, (State.QUEUED,), {"state": State.PAUSED, "reason": "by the operator"}):
            return State.PAUSED
        not_cancelled = JOBS.c.wish.in_([Wish.NONE, Wish.PAUSE])
        running = self._change(name, (State.RUNNING,), {"wish": Wish.PAUSE}, not_cancelled)
        return State.RUNNING if running else self._state_if(name, State.PAUSED)

    @answered
    def resume(self, name: str) -> State | None:
        """Put a paused job back into the queue, in its old place; one that is just being paused is not paused yet."""
        back = {"state": State.QUEUED, "wish": Wish.NONE, "reason": "", "workflow": "", "not_before": 0.0}
        if self._change(name, (State.PAUSED,), {**back, "controller": ""}):
            return State.QUEUED
        return self._state_if(name, State.QUEUED)

    @answered
    def cancel(self, name: str, *, gently: bool) -> State | None:
        """Cancel a job. Return the state that it is in then; None where it has ended otherwise or is not known."""
        over = {"state": State.CANCELLED, "reason": "by the operator", "ended_at": self._now()}
        if self._change(name, (State.QUEUED, State.PAUSED), over):
            return State.CANCELLED
        wish = Wish.CANCEL if gently else Wish.CANCEL_NOW
        running = self._change(name, (State.RUNNING,), {"wish": wish})
        return State.RUNNING if running else self._state_if(name, State.CANCELLED)

    @answered
    def get(self, name: str) -> QueuedJob | None:
        """Return a job, or None."""
        found = self._select(JOBS.c.root == self.root, JOBS.c.name == name)
        return found[0] if found else None

    @answered
    def jobs(self, states: Collection[State] = (), *, all_roots: bool = False) -> list[QueuedJob]:
        """List jobs, those that wait longest first."""
        where = [] if all_roots else [JOBS.c.root == self.root]
        if states:
            where.append(JOBS.c.state.in_([*states]))
        return self._select(*where)

    def elsewhere(self) -> list[QueuedJob]:
        """Return the jobs of other state directories in the database that have not ended. Raises CloudError."""
        return [job for job in self.jobs(OPEN, all_roots=True) if job.root != self.root]

    @answered
    def to_look_at(self, controller: str, aside: Collection[str]) -> list[QueuedJob]:
        """List what has not ended, but for what this controller runs and nobody wants anything of.

        ``aside`` names jobs that are its own and that it does not run just now.
        """
        wanted = sa.or_(JOBS.c.controller != controller, JOBS.c.wish != Wish.NONE, JOBS.c.name.in_([*aside]))
        return self._select(JOBS.c.root == self.root, JOBS.c.state.in_([State.QUEUED, State.RUNNING]), wanted)

    # -- what a controller does, with the job's lock held --------------------------------------------------------------

    @answered
    def take(self, job: QueuedJob, controller: str, version: str) -> bool:
        """Make a job that waits, or that another controller has left, this controller's. False when it has changed."""
        kept = (JOBS.c.controller == job.controller, JOBS.c.workflow == job.workflow)
        if job.state is State.QUEUED:
            taken = {"state": State.RUNNING, "controller": controller, "version": version, "workflow": ""}
            return self._change(job.name, (State.QUEUED,), {**taken, "began_at": self._now()}, *kept)
        return self._change(job.name, (State.RUNNING,), {"controller": controller}, *kept)

    @answered
    def began(self, name: str, controller: str, workflow: str) -> None:
        """Note under which id the run is recorded."""
        values = {"workflow": workflow, "reason": ""}
        self._change(name, (State.RUNNING,), values, JOBS.c.controller == controller)

    @answered
    def told(self, name: str, controller: str, reason: str) -> None:
        """Note why a job that has begun could not be taken up."""
        self._change(name, (State.RUNNING,), {"reason": reason}, JOBS.c.controller == controller)

    @answered
    def put_back(self, name: str, controller: str, reason: str, wait_s: float) -> None:
        """Let a job that could not be begun wait for a while."""
        back = {"state": State.QUEUED, "reason": reason, "controller": "", "not_before": self._now() + wait_s}
        self._change(name, (State.RUNNING,), back, JOBS.c.controller == controller)

    @answered
    def end(self, name: str, controller: str, state: State, reason: str) -> None:
        """Note how a run ended."""
        values = {"state": state, "wish": Wish.NONE, "reason": reason, "ended_at": self._now()}
        self._change(name, (State.RUNNING,), values, JOBS.c.controller == controller)

    @answered
    def progress(self, steps: dict[str, int]) -> None:
        """Note the last step of jobs that run."""
        with self.engine.begin() as connection:
            for name, step in steps.items():
                where = (JOBS.c.root == self.root, JOBS.c.name == name)
                connection.execute(sa.update(JOBS).where(*where).values(step=step))

    def _change(self, name: str, states: Collection[State], values: Mapping[str, object], *where: Any) -> bool:
        of_job = (JOBS.c.root == self.root, JOBS.c.name == name, JOBS.c.state.in_([*states]), *where)
        with self.engine.begin() as connection:
            return connection.execute(sa.update(JOBS).where(*of_job).values(**values)).rowcount == 1

    def _state_if(self, name: str, state: State) -> State | None:
        job = self.get(name)
        return state if job is not None and job.state is state else None

    def _select(self, *where: Any) -> list[QueuedJob]:
        query = sa.select(JOBS).where(*where).order_by(JOBS.c.submitted_at, JOBS.c.name)
        with self.engine.begin() as connection:
            return [_job(row) for row in connection.execute(query)]


def _job(row: Row[Any]) -> QueuedJob:
    values = dict(row._mapping)  # noqa: SLF001 - SQLAlchemy's own name for it
    try:
        return QueuedJob(**{**values, "state": State(values["state"]), "wish": Wish(values["wish"])})
    except ValueError as error:
        message = f"the queue's database: job {values['name']}: {error}"
        raise CloudError(message, hint="a newer release has written that: use it, or a database of its own") from None
