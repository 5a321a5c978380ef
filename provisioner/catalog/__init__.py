"""Which machines exist, with which GPUs, where and at what price. Packaged tables; see SOURCES.md for their origin."""

from __future__ import annotations

from provisioner.catalog.aws import aws_absent, aws_offers
from provisioner.catalog.egress import AS_OF as EGRESS_AS_OF
from provisioner.catalog.egress import cost as egress_cost
from provisioner.catalog.egress import egress
from provisioner.catalog.fit import Absent, Wanted
from provisioner.catalog.gcp import gcp_absent, gcp_machine_types, gcp_offers
from provisioner.catalog.gpus import (
    AUTODL_PRO_REGIONS,
    AUTODL_REGIONS,
    autodl_pro_specs,
    autodl_stock_names,
    canonical,
    card,
    cuda_problem,
    found_gib,
    gpu_names,
    matches,
)
from provisioner.catalog.lookup import (
    REFERENCE_REGION,
    REFERENCE_REGIONS,
    instance_types,
    machine,
    price_ceiling,
    reference_price,
    regions,
    spot_price,
)
from provisioner.catalog.tables import Card, Machine, SpotPrice, autodl_prices, autodl_prices_seen, machines, snapshot

__all__ = [
    "AUTODL_PRO_REGIONS",
    "AUTODL_REGIONS",
    "EGRESS_AS_OF",
    "REFERENCE_REGION",
    "REFERENCE_REGIONS",
    "Absent",
    "Card",
    "Machine",
    "SpotPrice",
    "Wanted",
    "autodl_prices",
    "autodl_prices_seen",
    "autodl_pro_specs",
    "autodl_stock_names",
    "aws_absent",
    "aws_offers",
    "canonical",
    "card",
    "cuda_problem",
    "egress",
    "egress_cost",
    "found_gib",
    "gcp_absent",
    "gcp_machine_types",
    "gcp_offers",
    "gpu_names",
    "instance_types",
    "machine",
    "machines",
    "matches",
    "price_ceiling",
    "reference_price",
    "regions",
    "snapshot",
    "spot_price",
]
