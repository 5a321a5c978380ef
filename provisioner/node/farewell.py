"""The node's last words, in this order: the log, ``done.json``, the last heartbeat."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from provisioner.checkpoint import epochs
from provisioner.checkpoint.store import Store
from provisioner.clock import now as unix_now
from provisioner.errors import CloudError, ExitCode, Fenced
from provisioner.node import ending
from provisioner.node.bootstrap import Bootstrap
from provisioner.node.heartbeat import Heartbeat
from provisioner.node.logs import Log
from provisioner.node.patience import patiently
from provisioner.node.verdict import Cause, Result, Verdict

LOG_S = 5.0
HEARTBEAT_S = 10.0


class Farewell:
    """``patience_s`` tells how long ``done.json`` may be tried, in seconds; ``note`` is as in ``arrival``."""

    def __init__(
        self,
        boot: Bootstrap,
        store: Store,
        log: Log,
        heartbeat: Heartbeat,
        *,
        patience_s: Callable[[], float],
        note: Callable[..., object],
        clock: Callable[[], float] = unix_now,
    ) -> None:
        """Say nothing yet."""
        self._boot = boot
        self._store = store
        self._log = log
        self._heartbeat = heartbeat
        self._patience_s = patience_s
        self._note = note
        self._clock = clock

    def say(
        self, verdict: Verdict, step: int | None, *, code: int | None = None, exit_code: ExitCode | None = None
    ) -> ExitCode:
        """Say how the placement ended and return the node's exit code. ``code`` is the command's. Raises Fenced."""
        exit_code = verdict.exit_code if exit_code is None else exit_code
        line = f"{verdict.result}: {verdict.reason}" if verdict.reason else str(verdict.result)
        self._note("ended", line, result=verdict.result, cause=verdict.cause, exit_code=int(exit_code), code=code)
        self._log.finish(LOG_S)
        if verdict.cause is Cause.HUNG:
            with contextlib.suppress(CloudError):
                self._log.keep_last_lines()
        if verdict.result is not Result.STOPPED:
            try:
                by_role = self._boot.credentials is None
                patiently(
                    lambda: self._write_done(verdict, step, code),
                    seconds=self._patience_s(),
                    cancel=None,
                    by_role=by_role,
                )
            except Fenced:
                raise
            except CloudError as error:
                self._note("ended", f"done.json cannot be written: {error}")
                exit_code = ExitCode.COME_AGAIN
        self.last_heartbeat(verdict.reason or str(verdict.result), exit_code, verdict.cause)
        return exit_code

    def broken(self, problem: str) -> None:
        """Say that the node itself is at fault."""
        self._note("broken", problem)
        self._log.finish(LOG_S)
        self.last_heartbeat(problem, ExitCode.OUR_FAULT, "node")

    def last_heartbeat(self, reason: str, exit_code: ExitCode, cause: str) -> None:
        """Write the heartbeat that carries the end."""
        self._heartbeat.finish({"reason": reason, "exit_code": int(exit_code), "cause": str(cause)}, HEARTBEAT_S)

    def _write_done(self, verdict: Verdict, step: int | None, code: int | None) -> None:
        epochs.check(self._store, self._boot.epoch, self._boot.token)
        if verdict.result is Result.FAILED:
            self._log.keep_last_lines()
        ending.write(
            self._store,
            ending.Done(
                epoch=self._boot.epoch,
                exit_code=int(ExitCode.JOB_FAILED if code is None else code),
                final_step=step,
                time=round(self._clock(), 3),
                result=str(verdict.result),
                reason=verdict.reason,
                cause=str(verdict.cause),
            ),
        )
