"""What a node is told at its start: ``bootstrap.json``. It holds secrets, so no ``repr`` shows its values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provisioner.checkpoint.store import Credentials
from provisioner.errors import ConfigError
from provisioner.model import JobRef

VERSION = 1


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
    steps: int | None = None
    every_s: float | None = None
    keep: int = 3
    ttl_s: float | None = None
    deadline_ts: float | None = None
    heartbeat_s: float = 5.0
    cloud: str = ""

    @property
    def secrets(self) -> list[str]:
        """Return every value that must not show in a log."""
        found = [self.token, *(value for name, value in self.env.items() if name in self.secret_names)]
        if self.credentials:
            found += [self.credentials.secret_access_key, self.credentials.session_token or ""]
        return found


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
    store = raw["store"]
    key = store.get("credentials")
    checkpoint = raw.get("checkpoint") or {}
    workdir = raw.get("workdir")
    return Bootstrap(
        job=JobRef(str(raw["job"]["name"]), str(raw["job"]["uid"])),
        epoch=int(raw["epoch"]),
        token=str(raw["token"]),
        store_uri=str(store["uri"]),
        endpoint=store.get("endpoint"),
        region=store.get("region"),
        credentials=Credentials(key["access_key_id"], key["secret_access_key"], key.get("session_token"))
        if key
        else None,
        command=("bash", "-c", command) if isinstance(command, str) else tuple(str(word) for word in command),
        env={str(name): str(value) for name, value in (raw.get("env") or {}).items()},
        secret_names=frozenset(raw.get("secret_names") or ()),
        workdir_key=str(workdir["key"]) if workdir else None,
        steps=_optional(int, raw.get("steps")),
        every_s=_optional(float, checkpoint.get("every_s")),
        keep=max(1, int(checkpoint.get("keep") or 3)),
        ttl_s=_optional(float, raw.get("ttl_s")),
        deadline_ts=_optional(float, raw.get("deadline_ts")),
        heartbeat_s=max(1.0, float(raw.get("heartbeat_s") or 5.0)),
        cloud=str(raw.get("cloud") or ""),
    )


def _optional(kind: Any, value: object) -> Any:
    return None if value is None else kind(value)
