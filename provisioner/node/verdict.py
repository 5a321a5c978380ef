"""What does the end of the training command mean? A pure judgement; see docs/node.md for the table."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum

from provisioner.errors import ExitCode

STOPPING_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


class Result(StrEnum):
    """DONE and FAILED end the job; STOPPED asks for the next placement."""

    DONE = "completed"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Ended:
    """What is known when the command has ended. ``code`` is negative for a signal, as in :mod:`subprocess`."""

    code: int
    stop_reason: str = ""
    """Why it was asked to stop; empty when nobody asked."""
    step: int | None = None
    steps: int | None = None
    done_file: bool = False
    moved_on: bool = False
    """A checkpoint above the restored one was committed since the start."""
    out_of_memory: bool = False
    """The kernel's out-of-memory killer has struck since the start."""
    disk_full: str = ""
    """Names the disk when it is full."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the placement ends. ``reason`` is a word or one line for the operator."""

    result: Result
    reason: str

    @property
    def exit_code(self) -> ExitCode:
        """Return the node's exit code."""
        return {
            Result.DONE: ExitCode.DONE,
            Result.FAILED: ExitCode.JOB_FAILED,
            Result.STOPPED: ExitCode.COME_AGAIN,
        }[self.result]


def judge(ended: Ended) -> Verdict:
    """Decide. Code 0 is done only when the command ended by itself and had reached its last step, if that is known."""
    if is_surely_done(ended):
        return Verdict(Result.DONE, "")
    if ended.stop_reason:
        return Verdict(Result.STOPPED, ended.stop_reason)
    if ended.code == 0:
        return _ended_with_zero(ended)
    number = _signal(ended.code)
    if number in STOPPING_SIGNALS:
        return Verdict(Result.STOPPED, f"the command was stopped from outside by {number.name}")
    return Verdict(Result.FAILED, _failure(ended, number))


def may_have_been_stopped(code: int) -> bool:
    """Say whether a signal that the command had, and the node has not had yet, could be behind this code."""
    return code == 0 or _signal(code) is not None


def is_surely_done(ended: Ended) -> bool:
    """Say whether the command has reached its end by its own word, whatever else was asked of it."""
    reached = ended.steps is not None and ended.step is not None and ended.step >= ended.steps
    return ended.code == 0 and (ended.done_file or reached)


def _ended_with_zero(ended: Ended) -> Verdict:
    if ended.steps is None:
        return Verdict(Result.DONE, "")
    at = "no step" if ended.step is None else f"step {ended.step}"
    line = f"the command ended with code 0 at {at} of {ended.steps}"
    if ended.moved_on:
        return Verdict(Result.STOPPED, line)
    # Without progress the next placement would end the same way, and the one after it.
    return Verdict(Result.FAILED, f"{line}, without a new checkpoint since its start")


def _failure(ended: Ended, number: signal.Signals | None) -> str:
    if number is signal.SIGKILL:
        if ended.out_of_memory:
            return "the command was killed by the kernel: the machine is out of memory (OOM)"
        return "the command was killed by SIGKILL; out of memory (OOM) is the usual cause"
    line = f"the command was killed by {number.name}" if number else f"the command ended with code {ended.code}"
    return f"{line}; {ended.disk_full}" if ended.disk_full else line


def _signal(code: int) -> signal.Signals | None:
    """Return the signal behind a code: negative from the system, above 128 from a shell."""
    number = -code if code < 0 else code - 128
    try:
        return signal.Signals(number) if number > 0 else None
    except ValueError:
        return None
