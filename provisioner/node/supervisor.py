"""One placement from its start to its end: take the epoch, restore, train, commit, and say how it ended."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from signal import Signals
from typing import Any, TypeVar

from provisioner.checkpoint import epochs, workdir
from provisioner.checkpoint.copying import Copied
from provisioner.checkpoint.restore import Restored, restore
from provisioner.checkpoint.save import Commit, Saver
from provisioner.errors import (
    Abandoned,
    CloudError,
    CorruptCheckpoint,
    DiskFull,
    ExitCode,
    Fenced,
    JobFailed,
    Unreachable,
)
from provisioner.node import child as processes
from provisioner.node import ending, environment, machine, rooms
from provisioner.node import heartbeat as heartbeats
from provisioner.node.bootstrap import Bootstrap
from provisioner.node.fencing import Eviction
from provisioner.node.following import Follower
from provisioner.node.heartbeat import Heartbeat
from provisioner.node.keeping import Keeping
from provisioner.node.logs import Log
from provisioner.node.mailbox import Mailbox, Stop
from provisioner.node.notices import signals
from provisioner.node.notices.gpu import family
from provisioner.node.notices.hints import Hints
from provisioner.node.notices.watching import Lookout, sources
from provisioner.node.patience import patiently
from provisioner.node.progress import Progress
from provisioner.node.stores import Stores
from provisioner.node.verdict import Ended, Result, Verdict, is_surely_done, judge, may_have_been_stopped
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
        clock: Callable[[], float] = time.time,
        leave: Callable[[int], object] = lambda _code: None,
    ) -> None:
        """Open nothing but the event log's path. ``echo`` gets the node's own lines; ``clock`` gives Unix seconds.

        ``leave`` ends this process at once with an exit code: what hangs must not keep a fenced node.
        """
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
        self.mail = Mailbox()
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
            note=self._note,
            grace_s=signals.grace_s(environ),
            clock=clock,
        )
        self._distrust: set[str] = set()
        self._gpus = machine.Gpus()
        self._phase = "restoring"
        self._keeping: Keeping | None = None
        self._child: processes.Child | None = None
        self._restored: Restored | None = None
        self._ttl_end = environment.end_of_life(boot, environ, clock())
        self._oom_kills = machine.oom_kills()
        self._disk_told = False

    def on_signal(self, number: int) -> None:
        """Ask for a last checkpoint and the end, within what the signal leaves."""
        known = Signals(number)
        self.mail.stop(f"signal {known.name}", signals.seconds_left(known, self._environ, self._clock()))

    def run(self) -> ExitCode:
        """Run to the end and return the exit code of the node."""
        return self._to_the_end(self._run)

    def give_up(self, reason: str) -> ExitCode:
        """Take the epoch only to say why this machine cannot run the job; return the exit code of the node."""

        def say_why() -> ExitCode:
            self._own()
            return self._finish(Verdict(Result.STOPPED, reason))

        return self._to_the_end(say_why)

    def _to_the_end(self, call: Callable[[], ExitCode]) -> ExitCode:
        try:
            try:
                return call()
            except Abandoned:
                stop = self.mail.first_stop()
                return self._finish(Verdict(Result.STOPPED, stop.reason if stop else "told to stop"))
            except JobFailed as failed:
                return self._finish(Verdict(Result.FAILED, str(failed)))
            except DiskFull as full:
                return self._finish(Verdict(Result.STOPPED, f"disk full: {full}"))
            except Unreachable as away:
                return self._finish(Verdict(Result.STOPPED, str(away)))
            except OSError as error:
                return self._finish(Verdict(Result.STOPPED, self._disk_line(error)))
            except Fenced:
                raise
            except CloudError as refused:
                return self._finish(Verdict(Result.STOPPED, str(refused)), exit_code=refused.exit_code)
        except Fenced as fenced:
            self._note("fenced", str(fenced))
            self.heartbeat.stop()  # the store belongs to another node now
            self.log.stop()
            self._evict.over()
            return ExitCode.COME_AGAIN
        except Exception as error:  # our own fault: the controller must hear of it, and the traceback must show
            self._note("broken", f"the node itself failed: {type(error).__name__}")
            end = {"reason": f"the node itself failed: {type(error).__name__}", "exit_code": int(ExitCode.OUR_FAULT)}
            self.log.finish(5.0)
            self.heartbeat.finish(end, 10.0)
            raise

    def _run(self) -> ExitCode:
        if processes.kill_orphan(self.rooms.child):
            self._note("orphan", "killed the command that an earlier node process left running")
        self._own()
        before = self._patiently(lambda: ending.read(self._store))
        if before is not None and before.epoch == self.boot.epoch:
            self._note("done", "this placement has ended before; nothing to do")
            return ExitCode.DONE if before.result == Result.DONE else ExitCode.JOB_FAILED
        if isinstance(first := self.heartbeat.before.get("first_step_at"), int | float):
            self.progress.first_step_at = float(first)  # the node was restarted, its placement was not
        self._lookout.start()
        self._bring_in()
        return self._train()

    def _own(self) -> None:
        hint = self._patiently(lambda: epochs.take(self._store, self.boot.epoch, self.boot.token, socket.gethostname()))
        self._note("owner", f"epoch {self.boot.epoch} of {self.boot.job.name} is ours" + (f"; {hint}" if hint else ""))
        self.log.start()
        self.heartbeat.start()

    def _bring_in(self) -> None:
        """Unpack the working directory and restore the newest valid checkpoint."""
        if self.boot.workdir_key is not None:
            key = self.boot.workdir_key
            try:
                self._patiently(lambda: workdir.unpack(self._store, key, self.rooms.work, report=self._say))
            except CorruptCheckpoint as error:
                raise JobFailed(f"the working directory cannot be used: {error}") from error
        try:
            self._restored = self._patiently(self._restore)
        except DiskFull as full:
            self._note("disk", f"{full}; removing what earlier runs left here")
            self.rooms.forget_earlier(keep_last=False)
            self._restored = self._patiently(self._restore)
        if self._restored is None:
            self._note("restored", "no checkpoint of this job in the store: training starts from nothing", step=None)
            return
        found = self._restored
        self.progress.restored_step = found.position.step
        self._note(
            "restored",
            f"restored step {found.position.step} of epoch {found.position.epoch} "
            f"({found.total_bytes / 2**20:.1f} MiB in {found.seconds:.1f} s, {found.fetched_bytes / 2**20:.1f} MiB of "
            f"it fetched from {self._stores.name_of(found.store_uri)})",
            step=found.position.step,
            key=found.key,
            uri=self._stores.name_of(found.store_uri),
            fetched_bytes=found.fetched_bytes,
        )

    def _restore(self) -> Restored | None:
        return restore(
            self._store,
            self.boot.job,
            self.rooms.restored,
            replicas=self._stores.nearest_first(self._store, self._say),
            seeds=self.rooms.seeds(),
            report=self._say,
            cancel=self.mail.cancel,
            distrust=self._distrust,
        )

    def _train(self) -> ExitCode:
        if self.mail.cancel.is_set():
            raise Abandoned("told to stop before the command was started")
        keeping = self._keeping = Keeping(
            self.rooms.checkpoints,
            Saver(
                self._store,
                self.boot.job,
                self.boot.epoch,
                fence=lambda: epochs.check(self._store, self.boot.epoch, self.boot.token),
                clock=self._clock,
                distrust=frozenset(self._distrust),
            ),
            self._stores,
            restored=self._restored,
            bytes_before=heartbeats.replica_bytes(self.heartbeat.before),
            on_commit=self._on_commit,
            on_copied=self._on_copied,
            on_fenced=self._evict,
            report=self._say,
        )
        keeping.start()
        self._phase = "training"
        child = self._child = processes.start(
            self.boot.command,
            cwd=self.rooms.work,
            env=environment.of_child(self.boot, self.rooms, self._restored, self._environ),
            record=self.rooms.child,
            take=self._on_line,
            on_end=self.mail.wake,
        )
        self._note("started", f"the command runs (process {child.pid})", pid=child.pid)
        self.heartbeat.hurry()
        follower = Follower(
            child,
            self.mail,
            tick=self._tick,
            own_stop=self._ttl,
            upload_s=lambda: keeping.last.seconds if keeping.last else 0.0,
            on_stop=self._on_stop,
            on_kill=lambda: self._note("killed", "the command did not end in time after SIGTERM; SIGKILL"),
        )
        try:
            stop = follower.until_end()
        except BaseException:
            keeping.abandon()
            child.kill()
            child.clean_up()
            raise
        return self._after(follower, keeping, stop)

    def _tick(self) -> None:
        if self.progress.poll():
            self.heartbeat.hurry()
        if not self._disk_told and (line := machine.full_disk(self.rooms.run, machine.LOW_DISK_BYTES)):
            self._disk_told = True
            self._note("disk", f"{line}; the next checkpoint may not fit")

    def _on_stop(self, stop: Stop) -> None:
        self._phase = "stopping"
        if self._keeping is not None:
            self._keeping.hush()
        self._note("stopping", f"{stop.reason}: asking the command for a last checkpoint, {stop.left():.0f} s are left")
        self.heartbeat.hurry()

    def _after(self, follower: Follower, keeping: Keeping, stop: Stop | None) -> ExitCode:
        code = follower.child.poll() or 0
        follower.child.clean_up()
        self.progress.poll()
        if stop is None and not is_surely_done(self._ended(code, stop)):
            self._lookout.look()  # a lost card, for example, ends the command before it is seen
            stop = follower.late_stop() if may_have_been_stopped(code) else self.mail.first_stop()
        self._phase = "saving"
        left = (stop.left() if stop else self._end_patience()) - 1.0
        whole = keeping.finish(max(1.0, left))
        self.mail.first_stop()  # raises Fenced when the last commit met a newer epoch
        for uri in keeping.finish_copies(stop.left() if stop else None):
            self._note("uncopied", f"{uri} is left behind: the last checkpoint is not copied there")
        self.mail.first_stop()
        verdict = judge(self._ended(code, stop))
        if not whole:
            self._note("uncommitted", "the last checkpoint did not reach the store; an older one will be restored")
            if verdict.result is Result.DONE and keeping.unreadable():
                return self._finish(Verdict(Result.FAILED, "its last checkpoint cannot be read"))
            if verdict.result is Result.DONE:
                verdict = Verdict(Result.STOPPED, "the last checkpoint could not be committed")
        final, last = self.progress.furthest(), keeping.last
        if verdict.result is Result.DONE and final is not None and (last is None or last.position.step < final):
            self._note("unsaved", f"the command ended at step {final} without a checkpoint of it")
        return self._finish(verdict, code=code)

    def _ended(self, code: int, stop: Stop | None) -> Ended:
        last = self._keeping.last if self._keeping else None
        restored = self.progress.restored_step
        return Ended(
            code=code,
            stop_reason=stop.reason if stop else "",
            step=self.progress.furthest(),
            steps=self.boot.steps,
            done_file=self.rooms.done_file.exists(),
            moved_on=last is not None and (restored is None or last.position.step > restored),
            out_of_memory=machine.oom_kills() > self._oom_kills,
            disk_full=machine.full_disk(self.rooms.run),
        )

    def _finish(self, verdict: Verdict, *, code: int | None = None, exit_code: ExitCode | None = None) -> ExitCode:
        """Say how it ended, in this order: the log, ``done.json``, the last heartbeat."""
        exit_code = verdict.exit_code if exit_code is None else exit_code
        line = f"{verdict.result}: {verdict.reason}" if verdict.reason else str(verdict.result)
        self._note("ended", line, result=verdict.result, exit_code=int(exit_code), code=code)
        self.log.finish(5.0)
        if verdict.result is not Result.STOPPED:
            try:
                self._patiently(lambda: self._write_done(verdict, code), self._end_patience())
            except Fenced:
                raise
            except CloudError as error:
                self._note("ended", f"done.json cannot be written: {error}")
                exit_code = ExitCode.COME_AGAIN
        self._phase = "ended"
        self.heartbeat.finish({"reason": verdict.reason or str(verdict.result), "exit_code": int(exit_code)}, 10.0)
        return exit_code

    def _write_done(self, verdict: Verdict, code: int | None) -> None:
        epochs.check(self._store, self.boot.epoch, self.boot.token)
        if verdict.result is Result.FAILED:
            self.log.keep_last_lines()
        ending.write(
            self._store,
            ending.Done(
                epoch=self.boot.epoch,
                exit_code=int(ExitCode.JOB_FAILED if code is None else code),
                final_step=self.progress.furthest(),
                time=round(self._clock(), 3),
                result=str(verdict.result),
                reason=verdict.reason,
            ),
        )

    def _sample(self) -> dict[str, Any]:
        keeping, restored = self._keeping, self._restored
        last = keeping.last if keeping else None
        saving = self._phase == "training" and keeping is not None and keeping.busy
        return {
            "phase": "saving" if saving else self._phase,
            "step": self.progress.step(),
            "restored_step": self.progress.restored_step,
            "first_step_at": self.progress.first_step_at,
            "last_commit": {"step": last.position.step, "key": last.key, "time": last.time} if last else None,
            "restored_from": {"uri": self._stores.name_of(restored.store_uri), "bytes": restored.fetched_bytes}
            if restored
            else None,
            "replicas": keeping.replicas() if keeping else [],
            "gpus": self._gpus.latest(),
            "disk": machine.disk(self.rooms.run),
        }

    def _on_line(self, line: bytes) -> None:
        self.log.line(line)
        if self.progress.on_line(line):
            self.heartbeat.hurry()

    def _on_commit(self, commit: Commit) -> None:
        self.progress.on_commit(commit.position.step)
        self._note(
            "committed",
            f"step {commit.position.step} is committed ({commit.total_bytes / 2**20:.1f} MiB, "
            f"{commit.uploaded_bytes / 2**20:.1f} MiB new, {commit.seconds:.1f} s)",
            step=commit.position.step,
            key=commit.key,
            bytes=commit.total_bytes,
            new_bytes=commit.uploaded_bytes,
            seconds=round(commit.seconds, 3),
        )
        self.heartbeat.hurry()

    def _on_copied(self, uri: str, copied: Copied) -> None:
        step = copied.position.step
        self._note(
            "copied",
            f"step {step} is copied to {uri} ({copied.bytes / 2**20:.1f} MiB sent, {copied.seconds:.1f} s)",
            step=step,
            uri=uri,
            bytes=copied.bytes,
            seconds=round(copied.seconds, 3),
        )
        self.heartbeat.hurry()

    def _on_fenced(self, fenced: Fenced) -> None:
        self.mail.fenced(fenced)
        if self._keeping is not None:
            self._keeping.abandon()

    def _leave_at_once(self) -> None:
        """Something hangs. The command must not train on, and this process must not write on."""
        if self._child is not None:
            self._child.strike()
        self._leave(int(ExitCode.COME_AGAIN))

    def _fence(self) -> None:
        """Look at the fence, and at what the controller may have left beside it."""
        epochs.check(self._once, self.boot.epoch, self.boot.token)
        self._lookout.ask(self._hints)

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

    def _disk_line(self, error: OSError) -> str:
        full = machine.full_disk(self.root, machine.LOW_DISK_BYTES) if error.errno == errno.ENOSPC else ""
        return (
            f"disk full: {full or self.root}" if error.errno == errno.ENOSPC else f"{error.filename}: {error.strerror}"
        )

    def _patiently(self, call: Callable[[], T], seconds: float | None = None) -> T:
        """Ask the store with patience. At the start (no ``seconds``) a request to stop ends it."""
        by_role = self.boot.credentials is None
        if seconds is not None:
            return patiently(call, seconds=seconds, cancel=None, by_role=by_role)
        return patiently(call, seconds=START_PATIENCE_S, cancel=self.mail.cancel, by_role=by_role)

    def _say(self, line: str) -> None:
        self._note("line", line)

    def _note(self, kind: str, line: str, **fields: Any) -> None:
        self.events.emit(kind, line=line, **fields)
        self.log.say(line)
