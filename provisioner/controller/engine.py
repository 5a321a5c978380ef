"""The durable side of a run: DBOS on a SQLite file in the job's folder, or on the database of ``failover serve``.

The flow's answers are recorded step by step. A start finds the open run of the file and goes on after the last answer.
The version is set by us and not derived from the source, so an upgrade does not orphan a running job.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Final, TypeVar

from dbos import DBOS, DBOSConfig, SetWorkflowID, WorkflowHandle
from sqlalchemy.exc import SQLAlchemyError

from provisioner.controller.flow import Effects, Flow

T = TypeVar("T")

WORKFLOW_VERSION = "flow-1"
"""Raise it only together with a rule for the runs that an older version left open."""
POOL: Final = 8
"""Connections to the database of one controller; a PostgreSQL server has 100 for all."""
BEGIN_S: Final = 15.0
"""How long a run that is said to go on may take until it does, in seconds."""
_OVER: Final = frozenset({"SUCCESS", "ERROR"})


class UnrecordedError(BaseException):
    """A step could not be recorded. DBOS takes every Exception for the flow's own end, and records that."""


class FlowRun:
    """One flow that this process runs durably. ``ended`` is set when it is over."""

    def __init__(
        self,
        effects: Effects,
        after_step: Callable[[int, str], None] | None = None,
        before_step: Callable[[str], None] | None = None,
    ) -> None:
        """Take the world.

        ``before_step(name)`` is called before each step that is not recorded yet, and may keep it from being made by
        ending the process; ``after_step(count, name)`` when an answer has been recorded.
        """
        self.effects = effects
        self.ended = threading.Event()
        self.begun = threading.Event()
        self.steps = 0
        self.handle: WorkflowHandle[dict[str, object]] | None = None
        self.outcome: Future[dict[str, object]] = Future()
        """How it ended in this process, which a full disk may not have recorded."""
        self._after_step = after_step
        self._before_step = before_step

    def step(self, name: str, call: Callable[..., T], *args: object) -> T:
        """Run one call and record its answer."""

        def guarded(*given: object) -> T:
            if self._before_step is not None:
                self._before_step(name)
            return call(*given)

        answer: T = DBOS.run_step({"name": name}, guarded, *args)
        self.steps += 1
        if self._after_step is not None:
            self._after_step(self.steps, name)
        return answer

    def is_lost(self) -> bool:
        """Say whether the database takes it for running, and nothing runs: its start could not be recorded."""
        if self.handle is None or self.begun.wait(BEGIN_S):
            return False
        try:
            return self.handle.get_status().status == "PENDING" and not self.begun.is_set()
        except SQLAlchemyError:  # it is asked again
            return False

    def result(self) -> dict[str, object]:
        """Return the report; raises what the flow raised, SQLAlchemyError where a step could not be recorded."""
        if self.outcome.done():
            return self.outcome.result()
        if self.handle is None:
            message = "the flow was not started"
            raise RuntimeError(message)
        return self.handle.get_result()


class Engine:
    """Runs flows durably. One engine a process: DBOS is a singleton."""

    _runs: dict[str, FlowRun] = {}  # noqa: RUF012 - of this process, as DBOS is

    def __init__(self, url: str, *, executor: str = "controller", queue: str = "") -> None:
        """Open the database.

        Where several controllers share it, each has an ``executor`` of its own, so that none takes up by itself what
        another one left, and a ``queue``, on which it runs what it has been told to take up.
        """
        self._queue = queue
        config: DBOSConfig = {
            "name": "gpu-failover",
            "system_database_url": url,
            "application_version": WORKFLOW_VERSION,
            "executor_id": executor,
            "log_level": "CRITICAL",
            "enable_otlp": False,
            "sys_db_pool_size": POOL,
        }
        DBOS(config=config)
        if queue:
            DBOS.listen_queues([queue])
        self._launched = False

    @classmethod
    def on_file(cls, database: Path) -> Engine:
        """Open a run's own SQLite file."""
        database.touch(mode=0o600)
        return cls(f"sqlite:///{database}")

    def launch(self) -> None:
        """Begin to work. What this executor has left open goes on."""
        if self._launched:
            return
        DBOS.launch()
        self._launched = True
        if self._queue:
            DBOS.register_queue(self._queue, polling_interval_sec=0.5)

    def run(self, workflow_id: str, flow: FlowRun) -> None:
        """Start the run, or take it up again, in a thread of its own."""
        Engine._runs[workflow_id] = flow
        self.launch()
        status = DBOS.get_workflow_status(workflow_id)
        if status is None or (not self._queue and status.status not in _OVER):
            with SetWorkflowID(workflow_id):
                flow.handle = DBOS.start_workflow(_run_flow)
        elif status.status in _OVER:  # it was killed before it could tell
            flow.handle = DBOS.retrieve_workflow(workflow_id)
            flow.ended.set()
        else:
            flow.handle = DBOS.resume_workflow(workflow_id, queue_name=self._queue)

    def unrecorded(self, workflow_id: str) -> bool:
        """Say whether the end of a run that raised is not recorded (a full disk, say): it can be taken up again."""
        try:
            status = DBOS.get_workflow_status(workflow_id)
        except SQLAlchemyError:
            return True
        return status is not None and status.status not in _OVER

    def drop_queues(self, ended: Callable[[list[str]], list[str]]) -> None:
        """Remove the queues of executors that are no more. ``ended`` picks them out of the names of all."""
        for name in ended([queue.name for queue in DBOS.list_queues() if queue.name != self._queue]):
            DBOS.delete_queue(name)

    def forget(self, workflow_id: str, *, delete: bool = False) -> None:
        """Let go of a run that has ended; ``delete`` its answers, too."""
        Engine._runs.pop(workflow_id, None)
        if delete:
            DBOS.delete_workflow(workflow_id)

    def close(self) -> None:
        """Let go of the database."""
        if self._queue and self._launched:
            DBOS.delete_queue(self._queue)
        DBOS.destroy(workflow_completion_timeout_sec=0)
        Engine._runs.clear()


@DBOS.workflow(name="run_job")
def _run_flow() -> dict[str, object]:
    flow = Engine._runs.get(DBOS.workflow_id or "")  # noqa: SLF001 - what this process was told to run
    if flow is None:
        message = "the workflow was started without an engine"
        raise RuntimeError(message)
    flow.begun.set()
    try:
        report = Flow(flow.effects, flow.step).run()
    except SQLAlchemyError as error:
        flow.outcome.set_exception(error)
        raise UnrecordedError from error
    except Exception as error:
        flow.outcome.set_exception(error)
        raise
    else:
        flow.outcome.set_result(report)
        return report
    finally:
        flow.ended.set()
