"""Where no heartbeat was watched, the store's clock stands between the machine's and ours."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner.checkpoint import layout
from provisioner.checkpoint.store import open_store
from provisioner.controller.hints import ask_to_save
from provisioner.controller.strays import refuse_if_training
from provisioner.errors import ConfigError
from provisioner.model import Owned
from tests.sweeps import aws, world

OFF = pytest.mark.parametrize("ahead", [0.0, 3600.0, -3600.0])


@OFF
@pytest.mark.parametrize("later", [30.0, 600.0])
def test_a_machine_that_trains_for_another_controller_is_known_whatever_its_clock_says(
    tmp_path: Path, ahead: float, later: float
) -> None:
    store = open_store("memory://").at("digits")
    store.put(layout.heartbeat(3), json.dumps({"time": time.time() + ahead, "end": None}).encode())
    made: Any = world({}, aws(regions=["us-east-1"]), tmp_path)
    made.launcher = SimpleNamespace(
        store=store, read_signs=lambda epoch: (None, json.loads(store.get(layout.heartbeat(epoch)) or b"null"))
    )
    made.now = lambda: time.time() + later
    thing = Owned("aws", "us-east-1", "machine", "i-1", "running", "digits", 3, "t")
    if later < 60:
        with pytest.raises(ConfigError, match="trains on i-1"):
            refuse_if_training(made, thing)
    else:
        refuse_if_training(made, thing)


@OFF
def test_a_node_that_is_asked_to_save_has_its_time_by_its_own_clock(ahead: float) -> None:
    store = open_store("memory://").at("digits")
    store.put(layout.owner(2), b"{}")
    beat = {"time": time.time() + ahead, "end": None}
    store.put(layout.heartbeat(2), json.dumps(beat).encode())
    asked: list[float] = []

    def wait(_seconds: float) -> None:
        hint = json.loads(store.get(layout.hint(2)) or b"{}")
        asked.append(hint["deadline"] - (time.time() + ahead))
        store.put(layout.heartbeat(2), json.dumps({**beat, "end": {"reason": "saved"}}).encode())

    ask_to_save(store, 120.0, say=lambda _line: None, wait=wait)
    assert asked == [pytest.approx(120, abs=10)]
