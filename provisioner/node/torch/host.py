"""What a process may use of its machine and what it uses: cores, memory, disks. The limits of a container count.

Source: proc(5); the kernel's cgroup-v2.rst, cgroup-v1/memory.rst and accounting/psi.rst.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_V1_UNLIMITED = 2**60


class Host:
    """Reads ``/proc`` and ``/sys`` below ``root``. What the system does not tell is 0 or None; nothing here raises."""

    def __init__(self, root: Path = Path("/"), *, affinity: int | None = None, shm: Path = Path("/dev/shm")) -> None:  # noqa: S108 - it is looked at
        """Take where to look. ``affinity`` is the number of cores that the scheduler lets this process run on."""
        self._proc = root / "proc"
        self._cgroups = root / "sys/fs/cgroup"
        self._affinity = affinity
        self._shm = shm

    def cores(self) -> float:
        """Return how many cores this process and its workers may keep busy."""
        found = float(self._affinity or len(os.sched_getaffinity(0)))
        for group in self._groups():
            quota, _, period = _text(group / "cpu.max").partition(" ")
            if quota.isdigit() and period.isdigit():
                found = min(found, int(quota) / int(period))
        quota = _text(self._cgroups / "cpu/cpu.cfs_quota_us")
        period = _text(self._cgroups / "cpu/cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit():
            found = min(found, int(quota) / int(period))
        return found

    def memory(self) -> tuple[int, int]:
        """Return the bytes that are in use and cannot be given up, and the limit; of what is nearest to its limit."""
        machine = _fields(self._proc / "meminfo")
        total = machine.get("MemTotal", 0) * 1024
        found = [(total - machine.get("MemAvailable", 0) * 1024, total)]
        for group in self._groups():
            limit, used = _text(group / "memory.max"), _text(group / "memory.current")
            if limit.isdigit() and used.isdigit():
                found.append((int(used) - _fields(group / "memory.stat").get("inactive_file", 0), int(limit)))
        old = self._cgroups / "memory"
        limit, used = _text(old / "memory.limit_in_bytes"), _text(old / "memory.usage_in_bytes")
        if limit.isdigit() and used.isdigit() and int(limit) < _V1_UNLIMITED:
            found.append((int(used) - _fields(old / "memory.stat").get("total_inactive_file", 0), int(limit)))
        return max(found, key=lambda pair: pair[0] / pair[1] if pair[1] else 0.0)

    def shm(self) -> int:
        """Return the size of shared memory in bytes, through which a loader's workers hand batches over."""
        try:
            return shutil.disk_usage(self._shm).total
        except OSError:
            return 0

    def cpu_s(self) -> float:
        """Return the seconds of processor time that this process and its children have used so far."""
        total = 0.0
        for pid in self._processes():
            stat = _text(self._proc / pid / "stat")
            times = stat[stat.rfind(")") + 2 :].split()[11 : 15 if pid == "self" else 13]  # children that ended: ours
            total += sum(int(ticks) for ticks in times) / _TICKS
        return total

    def read_bytes(self) -> int:
        """Return the bytes that this process and its children have read from disks so far, without the page cache."""
        return sum(_fields(self._proc / pid / "io").get("read_bytes", 0) for pid in self._processes())

    def stalled_s(self) -> float | None:
        """Return the seconds so far in which something here waited for a disk; None: this kernel does not count."""
        for path in (*(group / "io.pressure" for group in self._groups()), self._proc / "pressure/io"):
            some = _text(path).partition("\n")[0]
            if some.startswith("some ") and "total=" in some:
                return int(some.rpartition("total=")[2]) / 1e6
        return None

    def _groups(self) -> Iterator[Path]:
        """Yield our control group and those above it, whose limits hold for it, too (version 2)."""
        for line in _text(self._proc / "self/cgroup").splitlines():
            if line.startswith("0::"):
                group = self._cgroups / line[3:].lstrip("/")
                while group != self._cgroups and self._cgroups in group.parents:
                    yield group
                    group = group.parent
        yield self._cgroups

    def _processes(self) -> Iterator[str]:
        yield "self"
        with contextlib.suppress(OSError):
            for thread in (self._proc / "self/task").iterdir():
                yield from _text(thread / "children").split()


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return ""


def _fields(path: Path) -> dict[str, int]:
    """Return ``name: number`` or ``name number``, a line each."""
    found = {}
    for line in _text(path).splitlines():
        name, _, value = line.replace(":", " ").partition(" ")
        words = value.split()
        if words and words[0].isdigit():
            found[name] = int(words[0])
    return found
