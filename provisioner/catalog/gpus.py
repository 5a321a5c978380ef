"""GPU names: what an operator may write, what a cloud says, and when the two mean the same card."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, lru_cache

from provisioner.catalog.tables import Card, cards

_INLINE_ECC = frozenset({"T4", "T4g", "A10G", "L4", "L20", "L40S", "P4", "K80", "M60"})
"""Cards that keep their error correction in the memory that they are sold with."""

AUTODL_REGIONS = (
    "westDC2", "westDC3", "beijingDC1", "beijingDC2", "beijingDC3", "beijingDC4", "neimengDC1", "neimengDC3",
    "foshanDC1", "chongqingDC1", "yangzhouDC1",
)  # fmt: skip
"""AutoDL's region codes. Its stock call answers an unknown one as if it were sold out."""

AUTODL_PRO_REGIONS = ("westDC3", "beijingDC2")
"""The only regions that Pro's create accepts (observed 2026-08); each other one is a parameter error."""


def gpu_names() -> tuple[str, ...]:
    """List the names that a configuration may use: every model, and groups such as ``A100`` (either memory size)."""
    return tuple(_names())


def canonical(name: str) -> str | None:
    """Return our name of a card or group (``NVIDIA T4`` -> ``T4``), or None when it is unknown."""
    return _canonical(name)


@lru_cache(maxsize=4096)
def _canonical(name: str) -> str | None:
    return _by_cloud_name().get(name) or _by_plain_name().get(_plain(name))


def card(name: str) -> Card | None:
    """Return what is known of one model; None for a group or an unknown name."""
    return cards().get(canonical(name) or "")


def sized(name: str, memory_mib: int) -> str | None:
    """Return the card that a cloud calls by a name and a memory: ``A100`` with 81920 MiB is an A100-80GB."""
    ours = canonical(name)
    sizes = [one for one in cards().values() if ours is not None and ours in {one.name, one.group}]
    nearest = min(sizes, key=lambda one: abs(one.vram_gb - memory_mib / 1024), default=None)
    return nearest.name if nearest else None


def matches(wanted: Iterable[str], offered: str) -> bool:
    """Say whether a card of an offer is one of those wanted. None wanted means that any will do.

    A name that the table does not have matches itself only, letter for letter.
    """
    names = tuple(wanted)
    return not names or _matches(names, offered)


@lru_cache(maxsize=4096)
def _matches(names: tuple[str, ...], offered: str) -> bool:
    ours = canonical(offered)
    group = cards()[ours].group if ours in cards() else ""
    return any(name == offered or (ours is not None and canonical(name) in {ours, group or ours}) for name in names)


def found_gib(name: str, vram_gb: float) -> float:
    """Return how many of a card's GiB PyTorch finds there: of a T4's 16 it is 14.56, of a V100's 15.77.

    The shares are the least that PyTorch's messages of full cards show: L4 22.05 of 24, L40S 44.5 of 48, A4000 15.6.
    """
    return vram_gb * (0.91 if canonical(name) in _INLINE_ECC else 0.97)


def cuda_problem(name: str, cuda: tuple[int, int] | None) -> str:
    """Say why code built with a CUDA toolkit will not run on a card, or nothing (also when that is unknown)."""
    known = card(name)
    if cuda is None or known is None:
        return ""
    if known.cuda_from and cuda < known.cuda_from:
        return f"{known.name} needs CUDA {_text(known.cuda_from)} or newer, the job asks for {_text(cuda)}"
    if known.cuda_to and cuda > known.cuda_to:
        return f"{known.name} ends with CUDA {_text(known.cuda_to)}, the job asks for {_text(cuda)}"
    return ""


def autodl_stock_names(name: str) -> tuple[str, ...]:
    """Return the names of a card, group or Pro spec id in AutoDL's stock list; empty when AutoDL has none."""
    ours = canonical(name)
    return tuple(stock for one in cards().values() if ours in {one.name, one.group} for stock in one.autodl)


def autodl_pro_specs(name: str) -> tuple[str, ...]:
    """Return the Pro spec ids of a card, group or spec id; empty when Pro has none."""
    ours = canonical(name)
    return tuple(one.pro_spec for one in cards().values() if ours in {one.name, one.group} and one.pro_spec)


def _plain(name: str) -> str:
    """Reduce ``NVIDIA GeForce RTX 4090`` and ``rtx-4090`` to one spelling, and ``80g`` to ``80gb``."""
    text = re.sub(r"[\s_()-]+", "", name.casefold())
    return re.sub(r"(?<=\d\d)g$", "gb", re.sub(r"^(nvidia|geforce|tesla)+", "", text))


@cache
def _names() -> dict[str, None]:
    names: dict[str, None] = {}
    for one in cards().values():
        names.update(dict.fromkeys((one.group, one.name) if one.group else (one.name,)))
    return names


@cache
def _by_cloud_name() -> dict[str, str]:
    """Return the names that Google gives to one card and that, said by people, would mean a group of them."""
    return {name: one.name for one in cards().values() for name in one.gcp}


@cache
def _by_plain_name() -> dict[str, str]:
    """Return every spelling. Our own names come first, then what clouds say, then a name with the card's memory."""
    found = {_plain(name): name for name in _names()}
    for one in cards().values():
        bare = re.sub(r"^(RTX|GTX) ", "", one.name)
        for name in (bare, one.pro_spec, one.aws, *one.gcp, *one.autodl, *one.aliases):
            if name:
                found.setdefault(_plain(name), one.name)
    for one in cards().values():
        if one.vram_gb:
            for name in (one.name, re.sub(r"^(RTX|GTX) ", "", one.name)):
                found.setdefault(_plain(f"{name}-{one.vram_gb:g}GB"), one.name)
    return found


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
