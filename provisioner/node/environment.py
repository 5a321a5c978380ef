"""The environment of the training command, and how long this machine may live."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from provisioner.checkpoint.restore import Restored
from provisioner.node import rendezvous
from provisioner.node.bootstrap import Bootstrap
from provisioner.node.rooms import Rooms
from provisioner.node.toolkit import on_path

LAUNCHER_PATIENCE_S = 86400
"""How long torchrun may leave its workers after SIGTERM, in seconds: when their time is up, is for the node to say."""

_OURS = frozenset(
    f"FAILOVER_{name}"
    for name in (
        *("DEADLINE_TS", "DEADLINE_UP", "GRACE_S", "HOME", "IN_CONTAINER", "NO_SHUTDOWN", "RUN"),
        *("SANDBOX_PER_BOOT", "UNIT"),
    )
)


def of_child(
    boot: Bootstrap,
    rooms: Rooms,
    restored: Restored | None,
    environ: Mapping[str, str],
    *,
    data: Path | None = None,
    batch_scale: float = 1.0,
    trial: bool = False,
    toolkit: Path | None = None,
) -> dict[str, str]:
    """Return the machine's environment, then the job's, then ours. The node's key to the store is not in it."""
    env = {name: value for name, value in environ.items() if name not in _OURS}
    env.setdefault("HOME", "/root")
    env.setdefault("PYTHONUNBUFFERED", "1")  # so that a step shows when it is made
    env.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(LAUNCHER_PATIENCE_S))
    env.update(boot.env)
    env.update(rendezvous.variables(boot.job.name, boot.epoch, boot.command, env))
    env.update(on_path(toolkit, env))
    env.update(
        FAILOVER_RESTORED="1" if restored else "0",
        FAILOVER_RESTORE_PATH=str(restored.directory) if restored else "",
        FAILOVER_DATA_DIR=str(data) if data else "",
        FAILOVER_CHECKPOINT_DIR=str(rooms.checkpoints),
        FAILOVER_CHECKPOINT_EVERY_S="" if boot.every_s is None else f"{boot.every_s:g}",
        FAILOVER_EPOCH=str(boot.epoch),
        FAILOVER_ADVICE_FILE=str(rooms.advice_file),
        FAILOVER_BATCH_SCALE=f"{batch_scale:g}",
        FAILOVER_STATUS_FILE=str(rooms.status_file),
        FAILOVER_EFFICIENCY_FILE=str(rooms.efficiency_file),
        FAILOVER_TRIAL="1" if trial else "0",
        FAILOVER_DONE_FILE=str(rooms.done_file),
    )
    return env


def end_of_life(boot: Bootstrap, environ: Mapping[str, str], now: float) -> float | None:
    """Return when this machine ends, in Unix seconds: the earliest of what the start script and the bootstrap say."""
    ends = [] if boot.deadline_ts is None else [boot.deadline_ts]
    try:
        ends.append(_of_script(environ, now))
    except (KeyError, ValueError):  # not started by our script: count from now
        ends += [] if boot.ttl_s is None else [now + boot.ttl_s]
    return min(ends, default=None)


def _of_script(environ: Mapping[str, str], now: float) -> float:
    """Return the end that the start script has set: by what the machine has been up for, which is set by nobody."""
    try:
        up = float(Path("/proc/uptime").read_text("ascii").split()[0])
        return now + float(environ["FAILOVER_DEADLINE_UP"]) - up
    except (OSError, KeyError, ValueError):  # a script of an earlier release
        return float(environ["FAILOVER_DEADLINE_TS"])
