"""Measured round trips to regions: how long a TCP connection takes from this machine."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from provisioner.config import Config

HOSTS: Final[Mapping[str, str]] = {
    "aws": "ec2.{region}.amazonaws.com",
    "gcp": "storage.{region}.rep.googleapis.com",
}
"""A host of each cloud that stands in the region itself. Google's usual names lead to the nearest door instead."""
PATIENCE_S = 3.0
TRIES = 3

Region = tuple[str, str]
"""Cloud and region."""


def regions_of(config: Config) -> list[Region]:
    """List the regions of a configuration that can be measured."""
    return [
        (entry.cloud, region)
        for entry in config.fallback
        if (at := entry.aws or entry.gcp) is not None
        for region in at.regions
    ]


def connect_ms(host: str, port: int = 443) -> float:
    """Return the milliseconds that a connection takes: one round trip. Raises OSError."""
    address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with closing(socket.socket(address[0], address[1])) as line:
        line.settimeout(PATIENCE_S)
        begun = time.perf_counter()
        line.connect(address[4])
        return (time.perf_counter() - begun) * 1000.0


def measure(regions: Sequence[Region], connect: Callable[[str], float] = connect_ms) -> dict[Region, float]:
    """Return the best of three round trips in milliseconds for each region; those that do not answer are left out."""
    with ThreadPoolExecutor(max_workers=16) as pool:
        found = pool.map(lambda region: _best(region, connect), regions)
        return {region: best for region, best in zip(regions, found, strict=True) if best is not None}


def _best(region: Region, connect: Callable[[str], float]) -> float | None:
    cloud, name = region
    host = HOSTS[cloud].format(region=name) + (".cn" if name.startswith("cn-") else "")
    try:
        return min(connect(host) for _ in range(TRIES))
    except OSError:
        return None
