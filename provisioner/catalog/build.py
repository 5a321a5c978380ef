"""Make the packaged tables ``data/aws_*.csv`` from snapshots of AWS's offerings and prices.

    python -m provisioner.catalog.build --offerings DIR --as-of 2026-11

DIR holds ``gpu_instance_types.csv``, ``gpu_zone_offerings.csv`` and ``gpu_on_demand_prices.csv``; SOURCES.md says where
they come from and what is added here. Maintainers run this; the installed package only reads its result.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

DATA = Path(__file__).parent / "data"

GPU_NAMES = {
    ("NVIDIA V100", 16384): "V100",
    ("NVIDIA V100", 32768): "V100-32GB",
    ("NVIDIA A100", 40960): "A100-40GB",
    ("NVIDIA A100", 81920): "A100-80GB",
    ("NVIDIA RTX PRO Server 6000", 98304): "RTX PRO 6000",
}
"""Where the snapshot's name says less, or something else, than the name that operators write."""

ARM64_FAMILIES = frozenset({"g5g"})
"""Graviton hosts, which run no x86_64 image. The snapshot of types that we read has no column for it."""

LEGACY = (
    # Types that the price list still names and no zone of the snapshot offers: type, GPU, count, GiB a card, vCPUs.
    ("p3.2xlarge", "V100", 1, 16, 8),
    ("p3.8xlarge", "V100", 4, 16, 32),
    ("p3.16xlarge", "V100", 8, 16, 64),
    ("p2.xlarge", "K80", 1, 12, 4),
    ("p2.8xlarge", "K80", 8, 12, 32),
    ("p2.16xlarge", "K80", 16, 12, 64),
    ("g3s.xlarge", "M60", 1, 8, 4),
    ("g3.4xlarge", "M60", 1, 8, 16),
    ("g3.8xlarge", "M60", 2, 8, 32),
    ("g3.16xlarge", "M60", 4, 8, 64),
    ("g2.2xlarge", "GRID K520", 1, 4, 8),
    ("g2.8xlarge", "GRID K520", 4, 4, 32),
    ("g4ad.xlarge", "Radeon Pro V520", 1, 8, 4),
    ("g4ad.2xlarge", "Radeon Pro V520", 1, 8, 8),
    ("g4ad.4xlarge", "Radeon Pro V520", 1, 8, 16),
    ("g4ad.8xlarge", "Radeon Pro V520", 2, 8, 32),
    ("g4ad.16xlarge", "Radeon Pro V520", 4, 8, 64),
)

REGIONS_READ = frozenset({"ap-southeast-4", "ca-west-1"})
"""Regions whose offerings were read and hold no GPU at all; a region with a GPU is known by its rows."""

REGIONS = (
    "af-south-1",
    "ap-east-1",
    "ap-east-2",
    "ap-northeast-1",
    "ap-northeast-2",
    "ap-northeast-3",
    "ap-south-1",
    "ap-south-2",
    "ap-southeast-1",
    "ap-southeast-2",
    "ap-southeast-3",
    "ap-southeast-4",
    "ap-southeast-5",
    "ap-southeast-6",
    "ap-southeast-7",
    "ca-central-1",
    "ca-west-1",
    "cn-north-1",
    "cn-northwest-1",
    "eu-central-1",
    "eu-central-2",
    "eu-north-1",
    "eu-south-1",
    "eu-south-2",
    "eu-west-1",
    "eu-west-2",
    "eu-west-3",
    "il-central-1",
    "me-central-1",
    "me-south-1",
    "mx-central-1",
    "sa-east-1",
    "us-east-1",
    "us-east-2",
    "us-gov-east-1",
    "us-gov-west-1",
    "us-west-1",
    "us-west-2",
)
"""Every region of the partitions aws, aws-cn and aws-us-gov that botocore knows."""


def read(path: Path) -> list[dict[str, str]]:
    """Read one CSV file with a header."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def type_rows(types: Iterable[dict[str, str]]) -> list[tuple[object, ...]]:
    """Return type, GPU, cards, MiB a card, vCPUs and architecture; 0 cards means a slice of one."""
    rows: list[tuple[object, ...]] = []
    for row in types:
        memory = int(row["gpu_memory_mib_each"])
        name = GPU_NAMES.get((row["gpu_name"], memory), row["gpu_name"].removeprefix("NVIDIA "))
        architecture = "arm64" if row["instance_type"].split(".")[0] in ARM64_FAMILIES else "x86_64"
        rows.append((row["instance_type"], name, int(row["gpu_count"]), memory, int(row["vcpus"]), architecture))
    known = {row[0] for row in rows}
    rows += [
        (name, gpu, count, gib * 1024, vcpus, "x86_64") for name, gpu, count, gib, vcpus in LEGACY if name not in known
    ]
    return sorted(rows, key=str)


def zone_rows(offerings: Iterable[dict[str, str]]) -> list[tuple[object, ...]]:
    """Return region, type and the letters of its zones: ``us-east-1,g4dn.xlarge,abcdf``."""
    letters: dict[tuple[str, str], set[str]] = {}
    for row in offerings:
        region, zone = row["region"], row["zone"]
        if zone[:-1] != region:
            raise ValueError(f"{zone} is not a letter of {region}: a local zone?")
        letters.setdefault((region, row["instance_type"]), set()).add(zone[-1])
    return [(region, name, "".join(sorted(zones))) for (region, name), zones in sorted(letters.items())]


def region_rows(offerings: Iterable[dict[str, str]]) -> list[tuple[object, ...]]:
    """Return region and whether its offerings were read."""
    seen = {row["region"] for row in offerings} | REGIONS_READ
    return [(region, "yes" if region in seen else "no") for region in sorted(seen | set(REGIONS))]


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Render one CSV table."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def sources(as_of: str) -> str:
    """Return the list of tables with the month of the two that are made of offerings."""
    known: dict[str, dict[str, str]] = json.loads((DATA / "sources.json").read_text(encoding="utf-8"))
    for name in ("aws_types", "aws_zones"):
        known[name]["as_of"] = as_of
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in known.items())
    return f"{{\n{lines}\n}}\n"


def build(directory: Path, as_of: str) -> dict[str, str]:
    """Return the packaged files by name. Raises OSError, or ValueError for rows that make no sense."""
    offerings = read(directory / "gpu_zone_offerings.csv")
    prices = read(directory / "gpu_on_demand_prices.csv")
    price_columns = ("region", "instance_type", "price_per_hour", "currency")
    return {
        "aws_types.csv": table(
            ("instance_type", "gpu", "gpu_count", "gpu_memory_mib_each", "vcpus", "architecture"),
            type_rows(read(directory / "gpu_instance_types.csv")),
        ),
        "aws_zones.csv": table(("region", "instance_type", "zones"), zone_rows(offerings)),
        "aws_regions.csv": table(("region", "offerings_read"), region_rows(offerings)),
        "aws_prices.csv": table(price_columns, sorted([row[key] for key in price_columns] for row in prices)),
        "sources.json": sources(as_of),
    }


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(description="Make the packaged catalog of AWS GPU machines.")
    parser.add_argument("--offerings", type=Path, required=True, help="directory of the three source tables")
    parser.add_argument("--as-of", required=True, help="month of the snapshot, e.g. 2026-11")
    options = parser.parse_args()
    for name, text in build(options.offerings, options.as_of).items():
        (DATA / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
