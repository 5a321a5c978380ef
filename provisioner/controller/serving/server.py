"""``failover serve``: take jobs from the queue, up to a limit; take over what a controller that is gone has left."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from provisioner.clock import now as unix_now
from provisioner.controller.engine import WORKFLOW_VERSION, Engine
from provisioner.controller.flow import Effects
from provisioner.controller.run import Controller
from provisioner.controller.serving.database import VARIABLE, Database, answered
from provisioner.controller.serving.job import ServedJob, Serving, controller_name
from provisioner.controller.serving.jobs import JobStore, QueuedJob, State
from provisioner.controller.serving.locks import FileLocks, Locks, Lost, SessionLocks
from provisioner.controller.serving.seats import Seats
from provisioner.errors import CloudError

LOOK_S: Final = 1.0
"""Between two looks at the queue, in seconds."""
AT_ONCE: Final = 8
"""Most jobs that are taken at one look, so that several controllers share a long queue."""
SWEEP_EVERY_S: Final = 600.0
SWEEP_OLDER_S: Final = 900.0
QUEUE: Final = "failover-"


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What the command line asks for.

    ``jobs``: most at once in this controller. ``machines``: most at once by cloud or cloud/account, over all
    controllers. ``once``: end when the queue is empty. ``sweep_every`` (0: never) and ``sweep_older`` in seconds.
    """

    jobs: int = 200
    machines: Mapping[str, int] = field(default_factory=dict)
    once: bool = False
    sweep_every: float = SWEEP_EVERY_S
    sweep_older: float = SWEEP_OLDER_S


