"""Where a job's stores are, and which of them is nearest to a machine. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

if TYPE_CHECKING:  # `failover status` reads no configuration, and starts quickly
    from provisioner.config import CheckpointConfig, StoreConfig

_SERVICES = {".amazonaws.com": "aws", ".amazonaws.com.cn": "aws", ".aliyuncs.com": "aliyun", ".myqcloud.com": "tencent"}
_REGION = re.compile(
    r"(?:^|\.)(?:s3|oss|cos)[.-](?:dualstack\.)?([a-z]{2,}(?:-[a-z0-9]+)+?)(?:-internal)?\.(?:amazonaws|aliyuncs|myqcloud)\."
)
_TENCENT_IN_CHINA = frozenset(
    f"ap-{city}" for city in ("beijing", "chengdu", "chongqing", "guangzhou", "nanjing", "shanghai")
)

SAME_REGION, SAME_CLOUD, ELSEWHERE = range(3)


@dataclass(frozen=True, slots=True)
class Place:
    """Cloud and region of a store. ``region`` is empty where nothing tells it; ``cloud`` ``other``: some S3 service."""

    cloud: str
    region: str


class Addressed(Protocol):
    """What tells where a store is."""

    @property
    def uri(self) -> str:
        """``s3://bucket/prefix`` and the like."""

    @property
    def endpoint(self) -> str | None:
        """URL of its service; None: the cloud's own."""

    @property
    def region(self) -> str | None:
        """Region of its bucket, where that is said."""


def place(store: Addressed) -> Place:
    """Tell where a store is from its URI, its endpoint and the region that is written for it."""
    scheme = urlsplit(store.uri).scheme
    if scheme == "file":
        return Place("local", "")
    if scheme == "gs":
        return Place("gcp", store.region or "")
    if store.endpoint is None:
        return Place("aws", store.region or "")
    host = f".{urlsplit(store.endpoint).hostname or ''}"
    cloud = next((cloud for ending, cloud in _SERVICES.items() if host.endswith(ending)), "other")
    named = _REGION.search(host)
    return Place(cloud, (store.region or (named[1] if named else "")).removeprefix("oss-"))


def nearness(store: StoreConfig, cloud: str, region: str) -> int:
    """Say how near a store is to a machine: SAME_REGION, SAME_CLOUD or ELSEWHERE; less is nearer.

    AutoDL has no store of its own: its machines stand in China, and so does what is near to them.
    """
    at = place(store)
    if at.cloud == cloud:
        return SAME_REGION if cloud == "local" or (region and at.region == region) else SAME_CLOUD
    return SAME_CLOUD if cloud == "autodl" and _in_china(at) else ELSEWHERE


def stores(checkpoint: CheckpointConfig, environ: Mapping[str, str]) -> list[StoreConfig]:
    """Return the job's own store and its replicas, in the order of the file.

    A bucket at AWS without a region gets the one of the environment: that is where it is looked for.
    """
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    return [
        store.model_copy(update={"region": region}) if place(store) == Place("aws", "") and region else store
        for store in (checkpoint.main, *checkpoint.replicas)
    ]


def nearest_first(found: Sequence[StoreConfig], cloud: str, region: str) -> list[StoreConfig]:
    """Return stores, nearest first; of equally near ones in the order that they have."""
    return sorted(found, key=lambda store: nearness(store, cloud, region))


def _in_china(at: Place) -> bool:
    if at.cloud == "aliyun":
        return not at.region or (at.region.startswith("cn-") and at.region != "cn-hongkong")
    if at.cloud == "tencent":
        return not at.region or at.region in _TENCENT_IN_CHINA
    return at.cloud == "aws" and at.region.startswith("cn-")
