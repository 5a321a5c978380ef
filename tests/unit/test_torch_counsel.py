"""What follows from what was measured of a training, its card and its host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.node.torch.counsel import Gpu, Loader, Measured, counsel
from provisioner.node.torch.host import Host

GIB = 2**30
TWO = Loader(workers=2, batch=64)
CARD = Gpu(busy=0.6, used=18 * GIB, total=24 * GIB)
BASE = Measured(TWO, 100, 10.0, 0.1, cores=8, cores_used=2.0, memory=(8 * GIB, 64 * GIB), shm=8 * GIB, gpu=CARD)
WAITS = replace(BASE, waited_s=3.5)


@pytest.mark.parametrize(
    ("seen", "rule", "words", "change"),
    [
        (BASE, "none", ["the GPU waits 1% of the time", "works 60% of it and uses 18.0 of 24.0 GiB"], {}),
        (
            WAITS,
            "workers",
            ["the GPU waits 35% of the time for the loader: num_workers 2 -> 4, pin_memory on"],
            {"num_workers": 4, "pin_memory": True},
        ),
        (replace(WAITS, loader=replace(TWO, pinned=True)), "workers", [], {"num_workers": 4}),
        (replace(WAITS, gpu=replace(CARD, busy=0.97)), "none", [], {}),
        (replace(WAITS, gpu=None), "workers", ["the training waits 35%"], {"num_workers": 4}),
        (replace(WAITS, cores=3), "workers", ["2 -> 3 (all usable cores)"], {"num_workers": 3, "pin_memory": True}),
        (replace(WAITS, cores=2, cores_used=1.9), "cores", ["cores are the limit: 1.9 of 2 usable ones"], {}),
        (replace(WAITS, cores_used=7.9), "cores", ["cores are the limit: 7.9 of 8 usable ones"], {}),
        (replace(WAITS, cores=2, cores_used=0.2), "source", ["`data:`"], {}),
        (replace(WAITS, reads_per_s=80000000.0, stalled=0.5), "disk", ["reads 80 MB/s", "50%", "`data:`"], {}),
        (replace(WAITS, reads_per_s=80000000.0, stalled=0.1), "workers", [], {"num_workers": 4, "pin_memory": True}),
        (replace(WAITS, steps=4000, loader=replace(TWO, workers=0)), "none", ["quicker (0.9 ms a batch)"], {}),
        (
            replace(WAITS, steps=2000, loader=replace(TWO, workers=0)),
            "workers",
            ["num_workers 0 -> 1"],
            {"num_workers": 1, "pin_memory": True},
        ),
        (replace(WAITS, loader=Loader()), "workers", ["a DataLoader with num_workers=1"], {}),
        (replace(WAITS, batch_bytes=20 * 2**20, shm=64 * 2**20), "shm", ["/dev/shm has 64 MiB", "--shm-size"], {}),
        (
            replace(WAITS, batch_bytes=20 * 2**20, shm=160 * 2**20),
            "workers",
            [],
            {"num_workers": 3, "pin_memory": True},
        ),
        (
            replace(WAITS, memory=(61 * GIB, 64 * GIB)),
            "memory",
            ["61.0 of 64.0 GiB", "num_workers 2 -> 1"],
            {"num_workers": 1},
        ),
        (
            replace(BASE, starts=4, starts_s=4.0),
            "starts",
            ["1.0 s for its first batch, 29%"],
            {"persistent_workers": True},
        ),
        (replace(BASE, starts=4, starts_s=4.0, loader=replace(TWO, persistent=True)), "none", [], {}),
        (
            replace(BASE, gpu=Gpu(0.4, 5 * GIB, 24 * GIB)),
            "batch",
            ["works 40%", "5.0 of 24.0 GiB", "batch_size 64 -> 128"],
            {"batch_size": 128},
        ),
        (replace(BASE, gpu=Gpu(0.4, 1 * GIB, 24 * GIB)), "batch", [], {"batch_size": 512}),
        (replace(BASE, gpu=Gpu(0.9, 1 * GIB, 24 * GIB)), "none", [], {}),
    ],
)
def test_the_one_thing_to_change_is_named_with_its_numbers(
    seen: Measured, rule: str, words: list[str], change: dict[str, Any]
) -> None:
    found = counsel(seen)
    assert (found.rule, found.change) == (rule, change)
    for word in words:
        assert word in found.text


def laid(root: Path, files: dict[str, str]) -> Host:
    for path, text in {"proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 400 kB", **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return Host(root, affinity=16)


def test_without_limits_the_whole_machine_counts(tmp_path: Path) -> None:
    host = laid(tmp_path, {})
    assert (host.cores(), host.memory(), host.stalled_s()) == (16.0, (600 * 1024, 1000 * 1024), None)


def test_the_limits_of_a_control_group_and_of_those_above_it_count(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/jobs/one"
    files = {
        "proc/self/cgroup": "0::/jobs/one\n",
        "sys/fs/cgroup/jobs/cpu.max": "250000 100000",
        "sys/fs/cgroup/jobs/memory.max": "max",
        "sys/fs/cgroup/jobs/memory.current": "5000",
        f"{group}/cpu.max": "max 100000",
        f"{group}/memory.max": "1000",
        f"{group}/memory.current": "990",
        f"{group}/memory.stat": "anon 5\ninactive_file 90",
        f"{group}/io.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.00 total=1",
        "proc/self/task/7/children": "8 9",
        "proc/self/io": "rchar: 5\nread_bytes: 100",
        "proc/9/io": "read_bytes: 20",
        "proc/self/stat": "7 (a b) S" + " 0" * 10 + " 100 200 300 400 0",
        "proc/9/stat": "9 (c) S " + "100 " * 20,
    }
    host = laid(tmp_path, files)
    assert (host.cores(), host.memory(), host.stalled_s(), host.read_bytes()) == (2.5, (900, 1000), 2.5, 120)
    assert host.cpu_s() == (1000 + 200) / 100, "of process 8, which has ended, nothing is known"


def test_the_limits_of_an_older_control_group_count_too(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "1000",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "950",
        "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 20",
    }
    host = laid(tmp_path, files)
    assert (host.cores(), host.memory()) == (4.0, (930, 1000))
