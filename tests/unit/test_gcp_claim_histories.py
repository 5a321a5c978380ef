"""Any course of answers, losses and kills: a claim says what is, and leaves no machine that nobody knows of."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.clouds.clock import Clock
from provisioner.clouds.gcp.answers import Problem
from provisioner.clouds.gcp.claim import Claim
from provisioner.clouds.gcp.compute import Machine, Operation
from provisioner.clouds.gcp.errors import error_of
from provisioner.clouds.gcp.machine import LABEL_TOKEN
from provisioner.clouds.gcp.reading import failure_of
from provisioner.model import Failure, FailureKind, Gpu, JobRef, Launch, Market, Node, Offer, claim_token, tags

JOB = JobRef("digits", "1a2b3c4d")
OFFER = Offer("gcp", "us-central1", "us-central1-a", "g2-standard-4", Gpu("L4", 1, 24), Market.SPOT, None)
TOKEN = claim_token(JOB, 1, OFFER)
LAUNCH = Launch(JOB, 1, TOKEN, "", 3600.0, tags(JOB, 1, TOKEN))
BODY = {"name": "failover-digits", "labels": {LABEL_TOKEN: TOKEN}}

LOST, BUSY, TAKEN = (
    error_of(failure_of([Problem((code,), "x", status)]), status)
    for code, status in (("ReadTimeout", 0), ("rateLimitExceeded", 403), ("alreadyExists", 409))
)
ENDS = ("machine", "ZONE_RESOURCE_POOL_EXHAUSTED", "INTERNAL_ERROR", "UNSUPPORTED_OPERATION", "QUOTA_EXCEEDED")


class Killed(BaseException):
    """The controller got kill -9."""


@dataclass
class Google:
    """Compute Engine as far as a claim sees it. ``course`` decides what happens at each call; then all is well."""

    course: list[str]
    ends: list[str]
    account: Any = field(default_factory=lambda: SimpleNamespace(project="p"))
    machines: dict[str, Machine] = field(default_factory=dict)
    operations: dict[str, list[Any]] = field(default_factory=dict)
    asked: dict[str, str] = field(default_factory=dict)
    made: int = 0

    def insert(self, zone: str, body: dict[str, Any], request_id: str) -> Operation:
        event = self._event(before=True)
        if event == "forgotten":
            self.asked.clear()
        name = self.asked.get(request_id)
        if name is None:
            if body["name"] in self.machines:
                raise TAKEN
            end = self.ends.pop() if self.ends else "machine"
            name = f"operation-{len(self.operations)}"
            self.operations[name], self.asked[request_id] = [2, end], name
            if end in ("machine", "UNSUPPORTED_OPERATION"):
                self.made += 1
                self.machines[body["name"]] = Machine(zone, body["name"], "PROVISIONING", body["labels"])
        self._event_after(event)
        return self._see(zone, name)

    def operation(self, zone: str, name: str) -> Operation:
        event = self._event(before=True)
        if event == "forgotten":
            raise LookupError(name)
        self._event_after(event)
        return self._see(zone, name)

    def machine(self, _zone: str, name: str) -> Machine | None:
        self._event_after(self._event(before=True))
        return self.machines.get(name)

    def delete_machine(self, zone: str, name: str) -> Operation | None:
        del zone
        self.machines.pop(name, None)
        return None

    def _see(self, zone: str, name: str) -> Operation:
        operation = self.operations[name]
        operation[0] -= 1
        if operation[0] > 0:
            return Operation(zone, name, done=False)
        running = self.machines.get(BODY["name"])  # type: ignore[call-overload]
        if running is not None and running.status == "PROVISIONING":
            status = "RUNNING" if operation[1] == "machine" else "TERMINATED"
            self.machines[running.name] = replace(running, status=status)
        problems = () if operation[1] == "machine" else (Problem((operation[1],), "no"),)
        return Operation(zone, name, done=True, problems=problems)

    def _event(self, *, before: bool) -> str:
        event = self.course.pop() if self.course else "fine"
        if before and event == "lost on the way":
            raise LOST
        if before and event == "busy":
            raise BUSY
        if before and event == "killed before":
            raise Killed
        return event

    def _event_after(self, event: str) -> None:
        if event == "answer lost":
            raise LOST
        if event == "killed after":
            raise Killed


EVENTS = ("fine", "fine", "lost on the way", "answer lost", "busy", "killed before", "killed after", "forgotten")


@given(
    course=st.lists(st.sampled_from(EVENTS), max_size=12),
    ends=st.lists(st.sampled_from(ENDS), max_size=4),
)
def test_a_claim_says_what_is(course: list[str], ends: list[str]) -> None:
    google, ticks = Google(course, ends), [0.0]

    def sleep(seconds: float) -> None:
        ticks[0] += seconds

    clock = Clock(now=lambda: 0.0, tick=lambda: ticks[0], sleep=sleep)
    answer: Node | Failure | None = None
    while answer is None:  # the controller comes back after each kill, and claims with the same token
        try:
            answer = Claim(google, clock, lambda: 0.5).make(BODY, OFFER, LAUNCH)  # type: ignore[arg-type]
        except Killed:
            continue
    living = [one for one in google.machines.values() if one.status in {"PROVISIONING", "RUNNING"}]
    if isinstance(answer, Node):
        assert [one.id for one in living] == [answer.id]
    elif not answer.doubtful:
        assert living == []
    if isinstance(answer, Failure) and answer.kind is not FailureKind.NETWORK:  # else nobody could be asked
        assert living == []
        assert not google.machines
    assert ticks[0] < 600


@pytest.mark.parametrize("end", ENDS[1:])
def test_a_refusal_costs_one_insert(end: str) -> None:
    google = Google([], [end])
    answer = Claim(google, Clock(sleep=lambda _: None), lambda: 0.0).make(BODY, OFFER, LAUNCH)  # type: ignore[arg-type]
    if end == "INTERNAL_ERROR":  # passes: asked for anew, under the next id
        assert isinstance(answer, Node)
    else:
        assert isinstance(answer, Failure)
        assert answer.code == end
        assert len(google.operations) == 1
