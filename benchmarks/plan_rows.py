"""The rows that all planners of ``plan.py`` get: every machine type that AWS offers in every zone, with prices.

The offerings are those of moto's data files (30 regions). Prices are Karpenter's on-demand prices of us-east-1 as the
catalog has them, 0.05 USD a vCPU for machines without a GPU, times an invented factor for each other region, and an
invented spot share for each zone: right in number and shape, not in amount. Every planner gets the same.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from provisioner import catalog
from provisioner.catalog import overlay, tables

HOME = "us-east-1"
SKY_NAMES = {"A100-40GB": "A100"}
HUNT_NAMES = {"A100-40GB": "A100", "A100-80GB": "A100", "V100-32GB": "V100"}


@dataclass(frozen=True, slots=True)
class Row:
    """One machine type in one zone. ``gpu_count`` 0 and a ``gpu``: a slice, ``slice_gb`` of it."""

    instance_type: str
    gpu: str
    gpu_count: int
    vram_gb: float
    slice_gb: float
    vcpus: int
    memory_gb: float
    arm: bool
    region: str
    zone: str
    price: float
    spot: float


def rows() -> list[Row]:
    """Return all rows; machines whose price nobody knows are left out."""
    types = {one["InstanceType"]: one for one in _json("instance_types.json.gz").values()}
    ours = tables.machines("aws")
    found = []
    for region, names in _offerings():
        for name, zone in names:
            kind = types.get(name)
            price = _price(name, region, kind)
            if kind is None or price is None:
                continue
            machine = ours.get(name)
            gpu = machine.gpu if machine else ""
            arm = "x86_64" not in kind["ProcessorInfo"]["SupportedArchitectures"]
            found.append(
                Row(
                    instance_type=name,
                    gpu=gpu,
                    gpu_count=machine.gpu_count if machine else 0,
                    vram_gb=tables.cards()[gpu].vram_gb if gpu in tables.cards() else 0,
                    slice_gb=round(machine.gpu_memory_mib / 1024, 1) if machine and not machine.gpu_count else 0,
                    vcpus=kind["VCpuInfo"]["DefaultVCpus"],
                    memory_gb=kind["MemoryInfo"]["SizeInMiB"] / 1024,
                    arm=arm,
                    region=region,
                    zone=zone,
                    price=price,
                    spot=round(price * (0.25 + 0.35 * _chance(zone, name)), 5),
                )
            )
    return found


def write_ours(found: list[Row], directory: Path) -> None:
    """Write the catalog's own tables with these rows, and the spot prices as a refresh would."""
    directory.mkdir(parents=True, exist_ok=True)
    for file in tables.DATA.iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    known = {name: one for name, one in tables.machines("aws").items() if one.gpu}
    types = {row.instance_type: row for row in found}
    _csv(
        directory / "aws_types.csv",
        ("instance_type", "gpu", "gpu_count", "gpu_memory_mib_each", "vcpus", "architecture"),
        (
            (name, one.gpu, one.gpu_count, known[name].gpu_memory_mib if name in known else 0, one.vcpus,
             "arm64" if one.arm else "x86_64")
            for name, one in types.items()
        ),
    )  # fmt: skip
    zones: dict[tuple[str, str], list[str]] = {}
    for row in found:
        zones.setdefault((row.region, row.instance_type), []).append(row.zone.removeprefix(row.region))
    _csv(
        directory / "aws_zones.csv",
        ("region", "instance_type", "zones"),
        ((region, name, "".join(sorted(letters))) for (region, name), letters in zones.items()),
    )
    prices = {(row.region, row.instance_type): row.price for row in found}
    _csv(
        directory / "aws_prices.csv",
        ("region", "instance_type", "price_per_hour", "currency"),
        ((region, name, price, "USD") for (region, name), price in prices.items()),
    )
    spot = tuple((row.zone, row.instance_type, str(row.spot), "USD", "0") for row in found if row.gpu)
    table = overlay.Table(spot, 0.0, "benchmarks/plan_rows.py")
    overlay.write(directory / "cache" / overlay.NAME, overlay.Overlay({"aws_spot": table}))


