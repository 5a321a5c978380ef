"""A machine that is to take over from one that still trains: it gets ready, proves that the command runs, and waits.

It takes no epoch and commits nothing, so the other one is not disturbed. Called, it starts as any node does; what it
has restored is on its disk already. It is called by the other node's last heartbeat, whose cause is ``home``, so that
a dead controller leaves no gap; or by the controller.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from signal import Signals

from provisioner.checkpoint import layout
from provisioner.checkpoint.store import Store
from provisioner.errors import CloudError
from provisioner.node import ending
from provisioner.node.child import Child
from provisioner.node.mailbox import Mailbox, Stop
from provisioner.node.progress import Progress
from provisioner.node.verdict import Cause

LOOK_S = 1.0
"""How often the store is asked for the call, in seconds."""
TICK_S = 0.2
END_S = 10.0
"""How long the command has to end after its trial, in seconds."""


@dataclass(frozen=True, slots=True)
class StandBy:
    """``before`` is the epoch that still trains; ``trial_s`` how long the command has for its first step here.

    ``patience_s``: how long the machine waits for its call. Both in seconds.
    """

    before: int
    patience_s: float
    trial_s: float


def try_out(child: Child, progress: Progress, mail: Mailbox, trial_s: float) -> str:
    """Let the command run until its first step, and end it. Return why it does not run here, or nothing.

    A request to stop ends the trial, which then says nothing. Raises Fenced.
    """
    end = time.monotonic() + trial_s
    problem = ""
    while not _has_stepped(progress):
        code = child.poll()
        if code is not None:
            if code != 0 and not _has_stepped(progress):
                problem = f"the command ended with code {code} before its first step"
            break
        if mail.cancel.is_set():
            break
        if time.monotonic() >= end:
            problem = f"the command made no step within {trial_s:.0f} s"
            break
        time.sleep(TICK_S)
    _end(child)
    return problem


def wait_for_call(store: Store, epoch: int, standby: StandBy, mail: Mailbox) -> Stop | None:
    """Wait until this machine is called; None then. Else why it is not needed any more. Raises Fenced."""
    end = time.monotonic() + standby.patience_s
    while time.monotonic() < end:
        if (stop := mail.next(LOOK_S)) is not None:
            return stop
        if is_called(store, epoch, standby.before):
            return None
        if has_ended(store, standby.before):
            return Stop("the job has ended meanwhile", 0.0)
    return Stop(f"not called within {standby.patience_s:.0f} s", 0.0)


def is_called(store: Store, epoch: int, before: int) -> bool:
    """Say whether the machine of ``epoch`` is to start. A store that does not answer says no."""
    try:
        if store.exists(layout.call(epoch)):
            return True
        beat = json.loads(store.get(layout.heartbeat(before)) or b"{}")
        return bool((beat.get("end") or {}).get("cause") == Cause.HOME)
    except (CloudError, ValueError, AttributeError):
        return False


def has_ended(store: Store, before: int) -> bool:
    """Say whether the job has ended where it trained. A store that does not answer says no."""
    try:
        done = ending.read(store)
    except CloudError:
        return False
    return done is not None and done.epoch >= before


def _has_stepped(progress: Progress) -> bool:
    progress.poll()
    return progress.first_step_at is not None


def _end(child: Child) -> None:
    child.ask(Signals.SIGTERM)
    end = time.monotonic() + END_S
    while child.poll() is None and time.monotonic() < end:
        time.sleep(TICK_S)
    if child.poll() is None:
        child.kill()
    child.clean_up()
