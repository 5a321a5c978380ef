"""Two minutes of notice: asked of Google, told to the node, and used by it. The node runs on the machine in the box."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from provisioner.checkpoint import layout
from provisioner.model import Failure, FailureKind, Market, Node, Scope

NODE = """#!/bin/bash
cd {root} && {python} -m provisioner.node --bootstrap {root}/bootstrap.json 2>{root}/console.txt
shutdown -h now
"""


def test_a_spot_machine_that_asks_for_it_saves_while_it_still_runs_and_knows_how_long(
    make_room: Callable[..., Any], node_job: Any, eventually: Callable[..., bool]
) -> None:
    boot = {
        "version": 1,
        "job": {"name": node_job.ref.name, "uid": node_job.ref.uid},
        "epoch": 1,
        "token": "token-of-1",
        "store": {"uri": node_job.uri},
        "command": node_job.trainer(pause=0.05),
        "steps": 5000,
        "heartbeat_s": 1,
        "cloud": "gcp",
    }
    (node_job.root / "bootstrap.json").write_text(json.dumps(boot))
    room = make_room(preemption_notice=True)
    room.cloud.prepare("us-central1")
    offer = room.offer()
    script = NODE.format(root=node_job.root, python=sys.executable)
    node = room.cloud.claim(offer, room.launch(offer, user_data=script))
    assert isinstance(node, Node)
    log = node_job.root / "node" / "log.txt"
    assert eventually(lambda: log.exists() and "step 10\n" in log.read_text(), 60.0)
    room.box.emulator.interrupt(room.box.instances()[0]["id"])
    assert room.box.instances()[0]["state"] == "RUNNING", "its button is pressed two minutes later"
    assert eventually(lambda: room.box.instances() == [], 60.0)
    assert "gives notice: spot preempted (120 s of notice)" in log.read_text()
    end = json.loads(node_job.store.get(layout.heartbeat(1)))["end"]
    assert end == {"reason": "notice: spot preempted", "exit_code": 75, "cause": "notice"}
    assert node_job.restored_state()["step"] >= 10


def test_nobody_asks_for_it_unasked_nor_for_what_is_not_spot(make_room: Callable[..., Any]) -> None:
    for market, asks in ((Market.ON_DEMAND, True), (Market.SPOT, False)):
        room = make_room(preemption_notice=asks)
        room.cloud.prepare("us-central1")
        offer = room.offer(market=market)
        node = room.cloud.claim(offer, room.launch(offer))
        assert isinstance(node, Node)
        found = room.box.compute("GET", f"zones/{offer.zone}/instances/{node.id.split('/')[1]}")
        assert "preemptionNoticeDuration" not in found["scheduling"]
        assert "notice" not in str([item["key"] for item in found["metadata"]["items"]])


def test_a_notice_that_google_does_not_take_is_a_refusal_in_its_words(make_room: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("provisioner.clouds.gcp.machine.NOTICE_S", 60)
    room = make_room(preemption_notice=True)
    room.cloud.prepare("us-central1")
    offer = room.offer()
    failure = room.cloud.claim(offer, room.launch(offer))
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.scope) == (FailureKind.INVALID, Scope.MARKET)
    assert "preemptionNoticeDuration" in failure.message
    assert "preemption_notice" in failure.advice
