"""The controller is killed with -9 after each recorded step of a drill; ``failover run`` takes the job up."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from provisioner.sandbox.drill import Drill, run_controller

DYING = Path(__file__).with_name("dying_controller.py")
STEPS_OF_A_DRILL = 14
"""Recorded steps of the default drill: begin, publish, ask, claim, watch, release, ask, claim, ask the fallbacks, claim
zone a, claim zone b, watch, release, finish."""


def killed_after(step: int, seen: list[str]) -> Callable[..., dict[str, Any]]:
    """Return a controller that is killed once, and started again."""

    def run(config: Path, environ: Mapping[str, str], say: Callable[[str], None]) -> dict[str, Any]:
        first = subprocess.run(
            [sys.executable, str(DYING), str(config), str(step)],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        seen.extend(first.stdout.split("\n"))
        assert first.returncode == -signal.SIGKILL, first.stderr
        if step == STEPS_OF_A_DRILL:
            assert first.stdout.split()[-1] == "finish", "a step after this one is never killed"
        return run_controller(config, environ, say)

    return run


@pytest.mark.slow
@pytest.mark.parametrize("step", range(1, STEPS_OF_A_DRILL + 1))
def test_killed_after_step(step: int, tmp_path: Path) -> None:
    seen: list[str] = []
    words: list[str] = []
    drill = Drill(
        directory=tmp_path,
        provider="stand-in",
        step_seconds=0.08,
        say=words.append,
        controller=killed_after(step, seen),
    )
    report = drill.run()
    story = "\n".join([*seen, *words])
    assert report["result"] == "completed", story
    assert report["leaked"] == [], story
    assert report["model_identical"], story
    launched = Counter(launch["token"] for launch in report["drill"]["launches"] if launch["outcome"].startswith("i-"))
    assert len(launched) == 1, story
    epochs = [placement["epoch"] for placement in report["placements"]]
    assert epochs == sorted(set(epochs)), story
