"""Mistakes in ``checkpoint`` that no single field can show: stores out of reach, without a key, or one in another."""

from __future__ import annotations

import os.path
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import PurePosixPath
from typing import Protocol
from urllib.parse import urlsplit

from provisioner.config.checkpoint import CheckpointConfig, StoreConfig
from provisioner.config.mistakes import Loc
from provisioner.config.values import short

Finding = tuple[Loc, str, str]
"""Place, message, hint."""

GOOGLE_KEY = "GOOGLE_APPLICATION_CREDENTIALS"
EMULATOR = "STORAGE_EMULATOR_HOST"
_KEY_FIELDS = ("access_key_id_env", "secret_access_key_env", "session_token_env")


@dataclass(frozen=True, slots=True)
class Machines:
    """Clouds of a job, by the names that people know, whose machines are not this one."""

    names: tuple[str, ...]

    @property
    def foreign_to_google(self) -> str:
        """Those that have no role at Google Cloud."""
        return " and ".join(name for name in self.names if name != "GCP")

    def __str__(self) -> str:
        """Return ``AutoDL and AWS``."""
        return " and ".join(self.names)


def store_findings(checkpoint: CheckpointConfig, machines: Machines, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what is wrong with the stores, whose fields are right."""
    stores = _stores(checkpoint)
    for loc, store in stores:
        yield from _reach(loc, store, machines, environ)
    yield from key_findings(("checkpoint",), checkpoint, environ)
    for loc, store in stores[1:]:
        yield from key_findings(loc, store, environ)
    yield from _overlaps(stores)


def _stores(checkpoint: CheckpointConfig) -> list[tuple[Loc, StoreConfig]]:
    replicas = [(("checkpoint", "replicas", number), store) for number, store in enumerate(checkpoint.replicas)]
    return [(("checkpoint", "store"), checkpoint.main), *replicas]


def _reach(loc: Loc, store: StoreConfig, machines: Machines, environ: Mapping[str, str]) -> Iterator[Finding]:
    """A directory of this machine is a store only while every machine is this one, as in the sandbox."""
    scheme = urlsplit(store.uri).scheme
    if scheme == "file" and machines.names:
        message = f"machines at {machines} cannot reach a directory of this machine"
        yield loc, message, "write s3://bucket/prefix"
    if scheme == "gs" and machines.foreign_to_google and not environ.get(GOOGLE_KEY) and not _is_open(store, environ):
        message = f"machines at {machines.foreign_to_google} get no key for {short(store.uri)}: {GOOGLE_KEY} is not set"
        yield loc, message, f"set {GOOGLE_KEY} to the key file of a service account that may use this bucket alone"


def _is_open(store: StoreConfig, environ: Mapping[str, str]) -> bool:
    """An emulator asks for no key."""
    return bool(environ.get(EMULATOR)) or urlsplit(store.endpoint or "").scheme == "http"


class Keyed(Protocol):
    """A section that names a key by variables of the environment."""

    @property
    def model_fields_set(self) -> set[str]:
        """The keys that the file has."""


def key_findings(loc: Loc, section: Keyed, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the variables that the file names and that are not set."""
    for field in _KEY_FIELDS:
        name = getattr(section, field)
        if field in section.model_fields_set and not environ.get(name):
            advice = f"export {name} before you start failover, or leave the key out"
            yield (*loc, field), f"the environment variable {name} is not set", advice


def _overlaps(stores: list[tuple[Loc, StoreConfig]]) -> Iterator[Finding]:
    """Two stores in one place would remove each other's checkpoints. The later one is the mistake."""
    told: set[Loc] = set()
    for (first_loc, first), (loc, store) in combinations(stores, 2):
        (place, path), (other_place, other_path) = _place(first), _place(store)
        if loc in told or place != other_place:
            continue
        name = "checkpoint.store" if first_loc == ("checkpoint", "store") else f"replicas[{first_loc[-1]}]"
        if path == other_path:
            told.add(loc)
            yield loc, f"this is {name} once more", "name another store, or remove it"
        elif path.is_relative_to(other_path) or other_path.is_relative_to(path):
            told.add(loc)
            inner, outer = ("this", name) if other_path.is_relative_to(path) else (name, "this")
            yield loc, f"{inner} lies inside {outer}", "give each store a prefix or bucket of its own"


def inside(store: StoreConfig, other: StoreConfig) -> bool:
    """Say whether one store lies inside another, or is the same."""
    (place, path), (other_place, other_path) = _place(store), _place(other)
    return place == other_place and path.is_relative_to(other_path)


def _place(store: StoreConfig) -> tuple[tuple[str, ...], PurePosixPath]:
    """Return what two stores share when they are one service and bucket, and the prefix in it."""
    parts = urlsplit(store.uri)
    if parts.scheme == "file":
        return ("file",), PurePosixPath(os.path.realpath(parts.path))
    path = PurePosixPath("/", *(part for part in parts.path.split("/") if part))
    return (parts.scheme, parts.netloc, _service(store.endpoint, parts.netloc)), path


def _service(endpoint: str | None, bucket: str) -> str:
    """Return the address of a service, the same however it is written; nothing for the cloud's own."""
    if endpoint is None:
        return ""
    parts = urlsplit(endpoint)
    host = (parts.hostname or "").removeprefix(f"{bucket}.")
    if host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".googleapis.com")):
        return ""
    return f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
