"""The judge of the storms sees each promise that is not kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.schedules import draw
from tests.chaos.storm import Life, Weather
from tests.chaos.verdict import broken

PRICE = {"amount": "3.6", "currency": "CNY"}
REPORT = {"result": "completed", "exit_code": 0, "leaked": [], "model_identical": True}


def fair(folder: Path) -> Weather:
    """Return a storm after which all is well: epoch 1 on one machine, then epoch 2 on another."""
    job = folder / "state/jobs/digits"
    job.mkdir(parents=True)
    ledger: list[dict[str, Any]] = [
        {"kind": "run", "run": 1, "at": 0.0, "budget": None, "per_day": None, "usd_cny": "7"}
    ]
    for epoch, node, begun, ended in [(1, "pro-1", 100.0, 200.0), (2, "pro-2", 201.0, 300.0)]:
        where = {"cloud": "autodl", "region": "", "zone": "", "instance_type": "", "market": "on-demand"}
        times = {"begun": begun, "ends_by": None, "likely": None, "expected": None, "expected_h": None}
        ledger.append(
            {"kind": "machine", "epoch": epoch, "node": node, "price": PRICE, "at_most": None, **where, **times}
        )
        ledger.append({"kind": "gone", "cloud": "autodl", "node": node, "at": ended, "problem": ""})
    (job / "spending.jsonl").write_text("".join(json.dumps({"time": 0.0, **line}) + "\n" for line in ledger))
    events = [
        {"time": begun, "kind": "claimed", "epoch": epoch, "node": node}
        for epoch, node, begun in [(1, "pro-1", 100.0), (2, "pro-2", 201.0)]
    ]
    (job / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    seen = {
        "pro-1": {"cloud": "autodl", "text": "failover-digits-0a-e1-77", "first": 101.0, "last": 199.0},
        "pro-2": {"cloud": "autodl", "text": "failover-digits-0a-e2-88", "first": 202.0, "last": 299.0},
    }
    return Weather(
        sightings=seen,
        lives=[Life(90.0, 310.0, 0, "")],
        writes=[manifest(10, 1, 150.0), manifest(20, 1, 190.0), manifest(30, 2, 250.0)],
        assets=[1000, 805],
        folder=folder,
    )


def manifest(step: int, epoch: int, at: float) -> dict[str, Any]:
    """Return the commit of a checkpoint."""
    return {"time": at, "method": "PUT", "path": f"/b/jobs/digits/checkpoints/{step:012d}-{epoch:06d}.json"}


def test_a_storm_after_which_all_is_well(tmp_path: Path) -> None:
    assert broken(REPORT, fair(tmp_path)) == []


def stranger(weather: Weather, first: float, last: float, text: str = "failover-digits-0a-e3-99") -> None:
    weather.sightings["pro-3"] = {"cloud": "autodl", "text": text, "first": first, "last": last}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda weather: weather.writes.append(manifest(40, 1, 260.0)), "epoch 1 committed 1 checkpoints after"),
        (lambda weather: stranger(weather, 110.0, 120.0, "failover-digits-0a-e1-99"), "epoch 1 had two machines"),
        (lambda weather: stranger(weather, 110.0, 120.0, ""), "carries no epoch"),
        (lambda weather: stranger(weather, 110.0, 180.0), "without a record for 70 s"),
        (lambda weather: weather.sightings["pro-2"].update(last=320.0), "the bill of pro-2"),
        (lambda weather: weather.sightings["pro-1"].update(first=90.0), "the bill of pro-1"),
        (lambda weather: weather.lives.__setitem__(0, Life(150.0, 310.0, 0, "")), "while controllers ran from"),
        (lambda weather: weather.assets.append(700), "AutoDL charged 0.3000 CNY; the ledger has 0.1990"),
    ],
)
def test_a_promise_that_was_not_kept_is_named(wrong: Callable[[Weather], None], words: str, tmp_path: Path) -> None:
    weather = fair(tmp_path)
    wrong(weather)
    assert words in "\n".join(broken(REPORT, weather))


def test_a_bad_end_is_named(tmp_path: Path) -> None:
    told = broken({"result": "failed", "exit_code": 1, "leaked": ["x"], "model_identical": False}, fair(tmp_path))
    assert [line.split()[0] for line in told] == ["the", "left", "the"]


def test_a_schedule_is_a_function_of_its_seed() -> None:
    assert [draw(seed) for seed in range(100)] == [draw(seed) for seed in range(100)]
    assert sum(draw(seed).provider == "official" for seed in range(100)) == 5
    kinds = {(blow.kind, blow.what.get("victim", blow.what.get("how"))) for s in range(100) for blow in draw(s).blows}
    assert len(kinds) >= 12, "every kind of blow is struck"
