"""The durable side of a run: DBOS on a SQLite file in the job's folder.

The flow's answers are recorded step by step. A start finds the open run of the file and goes on after the last answer.
The version is set by us and not derived from the source, so an upgrade does not orphan a running job.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from dbos import DBOS, DBOSConfig, SetWorkflowID

from provisioner.controller.flow import Effects, Flow

T = TypeVar("T")

WORKFLOW_VERSION = "flow-1"
"""Raise it only together with a rule for the runs that an older version left open."""


class Engine:
    """Runs one flow durably. One engine a process: DBOS is a singleton."""

    _current: Engine | None = None

    def __init__(self, database: Path, effects: Effects, after_step: Callable[[int, str], None] | None = None) -> None:
        """Open the database. ``after_step(count, name)`` is called when an answer has been recorded."""
        self.effects = effects
        self.after_step = after_step
        self.ended = threading.Event()
        self.steps = 0
        Engine._current = self
        database.touch(mode=0o600)
        config: DBOSConfig = {
            "name": "gpu-failover",
            "system_database_url": f"sqlite:///{database}",
            "application_version": WORKFLOW_VERSION,
            "executor_id": "controller",
            "log_level": "CRITICAL",
            "enable_otlp": False,
        }
        DBOS(config=config)

    def run(self, workflow_id: str) -> None:
        """Start the run, or take it up again, in a thread of its own. ``ended`` is set when it is over."""
        DBOS.launch()
        with SetWorkflowID(workflow_id):
            handle = DBOS.start_workflow(_run_flow)
        self._handle = handle

    def result(self) -> dict[str, object]:
        """Return the report; raises what the flow raised."""
        return self._handle.get_result()

    def close(self) -> None:
        """Let go of the database."""
        DBOS.destroy(workflow_completion_timeout_sec=0)
        Engine._current = None

    def step(self, name: str, call: Callable[..., T], *args: object) -> T:
        """Run one call and record its answer."""
        answer: T = DBOS.run_step({"name": name}, call, *args)
        self.steps += 1
        if self.after_step is not None:
            self.after_step(self.steps, name)
        return answer


@DBOS.workflow(name="run_job")
def _run_flow() -> dict[str, object]:
    engine = Engine._current  # noqa: SLF001 - the engine that this process started
    if engine is None:
        message = "the workflow was started without an engine"
        raise RuntimeError(message)
    try:
        return Flow(engine.effects, engine.step).run()
    finally:
        engine.ended.set()
