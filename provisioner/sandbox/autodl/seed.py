"""Regions, cards, prices and images that the emulated AutoDL begins with. Prices in 1/1000 yuan an hour and card.

Stock of the RTX 4090 and prices are of the size that public sources recorded; the rest is invented in the same size.
"""

from __future__ import annotations

REGION_SIGNS: dict[str, tuple[str, str]] = {
    "westDC2": ("west-X", "西北企业区"),
    "westDC3": ("west-B", "西北B区"),
    "beijingDC1": ("beijing-A", "北京A区"),
    "beijingDC2": ("bj-B1", "北京B区"),
    "beijingDC4": ("bj-C1", "L20专区"),
    "beijingDC3": ("bj-V1", "V100专区"),
    "neimengDC1": ("neimeng-A", "内蒙A区"),
    "neimengDC3": ("neimeng-B", "内蒙B区"),
    "foshanDC1": ("foshan-A", "佛山区"),
    "chongqingDC1": ("cq-A", "重庆A区"),
    "yangzhouDC1": ("yz-A", "3090专区"),
}
"""Region code to the sign and name in instance data, a name space of its own."""

PRO_REGIONS = ("westDC3", "beijingDC2")

SPECS = {
    "h800": "H800",
    "v-48g": "vGPU-48GB",
    "v-48g-350w": "vGPU-48GB-350W",
    "4090D": "RTX 4090D",
    "pro6000-p": "RTX PRO 6000",
    "v-32g-p": "vGPU-32GB",
    "5090-p": "RTX 5090",
}
PRO_IDLE = 6
PRO_CUDA = 130

PRICES = {
    "RTX 5090": 2880,
    "RTX 4090": 1980,
    "RTX 4090D": 1880,
    "RTX 3090": 1580,
    "RTX PRO 6000": 5980,
    "H800": 8880,
    "H20-NVLink": 6980,
    "A800-80GB-NVLink": 4980,
    "A100-PCIE-40GB": 3280,
    "L20": 3680,
    "V100-32GB": 2280,
    "vGPU-32GB": 1980,
    "vGPU-48GB": 2480,
    "vGPU-48GB-350W": 1780,
}

STOCK: dict[str, dict[str, tuple[int, int]]] = {
    "westDC2": {"RTX 4090": (55, 298), "RTX 4090D": (12, 96), "vGPU-48GB": (0, 64)},
    "westDC3": {"RTX 4090": (90, 1775), "RTX 5090": (7, 240), "vGPU-32GB": (21, 160), "RTX PRO 6000": (3, 64)},
    "beijingDC1": {"RTX 3090": (18, 144), "A100-PCIE-40GB": (0, 32)},
    "beijingDC2": {"RTX 4090": (117, 1352), "RTX 4090D": (40, 320), "vGPU-48GB-350W": (16, 128), "H800": (2, 48)},
    "beijingDC4": {"L20": (9, 96)},
    "beijingDC3": {"V100-32GB": (14, 80)},
    "neimengDC1": {"RTX 3090": (33, 200), "A800-80GB-NVLink": (4, 64)},
    "neimengDC3": {"RTX 4090": (256, 1576), "H20-NVLink": (8, 64)},
    "foshanDC1": {"RTX 3090": (5, 72)},
    "chongqingDC1": {"RTX 4090": (69, 332)},
    "yangzhouDC1": {"RTX 3090": (61, 400)},
}
"""Region to card to (idle, total)."""

CARDS_PER_HOST = 8
CPUS_PER_CARD = 16
GIB = 1024**3
MEMORY_PER_CARD = 60 * GIB
HOST_CUDA = (124, 128)
"""Driver levels, given to the hosts of a pool in turn."""

BASE_IMAGES = (
    "base-image-12be412037",
    "base-image-u9r24vthlk",
    "base-image-l374uiucui",
    "base-image-l2t43iu6uk",
    "base-image-0gxqmciyth",
    "base-image-uxeklgirir",
    "base-image-4bpg0tt88l",
    "base-image-mbr2n4urrc",
    "base-image-qkkhitpik5",
    "base-image-h041hn36yt",
    "base-image-7bn8iqhkb5",
    "base-image-k0vep6kyq8",
    "base-image-l2843iu23k",
)
