"""Where a stack's state is: a file beside the stack, or an object in a bucket.

Terraform reads it from ``backend_override.tf.json`` beside ``main.tf``. No credential stands there: Terraform takes
them from its environment. Where the bucket has a key of its own, under other names than the cloud's, a profile asks the
environment for it, by name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from provisioner.terraform.waits import Waits

OVERRIDE: Final = "backend_override.tf.json"
PROFILE_FILE: Final = "state-profile.ini"
PROFILE: Final = "failover-state"
MOVED: Final = ".moved"
"""Ending of the object that a state leaves behind where it was moved from: other machines may look for it there."""
_PRINT: Final = 'printf \'{"Version":1,"AccessKeyId":"%s","SecretAccessKey":"%s","SessionToken":"%s"}\''


class Objects(Protocol):
    """Where states are kept: ``provisioner.checkpoint.store.Store`` is one. All raise CloudError."""

    def get(self, key: str, /) -> bytes | None:
        """Return an object, or None."""

    def create(self, key: str, data: bytes, /) -> bool:
        """Write an object where there is none; False: the store says that there is one, which may be this very one."""

    def put(self, key: str, data: bytes, /) -> None:
        """Write an object."""

    def delete(self, keys: list[str], /) -> None:
        """Remove objects; one that is gone is fine."""


@dataclass(frozen=True, slots=True)
class Key:
    """Names of the environment's variables with a bucket's key, where they are not those of AWS's tools."""

    access_key_id: str
    secret_access_key: str
    session_token: str


@dataclass(frozen=True, slots=True)
class Remote:
    """A state in a bucket.

    ``kind`` and ``settings`` are Terraform's backend block. ``objects`` reads and locks what it names, under
    ``state_key`` and ``lock_key``; ``uri`` names the state in messages. ``env`` is added to Terraform's environment.
    ``ready`` is called before each lock and raises CloudError for a bucket that cannot serve.
    """

    kind: str
    settings: Mapping[str, Any]
    objects: Objects
    state_key: str
    lock_key: str
    uri: str
    waits: Waits = field(default_factory=Waits)
    key: Key | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    ready: Callable[[], None] = lambda: None
    file: str = "FILE"
    """The job's failover.yaml, as a shell takes it, for a command that is told."""

    def block(self, directory: Path) -> dict[str, Any]:
        """Return the backend block for a stack in ``directory``."""
        settings = dict(self.settings)
        if self.key is not None:
            settings |= {"profile": PROFILE, "shared_config_files": [str(directory / PROFILE_FILE)]}
        return {"terraform": {"backend": {self.kind: settings}}}


def write(directory: Path, remote: Remote | None) -> bool:
    """Say in a stack's directory where its state is; None: beside it. Return whether that was said otherwise."""
    override, profile = directory / OVERRIDE, directory / PROFILE_FILE
    if remote is None:
        changed = override.exists()
        override.unlink(missing_ok=True)
        profile.unlink(missing_ok=True)
        return changed
    write_profile(directory, remote)
    return replace(override, json.dumps(remote.block(directory), indent=2, sort_keys=True) + "\n")


def write_profile(directory: Path, remote: Remote) -> None:
    """Write what ``remote.block(directory)`` names, if it names anything."""
    if remote.key is not None:
        replace(directory / PROFILE_FILE, _profile(remote.key))


def _profile(key: Key) -> str:
    named = " ".join(f'"${name}"' for name in (key.access_key_id, key.secret_access_key, key.session_token))
    return f"[profile {PROFILE}]\ncredential_process = {_PRINT} {named}\n"


def replace(path: Path, text: str) -> bool:
    """Write a file as a whole, for its owner only, on the disk for good; say whether it was another one."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    return True
