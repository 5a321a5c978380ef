"""When to save and when to leave: what the clock, the node, the signals and the other processes say."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType
from typing import Any, Callable

from provisioner.node.torch.foreign import ForeignMemory
from provisioner.node.torch.ranks import NOTHING, SAVE, STOP, Ranks
from provisioner.node.torch.surroundings import Surroundings, say

COME_AGAIN = 75
"""EX_TEMPFAIL: the work is saved and not done."""
WORD_S = 10.0
"""How long a process waits for its own launcher's word after another launcher's processes had to stop, in seconds."""


class Stopped(SystemExit):
    """The machine has to go; everything is saved. It ends the program, unless something catches SystemExit."""

    def __init__(self, reason: str, code: int) -> None:
        """Keep the reason."""
        super().__init__(code)
        self.reason = reason


class Moments:
    """Asked once a step by every process; all of them get the same answer at the same step.

    Make it when the process group is there. ``stopping`` names the signal that asked for the end.
    """

    def __init__(
        self,
        every_s: float | None = None,
        surroundings: Surroundings | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        watch: ForeignMemory | None = None,
    ) -> None:
        """Save every ``every_s`` seconds; None: as the node advises. ``watch`` may want to leave, too."""
        self.ranks = Ranks()
        self.stopping = ""
        self.saved_step: int | None = None
        self._every_s = every_s
        self._around = surroundings or Surroundings()
        self._monotonic = monotonic
        self._watch = watch
        self._saved_at = monotonic()
        self._save_s: float | None = None
        self._reason = ""
        self._before: dict[signal.Signals, Any] = {}
        self._given_back: dict[signal.Signals, Any] = {}

    def listen(self) -> None:
        """Take SIGTERM and SIGINT, also from whoever has taken them since the last call."""
        if self._watch is not None:
            self._watch.start()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                before = signal.signal(number, self._on_signal)
                self._before.setdefault(number, before)

    def leave_signals(self) -> None:
        """Give the signals back, and look no more."""
        if self._watch is not None:
            self._watch.close()
        self._given_back, self._before = self._before, {}
        for number, handler in self._given_back.items():
            signal.signal(number, handler)

    def agreed(self, step: int) -> int:
        """Tell the node the step; return what all processes do after it: NOTHING, SAVE or STOP."""
        self._around.report(step, self._save_s)
        self._reason = self.stopping or self._around.stop() or (self._watch.reason() if self._watch else "")
        return self.ranks.agreed(STOP if self._reason else SAVE if self._is_due() else NOTHING)

    def begin(self) -> float:
        """Return the time at which a save begins."""
        return self._monotonic()

    def saved(self, step: int, began: float) -> None:
        """Take the step of a save and what it cost the training."""
        self.saved_step, self._saved_at = step, self._monotonic()
        self._save_s = self._saved_at - began

    def stop(self, step: int, *, code: int = COME_AGAIN) -> Stopped:
        """Wait for the other processes; return what is to be raised, with ``code`` where no torchrun watches."""
        asked = {launcher for launcher, reason in self.ranks.all((self._around.launcher, self._reason)) if reason}
        self.ranks.close()
        self.say(f"{self._reason or 'another process has to stop'}: step {step} is saved; leaving")
        if self._around.is_elastic:
            code = 0 if not asked or self._around.launcher in asked or self._is_told() else COME_AGAIN
        return Stopped(self._reason, code)

    def _is_told(self) -> bool:
        """Wait for the word of this process's launcher, where others have had theirs; say whether it came.

        torchrun takes 0 for the end of the training, and starts its workers again, with the launchers that are left,
        for any other code.
        """
        end = self._monotonic() + WORD_S
        while not self.stopping and self._monotonic() < end:
            time.sleep(0.05)
        return bool(self.stopping)

    def say(self, line: str) -> None:
        """Say a line on the first process's stderr."""
        if self.ranks.rank == 0:
            say(line)

    def _is_due(self) -> bool:
        every_s = self._around.every_s() if self._every_s is None else self._every_s
        return self._monotonic() - self._saved_at >= every_s

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - as signal.signal wants it
        if not self._before:  # given back, and then put here again by a trainer that puts back what it found
            signal.signal(number, self._given_back.get(signal.Signals(number), signal.SIG_DFL))
            os.kill(os.getpid(), number)
            return
        if self.stopping and number == signal.SIGINT:  # a person who asks twice does not want to wait
            raise KeyboardInterrupt
        self.stopping = signal.Signals(number).name
