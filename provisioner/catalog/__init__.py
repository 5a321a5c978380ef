"""Which machines exist, with which GPUs, where and at what price. Packaged tables; see SOURCES.md for their origin."""

from __future__ import annotations

from provisioner.catalog.aws import (
    REFERENCE_REGION,
    Absent,
    Wanted,
    aws_absent,
    aws_offers,
    instance_types,
    price_ceiling,
    reference_price,
    regions,
)
from provisioner.catalog.egress import AS_OF as EGRESS_AS_OF
from provisioner.catalog.egress import cost as egress_cost
from provisioner.catalog.egress import egress
from provisioner.catalog.gpus import (
    AUTODL_PRO_REGIONS,
    AUTODL_REGIONS,
    autodl_pro_specs,
    autodl_stock_names,
    canonical,
    card,
    cuda_problem,
    gpu_names,
    matches,
)
from provisioner.catalog.tables import Card, Machine, machines, snapshot

__all__ = [
    "AUTODL_PRO_REGIONS",
    "AUTODL_REGIONS",
    "EGRESS_AS_OF",
    "REFERENCE_REGION",
    "Absent",
    "Card",
    "Machine",
    "Wanted",
    "autodl_pro_specs",
    "autodl_stock_names",
    "aws_absent",
    "aws_offers",
    "canonical",
    "card",
    "cuda_problem",
    "egress",
    "egress_cost",
    "gpu_names",
    "instance_types",
    "machines",
    "matches",
    "price_ceiling",
    "reference_price",
    "regions",
    "snapshot",
]
