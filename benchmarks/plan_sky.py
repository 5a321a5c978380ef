"""SkyPilot's optimizer on the rows of ``plan_rows``: `PYTHON benchmarks/plan_sky.py DATA RUNS` prints one JSON object.

Run by an interpreter that has skypilot[aws], with SKY_RUNTIME_DIR and HOME set to DATA. AWS is made to count as
enabled, without which its optimizer looks for credentials; nothing else is changed. Its caches stay warm between runs.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.plan_jobs import JOBS, WARM, Job

BEGUN = time.perf_counter()
SKY = {"A100-40GB": "A100"}


def main() -> int:
    """Optimize, time, print."""
    runs = int(sys.argv[2])
    import sky
    from sky import check, clouds, optimizer

    check.get_cached_enabled_clouds_or_refresh = lambda *_, **__: [clouds.AWS()]

    def optimize(job: Job) -> Any:
        wanted = set()
        for gpu in job.gpus:
            for region in job.regions or (None,):
                name = SKY.get(gpu, gpu)
                where = {"infra": f"aws/{region}"} if region else {"infra": "aws"}
                wanted.add(sky.Resources(accelerators={name: job.count}, use_spot=job.spot, **where))
        with sky.Dag() as dag:
            task = sky.Task(run="true")
            task.set_resources(wanted)
            dag.add(task)
        optimizer.Optimizer.optimize(dag, quiet=True)
        return dag.tasks[0].best_resources

    optimize(WARM[0])
    first = time.perf_counter() - BEGUN
    warm = {}
    for job in WARM:
        times = []
        for _ in range(runs):
            start = time.perf_counter()
            optimize(job)
            times.append(time.perf_counter() - start)
        warm["spot" if job.spot else "on demand"] = {"seconds": times}
    best = {}
    for job in JOBS:
        try:
            one = optimize(job)
        except Exception as error:  # noqa: BLE001 - it has many kinds for "nothing fits"
            best[job.name] = {"error": str(error).splitlines()[0][:120]}
            continue
        where = one.zone or one.region
        price = one.get_cost(3600)
        best[job.name] = {"type": one.instance_type, "where": where, "price": price}
    print(json.dumps({"first_s": first, "warm": warm, "best": best}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
