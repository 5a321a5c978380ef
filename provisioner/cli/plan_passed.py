"""What a plan passes over, as text: what has the same reason, but for its own name and place, shares a line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from provisioner.planner import PassedOver

MOST = 8
"""So many names a line, if the whole of it is not asked for."""
_ZONE, _REGION, _TYPE = "\1", "\2", "\3"
"""Stand in a reason for what is passed over itself."""
_PLURALS = {"has": "have", "is": "are", "holds": "hold", "needs": "need"}


@dataclass(slots=True)
class _Types:
    """The machine types of one region that have a reason, each with its markets, and their zones, in their order."""

    markets: dict[str, set[str]] = field(default_factory=dict)
    zones: dict[str, None] = field(default_factory=dict)

    def labels(self) -> tuple[str, ...]:
        """Return the types; one that has the reason in one market only is named with it."""
        return tuple(
            f"{name}/{next(iter(markets))}" if len(markets) == 1 else name for name, markets in self.markets.items()
        )


def passed_rows(passed_over: Iterable[PassedOver], *, whole: bool) -> Iterator[str]:
    """Yield a line for each reason; ``whole`` names all that it holds for."""
    found: dict[tuple[str, str], dict[str, _Types]] = {}
    for one in passed_over:
        cloud, region, zone, name, market = _parts(one)
        types = found.setdefault((cloud, _pattern(one.reason, region, zone, name)), {}).setdefault(region, _Types())
        if name:
            types.markets.setdefault(name, set()).update({market} - {""})
        if zone:
            types.zones[zone] = None
    for (cloud, pattern), regions in found.items():
        alike: dict[tuple[str, ...], list[str]] = {}
        for region, types in regions.items():
            alike.setdefault(types.labels(), []).append(region)
        for labels, some in alike.items():
            zones = [zone for region in some for zone in regions[region].zones]
            yield _row(cloud, pattern, labels, some, zones, most=None if whole else MOST)


def _parts(one: PassedOver) -> tuple[str, str, str, str, str]:
    """Return cloud, region, zone, machine type and market, as far as there are any."""
    if one.offer is not None:
        offer = one.offer
        return offer.cloud, offer.region, offer.zone, offer.instance_type, offer.market
    cloud, region, name = (*one.subject.split("/", 2), "", "")[:3]
    return cloud, region, "", name, ""


def _pattern(reason: str, region: str, zone: str, name: str) -> str:
    """Return a reason with marks for the names of what is passed over; its own name at the beginning is left out."""
    if name and re.match(r"[ :]", reason.removeprefix(name)):
        reason = reason.removeprefix(name)
    for mark, own in ((_ZONE, zone), (_REGION, region)):
        if own:
            reason = re.sub(rf"(?<![\w-]){re.escape(own)}(?![\w-])", mark, reason)
    return reason.replace(f"does not name {name}", f"does not name {_TYPE}") if name else reason


def _row(
    cloud: str, pattern: str, labels: Sequence[str], regions: Sequence[str], zones: Sequence[str], *, most: int | None
) -> str:
    told = [region for region in regions if region]
    elsewhere = _ZONE in pattern or _REGION in pattern  # then the reason says where
    where = f"{cloud}/{_some(told, most)}" if told and not elsewhere else cloud
    subject = f"{where}: {_some(labels, most)}" if labels and _TYPE not in pattern else where
    if len(zones) > 1 and _ZONE not in pattern:
        subject += f" ({len(zones)} zones)"
    own = pattern[:1] in {" ", ":"}
    words = _agreed(pattern, own=own, types=len(labels), regions=len(told), zones=len(zones))
    for mark, names in ((_ZONE, zones), (_REGION, told), (_TYPE, labels)):
        words = words.replace(mark, _some(names, most))
    return subject + words if own else f"{subject}: {words}"


def _agreed(words: str, *, own: bool, types: int, regions: int, zones: int) -> str:
    """Let verbs and nouns agree in number with what they are said of."""
    if types > 1:
        words = re.sub(r"^( ?)(has|is|holds|needs)\b", lambda verb: verb[1] + _PLURALS[verb[2]], words)
        words = re.sub(r"\bit\b", "them", words) if own else words
    if regions > 1:
        words = words.replace(f"{_REGION} is", f"{_REGION} are").replace(f"region {_REGION}", f"regions {_REGION}")
    return words.replace(f"zone {_ZONE}", f"zones {_ZONE}") if zones > 1 else words


def _some(names: Sequence[str], most: int | None) -> str:
    if most is None or len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more (--all)"
