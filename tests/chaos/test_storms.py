"""The controller under fire: random schedules of kills, stops, cuts, refusals, full disks and clocks that are set.
After each the job must have ended as if nothing had happened, and the clouds must agree.

One schedule again: ``make test-chaos ARGS="--seed 17"``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.schedules import draw
from tests.chaos.storm import BrokenError, play
from tests.chaos.verdict import broken


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test a seed."""
    option = metafunc.config.getoption
    seed, first, count = option("seed", None), option("first", 0), option("schedules", 100)
    metafunc.parametrize("seed", range(first, first + count) if seed is None else [seed])


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_whatever_strikes_the_job_ends_as_if_nothing_had(seed: int, tmp_path: Path) -> None:
    again = f'again: make test-chaos ARGS="--seed {seed}"'
    try:
        report, weather, story = play(draw(seed), tmp_path)
    except BrokenError as error:
        pytest.fail(f"{error}\n{again}", pytrace=False)
    (tmp_path / "story.txt").write_text(story, "utf-8")
    wrong = broken(report, weather)
    if wrong:
        pytest.fail("\n".join([story, "-- broken", *wrong, again]), pytrace=False)
