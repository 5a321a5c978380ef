"""A look at AutoDL for people: which cards are free where, what they cost, what is in the wallet, does the job fit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from provisioner import catalog
from provisioner.clock import now as unix_now
from provisioner.clouds.autodl import cards
from provisioner.clouds.autodl.client import AutodlClient
from provisioner.clouds.autodl.cloud import AutodlCloud
from provisioner.clouds.autodl.machines import AutodlSettings, Passed
from provisioner.clouds.base import Request
from provisioner.model import JobRef, Money, Offer

NOT_PRO = "stock is counted for elastic deployments and does not predict Pro: only creating a Pro machine tells"
ONE_BY_ONE = "stock counts single cards: idle cards may sit in different hosts"
FREE, SOLD_OUT, EMPTY, UNKNOWN = "free", "sold_out", "empty", "unknown_region"


@dataclass(frozen=True, slots=True)
class Cell:
    """One card in one region. ``price`` is for one card and hour, as last seen; ``fits``: the job could use it now."""

    region: str
    gpu: str
    idle: int
    total: int
    price: Money | None
    fits: bool


@dataclass(frozen=True, slots=True)
class Region:
    """A region. ``state``: free, sold_out, empty (known, lists no such card) or unknown_region (nobody knows it)."""

    code: str
    state: str

    @property
    def name(self) -> str:
        """AutoDL's own name of it."""
        return cards.REGION_NAMES.get(self.code, "")


@dataclass(frozen=True, slots=True)
class Look:
    """One look. ``fits``: a matching card is free. ``certain`` is False where stock says little about it (Pro)."""

    at: float
    balance: Money
    regions: tuple[Region, ...]
    cells: tuple[Cell, ...]
    offers: tuple[Offer, ...]
    passed: tuple[Passed, ...]
    fits: bool
    certain: bool
    note: str

    @property
    def available(self) -> dict[tuple[str, str], int]:
        """Free cards by (region, card)."""
        return {(cell.region, cell.gpu): cell.idle for cell in self.cells}

    def headline(self) -> str:
        """Say in one line what is free of what was looked for."""
        free = [f"{cell.idle} x {cell.gpu} in {cell.region}" for cell in self.cells if cell.fits]
        return f"free at AutoDL: {', '.join(free[:6])}{' ...' if len(free) > 6 else ''}" if free else "no card is free"

    def document(self) -> dict[str, Any]:
        """Return the JSON document of ``failover check --json``. Money is in ``balance.currency`` throughout."""
        return {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.at)),
            "balance": {"amount": self.balance.amount, "currency": self.balance.currency},
            "prices_seen": cards.PRICES_SEEN,
            "regions": [{"region": item.code, "name": item.name, "state": item.state} for item in self.regions],
            "stock": [
                {
                    "region": cell.region,
                    "gpu": cell.gpu,
                    "idle": cell.idle,
                    "total": cell.total,
                    "price_per_hour": cell.price.amount if cell.price else None,
                    "fits": cell.fits,
                }
                for cell in self.cells
            ],
            "offers": [
                {
                    "region": offer.region or None,
                    "type": offer.instance_type,
                    "gpu": offer.gpu.name,
                    "count": offer.gpu.count,
                    "available": offer.available,
                    "price_per_hour": offer.price_per_hour.amount if offer.price_per_hour else None,
                }
                for offer in self.offers
            ],
            "passed_over": [{"name": item.name, "reason": item.reason} for item in self.passed],
            "fits": self.fits,
            "certain": self.certain,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class Question:
    """What is looked for. Without ``settings`` (no failover.yaml) any card of ``gpus`` will do.

    ``regions`` and ``gpus`` narrow the look further; a region that nobody knows is asked for all the same.
    """

    settings: AutodlSettings | None = None
    request: Request = field(default_factory=Request)
    regions: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()


def look(client: AutodlClient, question: Question, *, wall: Callable[[], float] = unix_now) -> Look:
    """Ask AutoDL for balance and stock, and say what fits. Raises CloudError."""
    balance = client.balance().spendable
    settings = question.settings
    codes = question.regions or (settings.regions if settings is not None else ()) or tuple(cards.REGION_NAMES)
    stock = {code: client.gpu_stock(code) for code in codes}
    offers: list[Offer] = []
    passed: list[Passed] = []
    if settings is not None:
        cloud = AutodlCloud(settings, JobRef("check", "00000000"), client, request=question.request)
        offers, passed = cloud.survey(question.request)
    usable = _usable(question, offers)
    cells = tuple(
        Cell(code, gpu, count.idle, count.total, cards.price(gpu, 1), fits=usable(code, gpu, count.idle))
        for code in codes
        for gpu, count in stock[code].items()
        if cards.is_card(gpu) and _is_asked(gpu, question.gpus)
    )
    regions = tuple(Region(code, _state(code, [cell for cell in cells if cell.region == code])) for code in codes)
    is_pro = settings is not None and settings.mode != "elastic"
    return Look(
        at=wall(),
        balance=balance,
        regions=regions,
        cells=cells,
        offers=tuple(offers),
        passed=tuple(passed),
        fits=any(cell.fits for cell in cells),
        certain=not is_pro and question.request.count == 1,
        note=NOT_PRO if is_pro else ONE_BY_ONE,
    )


def _usable(question: Question, offers: Sequence[Offer]) -> Callable[[str, str, int], bool]:
    """Return what tells whether a card of a region would do for the job, by the offers that were made."""
    settings, count = question.settings, question.request.count
    if settings is None:
        return lambda _region, _gpu, idle: idle >= count
    if settings.mode == "elastic":
        free = {(offer.region, offer.gpu.name) for offer in offers if (offer.available or 0) >= offer.gpu.count}
        return lambda region, gpu, _idle: (region, gpu) in free
    wanted = {
        (region, offer.gpu.name)
        for offer in offers
        for region in ([offer.region] if offer.region else cards.PRO_REGIONS)
    }
    return lambda region, gpu, idle: (region, gpu) in wanted and idle >= count


def _is_asked(gpu: str, asked: Sequence[str]) -> bool:
    return not asked or gpu in asked or catalog.matches(asked, gpu)


def _state(code: str, cells: Sequence[Cell]) -> str:
    if not cells:
        return EMPTY if code in cards.REGION_NAMES else UNKNOWN
    return FREE if any(cell.idle for cell in cells) else SOLD_OUT
