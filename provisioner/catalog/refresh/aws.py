"""AWS: offerings by zone, machine types, spot prices, and the price list. Reading calls only.

Permissions: ec2:DescribeInstanceTypeOfferings, ec2:DescribeInstanceTypes, ec2:DescribeSpotPriceHistory,
pricing:GetProducts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from provisioner.catalog import tables
from provisioner.catalog.gpus import sized
from provisioner.catalog.overlay import Table
from provisioner.catalog.refresh.found import Done, Found, Missed, one_line, untold

Client = Callable[[str, str], Any]
"""Makes a boto3 client of a service in a region."""

_FAILURES = (ClientError, BotoCoreError, LookupError, TypeError, ValueError)
"""A refusal, no answer, or an answer that is not of the form that AWS documents."""
_GPU_FAMILY = re.compile(r"(g|gr|p)\d")
_TYPES_A_CALL = 100
_PRICING_REGION = "us-east-1"
_AT_ONCE = 8
_ON_DEMAND_LINUX = {
    "instanceFamily": "GPU instance", "operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA",
    "capacitystatus": "Used",
}  # fmt: skip


def refresh(client: Client, regions: Sequence[str], *, now: float, done: Done = untold) -> Found:
    """Ask for every region, a few at a time. What one region refuses is missed there and read everywhere else."""
    rows: dict[str, list[tuple[str, ...]]] = {name: [] for name in ("aws_types", "aws_zones", "aws_prices", "aws_spot")}
    missed: list[Missed] = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        asked = [pool.submit(_region, client("ec2", region), region, now, done) for region in regions]
        prices = pool.submit(_prices, client("pricing", _PRICING_REGION), set(regions), done)
        for future in (*asked, prices):
            found, lacking = future.result()
            missed += lacking
            for name, some in found.items():
                rows[name] += some
    sources = {
        "aws_types": "EC2 DescribeInstanceTypes", "aws_zones": "EC2 DescribeInstanceTypeOfferings",
        "aws_prices": "AWS price list", "aws_spot": "EC2 DescribeSpotPriceHistory",
    }  # fmt: skip
    made = {name: Table(tuple(sorted(set(some))), now, sources[name]) for name, some in rows.items() if some}
    return Found(made, tuple(missed))


_Rows = dict[str, list[tuple[str, ...]]]


def _region(ec2: Any, region: str, now: float, done: Done) -> tuple[_Rows, list[Missed]]:
    """Ask one region. Spot prices are asked for the types that it offers."""
    found: _Rows = {}
    missed: list[Missed] = []

    def ask(what: str, table: str, call: Callable[[], list[tuple[str, ...]]]) -> None:
        try:
            found[table] = call()
        except _FAILURES as error:
            missed.append(Missed("aws", what, _why(error), region))

    ask("zones", "aws_zones", lambda: list(_zones(ec2, region)))
    names = sorted({row[1] for row in found.get("aws_zones", ())})
    if names:
        ask("machine types", "aws_types", lambda: list(_types(ec2, names)))
        ask("spot prices", "aws_spot", lambda: list(_spot(ec2, names, now)))
    done(f"aws/{region}", sum(map(len, found.values())))
    return found, missed


def _zones(ec2: Any, region: str) -> Iterator[tuple[str, ...]]:
    letters: dict[str, set[str]] = {}
    for page in ec2.get_paginator("describe_instance_type_offerings").paginate(LocationType="availability-zone"):
        for offering in page["InstanceTypeOfferings"]:
            name, zone = offering["InstanceType"], offering["Location"]
            letter = zone.removeprefix(region)
            if _GPU_FAMILY.match(name) and len(letter) == 1:  # a local zone is another place
                letters.setdefault(name, set()).add(letter)
    for name, found in sorted(letters.items()):
        yield region, name, "".join(sorted(found))


def _types(ec2: Any, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the machine types with a card that the catalog knows. Other cards (FPGA, Gaudi) are no business of ours."""
    for start in range(0, len(names), _TYPES_A_CALL):
        answer = ec2.describe_instance_types(InstanceTypes=list(names[start : start + _TYPES_A_CALL]))
        for item in answer["InstanceTypes"]:
            cards = item.get("GpuInfo", {}).get("Gpus", ())
            gpu = sized(str(cards[0]["Name"]), int(cards[0]["MemoryInfo"]["SizeInMiB"])) if cards else None
            if gpu is None:
                continue
            known = tables.machines("aws").get(item["InstanceType"])
            count = 0 if known and known.gpu_count == 0 else int(cards[0].get("Count", 0))
            memory = str(cards[0]["MemoryInfo"]["SizeInMiB"])
            architectures = item["ProcessorInfo"]["SupportedArchitectures"]
            architecture = "x86_64" if "x86_64" in architectures else str(architectures[0])
            vcpus = str(item["VCpuInfo"]["DefaultVCpus"])
            yield item["InstanceType"], gpu, str(count), memory, vcpus, architecture


def _spot(ec2: Any, names: Sequence[str], now: float) -> Iterator[tuple[str, ...]]:
    """Yield the newest price of each zone and type, and when that was: now."""
    newest: dict[tuple[str, str], tuple[datetime, str]] = {}
    pages = ec2.get_paginator("describe_spot_price_history").paginate(
        InstanceTypes=list(names), ProductDescriptions=["Linux/UNIX", "Linux/UNIX (Amazon VPC)"],
        StartTime=datetime.fromtimestamp(now, UTC),
    )  # fmt: skip
    for page in pages:
        for item in page["SpotPriceHistory"]:
            key, at = (item["AvailabilityZone"], item["InstanceType"]), item["Timestamp"]
            if key not in newest or at > newest[key][0]:
                newest[key] = (at, item["SpotPrice"])
    for (zone, name), (_, amount) in sorted(newest.items()):
        if (price := _amount(amount)) is not None:
            yield zone, name, price, "USD", f"{now:.0f}"


def _prices(pricing: Any, regions: set[str], done: Done) -> tuple[_Rows, list[Missed]]:
    """Read the price list: Linux, shared tenancy, of the regions that were asked for."""
    rows: list[tuple[str, ...]] = []
    missed: list[Missed] = []
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in _ON_DEMAND_LINUX.items()]
    try:
        for page in pricing.get_paginator("get_products").paginate(ServiceCode="AmazonEC2", Filters=filters):
            rows += [row for row in _listed(page["PriceList"]) if row[0] in regions]
    except _FAILURES as error:
        rows, missed = [], [Missed("aws", "prices on demand", _why(error))]
    done("aws price list", len(rows))
    return {"aws_prices": rows}, missed


def _listed(products: Iterable[str]) -> Iterator[tuple[str, ...]]:
    for text in products:
        product = json.loads(text)
        attributes = product["product"]["attributes"]
        for term in product["terms"].get("OnDemand", {}).values():
            for dimension in term["priceDimensions"].values():
                amounts = ((currency, _amount(value)) for currency, value in dimension["pricePerUnit"].items())
                for currency, amount in amounts:
                    if dimension.get("unit") == "Hrs" and amount is not None:
                        yield attributes["regionCode"], attributes["instanceType"], amount, currency


def _amount(text: str) -> str | None:
    """Return a price without trailing zeros; None for nothing, zero and nonsense."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        return None
    return f"{value.normalize():f}" if value.is_finite() and value > 0 else None


def _why(error: Exception) -> str:
    answer = getattr(error, "response", None)
    if isinstance(answer, dict) and "Error" in answer:
        return one_line(f"{answer['Error'].get('Code', '')}: {answer['Error'].get('Message', '')}")
    return one_line(f"{type(error).__name__}: {error}")
