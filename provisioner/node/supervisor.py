"""One placement from its start to its end: take the epoch, restore, train, commit, and say how it ended."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from signal import Signals
from typing import Any, TypeVar

from provisioner.checkpoint import epochs, layout
from provisioner.checkpoint.restore import Restored
from provisioner.clock import now as unix_now
from provisioner.errors import (
    Abandoned,
    CloudError,
    DiskFull,
    ExitCode,
    Fenced,
    JobFailed,
    Unreachable,
)
from provisioner.node import child as processes
from provisioner.node import driver, efficiency, ending, environment, machine, rooms
from provisioner.node.advice import Advice
from provisioner.node.arrival import Arrival
from provisioner.node.bootstrap import Bootstrap
from provisioner.node.card_memory import family
from provisioner.node.data import Data
from provisioner.node.farewell import Farewell
from provisioner.node.fencing import Eviction
from provisioner.node.heartbeat import Heartbeat
from provisioner.node.logs import Log
from provisioner.node.mailbox import Mailbox, Stop
from provisioner.node.notices import signals
from provisioner.node.notices.ec2 import REBALANCE
from provisioner.node.notices.hints import Hints
from provisioner.node.notices.watching import Lookout, sources
from provisioner.node.patience import patiently
from provisioner.node.progress import Progress
from provisioner.node.standby import StandBy, try_out, wait_for_call
from provisioner.node.stores import Stores
from provisioner.node.toolkit import lay_out
from provisioner.node.training import Bench, Training
from provisioner.node.verdict import (
    MEMORY,
    Cause,
    Result,
    Verdict,
)
from provisioner.telemetry.events import EventLog, Redactor

T = TypeVar("T")

START_PATIENCE_S = 300.0
"""How long a store that does not answer is asked before the training has started, in seconds."""
END_PATIENCE_S = 600.0
"""How long the last commit and ``done.json`` are tried after the command has ended by itself, in seconds."""


class Supervisor:
    """Runs one placement. ``on_signal`` may be called from a signal handler."""

    def __init__(
        self,
        boot: Bootstrap,
        root: Path,
        *,
        environ: Mapping[str, str] = os.environ,
        echo: Callable[[str], object] = lambda _line: None,
        clock: Callable[[], float] = unix_now,
        leave: Callable[[int], object] = lambda _code: None,
        before: Supervisor | None = None,
    ) -> None:
        """Open nothing but the event log's path. ``echo`` gets the node's own lines; ``clock`` gives Unix seconds.

        ``leave`` ends this process at once with an exit code: what hangs must not keep a fenced node. ``before`` had
        this placement until now: it ran out of memory, or stood by.
        """
        self.retries: int = before.next_retries if before else 0
        """How often the command ran out of memory here."""
        self.next_retries: int = self.retries
        self.next: Bootstrap | None = None
        """Set by ``run`` when another supervisor is to go on with the placement on this machine, and with what."""
        self.boot = boot
        self.root = root
        self._environ = environ
        self._clock = clock
        self._stores = Stores(boot, environ)
        self._store = self._stores.own(timeout_s=120, retry_s=60)
        quick = self._stores.own(timeout_s=8, retry_s=8)
        once = self._stores.own(timeout_s=8, retry_s=0)  # a heartbeat that takes longer is superseded anyway
        redact = Redactor(boot.secrets)
        self.events = EventLog(root / "events.jsonl", redact=redact, clock=clock)
        self.log = Log(root / "log.txt", quick, boot.epoch, redact=redact, echo=echo)
        self.mail: Mailbox = before.mail if before else Mailbox()
        self.rooms = rooms.prepare(root, boot.epoch)
        self.progress = Progress(self.rooms.status_file, clock=clock)
        self._leave = leave
        self._evict = Eviction(self._on_fenced, self._leave_at_once)
        self.heartbeat = Heartbeat(
            once,
            boot.epoch,
            every_s=boot.heartbeat_s,
            sample=self._sample,
            fence=self._fence,
            on_fenced=self._evict,
            clock=clock,
        )
        self._once = once
        self._hints = Hints(once, boot.epoch, every_s=boot.heartbeat_s)
        self._lookout = Lookout(
            sources(boot.cloud, environ, self._own_processes),
            stop=self.mail.stop,
            note=self._hear,
            grace_s=signals.grace_s(environ),
            clock=clock,
        )
        self._arrival = Arrival(
            self._store, self._stores, self.rooms, patiently=self._patiently, note=self._note, cancel=self.mail.cancel
        )
        self._data = Data(
            self._store,
            boot.data,
            Path(environ.get("FAILOVER_HOME") or root) / "data",
            root,
            patiently=self._patiently,
            note=self._note,
            cancel=self.mail.cancel,
        )
        self._farewell = Farewell(
            boot,
            self._store,
            self.log,
            self.heartbeat,
            patience_s=self._end_patience,
            note=self._note,
            clock=clock,
        )
        self._advice = Advice(self.rooms.advice_file, every_s=boot.every_s, pool=boot.pool)
        self._gpus = machine.Gpus()
        self._bench = Bench(
            boot=boot,
            store=self._store,
            stores=self._stores,
            rooms=self.rooms,
            progress=self.progress,
            mail=self.mail,
            log=self.log,
            heartbeat=self.heartbeat,
            advice=self._advice,
            gpus=self._gpus,
            note=self._note,
            evict=self._evict,
            environ=environ,
            clock=clock,
        )
        self._phase = "restoring"
        self._training: Training | None = None
        self._child: processes.Child | None = None
        self._restored: Restored | None = None
        self._ttl_end = environment.end_of_life(boot, environ, clock())

    def on_signal(self, number: int) -> None:
        """Ask for a last checkpoint and the end, within what the signal leaves."""
        known = Signals(number)
        self.mail.stop(f"signal {known.name}", signals.seconds_left(known, self._environ, self._clock()))

    def run(self) -> ExitCode:
        """Run to the end and return the exit code of the node."""
        return self._to_the_end(self._run)

    def give_up(self, reason: str, cause: Cause) -> ExitCode:
        """Take the epoch only to say why this machine cannot run the job; return the exit code of the node."""

        def say_why() -> ExitCode:
            self._own()
            return self._finish(Verdict(Result.STOPPED, reason, cause))

        return self._to_the_end(say_why)

    def _to_the_end(self, call: Callable[[], ExitCode]) -> ExitCode:
        try:
            try:
                return call()
            except Abandoned:
                stop = self.mail.first_stop() or Stop("told to stop", 0.0)
                return self._finish(Verdict(Result.STOPPED, stop.reason, stop.cause))
            except JobFailed as failed:
                return self._finish(Verdict(Result.FAILED, str(failed), Cause.USER_ERROR))
            except DiskFull as full:
                return self._finish(Verdict(Result.STOPPED, f"disk full: {full}", Cause.DISK_FULL))
            except Unreachable as away:
                return self._finish(Verdict(Result.STOPPED, str(away), Cause.STORE))
            except OSError as error:
                return self._finish(self._of_the_disk(error))
            except Fenced:
                raise
            except CloudError as refused:
                return self._finish(Verdict(Result.STOPPED, str(refused), Cause.STORE), exit_code=refused.exit_code)
        except Fenced as fenced:
            self._note("fenced", str(fenced))
            self.heartbeat.stop()  # the store belongs to another node now
            self.log.stop()
            self._evict.over()
            return ExitCode.COME_AGAIN
        except Exception as error:  # our own fault: the controller must hear of it, and the traceback must show
            self._farewell.broken(f"the node itself failed: {type(error).__name__}")
            raise

    def _run(self) -> ExitCode:
        if processes.kill_orphan(self.rooms.child):
            self._note("orphan", "killed the command that an earlier node process left running")
        if self.boot.standby is not None and not self._was_called():
            return self._stand_by(self.boot.standby)
        self._own()
        before = self._patiently(lambda: ending.read(self._store))
        if before is not None and before.epoch == self.boot.epoch:
            self._note("done", "this placement has ended before; nothing to do")
            return ExitCode.DONE if before.result == Result.DONE else ExitCode.JOB_FAILED
        if line := driver.mismatch(self._environ):
            return self._finish(Verdict(Result.STOPPED, line, Cause.OLD_DRIVER))
        if isinstance(first := self.heartbeat.before.get("first_step_at"), int | float):
            self.progress.first_step_at = float(first)  # the node was restarted, its placement was not
        self._lookout.start()
        self._data.start()
        self._restored = self._arrival.bring_in()
        self.progress.restored_step = self._restored.position.step if self._restored else None
        return self._train()

    def _stand_by(self, standby: StandBy) -> ExitCode:
        """Get ready beside the machine that trains; once called, leave the placement to the next supervisor."""
        self.log.start()
        self.heartbeat.start()
        self._lookout.start()
        self._data.start()
        self._restored = self._arrival.bring_in()
        self._phase = "trial"
        progress = Progress(self.rooms.status_file, clock=self._clock)
        progress.restored_step = self._restored.position.step if self._restored else None
        self._note("trial", "trying the command out beside the machine that trains; nothing of it is kept")
        child = self._child = self._start(take=lambda line: self._on_trial_line(line, progress), trial=True)
        problem = try_out(child, progress, self.mail, standby.trial_s)
        if (stop := self.mail.first_stop()) is not None:
            return self._finish(Verdict(Result.STOPPED, stop.reason, stop.cause))
        if problem and machine.tells_of_gpu_memory(self.log.last) and self.retries < self.boot.oom_retries:
            return self._with_less(Verdict(Result.STOPPED, problem, Cause.GPU_OUT_OF_MEMORY))
        if problem:
            return self._finish(Verdict(Result.STOPPED, f"the trial failed: {problem}", Cause.MACHINE))
        self._phase = "standby"
        self._note("standby", "ready: the command runs here; waiting for the call")
        self.heartbeat.hurry()
        stop = wait_for_call(self._store, self.boot.epoch, standby, self.mail)
        if stop is not None:
            return self._finish(Verdict(Result.STOPPED, stop.reason, stop.cause))
        self._note("called", "called: taking over")
        return self._leave_to_next(replace(self.boot, standby=None), self.retries)

    def _was_called(self) -> bool:
        """Say whether an earlier process of this placement was called, and has taken the epoch."""
        return self._patiently(lambda: self._store.exists(layout.owner(self.boot.epoch)))

    def _own(self) -> None:
        hint = self._patiently(lambda: epochs.take(self._store, self.boot.epoch, self.boot.token, socket.gethostname()))
        self._note("owner", f"epoch {self.boot.epoch} of {self.boot.job.name} is ours" + (f"; {hint}" if hint else ""))
        self.log.start()
        self.heartbeat.start()

    def _train(self) -> ExitCode:
        self._data.wait()
        if self.mail.cancel.is_set():
            raise Abandoned("told to stop before the command was started")
        self._phase = "training"
        training = self._training = Training(
            self._bench,
            self._restored,
            self._arrival.distrust,
            ttl_stop=self._ttl,
            look=self._lookout.look,
            notice_s=self._lookout.notice_s,
            patience_s=self._end_patience,
        )
        try:
            child = self._child = self._start(take=training.on_line)
        except BaseException:
            training.keeping.abandon()
            raise
        verdict, code = training.until_end(child)
        if verdict.cause in MEMORY and self.retries < self.boot.oom_retries:
            if (stop := self.mail.first_stop()) is None:
                return self._with_less(verdict)
            verdict = Verdict(Result.STOPPED, stop.reason, stop.cause)  # it came with the last commit
        return self._finish(verdict, code=code)

    def _start(self, *, take: Callable[[bytes], None], trial: bool = False) -> processes.Child:
        scale = 0.5**self.retries
        return processes.start(
            self.boot.command,
            cwd=self.rooms.work,
            env=environment.of_child(
                self.boot,
                self.rooms,
                self._restored,
                self._environ,
                data=self._data.wait(),
                batch_scale=scale,
                trial=trial,
                toolkit=lay_out(self.rooms.python),
            ),
            record=self.rooms.child,
            take=take,
            on_end=self.mail.wake,
        )

    def _on_trial_line(self, line: bytes, progress: Progress) -> None:
        self.log.line(line)
        progress.on_line(line)

    def _with_less(self, verdict: Verdict) -> ExitCode:
        """Leave the placement open: another supervisor starts the command again, with half the batch."""
        scale = 0.5 ** (self.retries + 1)
        self._note("smaller", f"{verdict.reason}. Starting it again with FAILOVER_BATCH_SCALE={scale:g}", scale=scale)
        self._leave_to_next(self.boot, self.retries + 1)
        return verdict.exit_code

    def _leave_to_next(self, boot: Bootstrap, retries: int) -> ExitCode:
        """End this supervisor without a last word: the placement goes on."""
        self._lookout.close()
        self._data.close()
        self.log.finish(5.0)
        self.heartbeat.stop()
        self.next, self.next_retries = boot, retries
        return ExitCode.COME_AGAIN

    def _finish(self, verdict: Verdict, *, code: int | None = None, exit_code: ExitCode | None = None) -> ExitCode:
        self._phase = "ended"
        return self._farewell.say(verdict, self.progress.furthest(), code=code, exit_code=exit_code)

    def _sample(self) -> dict[str, Any]:
        training, restored = self._training, self._restored
        keeping = training.keeping if training else None
        last = keeping.last if keeping else None
        phase = training.phase if training and self._phase == "training" else self._phase
        saving = phase == "training" and keeping is not None and keeping.busy
        return {
            "phase": "saving" if saving else phase,
            "batch_scale": 0.5**self.retries,
            "save_every_s": round(self._advice.every_s, 1),
            "step": self.progress.step(),
            "restored_step": self.progress.restored_step,
            "restore": self._arrival.progress,
            "data": self._data.progress(),
            "first_step_at": self.progress.first_step_at,
            "last_commit": {
                "step": last.position.step,
                "key": last.key,
                "time": last.time,
                "seconds": round(last.seconds, 1),
            }
            if last
            else None,
            "restored_from": {"uri": self._stores.name_of(restored.store_uri), "bytes": restored.fetched_bytes}
            if restored
            else None,
            "replicas": keeping.replicas() if keeping else [],
            "gpus": self._gpus.latest(),
            "efficiency": efficiency.read(self.rooms.efficiency_file),
            "disk": machine.disk(self.rooms.run),
        }

    def _on_fenced(self, fenced: Fenced) -> None:
        self.mail.fenced(fenced)
        if self._training is not None:
            self._training.keeping.abandon()

    def _leave_at_once(self) -> None:
        """Something hangs. The command must not train on, and this process must not write on."""
        if self._child is not None:
            self._child.strike()
        self._leave(int(ExitCode.COME_AGAIN))

    def _fence(self) -> None:
        """Look at the fence, and at what the controller may have left beside it."""
        epochs.check(self._once, self.boot.epoch, self.boot.token)
        self._lookout.ask(self._hints)

    def _hear(self, kind: str, line: str, **fields: Any) -> None:
        """Take what a source of notices says."""
        if fields.get("notice") == REBALANCE:
            self._advice.warned()
        self._note(kind, line, **fields)

    def _own_processes(self) -> set[int]:
        return family(self._child.pid) if self._child is not None else set()

    def _ttl(self) -> Stop | None:
        if self._ttl_end is None:
            return None
        left = self._ttl_end - self._clock()
        reserve = min(120.0, 0.1 * (self.boot.ttl_s or 1200.0))
        return Stop("the machine's time is up (ttl)", time.monotonic() + max(1.0, left)) if left < reserve else None

    def _end_patience(self) -> float:
        left = float("inf") if self._ttl_end is None else self._ttl_end - self._clock()
        return max(5.0, min(END_PATIENCE_S, left))

    def _of_the_disk(self, error: OSError) -> Verdict:
        if error.errno == errno.ENOSPC:
            full = machine.full_disk(self.root, machine.LOW_DISK_BYTES) or self.root
            return Verdict(Result.STOPPED, f"disk full: {full}", Cause.DISK_FULL)
        return Verdict(Result.STOPPED, f"{error.filename}: {error.strerror}", Cause.MACHINE)

    def _patiently(self, call: Callable[[], T]) -> T:
        """Ask the store with patience, until the training has started. A request to stop ends it."""
        return patiently(call, seconds=START_PATIENCE_S, cancel=self.mail.cancel, by_role=self.boot.credentials is None)

    def _say(self, line: str) -> None:
        self._note("line", line)

    def _note(self, kind: str, line: str, **fields: Any) -> None:
        self.events.emit(kind, line=line, **fields)
        self.log.say(line)
