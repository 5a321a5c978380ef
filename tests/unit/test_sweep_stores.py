"""What a sweep removes from the stores: a runtime that no job uses, and files that were never finished."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from provisioner.checkpoint.store import Store, open_store
from provisioner.cli.command import cli
from provisioner.controller import launch, shared_runtime
from provisioner.controller.directory import JobDirectory, JobRecord
from provisioner.controller.shared_runtime import SharedRuntime
from provisioner.errors import Unreachable
from provisioner.model import Gpu, Market, Offer
from tests.unit.test_launch_runtime import bundle, launcher

DAY = 86400.0
OFFER = Offer("local", "local", "", "local", Gpu("", 0, 0), Market.ON_DEMAND, None)
OLD, LIVE, NEW, FOREIGN, FRESH = (f".runtime/{letter * 64}.tar.gz" for letter in "abcde")
WHEEL = ".runtime/0123456789abcdef/provisioner-0.1-py3-none-any.whl"


class Place:
    """A state directory and a store with jobs: one that has ended, one that goes on, one of another controller."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shared_runtime, "_seen", {})
        monkeypatch.setattr(shared_runtime, "_noted", {})
        monkeypatch.setenv("FAILOVER_STATE_DIR", str(root / "state"))
        monkeypatch.chdir(root)
        self.root, self.folder = root, root / "store"
        self.store = open_store(f"file://{self.folder}")
        for key in (OLD, LIVE, NEW, FOREIGN, FRESH, WHEEL):
            self.store.put(key, b"runtime")
        self.job("ended", [OLD, WHEEL], is_open=False)
        self.job("going-on", [LIVE], is_open=True)
        self.note("foreign", [FOREIGN])
        self.age(".runtime", 8 * DAY)
        self.store.at("foreign").put("epochs/3/heartbeat.json", b"{}")
        self.store.put(FRESH, b"runtime")

    def job(self, name: str, keys: list[str], *, is_open: bool) -> None:
        directory = JobDirectory(self.root / "state", name)
        directory.create()
        text = f"job: {{name: {name}, command: 'true'}}\ncheckpoint: {{store: file://{self.folder}}}\n"
        file = directory.path / "failover.1.yaml"
        file.write_text(text + "fallback: [{local: {}}]\n")
        directory.remember(JobRecord(name, "1a2b3c4d", 1, is_open, str(file), 0.0))
        self.note(name, keys)

    def note(self, name: str, keys: list[str]) -> None:
        SharedRuntime(self.store, name).note(keys)

    def age(self, part: str, seconds: float) -> None:
        at = time.time() - seconds
        for path in (self.folder / part).rglob("*"):
            os.utime(path, (at, at))

    def sweep(self, *options: str) -> Result:
        return CliRunner().invoke(cli, ["sweep", "--json", *options])

    def found(self, *options: str) -> dict[str, dict[str, Any]]:
        return {one["id"]: one for one in json.loads(self.sweep(*options).stdout)["things"]}

    @property
    def there(self) -> set[str]:
        return {one.key for one in self.store.objects(".runtime")}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


def test_versions_of_the_runtime_that_no_job_uses_go_and_all_others_stay(place: Place) -> None:
    """One that a job of this state directory goes on with, one whose machine was just heard, one that is new."""
    before = place.there
    gone = {OLD, WHEEL, NEW, ".runtime/used/ended.json"}
    assert place.found().keys() == gone
    assert place.there == before, "a look changes nothing"
    swept = place.found("--yes")
    assert {name for name, one in swept.items() if one["removed"]} == gone
    assert place.there == before - gone
    assert place.found() == {}


def test_one_that_a_machine_may_still_fetch_stays(place: Place) -> None:
    """Links live for hours: what was noted within the week stays, also of a job that has ended since."""
    place.note("ended", [NEW])
    assert NEW not in place.found()
    assert OLD in place.found()


def test_one_that_is_used_again_between_look_and_removal_stays(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    deleted, real = [], Store.delete

    def delete(self: Store, keys: list[str]) -> None:
        deleted.extend(keys)
        place.note("late", [NEW])
        real(self, keys)

    monkeypatch.setattr(Store, "delete", delete)
    place.sweep("--yes")
    assert deleted[0] != NEW, "the first removal, during which another job begins to use it"
    assert NEW in place.there


def test_a_store_that_does_not_answer_is_not_taken_for_empty(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def objects(_self: Store, folder: str) -> list[Any]:
        raise Unreachable(f"cannot list {folder}")

    monkeypatch.setattr(Store, "objects", objects)
    swept = json.loads(place.sweep("--yes").stdout)
    assert any("cannot list .runtime" in one["why"] for one in swept["unasked"])


def test_a_runtime_that_is_there_no_more_comes_anew_with_the_next_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run knows its version from its start; a job may rest for longer than a week."""
    monkeypatch.setattr(shared_runtime, "_seen", {})
    monkeypatch.setattr(launch, "runtime_wheels", lambda _: [])
    monkeypatch.setattr("provisioner.controller.runtime_bundle.build", lambda _: bundle(tmp_path))
    made = launcher(tmp_path, ", runtime: bundle")
    published = made.publish()
    assert published.bundle is not None
    key, shared = published.bundle[0], made.store.above()
    shared.delete([key])
    shared_runtime._seen.clear()
    made.write_start(OFFER, 1, 0, published)
    assert shared.get(key) == b"tar"
    assert json.loads(shared.get(".runtime/used/digits.json") or b"") == {"keys": [key]}


SECRETS = "epochs/2/bootstrap-0123456789abcdef.json"


def test_what_killed_writers_left_in_a_directory_goes_and_what_is_being_written_stays(place: Place) -> None:
    job = place.folder / "going-on"
    left = ["spec.json", "epochs/2/heartbeat.json", SECRETS, "epochs/2/log/000001.txt.zst", "epochs/2/data.json.zst"]
    for name in [*left, "epochs/2/notes of mine.txt", "mine.json"]:
        (job / name).parent.mkdir(parents=True, exist_ok=True)
        (job / f"{name}#1").write_bytes(b"half")
    (place.folder / f"{FRESH}#1").write_bytes(b"half")
    place.age("going-on", 2 * 3600.0)
    at = time.time() - 2 * 3600.0
    os.utime(place.folder / f"{FRESH}#1", (at, at))
    (job / "epochs/2/heartbeat.json#2").write_bytes(b"half")
    files = {one["id"] for one in place.found().values() if one["kind"] == "unfinished_file"}
    assert files == {f"{name}#1" for name in (*left, FRESH)}
    place.sweep("--yes")
    names = {str(path.relative_to(job)) for path in job.rglob("*#*")}
    assert names == {"epochs/2/notes of mine.txt#1", "mine.json#1", "epochs/2/heartbeat.json#2"}
    assert not list((place.folder / ".runtime").glob("*#*"))
