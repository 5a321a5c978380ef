"""``failover sweep`` against Compute Engine and IAM in a box, through Google's own client."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provisioner.model import Node
from tests.desk import Desk
from tests.integration.gcp.conftest import PROJECT
from tests.integration.gcp.test_gcp_claims import KILLED


@pytest.fixture
def desk(gcp_box: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    for name, value in {**gcp_box.environ, "FAILOVER_STATE_DIR": str(tmp_path / "state")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "store").mkdir()
    file = f"""
job: {{name: digits, command: train}}
checkpoint: {{store: "file://{tmp_path}/store"}}
fallback: [{{gcp: {{project: {PROJECT}, regions: [us-central1]}}}}]
"""
    return Desk(tmp_path, file, capsys)


def test_the_machine_of_a_lost_answer_and_a_killed_controller_is_removed_and_its_cost_is_told(
    desk: Desk, gcp_box: Any, make_room: Callable[..., Any], tmp_path: Path, eventually: Callable[..., bool]
) -> None:
    make_room().cloud.prepare("us-central1")
    desk.events.emit("claim", epoch=1)
    gcp_box.emulator.faults.set([{"method": "instances.insert", "lost": True, "times": 1}])
    dying = KILLED.replace(
        "        insert(*args, **kwargs)\n", "        try: insert(*args, **kwargs)\n        except Exception: pass\n"
    )
    command = [sys.executable, "-c", dying, str(tmp_path / "job"), "after insert"]
    assert subprocess.run(command, env=dict(os.environ), check=False, timeout=60).returncode == -9
    assert eventually(lambda: len(gcp_box.living()) == 1)
    [lost] = gcp_box.living()

    code, told, _ = desk.sweep()
    machine = next(one for one in told["things"] if one["kind"] == "machine")
    assert (code, machine["id"], machine["epoch"], machine["standing"]) == (1, lost, 1, "orphan")
    assert told["unasked"] == []

    code, told, said = desk.sweep("--yes")
    assert (code, gcp_box.living()) == (0, [])
    machine = next(one for one in told["things"] if one["kind"] == "machine")
    assert f"removed machine {lost} (gcp/us-central1): it has cost about {machine['cost']}" in said
    assert desk.sweep()[0] == 0
    assert gcp_box.compute("GET", "global/firewalls")["items"], "the open run keeps what was prepared for it"


def test_of_a_job_that_has_ended_everything_goes(desk: Desk, make_room: Callable[..., Any]) -> None:
    made = make_room(network="own")
    made.cloud.prepare("us-central1")
    offer = made.offer()
    desk.events.emit("claim", epoch=1)
    assert isinstance(made.cloud.claim(offer, made.launch(offer)), Node)
    desk.remember(is_open=False)
    kinds = {"machine", "volume", "firewall", "subnetwork", "network", "service_account"}
    assert desk.kinds() == kinds
    code, told, _ = desk.sweep("--yes")
    assert [one["problem"] for one in told["things"] if not one["removed"]] == []
    assert (code, {one["kind"] for one in told["things"]}) == (0, kinds)
    assert not made.cloud.owned()


def test_a_right_on_iam_that_is_missing_is_named(desk: Desk, gcp_box: Any) -> None:
    gcp_box.emulator.faults.set([{"method": "serviceAccounts.get", "code": "IAM_PERMISSION_DENIED", "status": 403}])
    code, told, _ = desk.sweep()
    assert (code, [one["where"] for one in told["unasked"]]) == (5, [f"{PROJECT} service accounts"])
