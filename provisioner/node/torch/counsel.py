"""What to change so that a training's machine does more of its work: the ONE thing, by what was measured."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

WORTH = 0.10
"""A share of the time that is worth a change."""
FULL = 0.92
"""A share of the host's memory from which on it is near its end."""
SATURATED = 0.85
"""A share of the usable cores that leaves nothing for more workers."""
ROOM = 0.8
"""How much of a memory is used at most by what is advised."""
SPARE = 1.25
"""So many times the workers that would just do: batches differ in what they cost."""
HANDOVER_S = 0.001
"""What it costs the training to take a batch from a worker, in seconds: 0.8 ms were measured on 2 busy cores."""
MOST_BATCH = 8


@dataclass(frozen=True)
class Loader:
    """How a training loads. ``workers`` is None where it is no DataLoader."""

    workers: int | None = None
    batch: int | None = None
    pinned: bool = False
    persistent: bool = False
    prefetch: int = 2
    is_stream: bool = False


@dataclass(frozen=True)
class Gpu:
    """``busy`` is the share of the time in which the card worked; ``used`` the peak of its memory, in bytes."""

    busy: float
    used: int
    total: int


@dataclass(frozen=True)
class Measured:
    """What was seen in a window. Seconds, bytes; ``waited_s`` is a part of ``seconds``, ``starts_s`` is beside it."""

    loader: Loader
    steps: int
    seconds: float
    waited_s: float
    cores: float
    cores_used: float
    memory: tuple[int, int]
    """In use, and the limit."""
    starts_s: float = 0.0
    """Waiting for the first batches of epochs, where workers load."""
    starts: int = 0
    batch_bytes: int = 0
    shm: int = 0
    reads_per_s: float = 0.0
    stalled: float | None = None
    """Share of the time in which something waited for a disk."""
    gpu: Gpu | None = None

    @property
    def wait(self) -> float:
        """Return the share of the time that is lost to loading: a card that has work queued loses none."""
        share = self.waited_s / self.seconds if self.seconds > 0 else 0.0
        return min(share, 1.0 - self.gpu.busy) if self.gpu is not None else share

    def numbers(self) -> dict[str, Any]:
        """Return what is told to the node: docs/node.md."""
        found = {
            "loader_wait": round(self.wait, 4),
            "step_s": round(self.seconds / self.steps, 6) if self.steps else None,
            "cores": round(self.cores, 2),
            "cores_used": round(self.cores_used, 2),
            "memory_used_bytes": self.memory[0],
            "memory_limit_bytes": self.memory[1],
            "disk_read_bytes_per_s": round(self.reads_per_s),
        }
        if self.gpu is not None:
            found.update(gpu_busy=round(self.gpu.busy, 4), gpu_memory_used_bytes=self.gpu.used)
            found.update(gpu_memory_total_bytes=self.gpu.total)
        return found


@dataclass(frozen=True)
class Counsel:
    """``rule`` names what is behind it, ``text`` says it, ``change`` holds arguments and their new values."""

    rule: str
    text: str
    change: dict[str, Any] = field(default_factory=dict)


def counsel(seen: Measured) -> Counsel:
    """Return the one thing to change, the most urgent first."""
    found = _memory(seen) or _loading(seen) or _starts(seen) or _batch(seen)
    return found or Counsel("none", f"nothing to change: {_all(seen)}")


