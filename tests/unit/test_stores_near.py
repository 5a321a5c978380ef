"""Which store is nearest to a machine."""

from __future__ import annotations

import pytest

from provisioner.config import CheckpointConfig, StoreConfig
from provisioner.controller.stores import (
    ELSEWHERE,
    SAME_CLOUD,
    SAME_REGION,
    Place,
    nearest_first,
    nearness,
    place,
    stores,
)


def s3(endpoint: str | None = None, region: str | None = None) -> StoreConfig:
    return StoreConfig(uri="s3://bucket/p", endpoint=endpoint, region=region)


GS = StoreConfig(uri="gs://bucket/p", region="us-central1")
DIRECTORY = StoreConfig(uri="file:///srv/store")
OSS = s3("https://oss-cn-hangzhou.aliyuncs.com")


@pytest.mark.parametrize(
    ("store", "where"),
    [
        (s3(), Place("aws", "")),
        (s3(region="us-east-1"), Place("aws", "us-east-1")),
        (s3("https://s3.us-west-2.amazonaws.com"), Place("aws", "us-west-2")),
        (s3("https://bucket.s3.dualstack.eu-west-1.amazonaws.com"), Place("aws", "eu-west-1")),
        (s3("https://s3.amazonaws.com"), Place("aws", "")),
        (s3("https://s3.cn-north-1.amazonaws.com.cn"), Place("aws", "cn-north-1")),
        (OSS, Place("aliyun", "cn-hangzhou")),
        (s3("https://bucket.oss-cn-beijing-internal.aliyuncs.com"), Place("aliyun", "cn-beijing")),
        (s3("https://oss-cn-beijing.aliyuncs.com", "oss-cn-beijing"), Place("aliyun", "cn-beijing")),
        (s3("https://cos.ap-guangzhou.myqcloud.com"), Place("tencent", "ap-guangzhou")),
        (s3("https://minio.example.com:9000", "us-east-1"), Place("other", "us-east-1")),
        (s3("https://amazonaws.com.example.com"), Place("other", "")),
        (GS, Place("gcp", "us-central1")),
        (DIRECTORY, Place("local", "")),
    ],
)
def test_where_a_store_is(store, where):
    assert place(store) == where


@pytest.mark.parametrize(
    ("store", "cloud", "region", "near"),
    [
        (s3(region="us-east-1"), "aws", "us-east-1", SAME_REGION),
        (s3(region="us-east-1"), "aws", "us-west-2", SAME_CLOUD),
        (s3(), "aws", "", SAME_CLOUD),  # two unknown regions are not one
        (s3(region="us-east-1"), "gcp", "us-east1", ELSEWHERE),
        (GS, "gcp", "us-central1", SAME_REGION),
        (GS, "aws", "us-east-1", ELSEWHERE),
        (OSS, "autodl", "westDC3", SAME_CLOUD),
        (s3("https://oss-us-west-1.aliyuncs.com"), "autodl", "westDC3", ELSEWHERE),
        (s3("https://cos.ap-beijing.myqcloud.com"), "autodl", "beijingDC2", SAME_CLOUD),
        (s3("https://cos.ap-singapore.myqcloud.com"), "autodl", "beijingDC2", ELSEWHERE),
        (s3(), "autodl", "westDC3", ELSEWHERE),
        (OSS, "aws", "us-east-1", ELSEWHERE),
        (s3("https://minio.example.com", "us-east-1"), "aws", "us-east-1", ELSEWHERE),
        (DIRECTORY, "local", "", SAME_REGION),
    ],
)
def test_how_near_a_store_is(store, cloud, region, near):
    assert nearness(store, cloud, region) == near


def test_a_machine_reads_from_the_nearest_and_the_own_store_has_its_place_among_them():
    checkpoint = CheckpointConfig(store="s3://bucket/p", replicas=(GS, OSS))
    found = stores(checkpoint, {"AWS_REGION": "us-east-1"})
    own = s3(region="us-east-1")
    assert nearest_first(found, "aws", "us-east-1") == [own, GS, OSS]
    assert nearest_first(found, "gcp", "europe-west4") == [GS, own, OSS]
    assert nearest_first(found, "autodl", "westDC3") == [OSS, own, GS]
    assert stores(checkpoint, {}) == [checkpoint.main, GS, OSS]
