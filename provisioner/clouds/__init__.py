"""Clouds: one room each, found by name through the entry points ``provisioner.clouds`` and imported when used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final

from provisioner.clouds.base import Cloud
from provisioner.errors import ConfigError
from provisioner.model import JobRef

GROUP: Final = "provisioner.clouds"
_OWN: Final = {
    "autodl": "provisioner.clouds.autodl:AutodlCloud",
    "aws": "provisioner.clouds.aws:AwsCloud",
    "gcp": "provisioner.clouds.gcp:GcpCloud",
    "local": "provisioner.clouds.local:LocalCloud",
}
"""Ours, for a checkout that was never installed and so has no entry points."""


def names() -> tuple[str, ...]:
    """List the clouds that this installation has."""
    return tuple(sorted({*_OWN, *_installed()}))


def is_ours(name: str) -> bool:
    """Say whether a cloud is the one of this package, not a plug-in's under the same name."""
    own = _OWN.get(name)
    point = _installed().get(name)
    return own is not None and (point is None or point.value == own)


def open_cloud(
    name: str,
    *,
    job: JobRef,
    config: Any,
    directory: Path,
    environ: Mapping[str, str],
    events: Any = None,
) -> Cloud:
    """Open a cloud for a job: ``<room>.open(job=, config=, directory=, environ=, events=)``. Asks the cloud nothing.

    ``config`` is the whole ``provisioner.config.Config``; ``directory`` the job's state directory. Raises ConfigError
    for a cloud that this version does not have.
    """
    room = _room(name)
    cloud: Cloud = room.open(job=job, config=config, directory=directory, environ=environ, events=events)
    return cloud


@cache
def _installed() -> dict[str, EntryPoint]:
    """Return the entry points by name. They are looked for in every installed distribution, so once is enough."""
    return {point.name: point for point in reversed(tuple(entry_points(group=GROUP)))}


def _room(name: str) -> Any:
    found = _installed().get(name)
    if found is not None:
        return found.load()
    if name not in _OWN:
        message = f"cloud {name!r} is not in this version"
        raise ConfigError(message, hint=f"this installation has {', '.join(names())}")
    module, _, attribute = _OWN[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
