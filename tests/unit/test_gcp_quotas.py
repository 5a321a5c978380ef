"""Quotas of Google Cloud before tries: what is read, how often, and which offers they rule out."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner.clouds.clock import Clock
from provisioner.clouds.gcp import quotas
from provisioner.clouds.gcp.compute import Quota
from provisioner.clouds.gcp.quotas import FRESH_S, QuotaBook
from provisioner.errors import Unreachable
from provisioner.model import FailureKind, Gpu, Market, Offer, Scope

SPOT, STANDARD = Market.SPOT, Market.ON_DEMAND


class Project:
    """A project's limits, as (limit, usage) by metric; empty region: the project itself."""

    account = SimpleNamespace(project="my-project")

    def __init__(self, **limits: tuple[float, float]) -> None:
        self.limits = {"us-central1": limits, "us-east1": limits}
        self.asked: list[str] = []
        self.told: list[str] = []
        self.tick = 0.0

    def project_quotas(self) -> dict[str, Quota]:
        self.asked.append("")
        return {name: Quota(name, *value) for name, value in self.limits["us-central1"].items() if "_ALL_" in name}

    def region_quotas(self, region: str) -> dict[str, Quota]:
        self.asked.append(region)
        return {name: Quota(name, *value) for name, value in self.limits[region].items() if "_ALL_" not in name}

    def book(self) -> QuotaBook:
        return QuotaBook(self, Clock(tick=lambda: self.tick), lambda place, error: self.told.append(place))  # type: ignore[arg-type]


def offer(kind: str = "n1-standard-8+1xT4", market: Market = SPOT, zone: str = "us-central1-a") -> Offer:
    gpu = {"n1": "T4", "g2": "L4", "a2": "A100-40GB", "a3": "H100"}[kind[:2]]
    return Offer("gcp", zone[:-2], zone, kind, Gpu(gpu, 1, 16), market, None)


@pytest.mark.parametrize(
    ("limits", "kind", "market", "quota", "scope"),
    [
        ({"NVIDIA_T4_GPUS": (1, 0)}, "n1-standard-8+1xT4", STANDARD, None, None),
        ({"NVIDIA_T4_GPUS": (1, 1)}, "n1-standard-8+1xT4", STANDARD, "NVIDIA_T4_GPUS", Scope.FAMILY),
        ({"NVIDIA_T4_GPUS": (2, 1)}, "n1-standard-8+2xT4", STANDARD, "NVIDIA_T4_GPUS", Scope.OFFER),
        ({"NVIDIA_L4_GPUS": (0, 0)}, "g2-standard-4", STANDARD, "NVIDIA_L4_GPUS", Scope.FAMILY),
        ({"NVIDIA_A100_GPUS": (0, 0)}, "a2-highgpu-1g", STANDARD, "NVIDIA_A100_GPUS", Scope.FAMILY),
        ({"NVIDIA_A100_GPUS": (0, 0)}, "a2-ultragpu-1g", STANDARD, None, None),
        ({"NVIDIA_A100_80GB_GPUS": (0, 0)}, "a2-ultragpu-1g", STANDARD, "NVIDIA_A100_80GB_GPUS", Scope.FAMILY),
        ({"PREEMPTIBLE_NVIDIA_H100_GPUS": (0, 0)}, "a3-highgpu-8g", STANDARD, None, None),
        (
            {"PREEMPTIBLE_NVIDIA_H100_GPUS": (4, 0)},
            "a3-highgpu-8g",
            SPOT,
            "PREEMPTIBLE_NVIDIA_H100_GPUS",
            Scope.OFFER,
        ),
        ({"CPUS": (4, 0)}, "n1-standard-8+1xT4", STANDARD, "CPUS", Scope.OFFER),
        ({"CPUS": (4, 4)}, "n1-standard-8+1xT4", STANDARD, "CPUS", Scope.MARKET),
        ({"CPUS": (0, 0)}, "g2-standard-4", STANDARD, None, None),
        ({"GPUS_ALL_REGIONS": (0, 0)}, "n1-standard-8+1xT4", SPOT, "GPUS_ALL_REGIONS", Scope.ACCOUNT),
        ({"CPUS_ALL_REGIONS": (12, 8)}, "n1-standard-8+1xT4", SPOT, "CPUS_ALL_REGIONS", Scope.OFFER),
        ({}, "n1-standard-8+1xT4", SPOT, None, None),
    ],
)
def test_a_quota_rules_out_what_it_counts(
    limits: dict[str, tuple[float, float]], kind: str, market: Market, quota: str | None, scope: Scope | None
) -> None:
    over = Project(**limits).book().over_quota([offer(kind, market)])
    found = next(iter(over.values()), None)
    assert (found.code if found else None, found.scope if found else None) == (quota, scope)
    if found:
        assert found.kind is FailureKind.QUOTA
        assert found.advice.endswith(f"metric=compute.googleapis.com/{found.code.lower()}&project=my-project")


@pytest.mark.parametrize(
    ("spot", "ordinary", "over"),
    [
        ((0, 0), (1, 0), False),  # no spot quota was ever granted: spot takes from the ordinary one
        ((0, 0), (1, 1), True),
        ((1, 1), (1, 0), True),  # it was, so spot takes from nothing else
        ((2, 1), (0, 0), False),
    ],
)
def test_spot_takes_from_its_own_quota_if_it_has_one(
    spot: tuple[float, float], ordinary: tuple[float, float], over: bool
) -> None:
    project = Project(PREEMPTIBLE_NVIDIA_T4_GPUS=spot, NVIDIA_T4_GPUS=ordinary)
    assert bool(project.book().over_quota([offer()])) is over


def test_one_call_a_region_and_one_for_the_project_every_ten_minutes() -> None:
    project = Project(GPUS_ALL_REGIONS=(1, 0))
    book = project.book()
    offers = [offer(market=market, zone=zone) for market in Market for zone in ("us-central1-a", "us-central1-b")]
    for _ in range(3):
        book.over_quota([*offers, offer(zone="us-east1-c")])
    assert sorted(project.asked) == ["", "us-central1", "us-east1"]
    project.tick = FRESH_S
    book.over_quota(offers)
    assert sorted(project.asked) == ["", "", "us-central1", "us-central1", "us-east1"]
    book.forget()
    book.over_quota(offers)
    assert len(project.asked) == 7
    assert book.over_quota([]) == {}


def test_what_cannot_be_read_blocks_nothing_and_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project(GPUS_ALL_REGIONS=(0, 0))

    def silent(*_: Any) -> Any:
        raise Unreachable("Google does not answer")

    monkeypatch.setattr(project, "region_quotas", silent)
    monkeypatch.setattr(project, "project_quotas", silent)
    assert project.book().over_quota([offer(), offer(zone="us-east1-c")]) == {}
    assert len(project.told) == 1


def test_an_answer_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "PATIENCE_S", 0.1)
    project, end = Project(NVIDIA_T4_GPUS=(0, 0)), threading.Event()
    monkeypatch.setattr(project, "project_quotas", lambda: end.wait(10) and {})
    assert list(project.book().over_quota([offer(market=STANDARD)])), "what did come counts"
    end.set()
