"""The way home is tried with a machine that stands by; the next one of the same epoch may be the only one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from provisioner.controller.wayhome import WayHome


@pytest.mark.parametrize(("node", "stands_by"), [("a machine", {2: 1}), (None, {})])
def test_only_a_machine_that_was_got_at_home_stands_by(node: str | None, stands_by: dict[int, int]) -> None:
    """Else the next machine of this epoch, got anywhere, would wait for ever for a call by one that is gone."""
    claimed = SimpleNamespace(node=node)
    world = SimpleNamespace(launcher=SimpleNamespace(stands_by={}), claim=lambda *_: claimed)
    way_home = SimpleNamespace(_world=world)
    assert WayHome.claim_home(way_home, "choice", 2, 0, "published", 1) is claimed  # type: ignore[arg-type]
    assert world.launcher.stands_by == stands_by
