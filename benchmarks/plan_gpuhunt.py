"""gpuhunt on the rows of ``plan_rows``: `PYTHON benchmarks/plan_gpuhunt.py DATA RUNS` prints one JSON object.

Run by an interpreter that has gpuhunt. Its catalog is put in place as its loader would, so that a query does not read
the file again (with GPUHUNT_CATALOG_DIR each query does, which takes seconds).
"""

import io
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.plan_jobs import JOBS, WARM, Job

BEGUN = time.perf_counter()
HUNT = {"A100-40GB": ("A100", 40), "A100-80GB": ("A100", 80), "V100-32GB": ("V100", 32)}


def main() -> int:
    """Query, time, print."""
    data, runs = Path(sys.argv[1]), int(sys.argv[2])
    from gpuhunt._internal import storage
    from gpuhunt._internal.catalog import Catalog, ProviderCatalog

    catalog = Catalog(auto_reload=False)
    with (data / "aws.csv").open("rb") as file:
        items = list(storage.load(io.TextIOWrapper(file, "utf-8"), provider="aws"))
    catalog.catalog["aws"] = ProviderCatalog("bench", items)
    catalog.loaded_at = time.monotonic()

    def query(job: Job) -> list[Any]:
        names = [HUNT.get(gpu, (gpu, None))[0] for gpu in job.gpus]
        memory = next((HUNT[gpu][1] for gpu in job.gpus if gpu in HUNT), None)
        found = catalog.query(
            provider="aws",
            gpu_name=names,
            min_gpu_count=job.count,
            max_gpu_count=job.count,
            min_gpu_memory=memory,
            max_gpu_memory=memory,
            spot=job.spot,
        )
        found = [one for one in found if not job.regions or one.location[:-1] in job.regions]
        return sorted(found, key=lambda one: one.price)

    query(WARM[0])
    first = time.perf_counter() - BEGUN
    warm = {}
    for job in WARM:
        times = []
        for _ in range(runs):
            start = time.perf_counter()
            found = query(job)
            times.append(time.perf_counter() - start)
        warm["spot" if job.spot else "on demand"] = {"seconds": times, "offers": len(found)}
    best = {}
    for job in JOBS:
        found = query(job)
        one = found[0] if found else None
        best[job.name] = {"type": one.instance_name, "where": one.location, "price": one.price} if one else None
    print(json.dumps({"rows": len(items), "first_s": first, "warm": warm, "best": best}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