def write_sky(found: list[Row], directory: Path) -> None:
    """Write SkyPilot's catalog. A slice of a card is a fraction of one, as its own fetcher writes it."""
    folder = directory / ".sky" / "catalogs" / "v8" / "aws"
    folder.mkdir(parents=True, exist_ok=True)
    header = (
        "InstanceType", "AcceleratorName", "AcceleratorCount", "vCPUs", "MemoryGiB", "GpuInfo", "Price", "SpotPrice",
        "Region", "AvailabilityZone", "Arch", "LocalDiskType", "NVMeSupported", "LocalDiskSize", "LocalDiskCount",
    )  # fmt: skip

    def line(row: Row) -> tuple[object, ...]:
        count: object = row.gpu_count or (round(row.slice_gb / row.vram_gb, 3) if row.slice_gb else "")
        name, arch = SKY_NAMES.get(row.gpu, row.gpu), "arm64" if row.arm else "x86_64"
        size = (row.vcpus, row.memory_gb, "", row.price, row.spot)
        return (row.instance_type, name, count, *size, row.region, row.zone, arch, "", "", "", "")

    _csv(folder / "vms.csv", header, map(line, found))
    common = folder.parent / "common"
    common.mkdir(exist_ok=True)
    names = sorted({SKY_NAMES.get(row.gpu, row.gpu) for row in found if row.gpu})
    _csv(common / "accelerators.csv", ("AcceleratorName", "Clouds"), ((name, "['AWS']") for name in names))
    _csv(common / "metadata.csv", ("GPU", "MemoryGB", "Manufacturer"), ())
    _csv(folder / "images.csv", ("Tag", "Region", "OS", "OSVersion", "ImageId", "CreationDate", "BaseImageId"), ())
    quotas = ("InstanceType", "SpotInstanceCode", "OnDemandInstanceCode")
    _csv(folder / "instance_quota_mapping.csv", quotas, ())


def write_gpuhunt(found: list[Row], directory: Path) -> None:
    """Write gpuhunt's catalog: a row for each region and market, without slices, as its own collector does."""
    directory.mkdir(parents=True, exist_ok=True)
    header = (
        "instance_name", "location", "price", "cpu", "memory", "gpu_count", "gpu_name", "gpu_memory", "spot",
        "disk_size", "gpu_vendor", "flags", "cpu_arch", "provider_data",
    )  # fmt: skip

    def lines() -> Iterator[tuple[object, ...]]:
        for row in found:
            if row.gpu and not row.gpu_count:
                continue
            name = HUNT_NAMES.get(row.gpu, row.gpu).replace(" ", "")
            gpu = (row.gpu_count, name, row.vram_gb) if row.gpu else (0, "", "")
            vendor = "" if not row.gpu else "amd" if row.gpu.startswith("Radeon") else "nvidia"
            rest = ("", vendor, "", "arm" if row.arm else "x86", "{}")
            for spot, price in ((False, row.price), (True, row.spot)):
                yield (row.instance_type, row.zone, price, row.vcpus, row.memory_gb, *gpu, spot, *rest)

    _csv(directory / "aws.csv", header, lines())


def _price(name: str, region: str, kind: dict[str, Any] | None) -> float | None:
    listed = tables.prices().get((HOME, name))
    if listed is None and (kind is None or name in tables.machines("aws")):
        return None
    vcpus = kind["VCpuInfo"]["DefaultVCpus"] if kind else 0
    base = float(listed.amount) if listed else 0.05 * vcpus
    factor = 1.0 if region == HOME else 1.0 + 0.35 * _chance(region, "")
    return round(base * factor, 5)


def _chance(first: str, second: str) -> float:
    """Return a number from 0 to 1 that is the same for the same words."""
    return int(hashlib.sha256(f"{first}\0{second}".encode()).hexdigest()[:8], 16) / 0xFFFFFFFF


def _offerings() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    folder = resources.files("moto.ec2") / "resources" / "instance_type_offerings" / "availability-zone"
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        region = file.name.partition(".")[0]
        if region in catalog.regions():
            listed = json.loads(gzip.decompress(file.read_bytes()))
            yield region, [(one["InstanceType"], one["Location"]) for one in listed]


def _json(name: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(
        gzip.decompress((resources.files("moto.ec2") / "resources" / name).read_bytes())
    )
    return found


def _csv(file: Path, header: tuple[str, ...], lines: Iterator[tuple[object, ...]] | tuple[()]) -> None:
    with file.open("w", encoding="utf-8", newline="") as target:
        writer = csv.writer(target, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(lines)
