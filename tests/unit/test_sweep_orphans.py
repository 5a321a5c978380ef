"""What of ours nobody holds: the records of a state directory against what clouds list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from provisioner.clouds.autodl import AutodlCloud
from provisioner.clouds.aws import AwsCloud
from provisioner.clouds.base import Inventory, Tagged
from provisioner.clouds.gcp import GcpCloud
from provisioner.controller import orphans
from provisioner.controller.directory import JobDirectory, JobRecord
from provisioner.controller.orphans import START, Judge, Standing
from provisioner.model import Owned
from provisioner.telemetry.events import EventLog

UID, NOW = "1a2b3c4d", 10_000.0


class State:
    """A state directory with one job."""

    def __init__(self, root: Path, *, is_open: bool = True, run: int = 1) -> None:
        self.root = root
        self.directory = JobDirectory(root, "digits")
        self.directory.create()
        self.directory.remember(JobRecord("digits", UID, run, is_open, "failover.yaml", 0.0))
        self.events = EventLog(self.directory.path / "events.jsonl")
        self.events.emit("begin", uid=UID, epoch=1)

    def judge(self, *things: Tagged, keeps: str = "", **options: Any) -> list[tuple[str, Standing]]:
        judge = Judge(orphans.read(self.root), lambda *_: keeps, now=NOW, older=600.0)
        return [(one.tagged.thing.id, one.standing) for one in judge.judge(things, **options)]

    def claimed(self, epoch: int, node: str) -> None:
        self.events.emit("claim", epoch=epoch)
        self.events.emit("claimed", epoch=epoch, node=node)


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(tmp_path)


def thing(
    name: str,
    kind: str = "machine",
    epoch: int | None = 1,
    *,
    uid: str = UID,
    age: float | None = 3600.0,
    token: str = "",
) -> Tagged:
    owned = Owned("aws", "us-east-1", kind, name, "running", "digits", epoch, token or name)
    return Tagged(owned, uid, None if age is None else NOW - age)


@pytest.mark.parametrize("cloud", [AutodlCloud, AwsCloud, GcpCloud])
def test_every_cloud_of_ours_lists_what_carries_our_tag(cloud: type) -> None:
    assert issubclass(cloud, Inventory)


def test_both_machines_of_a_way_home_are_held_and_a_released_one_is_not(state: State) -> None:
    state.claimed(1, "gone")
    state.events.emit("released", epoch=1, node="gone")
    state.claimed(2, "away")
    state.claimed(3, "home")
    found = state.judge(thing("gone"), thing("away", epoch=2), thing("home", epoch=3))
    assert found == [("gone", Standing.ORPHAN), ("away", Standing.HELD), ("home", Standing.HELD)]


@pytest.mark.parametrize("kind", ["release_failed", "surplus"])
def test_a_machine_that_was_to_go_and_did_not_is_an_orphan(state: State, kind: str) -> None:
    state.claimed(1, "left")
    state.events.emit(kind, node="left")
    assert state.judge(thing("left")) == [("left", Standing.ORPHAN)]


def test_disks_go_with_their_machine(state: State) -> None:
    state.claimed(1, "held")
    things = [thing("held"), thing("stray"), thing("d1", "volume", token="held"), thing("d2", "volume", token="stray")]
    assert state.judge(*things)[2:] == [("d1", Standing.HELD), ("d2", Standing.ORPHAN)]
    assert state.judge(*things, keeps="it trains")[2:] == [("d1", Standing.HELD), ("d2", Standing.HELD)]
    assert state.judge(*things, keeps="? no answer")[1] == ("stray", Standing.UNSURE)


def test_a_machine_of_unknown_age_may_be_a_claim_on_its_way(state: State) -> None:
    assert state.judge(thing("new", age=None)) == [("new", Standing.YOUNG)]


def test_a_start_object_goes_when_its_epoch_is_over_or_its_machine_is_an_orphan(state: State) -> None:
    things = [thing(f"k{n}", START, n, token=f"{n}" * 16) for n in (1, 2)]
    state.events.emit("claim", epoch=2)
    assert state.judge(*things) == [("k1", Standing.ORPHAN), ("k2", Standing.HELD)]
    stray = thing("m", epoch=2, token="2" * 32)
    assert state.judge(*things, stray)[2] == ("k2", Standing.ORPHAN)


def test_what_was_prepared_stays_while_the_run_is_open_and_goes_after_it(tmp_path: Path) -> None:
    template = thing("lt", "launch_template", None)
    assert State(tmp_path / "a").judge(template) == [("lt", Standing.HELD)]
    assert State(tmp_path / "b", is_open=False).judge(template) == [("lt", Standing.ORPHAN)]


def test_the_same_job_run_by_another_controller_is_left_to_it(tmp_path: Path) -> None:
    """The job's id stands in the store, so a second operator's run has it too; its epochs are higher than ours."""
    state = State(tmp_path, is_open=False)
    things = [thing("m", epoch=2), thing("lt", "launch_template", None)]
    assert state.judge(*things) == [("m", Standing.FOREIGN), ("lt", Standing.FOREIGN)]
    assert state.judge(*things, foreign=True) == [("m", Standing.ORPHAN), ("lt", Standing.ORPHAN)]


def test_what_an_earlier_fresh_start_left_is_ours(state: State) -> None:
    state.events.emit("begin", uid="99999999", epoch=1)
    state.events.emit("begin", uid=UID, epoch=2)
    assert state.judge(thing("old", "launch_template", None, uid="99999999")) == [("old", Standing.ORPHAN)]


def test_a_damaged_record_protects_its_job_even_with_foreign(state: State) -> None:
    (state.directory.path / "job.json").write_text("{")
    assert state.judge(thing("m"), foreign=True) == [("m", Standing.UNSURE)]
    assert state.judge(thing("young", uid="77777777", age=1.0), foreign=True)[0][1] is Standing.UNSURE
