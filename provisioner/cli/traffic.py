"""Copies and what they cost, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def egress_words(egress: Mapping[str, Any] | None, prices_of: str) -> str:
    """Return ``about $0.11 egress, list prices of 2026-05``. None: nobody knows."""
    if egress is None:
        return "egress of unknown price"
    amount = egress["amount"]
    if amount == 0:
        return "no egress to pay"
    sign = "$" if egress["currency"] == "USD" else f"{egress['currency']} "
    price = f"about {sign}{amount:.2f}" if amount >= 0.01 else f"less than {sign}0.01"
    return f"{price} egress, list prices of {prices_of}"


def copy_lines(replicas: Iterable[Mapping[str, Any]], prices_of: str) -> Iterator[str]:
    """Yield a line for each replica: its step, what was sent there, about what that costs, and what is wrong."""
    for replica in replicas:
        parts = ["no copy yet" if replica["step"] is None else f"step {replica['step']}"]
        parts.append(f"{size_words(replica['bytes'])} sent")
        parts.append(egress_words(replica["egress"], prices_of))
        if replica["behind"]:
            parts.append(f"behind by {replica['behind']}" + (f" ({replica['problem']})" if replica["problem"] else ""))
        yield f"{replica['uri']}: {', '.join(parts)}"


def size_words(size: int) -> str:
    """Return a number of bytes in units of 1000, as egress is sold."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1000
    return f"{value:.2f} TB"
