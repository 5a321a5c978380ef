"""What can still be saved before the machine goes: the table for two clouds, a simulated line, and real sizes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner.node.pace import longer_than_notice, size_of, too_late

MB, GB = 10**6, 10**9
LINE = 100 * MB
"""Bytes a second of the simulated line."""


def saved(size: int) -> Any:
    return SimpleNamespace(seconds=size / LINE, total_bytes=size)


@pytest.mark.parametrize(
    ("size", "in_30_s", "in_120_s"),
    [
        (100 * MB, True, True),
        (1 * GB, True, True),
        (4 * GB, True, True),
        (8 * GB, False, True),
        (20 * GB, False, False),
    ],
)
def test_a_save_that_cannot_be_done_before_the_end_is_not_begun(size: int, in_30_s: bool, in_120_s: bool) -> None:
    last = saved(2 * GB)
    assert (too_late(size, 30.0, last) == "") is in_30_s
    assert (too_late(size, 120.0, last) == "") is in_120_s


def test_where_nothing_is_known_it_is_tried() -> None:
    assert too_late(20 * GB, 5.0, None) == ""
    assert too_late(8 * GB, 20.0, saved(2 * GB)) == "it would take about 80 s, and 20 s are left"


@pytest.mark.parametrize(
    ("cloud", "size", "told"), [("gcp", 4 * GB, True), ("aws", 4 * GB, False), ("autodl", 90 * GB, False)]
)
def test_saves_that_are_slower_than_the_notice_are_told_before_it_comes(cloud: str, size: int, told: bool) -> None:
    line = longer_than_notice(saved(size), cloud)
    assert bool(line) is told
    assert not told or "a save takes 40 s, and this cloud leaves 30 s after a notice" in line


def test_a_machine_that_was_started_with_a_longer_notice_goes_by_that() -> None:
    assert longer_than_notice(saved(4 * GB), "gcp", 120.0) == ""
    assert "leaves 120 s" in longer_than_notice(saved(20 * GB), "gcp", 120.0)


def test_the_size_of_a_tree_is_that_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/one").write_bytes(b"x" * 1000)
    (tmp_path / "a/b/two").write_bytes(b"x" * 500)
    (tmp_path / "a/loop").symlink_to(tmp_path)
    assert size_of(tmp_path / "a") == 1500
    assert size_of(tmp_path / "a/one") == 1000
    assert size_of(tmp_path / "gone") == 0
