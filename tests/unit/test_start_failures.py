"""R37: an image that does not start is the image's fault or the driver's, never "no capacity"."""

from __future__ import annotations

import time
from typing import Any

import pytest

from provisioner.controller.failures import KnownFailures
from provisioner.controller.patience import Patience
from provisioner.controller.records import Begun, Claimed
from provisioner.controller.start_failures import driver_failure
from provisioner.controller.watch import Signs, judge
from provisioner.model import Ending, Gpu, JobRef, Market, Node, NodeState, Offer
from provisioner.node import driver
from provisioner.node.verdict import Cause
from tests.sweeps import aws, world

OFFER = Offer("aws", "us-east-1", "us-east-1a", "g4dn.xlarge", Gpu("T4", 1, 16), Market.SPOT, None)
NODE_S_OWN = driver.mismatch({"CUDA_VERSION": "12.4.1"}, ask=lambda: "470.256.02")


@pytest.mark.parametrize("cause", Cause)
def test_r37_each_cause_blames_the_right_one_whatever_the_words_are(cause):
    reason = "the image r/i cannot be pulled: manifest unknown; unsatisfied condition: cuda>=13.0"
    assert (driver_failure(str(cause), reason) is not None) is (cause is Cause.OLD_DRIVER)
    beat = {"end": {"reason": reason, "exit_code": 75, "cause": str(cause)}}
    ending = judge(Signs(now=1.0, claimed_at=0.0, heartbeat=beat, heard_at=1.0), Patience(1, 60, 900))
    assert ending == (Ending.FAILED if cause is Cause.NO_IMAGE else Ending.STOPPED, reason)


def test_r37_another_type_is_tried_where_a_driver_was_too_old(tmp_path):
    known = KnownFailures(tmp_path, lambda: 1000.0)
    refused = driver_failure("old_driver", NODE_S_OWN)
    assert refused is not None
    assert "470.256.02" in refused.message
    assert "12.4" in refused.message
    known.remember(refused, OFFER, account="1", job="digits")
    memory = known.memory({"aws": "1"}, "digits", since=900.0)
    on_demand = Offer(
        **{name: getattr(OFFER, name) for name in ("cloud", "region", "zone", "instance_type", "gpu")},
        market=Market.ON_DEMAND,
        price_per_hour=None,
    )
    other = Offer("aws", "us-east-1", "us-east-1a", "g6.xlarge", Gpu("L4", 1, 24), Market.SPOT, None)
    assert memory.blocks(OFFER, 1001.0)
    assert memory.blocks(on_demand, 1001.0)
    assert not memory.blocks(other, 1001.0)
    # It is this job's image that does not fit: other jobs go there.
    assert not known.memory({"aws": "1"}, "other", since=900.0).blocks(OFFER, 1001.0)


class Silent:
    """A cloud whose machine runs on."""

    account = "1"

    def offers(self, request: object) -> list[Offer]:
        return [OFFER]

    def inspect(self, node: Node) -> NodeState:
        return NodeState.RUNNING


def test_r37_a_run_whose_machine_had_an_old_driver_leaves_the_type_alone(tmp_path):
    made: Any = world({"aws": Silent()}, aws(regions=["us-east-1"]), tmp_path)
    made._background._adopt = lambda _node: None
    end = {"reason": NODE_S_OWN, "exit_code": 75, "cause": "old_driver"}
    made.launcher.read_signs = lambda _epoch: (None, {"end": end})
    node = Node("i-1", OFFER, JobRef("digits", "1a2b3c4d"), 1, "token", time.time())
    claimed = Claimed(OFFER, time.time(), node, None)
    assert made.watch(claimed, node, Begun(time.time(), 1), ()).ending is Ending.STOPPED
    asked = made.ask_fallback(Begun(time.time() - 60, 1), ())
    assert asked.memory.blocks(OFFER, time.time()).code == "DriverTooOld"
