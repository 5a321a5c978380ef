"""What the node says about its machine: disk, GPUs, out-of-memory kills. Nothing here raises or waits."""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

LOW_DISK_BYTES = 256 * 1024 * 1024
FULL_DISK_BYTES = 16 * 1024 * 1024


def disk(path: Path) -> dict[str, int]:
    """Return free and total bytes of the disk that holds ``path``; empty where the system does not say."""
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return {}
    return {"free_bytes": usage.free, "total_bytes": usage.total}


def mount_of(path: Path) -> Path:
    """Return the mount point of the disk that holds ``path``."""
    path = path.resolve()
    while not os.path.ismount(path) and path != path.parent:
        path = path.parent
    return path


def full_disk(path: Path, below: int = FULL_DISK_BYTES) -> str:
    """Return one line that names the disk when it has less than ``below`` bytes free, else nothing."""
    free = disk(path).get("free_bytes")
    if free is None or free >= below:
        return ""
    return f"the disk {mount_of(path)} has {free // 2**20} MiB free"


def oom_kills() -> int:
    """Return how often the out-of-memory killer has struck: in our control group where it counts, else anywhere."""
    for path, word in (
        ("/sys/fs/cgroup/memory.events", "oom_kill"),
        ("/sys/fs/cgroup/memory/memory.oom_control", "oom_kill"),
        ("/proc/vmstat", "oom_kill"),
    ):
        try:
            lines = Path(path).read_text(encoding="ascii").splitlines()
        except (OSError, ValueError):
            continue
        for line in lines:
            name, _, value = line.partition(" ")
            if name == word and value.strip().isdigit():
                return int(value)
    return 0


_GPU_MEMORY = re.compile(
    rb"CUDA out of memory|CUDA error: out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED"
    rb"|RESOURCE_EXHAUSTED: Out of memory|cudaErrorMemoryAllocation|HIP out of memory"
)
"""As PyTorch, cuBLAS, JAX and TensorFlow say it."""


def tells_of_gpu_memory(lines: Iterable[bytes]) -> bool:
    """Say whether output tells that the card's memory did not do."""
    return any(_GPU_MEMORY.search(line) for line in list(lines))


class Gpus:
    """The machine's NVIDIA GPUs. Asked in a thread of its own: a sick driver can hang for ever."""

    def __init__(self) -> None:
        """Ask nothing yet."""
        self._latest: list[dict[str, Any]] = []
        self._asking = threading.Lock()

    def latest(self) -> list[dict[str, Any]]:
        """Return the last answer at once, and ask anew in the background."""
        if self._asking.acquire(blocking=False):
            threading.Thread(target=self._ask, name="gpus", daemon=True).start()
        return self._latest

    def are_busy(self) -> bool:
        """Say whether any of them works, by the last answer."""
        return any(gpu.get("utilization_percent", 0) > 0 for gpu in self.latest())

    def _ask(self) -> None:
        try:
            self._latest = _query()
        finally:
            self._asking.release()


def _query() -> list[dict[str, Any]]:
    """Ask NVML; empty without the library, a driver or a card."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    found = []
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                found.append(_card(pynvml, index))
            except pynvml.NVMLError as error:  # a card that has fallen off the bus
                found.append({"index": index, "error": str(error)})
    except pynvml.NVMLError:
        return found
    finally:
        pynvml.nvmlShutdown()
    return found


def _card(pynvml: Any, index: int) -> dict[str, Any]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    name = pynvml.nvmlDeviceGetName(handle)
    return {
        "index": index,
        "name": name.decode() if isinstance(name, bytes) else name,
        "used_bytes": memory.used,
        "total_bytes": memory.total,
        "utilization_percent": pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "temperature_c": pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
    }
