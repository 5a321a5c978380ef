"""When is a command taken to hang? On a clock of the test's own."""

from __future__ import annotations

import pytest

from provisioner.node.stalling import Stalling


class Command:
    """Makes steps, works or waits; ``cores`` is how much it works meanwhile."""

    def __init__(self, limit_s: float | None = None) -> None:
        self.now, self.worked, self.gpu, self.steps = 0.0, 0.0, False, 0
        self.stalling = Stalling(
            limit_s, cpu_s=lambda: self.worked, gpu_busy=lambda: self.gpu, monotonic=lambda: self.now
        )

    def step(self, seconds: float) -> None:
        self.wait(seconds, cores=1.0)
        self.steps += 1
        self.stalling.step(self.steps)

    def wait(self, seconds: float, cores: float = 0.0) -> str:
        """Let time pass; return what was said first."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.5
            self.worked += 0.5 * cores
            self.stalling.step(self.steps or None)
            if said := self.stalling.hung():
                return said
        return ""


def test_a_command_that_waits_for_ever_is_found_after_ten_minutes() -> None:
    command = Command()
    for _ in range(50):
        command.step(0.2)
    assert not command.wait(595)
    assert command.wait(45).startswith("no step after 50 for 6")


@pytest.mark.parametrize("works", ["cpu", "gpu"])
def test_one_that_works_is_given_an_hour(works: str) -> None:
    command = Command()
    command.gpu = works == "gpu"
    command.step(1)
    command.step(1)
    assert not command.wait(3590, cores=1.0 if works == "cpu" else 0.0)
    assert "work" in command.wait(60, cores=1.0)


def test_a_slow_step_of_three_minutes_kills_nothing_nor_does_a_first_one_of_a_day() -> None:
    command = Command()
    assert not command.wait(86400)
    for pause in (0.2, 0.2, 180, 0.2):
        command.step(pause)
    assert not command.wait(180)


def test_what_is_slow_by_nature_is_given_ten_times_its_slowest_step() -> None:
    command = Command()
    command.step(1)
    command.step(300)
    command.step(20)
    assert not command.wait(2950)
    assert command.wait(120)


def test_the_users_own_limit_counts_whatever_works_and_may_be_without_end() -> None:
    command = Command(limit_s=30)
    command.step(1)
    command.gpu = True
    assert not command.wait(29, cores=1.0)
    assert command.wait(5, cores=1.0)
    patient = Command(limit_s=float("inf"))
    patient.step(1)
    assert not patient.wait(1e5)
