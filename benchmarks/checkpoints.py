"""How fast checkpoints go to a store and come back: `python benchmarks/checkpoints.py [MiB]` prints one JSON object.

Into a directory store (so: our own work and the disk, no network), a checkpoint of `MiB` (256) random bytes in four
files is saved, saved again with one file in four changed, and restored with every hash checked. MiB/s are of the
checkpoint's whole size; the second save shows what content-addressed chunks spare.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

from provisioner.checkpoint.restore import restore
from provisioner.checkpoint.save import Saver
from provisioner.checkpoint.store import open_store
from provisioner.model import JobRef

MIB = 2**20


def main() -> int:
    """Save twice, restore once, compare, print."""
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    job = JobRef("benchmark", "00000000")
    with tempfile.TemporaryDirectory(prefix="failover-bench-") as scratch:
        root = Path(scratch)
        store = open_store(f"file://{root}/store").at(job.name)
        saver = Saver(store, job, epoch=1, fence=lambda: None)
        first, second = (root / name for name in ("step-1", "step-2"))
        for entry in (first, second):
            entry.mkdir()
        for number in range(4):
            data = os.urandom(size * MIB // 4)
            (first / f"shard-{number}").write_bytes(data)
            (second / f"shard-{number}").write_bytes(data if number else os.urandom(len(data)))

        whole, part = saver.save(first, 1), saver.save(second, 2)
        start = time.perf_counter()
        restored = restore(store, job, root / "restored")
        restore_s = time.perf_counter() - start

        assert restored is not None
        (back,) = (root / "restored").rglob("step-2")
        assert all((back / file.name).read_bytes() == file.read_bytes() for file in second.iterdir())
        figures = {
            "size_mib": size,
            "save_mib_per_s": round(size / whole.seconds),
            "save_again_mib_per_s": round(size / part.seconds),
            "save_again_uploaded_mib": round(part.uploaded_bytes / MIB),
            "restore_verified_mib_per_s": round(size / restore_s),
        }
    print(json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
