"""What a node is told at its start: ``bootstrap.json``. It holds secrets, so no ``repr`` shows its values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals
from typing import Any, Literal

from provisioner.checkpoint.retention import Best, Policy
from provisioner.checkpoint.store import Credentials
from provisioner.errors import ConfigError
from provisioner.hazard import Seen
from provisioner.model import JobRef
from provisioner.node.standby import StandBy

VERSION = 1


@dataclass(frozen=True, slots=True)
class Access:
    """A store and how to reach it. ``credentials`` None: the machine's own role, or what its environment holds."""

    uri: str
    endpoint: str | None = None
    region: str | None = None
    credentials: Credentials | None = None


@dataclass(frozen=True, slots=True)
class DataOrder:
    """Where the list of data stands in the store, and the most that the cache may take (None: what the disk has)."""

    key: str
    cache_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """One placement of one job. Times are in seconds; ``deadline_ts`` is Unix time, None: ``ttl_s`` from the start."""

    job: JobRef
    epoch: int
    store_uri: str
    command: tuple[str, ...]
    token: str = field(repr=False)
    endpoint: str | None = None
    region: str | None = None
    credentials: Credentials | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    secret_names: frozenset[str] = frozenset()
    """Which of ``env`` are secrets: their values are taken out of the log."""
    workdir_key: str | None = None
    data: DataOrder | None = None
    steps: int | None = None
    every_s: float | None = None
    stores: tuple[Access, ...] = ()
    """The replicas, nearest first, and the job's own store in its place among them; it is the first if it is not."""
    retention: Policy = field(default_factory=lambda: Policy(3))
    sweep_after_s: float = 3600.0
    ttl_s: float | None = None
    deadline_ts: float | None = None
    heartbeat_s: float = 5.0
    cloud: str = ""
    hung_after_s: float | None = None
    """How long the command may go without a step; infinity: for ever; None: learned."""
    oom_retries: int = 3
    """How often a command that ran out of memory is started again here, with half the batch."""
    stop_signal: Signals | None = Signals.SIGTERM
    """None: only the advice file asks the command to stop."""
    """What asks the command for a last checkpoint and its end."""
    standby: StandBy | None = None
    """Set for a machine that is to take over from one that still trains."""
    pool: Seen | None = None
    """What was seen of this spot machine's pool; None: the machine is not taken back."""

    @property
    def secrets(self) -> list[str]:
        """Return every value that must not show in a log."""
        found = [self.token, *(value for name, value in self.env.items() if name in self.secret_names)]
        for key in (self.credentials, *(store.credentials for store in self.stores)):
            found += key.secrets if key else []
        return found

    @property
    def own_store(self) -> Access:
        """Return the job's own store: the channel to the controller, and the first place of each checkpoint."""
        return Access(self.store_uri, self.endpoint, self.region, self.credentials)


def load(path: Path) -> Bootstrap:
    """Read the file. Raises ConfigError that names the file and the field, never a value."""
    try:
        raw = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file", hint="the start script writes it") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({type(error).__name__})") from None
    try:
        return _parsed(raw)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        name = error.args[0] if isinstance(error, KeyError) else type(error).__name__
        raise ConfigError(f"{path}: not in the form that this release reads ({name})") from None


def _parsed(raw: Mapping[str, Any]) -> Bootstrap:
    if raw["version"] != VERSION:
        raise ValueError("version")
    command = raw["command"]
    store = _access(raw["store"])
    checkpoint = raw.get("checkpoint") or {}
    workdir = raw.get("workdir")
    return Bootstrap(
        job=JobRef(str(raw["job"]["name"]), str(raw["job"]["uid"])),
        epoch=int(raw["epoch"]),
        token=str(raw["token"]),
        store_uri=store.uri,
        endpoint=store.endpoint,
        region=store.region,
        credentials=store.credentials,
        stores=tuple(_access(replica) for replica in raw.get("replicas") or ()),
        retention=_retention(raw.get("retention") or {}),
        sweep_after_s=float((raw.get("retention") or {}).get("sweep_after_s") or 3600.0),
        command=("bash", "-c", command) if isinstance(command, str) else tuple(str(word) for word in command),
        env={str(name): str(value) for name, value in (raw.get("env") or {}).items()},
        secret_names=frozenset(raw.get("secret_names") or ()),
        workdir_key=str(workdir["key"]) if workdir else None,
        data=_data(raw.get("data")),
        steps=_optional(int, raw.get("steps")),
        every_s=_optional(float, checkpoint.get("every_s")),
        ttl_s=_optional(float, raw.get("ttl_s")),
        deadline_ts=_optional(float, raw.get("deadline_ts")),
        heartbeat_s=max(1.0, float(raw.get("heartbeat_s") or 5.0)),
        cloud=str(raw.get("cloud") or ""),
        hung_after_s=_optional(float, raw.get("hung_after_s")),
        oom_retries=int(raw.get("oom_retries", 3)),
        stop_signal=None if raw.get("stop_signal") == "none" else Signals[str(raw.get("stop_signal") or "SIGTERM")],
        pool=_pool(raw.get("pool")),
        standby=_standby(raw.get("standby")),
    )


def _access(raw: Mapping[str, Any]) -> Access:
    return Access(
        uri=str(raw["uri"]),
        endpoint=raw.get("endpoint"),
        region=raw.get("region"),
        credentials=Credentials.from_json(raw.get("credentials")),
    )


def _retention(raw: Mapping[str, Any]) -> Policy:
    best = raw.get("best")
    return Policy(
        last=int(raw.get("last") or 3),
        every=_optional(int, raw.get("every")),
        best=Best(str(best["metric"]), _mode(best["mode"]), int(best.get("count") or 1)) if best else None,
    )


def _standby(raw: Mapping[str, Any] | None) -> StandBy | None:
    return None if raw is None else StandBy(int(raw["before"]), float(raw["patience_s"]), float(raw["trial_s"]))


def _data(raw: Mapping[str, Any] | None) -> DataOrder | None:
    return DataOrder(str(raw["key"]), _optional(int, raw.get("cache_bytes"))) if raw else None


def _pool(raw: Mapping[str, Any] | None) -> Seen | None:
    return None if raw is None else Seen(float(raw["hours"]), int(raw["losses"]), float(raw["weight"]))


def _mode(word: object) -> Literal["min", "max"]:
    if word == "min":
        return "min"
    if word == "max":
        return "max"
    raise ValueError("mode")


def _optional(kind: Any, value: object) -> Any:
    return None if value is None else kind(value)
