"""The way home is tried with a machine that stands by; the next one of the same epoch may be the only one."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner.controller.moving import WISH, Doorstep, moves_home
from provisioner.controller.records import Begun, Choice, Claimed, Placement, Released, Watched
from provisioner.controller.view import PlacementView
from provisioner.controller.wayhome import WayHome
from provisioner.model import Ending, Gpu, JobRef, Market, Money, Node, Offer
from tests.sweeps import world


@pytest.mark.parametrize(("node", "stands_by"), [("a machine", {2: 1}), (None, {})])
def test_only_a_machine_that_was_got_at_home_stands_by(node: str | None, stands_by: dict[int, int]) -> None:
    """Else the next machine of this epoch, got anywhere, would wait for ever for a call by one that is gone."""
    claimed = SimpleNamespace(node=node)
    world = SimpleNamespace(launcher=SimpleNamespace(stands_by={}), claim=lambda *_: claimed)
    way_home = SimpleNamespace(_world=world)
    assert WayHome.claim_home(way_home, "choice", 2, 0, "published", 1) is claimed  # type: ignore[arg-type]
    assert world.launcher.stands_by == stands_by


def offer(cloud: str, price: str) -> Offer:
    return Offer(cloud, "r", "z", "t", Gpu("T4", 1, 16), Market.ON_DEMAND, Money(Decimal(price), "USD"), 1)


def placed(cloud: str, begun: float, ended: float, released: float, cause: str = "") -> Placement:
    node = Node("i", offer(cloud, "1"), JobRef("digits", "1a2b3c4d"), 1, "t", begun)
    watched = Watched(Ending.STOPPED, "", ended, ended, ended, None, 1, cause=cause)
    return Placement(1, (), Claimed(node.offer, begun, node, None), node, watched, Released(released))


@pytest.mark.parametrize(("budget", "home"), [("2 USD", []), ("3 USD", ["autodl"])])
def test_no_machine_at_home_is_asked_for_that_the_budget_does_not_pay_beside_the_other(
    tmp_path: Path, budget: str, home: list[str]
) -> None:
    """Both may be needed for 15 min to boot, 15 min of trial and 2 min to hand over: 2.19 USD at 4.10 USD an hour."""

    class Home:
        def offers(self, _request: object) -> list[Offer]:
            return [offer("autodl", "0.1")]

    primary = {"autodl": {"mode": "pro", "gpus": ["RTX 4090D"], "image_uuid": "image-1"}}
    places = {"primary": primary, "fallback": [{"aws": {"regions": ["us-east-1"]}}]}
    made: Any = world({"autodl": Home()}, places, tmp_path, {"budget": budget})
    made.now = lambda: 1000.0
    made.rank = lambda asked, *_: [Choice(one) for one in asked.offers]
    node = Node("i", offer("aws", "4"), made.job, 1, "t", 900.0)
    claimed = Claimed(node.offer, 900.0, node, None)
    door = Doorstep(made, claimed, Begun(900.0, 1), (), None)
    for _ in range(2):
        asked = made.way_home.ask_home(claimed, Begun(900.0, 1), ())
        assert [one.cloud for one in asked.offers] == home
        assert bool(door.pays(offer("autodl", "0.1"))) is bool(home)
    events = [json.loads(line) for line in (made.directory.path / "events.jsonl").read_text().splitlines()]
    told = [event["reason"] for event in events if event["kind"] == "stays_away"]
    assert told == (
        [] if home else ["the budget of 2 USD does not last for the 32 min that both machines may be needed"]
    )


def test_a_move_on_which_the_fallback_was_lost_counts_for_the_day() -> None:
    """Both machines were there at once, whatever became of the fallback's last word."""
    past = [
        placed("autodl", 0, 1000, 1010),
        placed("aws", 1020, 5000, 5010, cause="home"),
        placed("autodl", 4000, 8000, 8010),
        placed("aws", 8020, 9000, 9010),
        placed("autodl", 8500, 9900, 9910),
    ]
    assert moves_home(past) == [5000, 9000]


def test_a_wish_for_home_while_the_job_is_there_is_answered_and_does_not_move_it_hours_later(tmp_path: Path) -> None:
    primary = {"autodl": {"mode": "pro", "gpus": ["RTX 4090D"], "image_uuid": "image-1"}}
    places = {"primary": primary, "fallback": [{"aws": {"regions": ["us-east-1"]}}]}
    made: Any = world({}, places, tmp_path, {"failback": {"mode": "never"}})
    why = {}
    for name in ("autodl", "aws"):
        (made.directory.path / WISH).touch()
        for look in (1, 2):
            node = Node("i", offer(name, "1"), made.job, 1, "t", 0.0)
            view = PlacementView(made, Claimed(node.offer, 0.0, node, None), Begun(0.0, 1), ())
            why[name, look] = view.homeward({"phase": "training", "step": 3})
    assert why == {("autodl", 1): "", ("autodl", 2): "", ("aws", 1): "the operator wants it home", ("aws", 2): ""}
    events = (made.directory.path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in events] == ["at_home"]
