"""One start of the controller: put the parts together, run the flow durably, listen to the operator."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from provisioner import clock
from provisioner.clock import now as unix_now
from provisioner.clouds import open_cloud
from provisioner.clouds.base import Cloud
from provisioner.config import Config, content_of, parse, runtime_file, workdir
from provisioner.controller.attached import Told
from provisioner.controller.directory import JobDirectory, JobRecord, new_uid, state_root
from provisioner.controller.effects import World
from provisioner.controller.engine import Engine, FlowRun
from provisioner.controller.failures import KnownFailures
from provisioner.controller.hints import ask_to_save
from provisioner.controller.launch import Launcher, open_job_store, stored_uid
from provisioner.controller.moving import WISH
from provisioner.controller.serving.by_hand import out_of_the_queue, refuse_if_queued
from provisioner.controller.serving.database import first_line
from provisioner.errors import CloudError, ConfigError, Interrupted
from provisioner.telemetry.events import EventLog
from provisioner.telemetry.events import read as read_events

WAIT_S = 0.2
TAKE_DOWN_S = 900.0


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the command line adds to the configuration file."""

    fresh: bool = False
    """Start from nothing: a new uid, so that the checkpoints of earlier runs do not count."""
    take_over: bool = False
    """Release a machine that trains for a controller which is not this one."""


def begin_record(
    directory: JobDirectory,
    config_path: Path,
    *,
    fresh: bool,
    now: float,
    stored_uid: str,
    content: bytes,
) -> JobRecord:
    """Find the open run of this job, or begin a new one, and keep a copy of its configuration.

    A job keeps its uid from run to run, so that it goes on from its checkpoints, unless ``fresh``. A run that is open
    goes on with the configuration that it was started with. ``content`` is what the file held when it was checked.
    """
    old = directory.record()
    if old is not None and old.open:
        if fresh:
            message = f"job {directory.name} has a run that has not ended"
            raise ConfigError(message, hint=f"take it down first: failover down {directory.name}")
        return old
    uid = new_uid() if fresh else (old.uid if old else stored_uid or new_uid())
    run = old.run + 1 if old else 1
    directory.write_bytes(f"failover.{run}.yaml", content)
    (directory.path / "report.json").unlink(missing_ok=True)  # an earlier run's
    record = JobRecord(directory.name, uid, run, open=True, config_path=str(config_path.resolve()), started_at=now)
    directory.remember(record)
    return record