def _memory(seen: Measured) -> Counsel | None:
    used, limit = seen.memory
    workers = seen.loader.workers
    if not workers or not limit or used < FULL * limit:
        return None
    text = f"{_gib(used)} of {_gib(limit)} GiB of the host's memory are in use: num_workers {workers} -> {workers // 2}"
    return Counsel("memory", text, {"num_workers": workers // 2})


def _loading(seen: Measured) -> Counsel | None:
    if seen.wait < WORTH or _is_quick(seen):
        return None
    waits = f"{_who(seen)} waits {seen.wait:.0%} of the time for the loader"
    if (seen.stalled or 0.0) >= 3 * WORTH and seen.reads_per_s >= 1e6 and seen.cores_used < SATURATED * seen.cores:
        text = f"{waits}, which reads {seen.reads_per_s / 1e6:.0f} MB/s and waits for the disk {seen.stalled:.0%} of it"
        return Counsel("disk", f"{text}: bring the data by `data:`, which keeps it on the machine's own disk")
    workers, most = seen.loader.workers, max(1, math.floor(seen.cores))
    if (workers or 0) >= most and seen.cores_used < 0.5 * seen.cores:
        text = f"{waits}, whose {workers} workers use {seen.cores_used:.1f} of {seen.cores:g} cores"
        text += ": they wait for where the data comes from, or for what else runs here"
        return Counsel("source", f"{text}; `data:` brings it to the machine's own disk")
    if (workers or 0) >= most or seen.cores_used >= SATURATED * seen.cores:
        text = f"{waits}, and cores are the limit: {seen.cores_used:.1f} of {seen.cores:g} usable ones are at work"
        more = f" with {workers} workers" if workers else ""
        return Counsel("cores", f"{text}{more}; prepare the samples beforehand, or take a machine with more cores")
    if workers is None:
        return Counsel("workers", f"{waits}: a DataLoader with num_workers={_workers(seen, 0, most)} loads beside it")
    return _more_workers(seen, waits, workers, most)


def _more_workers(seen: Measured, waits: str, workers: int, most: int) -> Counsel:
    wanted = _workers(seen, workers, most)
    of_one = seen.loader.prefetch * seen.batch_bytes
    fit = int(ROOM * seen.shm / of_one) if of_one and seen.shm else wanted
    if fit <= workers:
        size = f"{math.ceil(wanted * of_one / ROOM / 2**20)} MiB"
        text = f"{waits}: /dev/shm has {seen.shm / 2**20:.0f} MiB, too little for more workers; {size} do for {wanted}"
        return Counsel("shm", f"{text} (docker run --shm-size)")
    wanted = min(wanted, fit)
    change: dict[str, Any] = {"num_workers": wanted}
    words = [f"num_workers {workers} -> {wanted}" + (" (all usable cores)" if wanted == most else "")]
    if seen.gpu is not None and not seen.loader.pinned:
        change["pin_memory"] = True
        words.append("pin_memory on")
    if seen.loader.is_stream:
        words.append("each worker taking its own share of the stream (get_worker_info)")
    return Counsel("workers", f"{waits}: {', '.join(words)}", change)


def _workers(seen: Measured, workers: int, most: int) -> int:
    """Return how many load as fast as the training goes without waiting.

    None at all: a step is ``wait`` of loading, then the rest. ``n``: a step lasts an ``n``-th of a batch's loading.
    """
    share = min(seen.wait, 0.99)
    enough = (workers or share) / (1.0 - share)
    return min(most, max(workers + 1, math.ceil(SPARE * enough)))


def _starts(seen: Measured) -> Counsel | None:
    if not seen.loader.workers or seen.loader.persistent or not seen.starts:
        return None
    share = seen.starts_s / (seen.seconds + seen.starts_s)
    if share < WORTH:
        return None
    text = f"each epoch waits {seen.starts_s / seen.starts:.1f} s for its first batch, {share:.0%} of the time"
    return Counsel("starts", f"{text}: persistent_workers on", {"persistent_workers": True})


def _batch(seen: Measured) -> Counsel | None:
    gpu, batch = seen.gpu, seen.loader.batch
    if gpu is None or gpu.busy >= 0.7 or not gpu.used or gpu.used >= 0.5 * ROOM * gpu.total:
        return None
    factor = min(MOST_BATCH, 2 ** int(math.log2(ROOM * gpu.total / gpu.used)))
    text = f"the GPU works {gpu.busy:.0%} of the time with {_gib(gpu.used)} of {_gib(gpu.total)} GiB of its memory"
    words = f"batch_size {batch} -> {batch * factor}" if batch else f"a batch {factor} times as large"
    more = "; the learning rate belongs to it, and AutoBatch keeps what does not fit from ending the run"
    return Counsel("batch", f"{text}: {words}{more}", {"batch_size": batch * factor} if batch else {})


def _is_quick(seen: Measured) -> bool:
    """Say whether a batch that the training loads itself comes sooner than one from a worker would."""
    return not seen.loader.workers and seen.waited_s < HANDOVER_S * seen.steps


def _all(seen: Measured) -> str:
    text = f"{_who(seen)} waits {seen.wait:.0%} of the time for the loader"
    if seen.wait >= WORTH:
        text += f", which is quicker ({1e3 * seen.waited_s / seen.steps:.1f} ms a batch) than a worker would be"
    if seen.gpu is not None:
        text += f", works {seen.gpu.busy:.0%} of it and uses {_gib(seen.gpu.used)} of {_gib(seen.gpu.total)} GiB"
    return text


def _who(seen: Measured) -> str:
    return "the training" if seen.gpu is None else "the GPU"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f}"
