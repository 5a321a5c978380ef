"""What the command can read of how often to save."""

from __future__ import annotations

import json
from pathlib import Path

from provisioner.hazard import Seen
from provisioner.node.advice import Advice


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_interval_follows_the_cost_of_a_save_the_machines_age_and_a_warning(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "advice.json"
    advice = Advice(path, every_s=None, pool=Seen(), monotonic=clock)

    def every() -> float:
        value = json.loads(path.read_text())["save_every_s"]
        assert value == round(advice.every_s, 1)
        return float(value)

    young = every()
    clock.now = 8 * 3600.0
    advice.saved(5.0)
    old = every()
    assert old > 2 * young
    advice.saved(50.0)
    assert every() > 2 * old, "what costs more is done less often"
    before = every()
    advice.warned()
    assert every() < before / 2
    advice.stop("notice: spot terminate", 1234.5)
    assert json.loads(path.read_text())["stop"] == {"reason": "notice: spot terminate", "by": 1234.5}


def test_the_users_own_interval_stays_and_a_machine_that_is_not_taken_back_saves_seldom(tmp_path: Path) -> None:
    own = Advice(tmp_path / "own.json", every_s=45.0, pool=Seen())
    own.saved(500.0)
    assert own.every_s == 45.0
    kept = Advice(tmp_path / "kept.json", every_s=None, pool=None)
    assert 1800.0 < kept.every_s < 2000.0
    kept.saved(120.0)
    assert kept.every_s == 3600.0, "an hour is the most"


def test_a_full_disk_ends_nothing(tmp_path: Path) -> None:
    Advice(tmp_path / "no" / "such" / "advice.json", every_s=None, pool=Seen()).warned()