class Controller:
    """Runs one job in this process."""

    def __init__(
        self,
        config_path: Path,
        *,
        config: Config | None = None,
        options: RunOptions | None = None,
        environ: Mapping[str, str] | None = None,
        on_event: Callable[[dict[str, object]], None] | None = None,
        after_step: Callable[[int, str], None] | None = None,
    ) -> None:
        """Read the configuration, unless ``config`` is given. Raises ConfigError."""
        self.environ = dict(os.environ if environ is None else environ)
        self.options = options or RunOptions()
        self.config_path = config_path
        self._content = b"" if config is not None else content_of(config_path)
        self.config = config or parse(self._content, str(config_path), config_path.parent, self.environ)
        self.directory = JobDirectory(state_root(self.environ), self.config.job.name)
        self.take_down = threading.Event()
        self._on_event = on_event
        self._after_step = after_step

    def run(self, attend: Callable[[FlowRun, Controller], None] | None = None) -> dict[str, object]:
        """Run the job to its end and return the report.

        ``attend(flow, self)`` waits for the end in the calling thread, where signals arrive; it may raise
        Interrupted to leave the job running. Raises ConfigError when another controller holds the job.
        """
        self.directory.create()
        with self.directory.lock():
            refuse_if_queued(self.directory, self.environ)
            self.begin()
            flow = FlowRun(self.world(), self._after_step)
            database = (
                self.directory.path / f"controller.{self.record.run}.sqlite"
            )  # a run never meets another's workflow
            engine = Engine.on_file(database)
            try:
                engine.run(self.record.workflow_id, flow)
                (attend or wait_for_end)(flow, self)  # left here by Interrupted, the process ends with its threads
            except SQLAlchemyError as error:
                engine.close()
                raise self.unrecorded(first_line(error)) from None
            except CloudError:
                engine.close()
                raise
            try:
                report = self._result(flow, engine)
            finally:
                engine.close()
            self.conclude(report)
            return report

    def begin(self, content: bytes | None = None) -> None:
        """Find the open run, or begin one; its configuration counts. ``content`` is that of a file read before."""
        record = self.directory.record()
        if record is None or not record.open:  # before the store is asked: the operator may want an end already
            for name in ("takedown", WISH):  # an earlier run's
                (self.directory.path / name).unlink(missing_ok=True)
        for event in read_events(self.directory.path / "events.jsonl"):
            clock.not_before(float(event.get("time") or 0.0))
        self.record = begin_record(
            self.directory,
            self.config_path,
            fresh=self.options.fresh,
            now=unix_now(),
            stored_uid=stored_uid(open_job_store(self.config, self.environ)),
            content=self._content if content is None else content,
        )
        self.config = self._recorded_config()

    def conclude(self, report: dict[str, object]) -> None:
        """Keep the report and close the run."""
        self.directory.write_json("report.json", report)
        self.directory.close()

    def _result(self, flow: FlowRun, engine: Engine) -> dict[str, object]:
        """Return the report. A flow that broke off is not taken up again: the next run releases what it left.

        One whose steps could not be recorded goes on with the next run.
        """
        try:
            return flow.result()
        except Exception as error:
            if isinstance(error, SQLAlchemyError) and engine.unrecorded(self.record.workflow_id):
                raise self.unrecorded(first_line(error)) from None
            self.directory.close()
            raise

    def unrecorded(self, why: str) -> CloudError:
        """Return what to raise where the run stays open and cannot go on now."""
        message = f"{self.directory.path}: the run's steps cannot be recorded: {why}"
        return CloudError(message, hint=f"go on when that is mended: failover run {self.record.config_path}")

    def finish(self, record: JobRecord) -> dict[str, object]:
        """Release what the job still has and remove what was prepared, without going on with it."""
        with self.directory.lock():
            self.record = record
            finished = self.world().finish()
            report: dict[str, object] = {"job": record.name, "result": "taken_down", "leaked": [*finished.leaked]}
            try:
                self.directory.close()
                if record.open:  # a run that had ended keeps its report
                    self.directory.write_json("report.json", report)
            except OSError as error:
                raise self._unclosed(error, finished.leaked) from None
        return report

    def _unclosed(self, error: OSError, leaked: Sequence[str]) -> CloudError:
        """Return what to raise where all was released, and the run could not be closed."""
        left = f"left behind: {[*leaked]}" if leaked else "nothing is left at the clouds"
        message = f"{left}, but the end of the run cannot be written to {self.directory.path}: {error.strerror}"
        return CloudError(message, hint=f"when that is mended, again: failover down {self.directory.name}")

    def world(self, wrap: Callable[[Cloud], Cloud] | None = None) -> World:
        """Return the effects of the run. ``wrap`` is given each cloud that is opened."""
        store = open_job_store(self.config, self.environ)
        events = EventLog(self.directory.path / "events.jsonl", also=self._on_event)
        folder = workdir(self.config, Path(self.record.config_path))
        bundle = runtime_file(self.config, Path(self.record.config_path))
        launcher = Launcher(self.record.ref, self.config, self.directory, store, self.environ, folder, bundle)

        def opener(name: str) -> Cloud:
            cloud = open_cloud(
                name,
                job=self.record.ref,
                config=self.config,
                directory=self.directory.path,
                environ=self.environ,
                events=events,
            )
            return cloud if wrap is None else wrap(cloud)

        return World(
            self.record.ref,
            self.config,
            self.directory,
            opener,
            launcher,
            events,
            failures=KnownFailures(state_root(self.environ)),
            take_down=self.take_down,
            take_over=self.options.take_over,
        )

    def _recorded_config(self) -> Config:
        """Read the configuration that this run was started with; a changed file counts from the next run on."""
        original = Path(self.record.config_path)
        return parse(kept_config(self.directory, self.record), str(original), original.parent, self.environ)


def wait_for_end(flow: FlowRun, controller: Controller) -> None:
    """Wait until the flow is over. Raises CloudError if it cannot go on: a full disk, say."""
    while not flow.ended.wait(WAIT_S):
        if not flow.begun.is_set() and flow.is_lost():
            raise controller.unrecorded("its start could not be recorded")


def attend(ask: Callable[[], str] | None, say: Callable[[str], None]) -> Callable[[FlowRun, Controller], None]:
    """Return an attendant that answers Ctrl-C and SIGTERM.

    ``ask()`` returns ``leave``, ``down`` or ``stay``; None (no terminal) means leave. A second Ctrl-C leaves at once.
    """

    def wait(flow: FlowRun, controller: Controller) -> None:
        previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            while True:
                try:
                    wait_for_end(flow, controller)
                    return
                except KeyboardInterrupt:
                    _answer(ask, say, controller)
        finally:
            signal.signal(signal.SIGTERM, previous)

    return wait


