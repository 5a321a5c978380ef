"""Where the processes of a training meet: on this machine, the only one of its placement.

torchrun takes each argument that it is not given from ``PET_<ARGUMENT>`` (``torch/distributed/argparse_util.py``).
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Mapping, Sequence

_HOST = "127.0.0.1"
_PORTS = (15_000, 32_000)
"""Below those that Linux hands out by itself, so that nobody gets one between its choice and its use."""
_OWN_WORDS = ("--standalone", "--rdzv", "--master", "--nnodes", "--node-rank", "--node_rank")
_OWN_NAMES = ("PET_", "MASTER_")
_RESTARTS = ("--max-restarts", "--max_restarts")
_UNSHARED = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""Else PyTorch 2.13 has one store for all starts of the workers, who wait for those of the start before for minutes."""


def variables(job: str, epoch: int, command: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return what the command is told: ``FAILOVER_*``, and torchrun's own names unless the job says it by itself.

    The id holds the epoch: a launcher that an older placement left behind finds nobody who waits for it.
    """
    endpoint = f"{_HOST}:{free_port()}"
    found = {"FAILOVER_NODES": "1", "FAILOVER_NODE_RANK": "0", "FAILOVER_RENDEZVOUS": endpoint}
    said = any(name.startswith(_OWN_NAMES) for name in environ)
    if said or any(word in part for part in command for word in _OWN_WORDS):
        return found  # half of theirs and half of ours would not meet
    if any(word in part for part in command for word in _RESTARTS):
        found[_UNSHARED] = environ.get(_UNSHARED, "1")
    return {
        **found,
        "PET_NNODES": "1",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": endpoint,
        "PET_RDZV_ID": f"{job}-{epoch}",
        "PET_LOCAL_ADDR": _HOST,  # else the workers look this machine up by its name, which a container may not know
    }


def free_port() -> int:
    """Return a port of the loopback that nobody uses."""
    while True:
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind((_HOST, random.SystemRandom().randrange(*_PORTS)))
            return int(one.getsockname()[1])
