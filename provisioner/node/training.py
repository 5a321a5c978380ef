"""One run of the command: followed to its end, its checkpoints kept, and its end judged."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from provisioner.checkpoint import epochs
from provisioner.checkpoint.copying import Copied
from provisioner.checkpoint.restore import Restored
from provisioner.checkpoint.save import Commit, Saver
from provisioner.checkpoint.store import Store
from provisioner.errors import Fenced
from provisioner.node import heartbeat as heartbeats
from provisioner.node import machine, pace
from provisioner.node.advice import Advice
from provisioner.node.bootstrap import Bootstrap
from provisioner.node.card_memory import family
from provisioner.node.child import Child
from provisioner.node.following import Follower
from provisioner.node.heartbeat import Heartbeat
from provisioner.node.keeping import Keeping
from provisioner.node.logs import Log
from provisioner.node.mailbox import Mailbox, Stop
from provisioner.node.notices import signals
from provisioner.node.progress import Progress
from provisioner.node.rooms import Rooms
from provisioner.node.stalling import Stalling, cpu_seconds, waiting_for
from provisioner.node.stores import Stores
from provisioner.node.verdict import Cause, Ended, Result, Verdict, is_surely_done, judge, may_have_been_stopped


@dataclass(frozen=True, slots=True)
class Bench:
    """What the parts of a placement share. ``note`` takes a kind of event, a line for the log, and fields."""

    boot: Bootstrap
    store: Store
    stores: Stores
    rooms: Rooms
    progress: Progress
    mail: Mailbox
    log: Log
    heartbeat: Heartbeat
    advice: Advice
    gpus: machine.Gpus
    note: Callable[..., None]
    evict: Callable[[Fenced], None]
    environ: Mapping[str, str]
    clock: Callable[[], float]

    def say(self, line: str) -> None:
        """Write one line of the node's own."""
        self.note("line", line)


