"""Names that AutoDL uses and no endpoint lists: regions, GPU models, Pro specs, base images, and prices once seen.

Sources: AutoDL's pages ``instance_pro_api`` and ``esd_api_doc``; prices as public repositories recorded them. AutoDL's
API tells no price before a machine runs, and prices change: see ``PRICES_SEEN``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from provisioner.clouds.autodl.units import CNY
from provisioner.model import Money

PRICES_SEEN = "2026-10"
"""Month of the newest price in ``GPUS``."""

REGIONS = {
    "westDC2": "西北企业区(推荐)",
    "westDC3": "西北B区",
    "beijingDC1": "北京A区",
    "beijingDC2": "北京B区",
    "beijingDC4": "L20专区(原北京C区)",
    "beijingDC3": "V100专区(原华南A区)",
    "neimengDC1": "内蒙A区",
    "neimengDC3": "内蒙B区",
    "foshanDC1": "佛山区",
    "chongqingDC1": "重庆A区",
    "yangzhouDC1": "3090专区",
}
PRO_REGIONS = ("westDC3", "beijingDC2")
"""The only regions that Pro's create accepts (observed 2026-08); each other one is a parameter error."""

DEFAULT_IMAGE = "base-image-l2t43iu6uk"
"""PyTorch 2.0.0, CUDA 11.8, Ubuntu 20.04: the newest image in AutoDL's own table."""


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A GPU by its exact name in AutoDL's stock. Memory in GiB, 0 where unknown; price in yuan an hour and card."""

    name: str
    vram_gb: float
    yuan_per_hour: str = ""


GPUS = {
    gpu.name: gpu
    for gpu in (
        GpuModel("RTX 5090", 32, "2.88"),
        GpuModel("RTX 4090", 24, "1.98"),
        GpuModel("RTX 4090D", 24, "1.88"),
        GpuModel("RTX 3090", 24, "1.58"),
        GpuModel("RTX 3080 Ti", 12),
        GpuModel("RTX 3080", 10),
        GpuModel("RTX 3080x2", 10),
        GpuModel("RTX 3060", 12),
        GpuModel("RTX 2080 Ti", 11),
        GpuModel("GTX 1080 Ti", 11),
        GpuModel("RTX A4000", 16),
        GpuModel("RTX A5000", 24),
        GpuModel("RTX PRO 6000", 96, "5.98"),
        GpuModel("H800", 80, "9.35"),
        GpuModel("H20-NVLink", 96, "6.98"),
        GpuModel("A800-80GB-NVLink", 80, "4.98"),
        GpuModel("A100-PCIE-40GB", 40, "3.28"),
        GpuModel("L20", 48, "3.68"),
        GpuModel("V100-32GB", 32, "2.28"),
        GpuModel("V100-SXM2-32GB", 32),
        GpuModel("vGPU-32GB", 32),
        GpuModel("vGPU-48GB", 48),
        GpuModel("vGPU-48GB-350W", 48, "1.78"),
        GpuModel("vGPU-48GB-425W", 48),
    )
}

SPECS = {
    "h800": "H800",
    "v-48g": "vGPU-48GB",
    "v-48g-350w": "vGPU-48GB-350W",
    "4090D": "RTX 4090D",
    "pro6000-p": "RTX PRO 6000",
    "v-32g-p": "vGPU-32GB",
    "5090-p": "RTX 5090",
}
"""Pro's spec ids and the name of the same card in the stock of elastic deployments."""

_FAMILIES = {
    "A100": ("A100-PCIE-40GB",),
    "A800": ("A800-80GB-NVLink",),
    "H20": ("H20-NVLink",),
    "V100": ("V100-32GB", "V100-SXM2-32GB"),
    "4080S": ("vGPU-32GB",),
}


def _plain(name: str) -> str:
    """Reduce ``NVIDIA GeForce RTX 4090`` and ``rtx4090`` to ``4090``: only to compare two names."""
    return re.sub(r"NVIDIA|GEFORCE|TESLA|RTX|GTX|[^A-Z0-9]", "", name.upper())


_PLAIN = {_plain(name): name for name in GPUS}


def stock_names(wanted: Iterable[str]) -> tuple[str, ...]:
    """Turn names as operators write them (``4090``, ``A100``, ``v-48g``) into AutoDL's exact stock names.

    A name that AutoDL's table does not have is dropped here; ``exact`` names in the configuration are kept by the
    caller, since AutoDL adds models without notice.
    """
    found: dict[str, None] = {}
    for name in wanted:
        if name in GPUS:
            found[name] = None
        elif name in SPECS:
            found[SPECS[name]] = None
        else:
            plain = _plain(name)
            found.update(dict.fromkeys((_PLAIN[plain],) if plain in _PLAIN else _FAMILIES.get(plain, ())))
    return tuple(found)


def vram_gb(stock_name: str) -> float:
    """Return the memory of one card in GiB; 0 where the model is unknown."""
    return GPUS[stock_name].vram_gb if stock_name in GPUS else 0.0


def price(stock_name: str, count: int) -> Money | None:
    """Return what ``count`` cards cost an hour when a price was last seen (``PRICES_SEEN``), or None."""
    model = GPUS.get(stock_name)
    if model is None or not model.yuan_per_hour:
        return None
    return Money(Decimal(model.yuan_per_hour) * count, CNY)


def is_card(stock_name: str) -> bool:
    """Tell a GPU from AutoDL's machines without one, which stand in the same list (``CPU``, ``CPU-close-HT``)."""
    return stock_name != "CPU" and not stock_name.startswith("CPU-")
