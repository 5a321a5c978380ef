"""The controller is killed with -9 after recorded steps of a drill; ``failover run`` takes the job up each time."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from provisioner.sandbox.drill import Drill
from provisioner.sandbox.drill_controller import run_controller

DYING = Path(__file__).with_name("dying_controller.py")
STEPS_OF_A_DRILL = 15
"""Recorded steps of the default drill: begin, publish, ask, claim, watch, release, recover, ask, claim, ask the
fallbacks, claim zone a, claim zone b, watch, release, finish."""


def killed_after(steps: Iterable[int], last_words: list[str]) -> Callable[..., dict[str, Any]]:
    """Return a controller that is killed after each of these steps, or until it has died after the last, and started
    again each time. ``last_words`` gets the name of the step that it died after.
    """

    def run(config: Path, environ: Mapping[str, str], say: Callable[[str], None]) -> dict[str, Any]:
        for step in steps:
            done = subprocess.run(
                [sys.executable, str(DYING), str(config), str(step)],
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
            say(done.stdout)
            assert done.returncode == -signal.SIGKILL, done.stderr
            last_words.append(done.stdout.split()[-1])
            if last_words[-1] == "finish":
                break
        return run_controller(config, environ, say)

    return run


def assert_nothing_twice_and_nothing_left(
    directory: Path, controller: Callable[..., dict[str, Any]], scenario: str = "default", step_seconds: float = 0.08
) -> dict[str, Any]:
    words: list[str] = []
    drill = Drill(
        Path("examples/drills") / f"{scenario}.yaml",
        directory=directory,
        provider="stand-in",
        step_seconds=step_seconds,
        say=words.append,
        controller=controller,
    )
    report = drill.run()
    story = "\n".join(words)
    assert report["result"] == "completed", story
    assert report["leaked"] == [], story
    assert report["model_identical"], story
    launched = Counter(launch["token"] for launch in report["drill"]["launches"] if launch["outcome"].startswith("i-"))
    assert len(launched) == 1, story
    epochs = [placement["epoch"] for placement in report["placements"]]
    assert epochs == sorted(set(epochs)), story
    return report


@pytest.mark.slow
@pytest.mark.long
def test_killed_after_every_step_of_one_drill(tmp_path: Path) -> None:
    last_words: list[str] = []
    assert_nothing_twice_and_nothing_left(tmp_path, killed_after(count(1), last_words))
    assert len(last_words) >= STEPS_OF_A_DRILL
    assert last_words[-1] == "finish", "a step after this one is never killed"


@pytest.mark.thorough
def test_killed_after_every_step_of_the_way_home(tmp_path: Path) -> None:
    last_words: list[str] = []
    report = assert_nothing_twice_and_nothing_left(tmp_path, killed_after(count(1), last_words), "come-home", 1.6)
    assert [placement["cloud"] for placement in report["placements"]] == ["autodl", "aws", "autodl"]
    assert {"ask_home", "claim_home", "stand_by", "hand_over"} <= set(last_words)
    assert [move["steps_lost"] for move in report["moves"]] == [0]


@pytest.mark.thorough
@pytest.mark.parametrize("step", range(1, STEPS_OF_A_DRILL + 1))
def test_killed_once(step: int, tmp_path: Path) -> None:
    assert_nothing_twice_and_nothing_left(tmp_path, killed_after([step], []))
