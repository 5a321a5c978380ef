"""The time that is reckoned with."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner import clock
from provisioner.node import environment


@pytest.fixture(autouse=True)
def _right_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_began", time.time() - clock.steady())


def test_it_is_the_time_of_day_and_does_not_jump_when_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    before = clock.now()
    assert before == pytest.approx(time.time(), abs=1)
    monkeypatch.setattr(time, "time", lambda: before + 3600)
    assert clock.now() == pytest.approx(before, abs=1)


def test_what_was_seen_before_a_restart_lies_in_the_past_but_not_what_is_days_ahead() -> None:
    seen = time.time() + 3600
    clock.not_before(seen)
    assert seen <= clock.now() < seen + 1
    clock.not_before(seen - 7200)
    clock.not_before(seen + 3 * 86400)
    assert seen <= clock.now() < seen + 1


def test_a_machine_whose_clock_is_put_right_after_its_start_script_began_lives_as_long_as_it_should() -> None:
    """The clock was 8 h slow when the script took its end from it, and is right when the node starts."""
    boot: Any = SimpleNamespace(deadline_ts=None, ttl_s=None)
    up, now = float(Path("/proc/uptime").read_text("ascii").split()[0]), time.time()
    script = {"FAILOVER_DEADLINE_TS": str(now - 8 * 3600 + 900), "FAILOVER_DEADLINE_UP": str(int(up) + 900)}
    end = environment.end_of_life(boot, script, now)
    assert end is not None
    assert end - now == pytest.approx(900, abs=3)


@pytest.mark.parametrize("up", [{}, {"FAILOVER_DEADLINE_UP": ""}])
def test_a_start_script_of_an_earlier_release_has_its_say(up: dict[str, str]) -> None:
    boot: Any = SimpleNamespace(deadline_ts=None, ttl_s=60.0)
    assert environment.end_of_life(boot, {"FAILOVER_DEADLINE_TS": "5000", **up}, 4000.0) == 5000.0
