"""Print what the node is told at its start, for `train.sbatch`: `python bootstrap.py COMMAND...`.

Each start of a Slurm job, the first and every requeued one, is a placement of its own and gets the next epoch.
"""

from __future__ import annotations

import json
import os
import secrets
import sys

from provisioner.checkpoint.epochs import newest_used
from provisioner.checkpoint.store import open_store
from provisioner.errors import FailoverError


def main() -> int:
    """Look up the next epoch, print the document. Exit code 2 for a mistake, 5 or 75 where the store says no."""
    environ = os.environ
    name = environ.get("FAILOVER_JOB") or environ["SLURM_JOB_NAME"]
    store = {
        "uri": environ["FAILOVER_STORE"],
        "endpoint": environ.get("FAILOVER_STORE_ENDPOINT"),
        "region": environ.get("FAILOVER_STORE_REGION"),
    }
    if not sys.argv[1:]:
        print("which command? sbatch train.sbatch python train.py", file=sys.stderr)
        return 2
    try:
        jobs = open_store(store["uri"] or "", endpoint=store["endpoint"], region=store["region"])
        epoch = newest_used(jobs.at(name)) + 1
    except FailoverError as error:
        print(f"{error}. {error.hint}" if error.hint else str(error), file=sys.stderr)
        return int(error.exit_code)
    steps = environ.get("FAILOVER_STEPS")
    document = {
        "version": 1,
        "job": {"name": name, "uid": "slurm"},
        "epoch": epoch,
        "token": secrets.token_hex(16),
        "store": store,
        "command": ["bash", "-c", 'cd "$0" && exec "$@"', environ["SLURM_SUBMIT_DIR"], *sys.argv[1:]],
        "steps": int(steps) if steps else None,
        "cloud": "slurm",
    }
    json.dump(document, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
