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


class Cause(StrEnum):
    """What ended a placement, for whoever decides what comes next."""

    DONE = "done"
    STOPPED = "stopped"
    """Somebody asked: a signal, the operator, the end of the machine's time."""
    NOTICE = "notice"
    """The cloud takes the machine back."""
    HOME = "home"
    """Its next machine stands by, and takes over."""
    LOST_GPU = "lost_gpu"
    HUNG = "hung"
    """The command ran and made no step for too long."""
    OUT_OF_MEMORY = "out_of_memory"
    """The kernel killed the command for memory."""
    GPU_OUT_OF_MEMORY = "gpu_out_of_memory"
    DISK_FULL = "disk_full"
    USER_ERROR = "user_error"
    """The command failed by itself."""
    STORE = "store"
    """The store did not answer, or refused."""
    MACHINE = "machine"
    """This machine cannot run the job."""
    OLD_DRIVER = "old_driver"
    """Its NVIDIA driver is too old for the CUDA that the job brings."""
    NO_IMAGE = "no_image"
    """The registry has no such image for us, whatever the machine."""


MEMORY = frozenset({Cause.OUT_OF_MEMORY, Cause.GPU_OUT_OF_MEMORY})


@dataclass(frozen=True, slots=True)
class Ended:
    """What is known when the command has ended. ``code`` is negative for a signal, as in :mod:`subprocess`."""

    code: int
    stop_reason: str = ""
    """Why it was asked to stop; empty when nobody asked."""
    stop_cause: Cause = Cause.STOPPED
    step: int | None = None
    steps: int | None = None
    done_file: bool = False
    moved_on: bool = False
    """A checkpoint above the restored one was committed since the start."""
    out_of_memory: bool = False
    """The kernel's out-of-memory killer has struck since the start."""
    gpu_out_of_memory: bool = False
    """Its last lines say that the card's memory did not do."""
    disk_full: str = ""
    """Names the disk when it is full."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the placement ends. ``reason`` is a word or one line for the operator."""

    result: Result
    reason: str
    cause: Cause

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
        return Verdict(Result.DONE, "", Cause.DONE)
    if ended.stop_reason:
        return Verdict(Result.STOPPED, ended.stop_reason, ended.stop_cause)
    if ended.code == 0:
        return _ended_with_zero(ended)
    if ended.code == ExitCode.COME_AGAIN and ended.moved_on:
        return Verdict(Result.STOPPED, f"the command itself left with code {ended.code}", Cause.STOPPED)
    number = _signal(ended.code)
    if number in STOPPING_SIGNALS:
        return Verdict(Result.STOPPED, f"the command was stopped from outside by {number.name}", Cause.STOPPED)
    return _failed(ended, number)


def may_have_been_stopped(code: int) -> bool:
    """Say whether a signal that the command had, and the node has not had yet, could be behind this code."""
    return code == 0 or _signal(code) is not None


def is_surely_done(ended: Ended) -> bool:
    """Say whether the command has reached its end by its own word, whatever else was asked of it."""
    reached = ended.steps is not None and ended.step is not None and ended.step >= ended.steps
    return ended.code == 0 and (ended.done_file or reached)


def _ended_with_zero(ended: Ended) -> Verdict:
    if ended.steps is None:
        return Verdict(Result.DONE, "", Cause.DONE)
    at = "no step" if ended.step is None else f"step {ended.step}"
    line = f"the command ended with code 0 at {at} of {ended.steps}"
    if ended.moved_on:
        return Verdict(Result.STOPPED, line, Cause.STOPPED)
    # Without progress the next placement would end the same way, and the one after it.
    return Verdict(Result.FAILED, f"{line}, without a new checkpoint since its start", Cause.USER_ERROR)


def _failed(ended: Ended, number: signal.Signals | None) -> Verdict:
    if number is signal.SIGKILL and ended.out_of_memory:
        words = "the command was killed by the kernel: the machine is out of memory (OOM)"
        return Verdict(Result.FAILED, words, Cause.OUT_OF_MEMORY)
    if number is signal.SIGKILL:
        words = "the command was killed by SIGKILL; out of memory (OOM) is the usual cause"
        return Verdict(Result.FAILED, words, Cause.USER_ERROR)
    line = f"the command was killed by {number.name}" if number else f"the command ended with code {ended.code}"
    if ended.gpu_out_of_memory:
        return Verdict(Result.FAILED, f"{line}: the GPU is out of memory", Cause.GPU_OUT_OF_MEMORY)
    if ended.disk_full:
        return Verdict(Result.FAILED, f"{line}; {ended.disk_full}", Cause.DISK_FULL)
    return Verdict(Result.FAILED, line, Cause.USER_ERROR)


def _signal(code: int) -> signal.Signals | None:
    """Return the signal behind a code: negative from the system, above 128 from a shell."""
    number = -code if code < 0 else code - 128
    try:
        return signal.Signals(number) if number > 0 else None
    except ValueError:
        return None