class Training:
    """``phase`` is ``training``, ``stopping`` or ``saving``. ``ttl_stop`` gives a stop when this machine's time is up.

    ``look`` asks every source of notices once; ``notice_s`` tells how long this machine's notice is, if that is known;
    ``patience_s`` tells how long a last commit may take when nobody is in a hurry, in seconds.
    """

    def __init__(
        self,
        bench: Bench,
        restored: Restored | None,
        distrust: Collection[str],
        *,
        ttl_stop: Callable[[], Stop | None],
        look: Callable[[], None],
        notice_s: Callable[[], float | None],
        patience_s: Callable[[], float],
    ) -> None:
        """Begin to keep checkpoints; the command is not started yet."""
        self.phase = "training"
        self._bench = bench
        self._ttl_stop = ttl_stop
        self._look = look
        self._notice_s = notice_s
        self._patience_s = patience_s
        self._child: Child | None = None
        self._oom_kills = machine.oom_kills()
        self._disk_told = self._slow_told = False
        self._stalling = Stalling(
            bench.boot.hung_after_s, cpu_s=lambda: cpu_seconds(self.processes()), gpu_busy=bench.gpus.are_busy
        )
        boot = bench.boot
        saver = Saver(
            bench.store,
            boot.job,
            boot.epoch,
            fence=lambda: epochs.check(bench.store, boot.epoch, boot.token),
            clock=bench.clock,
            distrust=frozenset(distrust),
        )
        self.keeping = Keeping(
            bench.rooms.checkpoints,
            saver,
            bench.stores,
            restored=restored,
            bytes_before=heartbeats.replica_bytes(bench.heartbeat.before),
            on_commit=self._on_commit,
            on_copied=self._on_copied,
            on_fenced=bench.evict,
            report=bench.say,
        )
        self.keeping.start()

    def on_line(self, line: bytes) -> None:
        """Take one line of the command's output."""
        self._bench.log.line(line)
        if self._bench.progress.on_line(line):
            self._bench.heartbeat.hurry()

    def processes(self) -> set[int]:
        """Return the living processes of the command."""
        return family(self._child.pid) if self._child is not None else set()

    def until_end(self, child: Child) -> tuple[Verdict, int | None]:
        """Follow the command and return what its end means, with its exit code, if that is known. Raises Fenced."""
        bench, keeping = self._bench, self.keeping
        self._child = child
        bench.note("started", f"the command runs (process {child.pid})", pid=child.pid)
        bench.heartbeat.hurry()
        name = bench.boot.stop_signal.name if bench.boot.stop_signal else "the advice"
        follower = Follower(
            child,
            bench.mail,
            tick=self._tick,
            own_stop=self._own_stop,
            upload_s=lambda: keeping.last.seconds if keeping.last else 0.0,
            on_stop=self._on_stop,
            on_kill=lambda: bench.note("killed", f"the command did not end in time after {name}; SIGKILL"),
            stop_signal=bench.boot.stop_signal,
        )
        try:
            stop = follower.until_end()
        except BaseException:
            keeping.abandon()
            child.kill()
            child.clean_up()
            raise
        return self._after(follower, stop)

    def _after(self, follower: Follower, stop: Stop | None) -> tuple[Verdict, int | None]:
        bench, keeping = self._bench, self.keeping
        code = follower.child.poll() or 0
        follower.child.clean_up()
        bench.progress.poll()
        if stop is None and not is_surely_done(self._ended(code, stop)):
            self._look()  # a lost card, for example, ends the command before it is seen
            stop = follower.late_stop() if may_have_been_stopped(code) else bench.mail.first_stop()
        self.phase = "saving"
        left = (stop.left() if stop else self._patience_s()) - 1.0
        whole = keeping.finish(max(1.0, left))
        bench.mail.check()  # the last commit may have met a newer epoch
        for uri in keeping.finish_copies(stop.left() if stop else None):
            bench.note("uncopied", f"{uri} is left behind: the last checkpoint is not copied there")
        bench.mail.check()
        verdict = judge(self._ended(code, stop))
        if not whole:
            bench.note("uncommitted", "the last checkpoint did not reach the store; an older one will be restored")
            if verdict.result is Result.DONE and keeping.unreadable():
                return Verdict(Result.FAILED, "its last checkpoint cannot be read", Cause.USER_ERROR), None
            if verdict.result is Result.DONE:
                verdict = Verdict(Result.STOPPED, "the last checkpoint could not be committed", Cause.STORE)
        final, last = bench.progress.furthest(), keeping.last
        if verdict.result is Result.DONE and final is not None and (last is None or last.position.step < final):
            bench.note("unsaved", f"the command ended at step {final} without a checkpoint of it")
        return verdict, code

    def _ended(self, code: int, stop: Stop | None) -> Ended:
        bench, last = self._bench, self.keeping.last
        restored = bench.progress.restored_step
        return Ended(
            code=code,
            stop_reason=stop.reason if stop else "",
            stop_cause=stop.cause if stop else Cause.STOPPED,
            step=bench.progress.furthest(),
            steps=bench.boot.steps,
            done_file=bench.rooms.done_file.exists(),
            moved_on=last is not None and (restored is None or last.position.step > restored),
            out_of_memory=machine.oom_kills() > self._oom_kills,
            gpu_out_of_memory=machine.tells_of_gpu_memory(bench.log.last),
            disk_full=machine.full_disk(bench.rooms.run),
        )

    def _tick(self) -> None:
        bench = self._bench
        if bench.progress.poll():
            bench.heartbeat.hurry()
        self._stalling.step(bench.progress.furthest())
        if not self._disk_told and (line := machine.full_disk(bench.rooms.run, machine.LOW_DISK_BYTES)):
            self._disk_told = True
            bench.note("disk", f"{line}; the next checkpoint may not fit")

    def _own_stop(self) -> Stop | None:
        """Return the node's own reason to stop: the machine's time is up, or nothing moves any more."""
        if (stop := self._ttl_stop()) is not None:
            return stop
        if line := self._stalling.hung():
            for told in waiting_for(self.processes()):
                self._bench.say(told)
            return Stop(f"hung: {line}", time.monotonic() + signals.grace_s(self._bench.environ), Cause.HUNG)
        return None

    def _on_stop(self, stop: Stop) -> None:
        bench, left = self._bench, stop.left()
        self.phase = "stopping"
        self.keeping.hush()
        bench.advice.stop(stop.reason, bench.clock() + left)
        bench.note("stopping", f"{stop.reason}: asking the command for a last checkpoint, {left:.0f} s are left")
        bench.heartbeat.hurry()

    def _on_commit(self, commit: Commit) -> None:
        bench = self._bench
        bench.progress.on_commit(commit.position.step)
        bench.advice.saved(bench.progress.save_s() or commit.seconds)
        if bench.boot.pool is not None and not self._slow_told:
            slow = pace.longer_than_notice(commit, bench.boot.cloud, self._notice_s())
            if slow:
                self._slow_told = True
                bench.note("slow", slow)
        self._tell(
            "committed",
            f"step {commit.position.step} is committed ({commit.total_bytes / 2**20:.1f} MiB, "
            f"{commit.uploaded_bytes / 2**20:.1f} MiB new, {commit.seconds:.1f} s)",
            step=commit.position.step,
            key=commit.key,
            bytes=commit.total_bytes,
            new_bytes=commit.uploaded_bytes,
            seconds=round(commit.seconds, 3),
        )

    def _on_copied(self, uri: str, copied: Copied) -> None:
        step = copied.position.step
        self._tell(
            "copied",
            f"step {step} is copied to {uri} ({copied.bytes / 2**20:.1f} MiB sent, {copied.seconds:.1f} s)",
            step=step,
            uri=uri,
            bytes=copied.bytes,
            seconds=round(copied.seconds, 3),
        )

    def _tell(self, kind: str, line: str, **fields: Any) -> None:
        self._bench.note(kind, line, **fields)
        self._bench.heartbeat.hurry()
