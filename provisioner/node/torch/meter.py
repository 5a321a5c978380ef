"""Looks at the card and at the host beside a training, and says what was seen since the last question."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable

import torch

from provisioner.node.torch import cards
from provisioner.node.torch.counsel import Gpu
from provisioner.node.torch.host import Host

LOOK_S = 1.0
"""Between two looks at the card, in seconds; the driver's own figure covers up to a second, too."""


class Meter:
    """The driver is asked in a thread of its own: nothing that it does holds up or ends a training.

    ``nvml`` loads its library; by default it is asked only where torch computes on a card.
    """

    def __init__(
        self,
        *,
        host: Host | None = None,
        nvml: Callable[[], Any] | None = None,
        every_s: float = LOOK_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Look at nothing yet."""
        self.host = host or Host()
        self._load = nvml or (cards.load if torch.cuda.is_available() else None)
        self._every_s = every_s
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._busy: list[float] = []
        self._used = self._total = 0
        self._closing = threading.Event()
        self._last = self._counters()

    def start(self) -> None:
        """Begin to look."""
        if self._load is not None:
            self._device = cards.device()  # each thread has its own
            threading.Thread(target=self._run, name="card-meter", daemon=True).start()

    def close(self) -> None:
        """Look no more. A driver that hangs is not waited for."""
        self._closing.set()

    def look(self, nvml: Any, handle: Any) -> None:
        """Ask for one card's use and memory now. Raises NVMLError."""
        busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100.0
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        with self._lock:
            self._busy.append(busy)
            self._used, self._total = max(self._used, memory.used), memory.total

    def begin(self) -> None:
        """Forget what was seen until now."""
        self.gpu()
        self.rates()

    def gpu(self) -> Gpu | None:
        """Return what the looks since the last call saw: the mean use, the peak of the memory."""
        with self._lock:
            busy, used, total = self._busy, self._used, self._total
            self._busy, self._used = [], 0
        return Gpu(sum(busy) / len(busy), used, total) if busy else None

    def rates(self) -> dict[str, Any]:
        """Return what this process and its workers used of the host since the last call, per second."""
        before, self._last = self._last, self._counters()
        took, cpu_s, read, stalled = (now - then for now, then in zip(self._last, before))
        took = max(took, 1e-9)
        return {
            "cores_used": max(0.0, cpu_s / took),
            "reads_per_s": max(0.0, read / took),
            "stalled": min(1.0, stalled / took),
        }

    def _counters(self) -> tuple[float, float, float, float]:
        host = self.host
        return self._monotonic(), host.cpu_s(), float(host.read_bytes()), host.stalled_s() or 0.0

    def _run(self) -> None:
        assert self._load is not None  # noqa: S101 - else the thread is not started
        try:
            nvml = self._load()
            nvml.nvmlInit()
            handle = _handle(nvml, cards.uuid_of(self._device))
            while handle is not None and not self._closing.wait(self._every_s):
                self.look(nvml, handle)
        except Exception:  # noqa: BLE001 - a library of the user's environment; without it the card is not looked at
            return


def _handle(nvml: Any, uuid: str) -> Any:
    """Return the card of that name; where there is none to go by, the only one."""
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    if uuid:
        handles = [handle for handle in handles if cards.name(nvml, handle) == uuid]
    return handles[0] if len(handles) == 1 else None