class Server:
    """One controller."""

    def __init__(
        self,
        options: ServeOptions,
        environ: Mapping[str, str],
        *,
        show: Callable[[str, Mapping[str, object]], None],
        stop: Callable[[str], object],
        effects: Callable[[Controller, Callable[[], None]], Effects] | None = None,
    ) -> None:
        """Open the queue and become one of its controllers. Raises ConfigError, CloudError.

        ``stop(why)`` must end this process at once: it is called when the locks are lost.
        """
        self.options = options
        self.database = Database(environ)
        self.name = controller_name()
        self.ended: dict[str, State] = {}
        self._show = show
        self._jobs: dict[str, ServedJob] = {}
        self._told: set[str] = set()
        self._later: dict[str, float] = {}
        """When a job that could not be brought to its end here is looked at again, by ``time.monotonic``."""
        kept = {name: value for name, value in environ.items() if name != VARIABLE}
        store = JobStore(self.database)
        locks = self._locks()
        locks.watch(stop)
        engine = Engine(self.database.flows_url, executor=self.name, queue=QUEUE + self.name)
        seats = Seats(store, options.machines)
        self.serving = Serving(self.name, store, seats, engine, locks, kept, stop, show, effects)

    def _locks(self) -> Locks:
        return SessionLocks(self.database, self.name) if self.database.shared else FileLocks(self.database.root)

    def serve(self, leave: threading.Event) -> None:
        """Work until ``leave`` is set, or until the queue is empty if that was asked for."""
        self.serving.locks.take(self.name)
        self._launch()
        also = (
            f"; {len(others)} jobs of other state directories are not touched" if (others := self._elsewhere()) else ""
        )
        words = f"serving {self.database} as {self.name.rpartition(':')[0]}, the jobs of {self.database.root}{also}"
        self._show("", {"kind": "told", "words": words})
        if self.options.sweep_every > 0 and not self.options.once:
            threading.Thread(target=self._sweep, args=(leave,), name="sweep", daemon=True).start()
        told = ""
        while not leave.is_set():
            try:
                if self._look() and self.options.once:
                    return
                told = ""
            except Lost as error:
                self.serving.stop(str(error))
                raise
            except CloudError as error:
                if str(error) != told:
                    told = str(error)
                    self._show("", {"kind": "told", "words": f"{told}; trying again each second"})
            leave.wait(LOOK_S)

    def _elsewhere(self) -> list[QueuedJob]:
        return self.serving.store.elsewhere() if self.database.shared else []

    @answered
    def _launch(self) -> None:
        self.serving.engine.launch()
        self.serving.engine.drop_queues(self._ended)

    def _ended(self, queues: list[str]) -> list[str]:
        """Return the queues of controllers that are gone."""
        controllers = [name.removeprefix(QUEUE) for name in queues if name.startswith(QUEUE)]
        return [QUEUE + name for name in self.serving.locks.free(controllers)]

    def close(self) -> None:
        """Let go of everything. Only for a controller whose jobs have ended."""
        self.serving.engine.close()
        self.serving.locks.close()
        self.serving.store.close()

    def _look(self) -> bool:
        """Look at the queue once. Return whether nothing is left to do."""
        self._note_steps()
        self._let_go()
        rows = self.serving.store.to_look_at(self.name, self._later)
        for row in rows:
            if row.name in self._jobs:
                self._jobs[row.name].wish(row.wish)
        waiting = [row for row in rows if row.name not in self._jobs and self._may_take(row)]
        free = set(self.serving.locks.free([row.key for row in waiting]))
        room = min(AT_ONCE, self.options.jobs - len(self._jobs))
        left_first = sorted(waiting, key=lambda row: row.state is State.QUEUED)
        for row in [row for row in left_first if row.key in free][: max(0, room)]:
            self._take(row)
        return not rows and not self._jobs

    def _may_take(self, row: QueuedJob) -> bool:
        if time.monotonic() < self._later.get(row.name, 0.0):
            return False
        if row.state is State.QUEUED:
            return row.not_before <= unix_now()
        if row.version in {"", WORKFLOW_VERSION}:
            return True
        if row.name not in self._told:
            self._told.add(row.name)
            words = (
                f"begun by a version that records {row.version!r}, this one {WORKFLOW_VERSION!r}: "
                f"start that version to go on, or end it with: failover down {row.name}"
            )
            self._show(row.name, {"kind": "told", "words": words})
        return False

    def _take(self, row: QueuedJob) -> None:
        locks = self.serving.locks
        if not locks.take(row.key):
            return
        if not self.serving.store.take(row, self.name, WORKFLOW_VERSION):
            locks.give(row.key)
            return
        self._jobs[row.name] = job = ServedJob(row, self.serving)
        job.start()

    def _let_go(self) -> None:
        for name, job in [*self._jobs.items()]:
            if job.over.is_set():
                del self._jobs[name]
                self.serving.locks.give(job.key)
                if job.ended is not None:
                    self.ended[name] = job.ended
                if job.again_s:
                    self._later[name] = time.monotonic() + job.again_s

    def _note_steps(self) -> None:
        steps = dict(self.serving.steps)
        if steps:
            self.serving.store.progress(steps)
            for name, step in steps.items():
                if self.serving.steps.get(name) == step:
                    self.serving.steps.pop(name, None)

    # -- what nobody holds ---------------------------------------------------------------------------------------------

    def _sweep(self, leave: threading.Event) -> None:
        """Run ``failover sweep --yes`` now and then, in a process of its own; one controller at a time."""
        while not leave.wait(self.options.sweep_every):
            key = f"sweep/{self.serving.store.root}"
            if not self.serving.locks.take(key):
                continue
            try:
                self._swept()
            finally:
                self.serving.locks.give(key)

    def _swept(self) -> None:
        command = [
            sys.executable,
            "-m",
            "provisioner.cli",
            "sweep",
            "--yes",
            "--older",
            f"{self.options.sweep_older:.0f}s",
        ]
        environ = {name: value for name, value in os.environ.items() if name != VARIABLE}
        done = subprocess.run(
            command,
            env={**environ, **self.serving.environ},
            cwd=self.database.root,  # no failover.yaml is found by chance
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        for words in done.stderr.splitlines():
            if words.startswith(("removed ", "failover: ", "not asked: ")):
                self._show("", {"kind": "told", "words": f"sweep: {words}"})
