"""What AutoDL calls its cards and regions, and prices once seen. Its API lists no specs, and no price beforehand.

Card names come from the packaged catalog; prices as public repositories recorded them: see ``PRICES_SEEN``.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from provisioner import catalog
from provisioner.model import Money

PRICES_SEEN = catalog.autodl_prices_seen()
"""Month of the newest price in the catalog."""

REGION_NAMES = {
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
"""Region codes and AutoDL's own names of them."""

PRO_REGIONS = catalog.AUTODL_PRO_REGIONS

DEFAULT_IMAGE = "base-image-l2t43iu6uk"
"""PyTorch 2.0.0, CUDA 11.8, Ubuntu 20.04: the newest image in AutoDL's own table."""


@cache
def pro_specs() -> dict[str, str]:
    """Return Pro's spec ids, each with the name of the same card in the stock of elastic deployments."""
    return {
        spec: catalog.autodl_stock_names(name)[0]
        for name in catalog.gpu_names()
        for spec in catalog.autodl_pro_specs(name)
        if catalog.canonical(spec) == name
    }


def stock_names(wanted: Iterable[str]) -> tuple[str, ...]:
    """Turn names as operators write them (``4090``, ``V100``, ``v-48g``) into AutoDL's exact stock names.

    Names that the catalog does not have as AutoDL's are dropped.
    """
    return tuple(dict.fromkeys(card for name in wanted for card in catalog.autodl_stock_names(name)))


def vram_gb(stock_name: str) -> float:
    """Return the memory of one card in GiB; 0 where the model is unknown."""
    known = catalog.card(stock_name)
    return known.vram_gb if known is not None else 0.0


def price(stock_name: str, count: int) -> Money | None:
    """Return what ``count`` cards cost an hour when a price was last seen (``PRICES_SEEN``), or None."""
    one = catalog.autodl_prices().get(stock_name)
    return None if one is None else Money(one.amount * count, one.currency)


def is_card(stock_name: str) -> bool:
    """Tell a GPU from AutoDL's machines without one, which stand in the same list (``CPU``, ``CPU-close-HT``)."""
    return stock_name != "CPU" and not stock_name.startswith("CPU-")
