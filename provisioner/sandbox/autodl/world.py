"""What all rooms of the emulator share: its clock, what happens later, its wallet, and the calls to the machines."""

from __future__ import annotations

import heapq
import itertools
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from provisioner.sandbox.autodl.replies import time_text
from provisioner.sandbox.autodl.settings import EmulatorConfig, Hooks

Action = Callable[[], None]


@dataclass(slots=True)
class Meter:
    """A running machine: its price in 1/1000 yuan an hour, and when it began."""

    rate: int
    since: float


class Wallet:
    """The account's money, in 1/1000 yuan. Machines are charged by the second. It may go below zero."""

    def __init__(self, config: EmulatorConfig, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._assets = float(config.assets)
        self._spent = 0.0
        self._made = clock()
        self._meters: dict[str, Meter] = {}
        self.blocked = config.blocked
        self.vouchers = config.vouchers

    def start(self, machine: str, rate: int) -> None:
        """Begin to charge a machine."""
        self._meters[machine] = Meter(rate, self._clock())

    def stop(self, machine: str) -> None:
        """Charge what is due and stop the meter."""
        self._settle()
        self._meters.pop(machine, None)

    def _settle(self) -> None:
        now = self._clock()
        for meter in self._meters.values():
            due = meter.rate * (now - meter.since) / 3600
            meter.since = now
            self._assets -= due
            self._spent += due

    @property
    def assets(self) -> int:
        """The money that is there now."""
        self._settle()
        return int(self._assets)

    @assets.setter
    def assets(self, value: int) -> None:
        self._settle()
        self._assets = float(value)

    @property
    def is_empty(self) -> bool:
        """Whether nothing can be bought."""
        return self.assets - self.blocked + self.vouchers <= 0

    def show(self) -> dict[str, Any]:
        """Return the 14 fields that production sends [live]."""
        assets = self.assets
        return {
            "id": 41007,
            "uid": 41008,
            "assets": assets,
            "blocked_asset": self.blocked,
            "accumulate": int(self._spent),
            "created_at": time_text(self._made),
            "updated_at": time_text(self._clock()),
            "voucher_balance": self.vouchers,
            "available_coupon_num": 0,
            "to_expire_voucher_num": 0,
            "certain_conditions_voucher_balance": 0,
            "remittance_code": "ADL00041008",
            "total_recharge_asset": assets + int(self._spent),
            "exclusive_transfer_account": "",
        }


class World:
    """Shared state under one lock. Nothing in it may be touched outside of ``turn``."""

    def __init__(self, config: EmulatorConfig, hooks: Hooks, clock: Callable[[], float]) -> None:
        self.config = config
        self._real_clock = clock
        self._moment: float | None = None
        self.wallet = Wallet(config, self.clock)
        self.random = random.Random(config.seed)  # noqa: S311 - ids, not secrets
        self._hooks = hooks
        self._lock = threading.RLock()
        self._delivering = threading.Lock()
        self._outbox: deque[Action] = deque()
        self._later: list[tuple[float, int, Action]] = []
        self._order = itertools.count()
        self._changed = threading.Event()
        self.running: set[str] = set()
        self._closed = False
        self._ticker: threading.Thread | None = None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the lock, with everything done that is due; afterwards tell the machines."""
        try:
            with self._lock:
                self._run_due()
                yield
        finally:
            self._changed.set()
            self._deliver()

    def hex(self, digits: int) -> str:
        """Draw an id."""
        return f"{self.random.getrandbits(4 * digits):0{digits}x}"

    def after(self, delay_s: float, action: Action) -> None:
        """Do something after a delay that the speed factor shortens."""
        self.at(self.clock() + delay_s / self.config.speed, action)

    def at(self, when: float, action: Action) -> None:
        """Do something at a time (Unix seconds)."""
        heapq.heappush(self._later, (when, next(self._order), action))

    def start_machine(self, machine: str, command: str, env: dict[str, str]) -> None:
        """Let the machine run, once the lock is free."""
        self.running.add(machine)
        self._outbox.append(lambda: self._hooks.on_start(machine, command, env))

    def stop_machine(self, machine: str) -> None:
        """End the machine's processes, once the lock is free. A machine that runs none is left alone."""
        if machine not in self.running:
            return
        self.running.remove(machine)
        self._outbox.append(lambda: self._hooks.on_stop(machine))

    def forget(self) -> None:
        """Drop what was planned, and fill the wallet."""
        self._later.clear()
        self.wallet = Wallet(self.config, self.clock)

    def clock(self) -> float:
        """Return Unix time in seconds: now, or the time at which what is being done was due.

        So what follows from one thing to the next takes its time from there, however late the first was done.
        """
        return self._real_clock() if self._moment is None else self._moment

    def _run_due(self) -> None:
        try:
            while self._later and self._later[0][0] <= self._real_clock():
                self._moment, _, action = heapq.heappop(self._later)
                action()
        finally:
            self._moment = None

    def _deliver(self) -> None:
        """Call the machines in order. A call that comes back into the emulator leaves its news to the outer loop."""
        while self._outbox and self._delivering.acquire(blocking=False):
            try:
                while self._outbox:
                    self._outbox.popleft()()
            finally:
                self._delivering.release()

    def open(self) -> None:
        """Let time pass by itself, in a thread, also when nobody asks."""
        if self._ticker is None:
            self._closed = False
            self._ticker = threading.Thread(target=self._tick, name="autodl-emulator", daemon=True)
            self._ticker.start()

    def close(self) -> None:
        """Stop the thread."""
        if self._ticker is not None:
            self._closed = True
            self._changed.set()
            self._ticker.join(timeout=10)
            self._ticker = None

    def _tick(self) -> None:
        while not self._closed:
            self._changed.clear()
            with self._lock:
                due_in = self._later[0][0] - self.clock() if self._later else None
            if due_in is not None and due_in <= 0:
                with self.turn():
                    pass
            else:
                self._changed.wait(timeout=due_in)


def real_clock() -> float:
    """Return Unix time in seconds."""
    return time.time()
