"""One job that this controller runs: its locks, its flow, the operator's wishes, and how it ends."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from sqlalchemy.exc import SQLAlchemyError

from provisioner.clock import now as unix_now
from provisioner.config import Config, parse
from provisioner.controller.billing import convert
from provisioner.controller.directory import Held, JobDirectory
from provisioner.controller.engine import Engine, FlowRun
from provisioner.controller.flow import Effects
from provisioner.controller.hints import ask_to_save
from provisioner.controller.launch import open_job_store
from provisioner.controller.ledger import Bill, bills
from provisioner.controller.run import WAIT_S, Controller
from provisioner.controller.serving.database import first_line, insist
from provisioner.controller.serving.guarded import LIMIT_CODE, guarded
from provisioner.controller.serving.jobs import JobStore, QueuedJob, State, Wish
from provisioner.controller.serving.locks import Locks, Lost
from provisioner.controller.serving.seats import Seats
from provisioner.controller.serving.unwanted import taken_down
from provisioner.errors import CloudError, ConfigError, FailoverError, LimitReached
from provisioner.model import Money

GENTLY_S: Final = 120.0
"""How long a machine may take for its last checkpoint before a job is paused or cancelled, in seconds."""
AGAIN_S: Final = 30.0
"""How long a job waits that could not be begun, in seconds."""


class NotNow(Exception):
    """A run that has begun cannot be taken up here: it stays as it is, for the next try or another controller."""


@dataclass
class Serving:
    """What all jobs of one controller share. ``stop`` ends this process where the locks are lost."""

    controller: str
    store: JobStore
    seats: Seats
    engine: Engine
    locks: Locks
    environ: Mapping[str, str]
    stop: Callable[[str], object]
    show: Callable[[str, Mapping[str, object]], None]
    effects: Callable[[Controller, Callable[[], None]], Effects] | None = None
    """Stands for the world in tests."""
    steps: dict[str, int] = field(default_factory=dict)
    """The last step of each job, until it is written down."""

    def check(self) -> None:
        """Go on only while this controller has its jobs."""
        try:
            self.locks.check()
        except Lost as error:
            self.stop(str(error))
            raise


def controller_name() -> str:
    """Return what this process is called: host and process id, and something that no other process ever had."""
    return f"{socket.gethostname()}:{os.getpid()}:{os.urandom(3).hex()}"


class ServedJob:
    """One job, in threads of its own. ``over`` is set when this controller has nothing more to do with it."""

    def __init__(self, job: QueuedJob, serving: Serving) -> None:
        """Take a job whose lock is held. ``job`` is as it was before it was taken."""
        self.name = job.name
        self.key = job.key
        self.over = threading.Event()
        self.ended: State | None = None
        self.again_s = 0.0
        """How long this controller leaves the job alone, which it has not brought to an end."""
        self._job = job
        self._serving = serving
        self._controller: Controller | None = None
        self._wish = Wish.NONE

    def start(self) -> None:
        """Begin, or go on."""
        threading.Thread(target=self._run, name=f"job-{self.name}", daemon=True).start()

    def wish(self, wish: Wish) -> None:
        """Do what the operator wants; asked again for the same, do nothing."""
        controller = self._controller
        if wish in {Wish.NONE, self._wish} or controller is None or self.over.is_set():
            return
        self._wish = wish
        threading.Thread(target=self._take_down, args=(controller, wish), name=f"wish-{self.name}", daemon=True).start()

    def _take_down(self, controller: Controller, wish: Wish) -> None:
        try:
            if wish is not Wish.CANCEL_NOW and self._serving.seats.taken(self.name):
                store = open_job_store(controller.config, controller.environ)
                ask_to_save(store, GENTLY_S, say=self._say, wait=self._wait_for_end)
        except FailoverError as error:
            self._say(f"it was not asked for a last checkpoint: {error}")
        controller.take_down.set()

    def _wait_for_end(self, seconds: float) -> None:
        if self._wish is Wish.CANCEL_NOW:  # it came after a gentler one
            seconds = 0.0
        self.over.wait(seconds)

    def _run(self) -> None:
        serving, name = self._serving, self.name
        try:
            state, reason = self._outcome()
            if state is State.QUEUED:
                insist(lambda: serving.store.put_back(name, serving.controller, reason, AGAIN_S))
            else:
                insist(lambda: serving.seats.free_all(name))
                insist(lambda: serving.store.end(name, serving.controller, state, reason))
            self.ended = state
            serving.show(name, {"kind": "served", "state": state.value, "reason": reason})
        except Lost as error:
            serving.stop(str(error))
        except NotNow as error:
            self._leave_or_end(str(error))
        except Exception as error:  # noqa: BLE001 - one job's fault is not another's
            self.again_s = AGAIN_S
            words = str(error).strip().splitlines()
            self._say(f"trying again: {type(error).__name__}: {words[0] if words else ''}")
        finally:
            self.over.set()

    def _leave_or_end(self, why: str) -> None:
        """Leave a job that cannot be taken up here as it is; end it where the operator wants that."""
        serving, name = self._serving, self.name
        try:
            reason = taken_down(self._job, serving, say=self._say, note=self._note, gently_s=GENTLY_S)
        except FailoverError as error:
            why, reason = f"{why}; nor can it be ended here: {error}", None
        if reason is None:
            self.again_s = AGAIN_S
            with suppress(CloudError):
                serving.store.told(name, serving.controller, why)
            ended = f"; failover down {name} ends it" if self._job.wish else ""
            self._say(f"it cannot be taken up here, and stays as it is: {why}{ended}")
            return
        insist(lambda: serving.seats.free_all(name))
        insist(lambda: serving.store.end(name, serving.controller, State.CANCELLED, reason))
        self.ended = State.CANCELLED
        serving.show(name, {"kind": "served", "state": State.CANCELLED.value, "reason": reason})

    def _outcome(self) -> tuple[State, str]:
        """Run the job; return its state and why. QUEUED: it could not be begun now."""
        try:
            if self._job.state is State.RUNNING and self._job.controller != self._serving.controller:
                self._say(f"taken over from {self._job.controller.rpartition(':')[0]}")
                time.sleep(self._serving.locks.grace_s)
            self._serving.check()
            controller = self._opened()
        except ConfigError as error:
            return self._refused(State.FAILED, error)
        try:
            with self._folder(controller.directory):
                return self._flown(controller)
        except Held as error:
            return self._refused(State.QUEUED, error)

    def _refused(self, state: State, error: FailoverError) -> tuple[State, str]:
        """Return what becomes of a job that could not be begun. Raises NotNow for one that may have a machine.

        A run without a workflow never had one: the controller before was gone before the run began.
        """
        if self._job.state is State.RUNNING and self._job.workflow:
            raise NotNow(str(error)) from error
        return self._instead(str(error)) if state is State.QUEUED else (state, str(error))

    def _opened(self) -> Controller:
        path = Path(self._job.config_path)
        config = parse(self._job.config, str(path), path.parent, self._serving.environ)
        controller = Controller(path, config=config, environ=self._serving.environ, on_event=self._note)
        controller.directory.create()
        return controller

    def _flown(self, controller: Controller) -> tuple[State, str]:
        if (told := self._ended_untold(controller.directory)) is not None:
            return told
        self._refuse_without_record(controller.directory)
        try:
            controller.begin(self._job.config)
            begun = self._job.state is State.RUNNING and bool(self._job.workflow)
            controller.config = _within(controller.config, self._spent_before(controller), begun=begun)
        except (ConfigError, LimitReached) as error:
            refused = self._refused(State.FAILED, error)
            controller.directory.close()
            return refused
        except CloudError as error:  # the store does not answer
            return self._refused(State.QUEUED, error)
        serving, workflow = self._serving, controller.record.workflow_id
        insist(lambda: serving.store.began(self.name, serving.controller, workflow))
        flow = FlowRun(self._effects(controller), before_step=lambda _: serving.check())
        serving.engine.run(workflow, flow)
        self._controller = controller
        while not flow.ended.wait(WAIT_S):
            if not flow.begun.is_set() and flow.is_lost():
                raise NotNow("its start could not be recorded")
        serving.check()
        try:
            report: dict[str, Any] = flow.result()
        except FailoverError as error:
            state, reason = State.FAILED, str(error)
            controller.directory.close()
        except Exception as error:
            if isinstance(error, SQLAlchemyError) and serving.engine.unrecorded(workflow):
                raise NotNow(f"its steps cannot be recorded: {first_line(error)}") from error
            state, reason = State.FAILED, self._broken(controller, error)
        else:
            controller.conclude(report)
            state, reason = self._judged(report)
        serving.engine.forget(workflow, delete=True)
        return state, reason

    def _refuse_without_record(self, directory: JobDirectory) -> None:
        """Keep away from a run whose record is elsewhere: to begin it anew would be a second one. Raises NotNow."""
        record, workflow = directory.record(), self._job.workflow
        if self._job.state is State.RUNNING and workflow and (record is None or record.workflow_id != workflow):
            where = "FAILOVER_STATE_DIR must be the directory that its other controllers share"
            raise NotNow(f"the record of its run is not in {directory.path}: {where}")

    def _spent_before(self, controller: Controller) -> list[Bill]:
        """Return the machines of this job's runs before it was paused."""
        since, run = self._job.submitted_at, controller.record.run
        return [bill for bill in bills(controller.directory.path) if bill.begun >= since and bill.run != run]

    def _effects(self, controller: Controller) -> Effects:
        serving = self._serving
        if serving.effects is not None:
            return serving.effects(controller, serving.check)
        return controller.world(lambda cloud: guarded(cloud, self.name, serving.seats, serving.check))

    def _ended_untold(self, directory: JobDirectory) -> tuple[State, str] | None:
        """Return how the run ended, where the controller before died just before it could tell the queue."""
        record = directory.record()
        if self._job.state is not State.RUNNING or record is None or record.open:
            return None
        if not self._job.workflow or record.workflow_id != self._job.workflow:
            return None
        report = directory.read_json("report.json")
        if isinstance(report, dict):
            return self._judged(report)
        return State.FAILED, f"its run broke off; failover status {self.name} shows what happened"

    def _judged(self, report: Mapping[str, Any]) -> tuple[State, str]:
        if isinstance(step := report.get("final_step"), int):
            self._serving.steps[self.name] = step
        result, reason = str(report.get("result")), str(report.get("reason") or "")
        if report.get("leaked"):
            reason = f"{reason}; left behind: {report['leaked']}".lstrip("; ")
        if result == "completed":
            return State.DONE, reason
        if result == "taken_down":
            paused = self._wished() is Wish.PAUSE
            return (State.PAUSED if paused else State.CANCELLED), reason
        full = [one for one in report.get("refused", ()) if one.get("code") == LIMIT_CODE]
        if result == "no_offer" and full:
            return self._instead("no room by --machines")
        return State.FAILED, f"{result}: {reason}" if reason else result

    def _instead(self, reason: str) -> tuple[State, str]:
        """Return what becomes of a job that cannot be run now: what the operator wants, else it waits."""
        wish = self._wished()
        if wish is Wish.PAUSE:
            return State.PAUSED, "by the operator"
        return (State.QUEUED, reason) if wish is Wish.NONE else (State.CANCELLED, "by the operator")

    def _wished(self) -> Wish:
        row = insist(lambda: self._serving.store.get(self.name))
        return row.wish if row is not None else Wish.NONE

    def _broken(self, controller: Controller, error: Exception) -> str:
        """Release what a flow that broke off has left."""
        controller.directory.close()
        reason = f"a fault of ours: {type(error).__name__}: {first_line(error)}"
        if self._serving.effects is None:
            leaked = controller.world().finish().leaked
            reason += f"; left behind: {[*leaked]}" if leaked else ""
        return reason

    @contextmanager
    def _folder(self, directory: JobDirectory) -> Iterator[None]:
        """Hold the job's folder, which keeps ``failover run`` and ``failover down`` away.

        A controller that was stopped with its jobs' locks lost may hold it on: it does nothing more with it.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(directory.lock())
            except Held:
                host, pid, _ = [*self._job.controller.rsplit(":", 2), "", ""][:3]
                left_by = host == socket.gethostname() and pid == str(directory.controller_pid())
                if self._job.state is not State.RUNNING or not left_by:
                    raise
            yield

    def _note(self, event: dict[str, object]) -> None:
        step = event.get("step")
        if event.get("kind") == "heartbeat" and isinstance(step, int):
            self._serving.steps[self.name] = step
        self._serving.show(self.name, event)

    def _say(self, words: str) -> None:
        self._serving.show(self.name, {"kind": "told", "words": words})


def _within(config: Config, spent: Sequence[Bill], *, begun: bool) -> Config:
    """Return the configuration with what is left of the budget. Raises LimitReached where nothing is.

    A run that has ``begun`` may have a machine, and goes on to see that it ends.
    """
    budget, now = config.policy.budget, unix_now()
    if budget is None:
        return config
    left = budget.amount
    for bill in spent:
        amount = bill.cost(now)
        if amount is not None and bill.hourly is not None:
            left -= convert(Money(amount, bill.hourly.currency), budget.currency, config.policy.usd_cny)
    if left <= 0 and not begun:
        raise LimitReached(f"budget of {budget} is spent by the runs before")
    policy = config.policy.model_copy(update={"budget": Money(max(left, Decimal(0)), budget.currency)})
    return config.model_copy(update={"policy": policy})
