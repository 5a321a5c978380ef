"""``policy.race``: regions of EC2 in a box are asked at the same time, and the controller dies in the middle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provisioner.controller.effects import World
from provisioner.controller.records import Choice
from provisioner.model import Gpu, Market, Offer, claim_token
from tests import sweeps

REGIONS = ["us-east-1", "us-west-2", "eu-west-1"]
CHOICES = tuple(
    Choice(Offer("aws", region, f"{region}a", "g4dn.xlarge", Gpu("T4", 1, 16), Market.SPOT, None)) for region in REGIONS
)
TOKENS = [claim_token(sweeps.JOB, 1, choice.offer) for choice in CHOICES]


class Killed(BaseException):
    """The controller dies here."""


@pytest.fixture
def world(make_room: Callable[..., Any], tmp_path: Path) -> Callable[..., World]:
    """Make the world of one controller. A second one finds the directory and the account as the first left them."""

    def make() -> World:
        settings = {"regions": REGIONS, "instance_types": ["g4dn.xlarge"]}
        clouds = {"aws": sweeps.with_shared_clients(make_room(**settings).cloud)}
        return sweeps.world(clouds, sweeps.aws(**settings), tmp_path / "state", {"race": 3})

    return make


def sold_out(region: str) -> dict[str, str]:
    return {"action": "RunInstances", "region": region, "code": "InsufficientInstanceCapacity"}


def raced(made: World) -> Any:
    answers = made.race(CHOICES, 1, 0, made.publish())
    launcher: Any = made.launcher
    return answers, launcher.started


@pytest.mark.slow
def test_one_of_three_is_kept_and_the_others_go_back(world: Callable[..., World], aws_box: Any) -> None:
    answers, started = raced(world())
    assert len(aws_box.launches()) == 3
    assert aws_box.living() == [answers[-1].node.id]
    assert answers[-1].offer == CHOICES[0].offer
    assert started == {TOKENS[0]}
    assert [one.surplus.problem for one in answers[:-1]] == ["", ""]


def test_the_best_that_is_to_be_had_is_kept(world: Callable[..., World], aws_box: Any) -> None:
    aws_box.emulator.faults.set([sold_out("us-east-1")])
    answers, started = raced(world())
    assert [bool(one.failure) for one in answers] == [True, False, False]
    assert answers[-1].offer == CHOICES[1].offer
    assert started == {TOKENS[1]}
    assert len(aws_box.living()) == 1


def die_when_chosen(made: World) -> None:
    launcher: Any = made.launcher
    write = launcher.write_start

    def start(*arguments: Any) -> None:
        write(*arguments)
        raise Killed

    launcher.write_start = start


def die_before_the_choice(made: World) -> None:
    def note(*_: Any) -> None:
        raise Killed

    directory: Any = made.directory
    directory.write_json = note


def die_giving_back(made: World) -> None:
    release = made.release

    def once(node: Any) -> Any:
        released = release(node)
        if node.offer == CHOICES[1].offer:
            raise Killed
        return released

    made.release = once  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.parametrize("die", [die_before_the_choice, die_when_chosen, die_giving_back])
def test_killed_in_the_middle_the_next_controller_keeps_one(
    world: Callable[..., World], aws_box: Any, die: Callable[[World], None]
) -> None:
    first = world()
    die(first)
    with pytest.raises(Killed):
        raced(first)
    started: set[str] = set(first.launcher.started)  # type: ignore[attr-defined]
    # What was sold out is to be had now, and the other way round: the choice must not change for it.
    aws_box.emulator.faults.set([sold_out("eu-west-1")])
    answers, again = raced(world())
    assert aws_box.living() == [answers[-1].node.id]
    assert started | again == {answers[-1].node.token}, "no machine but the kept one could ever start"
    assert len([one for one in answers if one.surplus is not None]) == 2, "what went back before is counted, too"
    assert len({launch["token"] for launch in aws_box.emulator.faults.log()}) == 3


@pytest.mark.slow
def test_a_machine_that_may_have_started_is_kept_though_a_better_one_is_to_be_had(
    world: Callable[..., World], aws_box: Any
) -> None:
    aws_box.emulator.faults.set([sold_out("us-east-1")])
    first = world()
    die_when_chosen(first)
    with pytest.raises(Killed):
        raced(first)
    aws_box.emulator.faults.set([])
    answers, started = raced(world())
    assert answers[-1].offer == CHOICES[1].offer
    assert started == {TOKENS[1]}
    assert aws_box.living() == [answers[-1].node.id]


def test_the_report_counts_what_was_given_back(make_room: Callable[..., Any], aws_box: Any, tmp_path: Path) -> None:
    settings = {"regions": REGIONS, "instance_types": ["g4dn.xlarge"], "market": "spot", "max_price": "1 USD"}
    clouds = {"aws": sweeps.with_shared_clients(make_room(**settings).cloud)}
    done = sweeps.run(clouds, sweeps.aws(**settings), tmp_path / "state", {"race": 2})
    assert done.report["result"] == "completed"
    (surplus,) = done.report["surplus"]
    assert surplus["problem"] == ""
    assert surplus["region"] != done.report["placements"][0]["region"]
    assert done.report["placements"][0]["attempts"][0]["message"].startswith("surplus: given back after")
    assert len(aws_box.launches()) == 2
