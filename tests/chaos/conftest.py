"""Options of the storms."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Say which schedules are played."""
    group = parser.getgroup("storms")
    group.addoption("--seed", type=int, help="play this schedule alone")
    group.addoption("--first", type=int, default=0, help="begin with this schedule")
    group.addoption("--schedules", type=int, default=100, help="play so many schedules")
