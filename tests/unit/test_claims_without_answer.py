"""What costs money when a cloud does not answer: a machine of a claim that broke off, and one beside a stuck one."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from provisioner.controller.ledger import bills
from provisioner.controller.records import Choice, Published
from provisioner.errors import CloudError, Unauthorized, Unreachable
from provisioner.model import Failure, FailureKind, Gpu, Launch, Market, Money, Node, Offer, Owned, Scope, claim_token
from tests.sweeps import JOB, aws, world

OFFER = Offer("aws", "us-east-1", "us-east-1a", "g4dn.xlarge", Gpu("T4", 1, 16), Market.SPOT, None)
NOTHING = Failure(FailureKind.NO_CAPACITY, Scope.OFFER, "NoCapacity", "none", "", 60.0)


class Room:
    """A cloud that accepts a machine and then says no more, or says no."""

    def __init__(self, answer: Failure | CloudError) -> None:
        self.answer = answer

    def prepare(self, region: str) -> None:
        del region

    def claim(self, offer: Offer, launch: Launch) -> Node | Failure:
        if isinstance(self.answer, CloudError):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("answer", [NOTHING, Unauthorized("the token has ended"), Unreachable("no answer")])
def test_no_start_is_left(tmp_path: Path, answer: Failure | CloudError) -> None:
    """The machine that there may be all the same stays idle, and ends."""
    made: Any = world({"aws": Room(answer)}, aws(regions=["us-east-1"]), tmp_path)
    removed: set[str] = set()
    made.launcher.remove_bootstrap = lambda _epoch, token: removed.add(token)
    claimed = made.claim(Choice(OFFER, None, ""), 1, 0, Published((), None))
    assert claimed.node is None
    assert removed == made.launcher.started != set()


class Stuck:
    """A cloud with two machines, one of which does not go."""

    def __init__(self) -> None:
        self.left = ["i-stuck", "i-other"]

    def owned(self) -> list[Owned]:
        return [Owned("aws", "us-east-1", "machine", name, "running", "digits") for name in self.left]

    def release(self, node: Node) -> None:
        if node.id == "i-stuck":
            raise CloudError("i-stuck is still there")
        self.left.remove(node.id)

    def dismantle(self) -> None:
        raise AssertionError


def test_a_machine_that_does_not_go_keeps_no_other_and_is_named(tmp_path: Path) -> None:
    made: Any = world({"aws": Stuck()}, aws(regions=["us-east-1"]), tmp_path)
    assert made.finish().leaked == ("aws/us-east-1/machine/i-stuck",)


@pytest.mark.parametrize(
    ("launched", "counted"),
    [(1003.0, 1003.0), (400.0, 1000.0), (9000.0, 4600.0)],
    ids=["its cloud tells", "its cloud's clock is behind", "its cloud's clock is ahead"],
)
def test_a_claim_that_was_killed_before_its_line_counts_from_the_clouds_own_launch(
    tmp_path: Path, launched: float, counted: float
) -> None:
    token = claim_token(JOB, 2, OFFER, 7)

    class Again(Room):
        def claim(self, offer: Offer, launch: Launch) -> Node:
            return Node("i-1", offer, launch.job, launch.epoch, launch.token, launched)

    made: Any = world({"aws": Again(NOTHING)}, aws(regions=["us-east-1"]), tmp_path)
    claims = [{"time": 500, "kind": "claim", "epoch": 2}, {"time": 1000, "kind": "claim", "epoch": 2, "token": token}]
    (made.directory.path / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in claims))
    made.now = lambda: 4600.0
    claimed = made.claim(Choice(OFFER, Money(Decimal(1), "USD"), ""), 2, 7, Published((), None))
    assert claimed.node.claimed_at == counted
    (bill,) = bills(made.directory.path)
    assert (bill.begun, bill.cost(4600.0)) == (counted, max(60, 4600 - int(counted)) / Decimal(3600))