def _answer(ask: Callable[[], str] | None, say: Callable[[str], None], controller: Controller) -> None:
    come_back = f"the job goes on; come back with: failover run {controller.record.config_path}"
    if controller.take_down.is_set():
        raise Interrupted(come_back)
    try:
        choice = ask() if ask is not None else "leave"
    except KeyboardInterrupt:
        raise Interrupted(come_back) from None
    if choice == "down":
        say("taking it down; Ctrl-C again leaves at once")
        controller.take_down.set()
    elif choice == "leave":
        raise Interrupted(come_back)


def kept_config(directory: JobDirectory, record: JobRecord) -> bytes:
    """Return the configuration that a run was started with; the file itself where no run kept a copy."""
    copy = directory.path / f"failover.{record.run}.yaml"
    try:
        return (copy if copy.exists() else Path(record.config_path)).read_bytes()
    except OSError as error:
        message = f"{record.config_path}: {error.strerror}"
        raise ConfigError(message, hint="the configuration of this job is gone; write it there again") from error


def reopened_config(directory: JobDirectory, record: JobRecord, environ: Mapping[str, str]) -> Config:
    """Read a run's configuration to look after it: secrets and workdir, which only a start needs, may be missing."""
    original = Path(record.config_path)
    return parse(kept_config(directory, record), str(original), original.parent, environ, for_start=False)


def wish_home(directory: JobDirectory, environ: Mapping[str, str]) -> int | None:
    """Note that the operator wants a job home; return its controller's process, None where none runs.

    Raises ConfigError for a job that this state directory does not know, that has ended, or that has no primary.
    """
    record = directory.record()
    name = directory.path.name
    if record is None:
        message = f"no job {name!r} in {directory.path.parent}"
        raise ConfigError(message, hint="failover status lists the jobs")
    if not record.open:
        message = f"job {name} has ended"
        raise ConfigError(message, hint=f"failover run {record.config_path} starts it, at the primary first")
    if reopened_config(directory, record, environ).primary is None:
        message = f"job {name} has no primary to go home to"
        raise ConfigError(message, hint=f"add one to {record.config_path}; it counts from the next run on")
    (directory.path / WISH).touch(mode=0o600)
    return directory.controller_pid()


def take_down(
    name: str,
    environ: Mapping[str, str],
    *,
    say: Callable[[str], None],
    gently_s: float = 0.0,
    on_event: Callable[[dict[str, object]], None] | None = None,
) -> dict[str, object]:
    """Release a job's machines and remove what was prepared, with or without a running controller. Return the report.

    Before that the machine may save and end by itself, for ``gently_s`` seconds at most. ``on_event`` is told what is
    done and waited for, here or by the controller. Raises ConfigError for a job that this state directory does not
    know, CloudError for a controller that hangs.
    """
    directory = JobDirectory(state_root(environ), name)
    gently = gently_s > 0
    with out_of_the_queue(directory, environ, gently=gently, say=say, patience_s=TAKE_DOWN_S) as was_queued:
        record = directory.record()
        if record is None and was_queued:
            return {"job": name, "result": "taken_down", "leaked": []}  # it was never begun
        if record is None:
            message = f"no job {name!r} in {directory.path.parent}"
            raise ConfigError(message, hint="failover status lists the jobs")
        return _taken_down(directory, record, environ, say=say, gently_s=gently_s, on_event=on_event)


def _taken_down(
    directory: JobDirectory,
    record: JobRecord,
    environ: Mapping[str, str],
    *,
    say: Callable[[str], None],
    gently_s: float,
    on_event: Callable[[dict[str, object]], None] | None,
) -> dict[str, object]:
    name = directory.name
    if gently_s > 0 and record.open:
        store = open_job_store(reopened_config(directory, record, environ), environ)
        ask_to_save(store, gently_s, say=say)
    told = Told(directory)
    try:
        (directory.path / "takedown").touch(mode=0o600)
    except OSError:  # a full disk must not keep a machine whose controller is dead
        if directory.controller_pid() is not None:
            raise
    pid = directory.controller_pid()
    if pid is not None:
        say(f"asking the controller (process {pid}) to take it down")
        until = time.monotonic() + TAKE_DOWN_S
        while directory.controller_pid() is not None:
            if time.monotonic() > until:
                message = f"process {pid} has not taken {name} down within {TAKE_DOWN_S:.0f} s"
                raise CloudError(message, hint=f"kill it, then: failover down {name}")
            time.sleep(WAIT_S)
            with suppress(OSError):  # a run that begins at this moment takes it for an earlier run's
                (directory.path / "takedown").touch(mode=0o600)
            if on_event is not None:
                told.show(on_event)
        report = directory.read_json("report.json")
        if isinstance(report, dict):
            return report  # written at the end of this run: a new run removes an older one
    config = reopened_config(directory, record, environ)
    controller = Controller(Path(record.config_path), config=config, environ=environ, on_event=on_event)
    return controller.finish(record)
