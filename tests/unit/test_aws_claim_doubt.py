"""When a refused claim at AWS may have made a machine all the same, and when it cannot have."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    ReadTimeoutError,
)

from provisioner.clouds.aws.claim import Claim
from provisioner.clouds.clock import Clock
from provisioner.errors import Unreachable
from provisioner.model import Failure, Gpu, JobRef, Launch, Market, Offer

OFFER = Offer("aws", "us-east-1", "us-east-1a", "g4dn.xlarge", Gpu("T4", 1, 16), Market.SPOT, None)
LAUNCH = Launch(JobRef("digits", "1a2b3c4d"), 1, "t" * 32, "", 3600.0)
WHERE = {"endpoint_url": "https://ec2.example"}
NO_CAPACITY = ClientError({"Error": {"Code": "InsufficientInstanceCapacity", "Message": "none"}}, "RunInstances")
BROKEN = ClientError({"Error": {"Code": "InternalError", "Message": "a fault"}}, "RunInstances")


class Region:
    """A region that answers the tries of a claim as it is told, the last answer again and again."""

    name = "us-east-1"

    def __init__(self, *answers: Exception, blind: bool = False) -> None:
        self.answers, self.blind = [*answers], blind

    def run(self, _asked: object) -> dict[str, Any]:
        raise self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def tagged(self, _tags: object) -> list[dict[str, Any]]:
        if self.blind:
            raise Unreachable("no answer")
        return []


def claim(region: Region) -> Failure:
    ticks = [0.0]

    def sleep(seconds: float) -> None:
        ticks[0] += seconds

    answer = Claim(region, Clock(now=lambda: 0.0, tick=lambda: ticks[0], sleep=sleep)).make({}, OFFER, LAUNCH)  # type: ignore[arg-type]
    assert isinstance(answer, Failure)
    return answer


@pytest.mark.parametrize("blind", [False, True])
@pytest.mark.parametrize(
    ("answers", "doubtful"),
    [
        ([NO_CAPACITY], False),
        ([EndpointConnectionError(**WHERE)], False),
        ([ConnectTimeoutError(**WHERE)], False),
        ([ReadTimeoutError(**WHERE)], True),
        ([ConnectionClosedError(**WHERE)], True),
        ([BROKEN], True),
        ([ReadTimeoutError(**WHERE), EndpointConnectionError(**WHERE)], True),
        ([ReadTimeoutError(**WHERE), NO_CAPACITY], True),
    ],
)
def test_only_what_was_sent_and_not_answered_may_have_made_a_machine(
    answers: list[Exception], doubtful: bool, blind: bool
) -> None:
    """A refusal is about its own try. What is not listed yet, or cannot be asked for, may be there."""
    assert claim(Region(*answers, blind=blind)).doubtful is doubtful
