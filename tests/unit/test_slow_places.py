"""A store or a cloud that answers late: what need not wait for one another does not, and what it waits for is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner.checkpoint import layout
from provisioner.checkpoint.store import open_store
from provisioner.cli.timeline import line
from provisioner.controller import beside
from provisioner.controller.hints import ask_to_save
from provisioner.controller.launch import Launcher
from provisioner.errors import CloudError
from provisioner.model import Owned
from provisioner.telemetry import events
from tests.sweeps import world


class Slow:
    """A store in memory that answers the first reads of a heartbeat only when two requests are under way at once."""

    def __init__(self) -> None:
        self.kept = open_store("memory://").at("digits")
        self.pair = threading.Barrier(2, timeout=10)
        self.waits = 2

    def together(self, call: Callable[[str], Any], key: str) -> Any:
        if self.waits > 0:
            self.waits -= 1
            self.pair.wait()
        return call(key)

    def get(self, key: str) -> Any:
        return self.together(self.kept.get, key)

    def look(self, key: str) -> Any:
        return self.together(self.kept.look, key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kept, name)


def test_the_signs_of_a_node_are_read_side_by_side_and_its_last_word_is_never_missed() -> None:
    store = Slow()
    last = {"end": {"reason": "done"}, "step": 9}
    store.kept.put(layout.heartbeat(1), json.dumps(last).encode())
    reads: list[str] = []

    def get(key: str) -> Any:
        if len(reads) < 2:
            reads.append(key)
            store.pair.wait()
            if key == layout.DONE:  # it was asked for a moment before it was written
                store.kept.put(layout.DONE, json.dumps({"epoch": 1, "result": "completed"}).encode())
                return None
        return store.kept.get(key)

    launcher: Any = SimpleNamespace(store=SimpleNamespace(get=get))
    done, heartbeat = Launcher.read_signs(launcher, 1)
    assert heartbeat == last
    assert done == {"epoch": 1, "result": "completed"}


def test_a_last_checkpoint_is_asked_for_with_reads_side_by_side() -> None:
    store: Any = Slow()
    store.kept.put(layout.owner(2), b"{}")
    store.kept.put(layout.heartbeat(2), json.dumps({"time": 1.0, "end": None}).encode())
    lines: list[str] = []

    def wait(_seconds: float) -> None:
        store.kept.put(layout.heartbeat(2), json.dumps({"end": {"reason": "saved"}}).encode())

    ask_to_save(store, 60.0, say=lines.append, wait=wait)
    assert lines == ["asking the machine for a last checkpoint, for 60 s at most"]


def test_clouds_are_tidied_side_by_side_and_after_a_while_it_says_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "SLOW_S", 0.01)
    pair = threading.Barrier(2, timeout=10)
    log = tmp_path / "jobs" / "digits" / "events.jsonl"

    class Late:
        def __init__(self, name: str) -> None:
            self.name, self.asked = name, 0

        def owned(self) -> list[Owned]:
            self.asked += 1
            if self.asked == 1:
                pair.wait()
                told = threading.Event()
                while not any(one["kind"] == "slow" for one in events.read(log)):
                    told.wait(0.01)
            return []

        def dismantle(self) -> None:
            if self.name == "gcp":
                raise CloudError("no", hint="look there")

    places = {
        "fallback": [
            {"aws": {"regions": ["us-east-1"]}},
            {"gcp": {"project": "sandbox-project", "regions": ["us-central1"]}},
        ]
    }
    made = world({"aws": Late("aws"), "gcp": Late("gcp")}, places, tmp_path)
    assert made.finish().leaked == ("gcp: cannot tell: no; look there",)
    shown = [line(one) for one in events.read(log) if one["kind"] == "slow"]
    assert "waiting for aws to remove what is left of the job" in shown
