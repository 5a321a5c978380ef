"""Our planner on the rows of ``plan_rows``: `python benchmarks/plan_ours.py DATA RUNS` prints one JSON object."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.plan_jobs import JOBS, WARM, Job

BEGUN = time.perf_counter()


def document(job: Job, regions: list[str]) -> str:
    """Return the failover.yaml of a job; JSON is YAML."""
    market = "spot" if job.spot else "on-demand"
    return json.dumps(
        {
            "job": {"name": "bench", "command": "true"},
            "resources": {"gpus": list(job.gpus), "count": job.count},
            "checkpoint": {"store": "s3://bucket/prefix"},
            "fallback": [{"aws": {"regions": list(job.regions) or regions, "market": market}}],
        }
    )


def main() -> int:
    """Plan, time, print."""
    data, runs = Path(sys.argv[1]), int(sys.argv[2])
    os.environ["FAILOVER_CACHE_DIR"] = str(data / "cache")
    from provisioner import planner
    from provisioner.catalog import tables
    from provisioner.config import parse

    tables.DATA = data
    tables.forget()
    regions = sorted(tables.zones("aws"))

    def plan(config: Any) -> Any:
        passed = planner.absent(config)
        return planner.plan(config, planner.catalog_offers(config), passed_over=passed)

    configs = {job.name: parse(document(job, regions).encode(), "bench.yaml", data, {}) for job in (*JOBS, *WARM)}
    plan(configs[WARM[0].name])
    first = time.perf_counter() - BEGUN
    warm = {}
    for job in WARM:
        times = []
        for _ in range(runs):
            start = time.perf_counter()
            found = plan(configs[job.name])
            times.append(time.perf_counter() - start)
        warm["spot" if job.spot else "on demand"] = {"seconds": times, "offers": len(found.ranked)}
    best = {}
    for job in JOBS:
        ranked = plan(configs[job.name]).ranked
        best[job.name] = _row(ranked[0]) if ranked else None
    print(json.dumps({"first_s": first, "warm": warm, "best": best}))
    return 0


def _row(one: Any) -> dict[str, Any]:
    return {
        "type": one.offer.instance_type,
        "where": one.offer.zone,
        "price": float((one.offer.price_per_hour or one.expected.price).amount),
        "cost": float(one.expected.cost) if one.expected and one.expected.cost is not None else None,
        "speed": one.expected.way.speed if one.expected else None,
    }


if __name__ == "__main__":
    sys.exit(main())
