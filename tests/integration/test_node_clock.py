"""A real node whose clock is an hour off: the same verdict, figures by the controller's clock, and a hint in time."""

from __future__ import annotations

import json
import time
from decimal import Decimal

import pytest

from provisioner.checkpoint import layout
from provisioner.controller.hints import Hints
from provisioner.controller.limits import DEADLINE, Limit
from provisioner.controller.patience import Patience
from provisioner.controller.watch import Watch
from provisioner.model import Ending, Gpu, Market, Money, Node, NodeState, Offer

SHIFT = "import time\nright = time.time\ntime.time = lambda: right() + {ahead}\n"
LEAVES_S = 60.0


class View:
    """What the controller sees of the node, and what it tells it once it has made twenty steps."""

    def __init__(self, node_job, node: Node) -> None:
        self.store = node_job.store
        self.ahead: float | None = None
        self.limit: Limit | None = None
        self.beat: dict | None = None
        self.hints = Hints(
            self.store,
            1,
            claimed_at=node.claimed_at - 3600,  # of a long time more is left for the last save
            limit=lambda: self.limit,
            outlook=lambda: None,
            emit=lambda *_, **__: None,
            poll_s=0.2,
            heartbeat_s=1,
            ahead=lambda: self.ahead,
        )

    def state(self, node: Node) -> NodeState:
        return NodeState.RUNNING

    def read(self, node: Node):
        data = self.store.get(layout.heartbeat(1))
        self.beat = json.loads(data) if data else None
        return None, self.beat

    def stop(self) -> str:
        if self.limit is None and self.beat and (self.beat["step"] or 0) >= 20:
            self.limit = Limit(time.time() + LEAVES_S, DEADLINE, "deadline reached")
        self.hints.look(NodeState.RUNNING, self.beat)
        return ""

    def homeward(self, heartbeat) -> str:
        return ""

    def changed(self, node: Node, heartbeat, *, first: bool, ahead_s: float | None) -> None:
        self.ahead = ahead_s

    def suspected(self, node: Node, why: str) -> None:
        pytest.fail(why)


@pytest.mark.parametrize("ahead", [3600, -3600])
def test_a_node_whose_clock_is_an_hour_off_is_judged_and_told_as_any_other(node_job, tmp_path, ahead):
    (tmp_path / "shift").mkdir()
    (tmp_path / "shift/sitecustomize.py").write_text(SHIFT.format(ahead=ahead))
    begun = time.time()
    process = node_job.start(
        1,
        node_job.trainer(steps=5000, every=1000, pause=0.1),
        steps=5000,
        environ={"PYTHONPATH": str(tmp_path / "shift")},
    )
    offer = Offer("local", "here", "", "process", Gpu("", 0, 0), Market.ON_DEMAND, Money(Decimal(1), "USD"))
    node = Node("1", offer, node_job.ref, 1, "token-of-1", begun)
    watched = Watch(View(node_job, node), Patience(0.2, None, 60, 1), time.time, time.sleep).until_end(node)
    assert (watched.ending, watched.cause, process.wait()) == (Ending.STOPPED, "notice", 75)
    assert watched.clock_ahead == pytest.approx(ahead, abs=5)
    first, last = watched.first_step_at, watched.last_seen
    assert first is not None
    assert last is not None
    assert begun < first <= last <= watched.at
    events = [json.loads(line) for line in (process.directory / "node/events.jsonl").read_text().splitlines()]
    notice = next(event for event in events if event["kind"] == "notice")
    assert notice["deadline"] - notice["time"] == pytest.approx(LEAVES_S, abs=15), "by the node's own clock"
    assert node_job.restored_state()["step"] >= 20, "it had the time to save"
