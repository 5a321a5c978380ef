"""Machines that a run did not start, or that are left at its end. One that trains for somebody else is not released."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from provisioner.clouds.base import Cloud
from provisioner.controller.clocks import age_s
from provisioner.controller.directory import JobDirectory
from provisioner.controller.patience import SILENT_S
from provisioner.errors import CloudError, ConfigError
from provisioner.model import Gpu, JobRef, Market, Node, Offer, Owned
from provisioner.telemetry import events

if TYPE_CHECKING:
    from provisioner.controller.effects import World

ALIVE_S = 60.0
"""A machine whose last heartbeat is younger than this trains, whatever ``lost_after`` says, in seconds."""


def release_strays(world: World, name: str) -> None:
    """Release what an earlier run left at a cloud. Raises ConfigError where that still trains, CloudError."""
    for thing in world.cloud(name).owned():
        if thing.kind == "machine":
            refuse_if_training(world, thing)
            world.events.emit("stray", cloud=name, id=thing.id, epoch=thing.epoch)
            world.cloud(name).release(as_node(thing, world.job))
            world.ledger.removed(thing, asked_at(world.directory, thing.epoch, thing.token), world.now())


def refuse_if_training(world: World, thing: Owned) -> None:
    """Raise ConfigError for a machine that trains, unless this run was told to take over."""
    if world.take_over:
        return
    epoch = world.launcher.newest_epoch() if thing.epoch is None else thing.epoch
    _, beat = world.launcher.read_signs(epoch)
    if beat is None or beat.get("end"):
        return
    age = age_s(world.launcher.store, epoch, world.now())
    if age is not None and age < max(world.config.policy.lost_after or SILENT_S, ALIVE_S):
        message = f"job {world.job.name} trains on {thing.id} at {thing.cloud}, which this run did not start"
        hint = "go on where it was started, or add --take-over to release it and continue from its last checkpoint"
        raise ConfigError(message, hint=hint)


def tidied(world: World, name: str) -> list[str]:
    """Release and remove all of the job at a cloud; return what is still there, a line for each. Raises CloudError."""
    cloud = world.cloud(name)
    if release_all(world, cloud):
        cloud.dismantle()
    left = cloud.owned()
    world.unanswered.strike(name, left, settle_s=0.0)
    return [f"{thing.cloud}/{thing.region}/{thing.kind}/{thing.id}" for thing in left]


def release_all(world: World, cloud: Cloud) -> bool:
    """Release every machine that is left; one that does not go keeps no other. Say whether all went."""
    failed = 0
    for thing in cloud.owned():
        if thing.kind == "machine":
            try:
                cloud.release(as_node(thing, world.job))
                world.ledger.removed(thing, asked_at(world.directory, thing.epoch, thing.token), world.now())
            except CloudError as error:
                failed += 1
                world.events.emit("release_failed", node=thing.id, problem=str(error))
    return not failed


def asked_at(directory: JobDirectory, epoch: int | None, token: str = "") -> float | None:
    """Return when a machine was first asked for, Unix time; None where none was, by our own events.

    It is known by its token, which its cloud may have shortened; else the first one of its epoch counts. A later run
    may have begun the epoch anew (``--fresh``): then the newest one's.
    """
    found, begun, of_token = None, False, None
    for event in events.read(directory.path / "events.jsonl"):
        begun = begun or event["kind"] == "begin"
        if event["kind"] == "claim" and event.get("epoch") == epoch and (begun or found is None):
            found, begun = float(event["time"]), False
        if event["kind"] == "claim" and of_token is None and token and str(event.get("token")).startswith(token):
            of_token = float(event["time"])
    return found if of_token is None else of_token


def billed_since(world: World, node: Node, asked: float) -> Node:
    """Return a machine that was claimed with the time since when its cloud bills it, by our own clock.

    ``asked`` is when this claim began. One that is made again after a crash gives a machine that was launched before;
    not before it was first asked for, whatever the clock of its cloud says, which tells whole seconds.
    """
    since = node.claimed_at
    if since < asked:
        first = asked_at(world.directory, node.epoch, node.token)
        since = max(since, asked if first is None else first)
    return world.ledger.ours_since(replace(node, claimed_at=min(since, world.now())))


def as_node(thing: Owned, job: JobRef) -> Node:
    """Return a machine that only the cloud knows, as far as a release needs it."""
    offer = Offer(thing.cloud, thing.region, "", "", Gpu("", 0, 0), Market.ON_DEMAND, thing.price_per_hour)
    return Node(thing.id, offer, job, thing.epoch or 0, thing.token, claimed_at=0.0)
