"""A whole run of one job against a cloud in a box, for counting calls: the real flow, world, planner and room.

Store and node are stood in for by a launcher that says of every machine that the job is done. What a run tidies up at
its begin and end is left out: it costs calls, too, and they are not those that are counted.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from provisioner.checkpoint.store import open_store
from provisioner.clouds.aws.api import Account
from provisioner.clouds.base import Request
from provisioner.config import parse
from provisioner.controller.directory import JobDirectory
from provisioner.controller.effects import World
from provisioner.controller.failures import KnownFailures
from provisioner.controller.flow import Flow
from provisioner.controller.records import Begun, Claimed, Finished, Published, Watched
from provisioner.model import JobRef, Launch, Node, Offer, claim_token, tags
from provisioner.telemetry import events

JOB = JobRef("digits", "1a2b3c4d")
IDLE = "#!/bin/bash\nsleep 600\n"


class Launcher:
    """Stands for store and node: every machine says at once that the job is done."""

    environ: Mapping[str, str] = {}

    def __init__(self) -> None:
        self.started: set[str] = set()
        """Tokens whose machine can start the job."""
        self.store = open_store("memory://").at(JOB.name)

    def write_spec(self) -> None:
        pass

    def newest_epoch(self) -> int:
        return 0

    def publish(self) -> Published:
        return Published((), None)

    def launch(self, offer: Offer, epoch: int, attempt: int, published: Published, *, held: bool = False) -> Launch:
        token = claim_token(JOB, epoch, offer, attempt)
        if not held:
            self.write_start(offer, epoch, attempt, published)
        return Launch(JOB, epoch, token, IDLE, 3600.0, tags(JOB, epoch, token))

    def write_start(self, offer: Offer, epoch: int, attempt: int, published: Published) -> None:
        self.started.add(claim_token(JOB, epoch, offer, attempt))

    def remove_bootstrap(self, epoch: int, token: str) -> None:
        pass

    def forget_data(self, epoch: int) -> None:
        pass

    def read_signs(self, epoch: int) -> tuple[dict[str, object], dict[str, object]]:
        return {"result": "completed", "final_step": 1}, {"end": {"reason": "done"}, "step": 1, "first_step_at": 1.0}


class Training(Launcher):
    """Stands for a node that trains, and is then heard of no more."""

    def read_signs(self, epoch: int) -> tuple[dict[str, object], dict[str, object]]:
        return None, {"step": 3, "first_step_at": 1.0, "phase": "train"}  # type: ignore[return-value] # not done


def watched(cloud: Any, places: Mapping[str, Any], state: Path, node: Node) -> tuple[Watched, dict[str, Any]]:
    """Watch a node of which no more is heard to its end; return what is recorded, and the event that tells it."""
    made: Any = world({cloud.name: cloud}, places, state)
    made.launcher = Training()
    claimed = Claimed(node.offer, time.time(), node, None)
    seen = made.watch(claimed, node, Begun(time.time(), 1), ())
    return seen, next(event for event in events.read(made.directory.path / "events.jsonl") if event["kind"] == "ended")


@dataclass(frozen=True)
class Sweep:
    """What a run came to."""

    report: dict[str, Any]
    events: list[dict[str, Any]]


class Nowhere:
    """A fallback that has nothing: every job names one."""

    def offers(self, request: Request) -> list[Offer]:
        return []


@functools.cache
def _account(url: str) -> Account:
    return Account(
        {"AWS_ACCESS_KEY_ID": "box", "AWS_SECRET_ACCESS_KEY": "box", "AWS_ENDPOINT_URL": url}, lambda _: None
    )


def with_shared_clients(cloud: Any) -> Any:
    """Let a room use the clients of all rooms of this box: to make them takes half a second."""
    cloud._account = cloud._quotas._clients = _account(cloud._environ["AWS_ENDPOINT_URL"])
    return cloud


def aws(**settings: Any) -> dict[str, Any]:
    """Return the places of a job that knows AWS alone."""
    return {"fallback": [{"aws": settings}]}


def world(
    clouds: Mapping[str, Any], places: Mapping[str, Any], state: Path, policy: Mapping[str, Any] | None = None
) -> World:
    """Make the world of a job. ``places``: ``primary`` and ``fallback`` of its file."""
    config = {
        "job": {"name": JOB.name, "command": "train"},
        "checkpoint": {"store": "s3://bucket/jobs"},
        **places,
        "policy": {"retry_for": "0s", "poll": "1s", **(policy or {})},
    }
    directory = JobDirectory(state, JOB.name)
    directory.create()
    log = events.EventLog(directory.path / "events.jsonl")
    for cloud in clouds.values():
        cloud._events = log
    return World(
        JOB,
        parse(yaml.safe_dump(config).encode(), "failover.yaml", state, {}),
        directory,
        clouds.__getitem__,
        Launcher(),  # type: ignore[arg-type] # as far as the world asks it
        log,
        failures=KnownFailures(state),
    )


def run(
    clouds: Mapping[str, Any], places: Mapping[str, Any], state: Path, policy: Mapping[str, Any] | None = None
) -> Sweep:
    """Run a job until it is done or nothing is to be had."""
    path = JobDirectory(state, JOB.name).path / "events.jsonl"
    path.unlink(missing_ok=True)
    made: Any = world(clouds, places, state, policy)
    made.begin = lambda: Begun(time.time(), 1, time.time_ns())
    made.finish = lambda _: Finished(time.time(), ())
    report: Any = Flow(made, lambda _, call, *args: call(*args)).run()
    return Sweep(report, list(events.read(path)))
