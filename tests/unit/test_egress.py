"""What bytes cost that leave a place: list prices, and nothing invented where the list has none."""

from __future__ import annotations

from decimal import Decimal

import pytest

from provisioner.catalog import EGRESS_AS_OF, egress, egress_cost
from provisioner.model import Money


def usd(amount: str) -> Money:
    return Money(Decimal(amount), "USD")


@pytest.mark.parametrize(
    ("places", "price"),
    [
        (("aws", "us-east-1", "aws", "us-east-1"), usd("0")),
        (("aws", "us-east-1", "aws", "us-west-2"), usd("0.02")),
        (("aws", "us-east-1", "aws", ""), usd("0.02")),  # not known where: the most that it can be
        (("aws", "us-east-1", "gcp", "us-east1"), usd("0.09")),
        (("aws", "us-east-1", "aliyun", "cn-hangzhou"), usd("0.09")),
        (("aws", "us-east-1", "aws", "cn-north-1"), usd("0.09")),
        (("gcp", "us-central1", "gcp", "us-central1"), usd("0")),
        (("gcp", "us-central1", "gcp", "europe-west4"), usd("0.02")),
        (("gcp", "us-central1", "aws", "us-east-1"), usd("0.12")),
        (("autodl", "westDC3", "aws", "us-east-1"), usd("0")),
        (("local", "", "gcp", ""), usd("0")),
        (("aws", "cn-north-1", "aws", "cn-north-1"), usd("0")),
        (("aws", "cn-north-1", "gcp", "us-east1"), None),
        (("aliyun", "cn-hangzhou", "autodl", "westDC3"), None),
        (("other", "", "other", ""), None),
    ],
)
def test_what_a_gb_costs(places, price):
    assert egress(*places) == price


def test_bytes_cost_in_proportion():
    assert egress_cost(usd("0.09"), 1_200_000_000) == usd("0.108")
    assert EGRESS_AS_OF == "2026-05"
