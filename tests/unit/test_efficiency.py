"""How well a training uses its machine, on its way from the command's file to the operator."""

from __future__ import annotations

import json
import os
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from provisioner.cli import timeline
from provisioner.cli.metrics import served
from provisioner.cli.status import status
from provisioner.controller.directory import JobDirectory, JobRecord
from provisioner.controller.records import Begun, Claimed
from provisioner.controller.view import PlacementView
from provisioner.model import Gpu, JobRef, Market, Node, Offer
from provisioner.node import efficiency

ADVICE = "the GPU waits 35% of the time for the loader: num_workers 2 -> 4, pin_memory on"
TOLD: dict[str, Any] = {
    "rule": "workers",
    "advice": ADVICE,
    "loader_wait": 0.35,
    "cores": 8,
    "change": {"num_workers": 4, "pin_memory": True},
}
BEAT = {"kind": "heartbeat", "epoch": 1, "step": 5, "phase": "training", "efficiency": TOLD}


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (json.dumps(TOLD), TOLD),
        (
            json.dumps({**TOLD, "more": 1, "cores": "8", "step_s": float("nan")}),
            {k: TOLD[k] for k in TOLD if k != "cores"},
        ),
        (json.dumps({"gpu_busy": 0.5}), {"gpu_busy": 0.5}),
        (json.dumps({"advice": "a\nb" + "c" * 999}), {"rule": "", "advice": "a b" + "c" * 397}),
        ("{}", None),
        ("[]", None),
        ('{"advice": "half', None),
        (" " * 20000 + json.dumps(TOLD), None),
        (None, None),
    ],
)
def test_of_what_a_command_says_only_what_is_known_and_small_goes_on(tmp_path: Path, text, read):
    if text is not None:
        (tmp_path / "e.json").write_text(text)
    assert efficiency.read(tmp_path / "e.json") == read


def test_status_shows_the_advice_of_the_machine_that_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FAILOVER_STATE_DIR", str(tmp_path))
    directory = JobDirectory(tmp_path, "digits")
    directory.create()
    directory.remember(JobRecord("digits", "1a2b3c4d", 1, open=True, config_path="f.yaml", started_at=0.0))
    monkeypatch.setattr(JobDirectory, "controller_pid", lambda _: os.getpid())
    claimed = {"kind": "claimed", "epoch": 1, "node": "i-1", "offer": "aws/b"}
    events = directory.path / "events.jsonl"
    events.write_text("\n".join(json.dumps({"time": 100.0, **event}) for event in (claimed, BEAT)) + "\n")
    (row,) = json.loads(CliRunner().invoke(status, ["--json"], standalone_mode=False).stdout)
    assert row["efficiency"] == TOLD
    assert f"digits: efficiency: {ADVICE}\n" in CliRunner().invoke(status, [], standalone_mode=False).stdout
    assert timeline.line({"kind": "advised", "epoch": 1, "advice": ADVICE}) == f"epoch 1: efficiency: {ADVICE}"


def test_the_controller_tells_an_advice_once_until_it_is_another_one():
    told: list[tuple[str, dict[str, Any]]] = []
    world = SimpleNamespace(
        stores=tuple,
        events=SimpleNamespace(emit=lambda kind, **fields: told.append((kind, fields))),
        heard={"i-1"},
        launcher=SimpleNamespace(store=None),
        config=SimpleNamespace(policy=SimpleNamespace(poll=10.0, heartbeat=5.0)),
        now=lambda: 0.0,
    )
    where = Offer("aws", "us-east-1", "", "g4dn.xlarge", Gpu("T4", 1, 16), Market.SPOT, None)
    node = Node("i-1", where, JobRef("digits", "1a2b3c4d"), 1, "token", claimed_at=0.0)
    view = PlacementView(world, Claimed(where, 0.0, node, None), Begun(0, 1), ())
    more = {**TOLD, "advice": "the GPU waits 36%"}
    for efficiency_told in (
        None,
        TOLD,
        more,
        {"loader_wait": 0.1},
        more,
        {**TOLD, "rule": "none", "advice": "nothing"},
    ):
        view.changed(node, {"step": 1, "efficiency": efficiency_told}, first=False, ahead_s=None)
    advised = [fields["advice"] for kind, fields in told if kind == "advised"]
    assert advised == [ADVICE, "the GPU waits 36%", "nothing"]
    assert [fields["efficiency"] for kind, fields in told if kind == "heartbeat"][1] == TOLD


def test_the_numbers_are_metrics_while_the_machine_is_there(capsys: pytest.CaptureFixture[str]):
    with served(0, "127.0.0.1") as hear:
        url = capsys.readouterr().err.split()[-1]

        def lines() -> list[str]:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return [line for line in answer.read().decode().splitlines() if not line.startswith("#")]

        hear("digits", BEAT)
        hear("other", {"kind": "heartbeat", "step": 7, "efficiency": None})
        hear("digits", {"kind": "asked"})
        assert lines() == [
            'failover_step{job="digits"} 5.0',
            'failover_step{job="other"} 7.0',
            'failover_loader_wait_ratio{job="digits"} 0.35',
            'failover_cores{job="digits"} 8.0',
        ]
        hear("digits", {"kind": "ended", "epoch": 1})
        assert lines() == ['failover_step{job="other"} 7.0']
