"""What goes on beside the watch: Terraform adopts the machine, and the fallbacks' regions are prepared."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from provisioner import planner
from provisioner.errors import CloudError
from provisioner.model import Node, NodeState

if TYPE_CHECKING:
    from provisioner.controller.effects import World

ADOPT_TRIES = 3


class Background:
    """The threads of one job. ``prepared`` names the clouds that something was prepared at."""

    def __init__(self, world: World) -> None:
        """Start nothing yet."""
        self.prepared: set[str] = set()
        self._world = world
        self._adopting: set[str] = set()
        self._adoption: threading.Thread | None = None
        self._preparation: threading.Thread | None = None
        self._enough = threading.Event()

    def adopt(self, node: Node) -> bool:
        """Let Terraform take a machine over; False for one that it was told of before."""
        if node.id in self._adopting:  # it is watched again after a way home that came to nothing
            return False
        self._adopting.add(node.id)
        self._adoption = _start(self._adopt, node)
        return True

    def prepare(self) -> None:
        """Prepare the fallbacks' regions while the primary trains: it costs nothing but time now."""
        self._preparation = _start(self._prepare)

    def close(self) -> None:
        """Begin nothing more, and wait for what is under way. Terraform's own deadlines end that."""
        self._enough.set()
        for thread in (self._preparation, self._adoption):
            if thread is not None:
                thread.join()

    def _adopt(self, node: Node) -> None:
        for attempt in range(1, ADOPT_TRIES + 1):
            try:
                self._world.cloud(node.offer.cloud).adopt(node)
            except CloudError as error:
                self._world.events.emit("adopt_failed", node=node.id, attempt=attempt, problem=str(error))
                if self._enough.is_set() or self._is_gone(node):
                    return
            else:
                return

    def _is_gone(self, node: Node) -> bool:
        try:
            state = self._world.cloud(node.offer.cloud).inspect(node)
        except CloudError:
            return False
        return state.is_over or state is NodeState.UNLISTED

    def _prepare(self) -> None:
        """Take the best region first. A claim meanwhile waits for its own region alone."""
        world = self._world
        offers, _ = world.offers(world.fallback_names())
        plan = world.plan(tuple(offers), memory=planner.FailureMemory(), now=world.now())
        world.refusals.over_quota([one.offer for one in plan.ranked])  # answers are kept, should it have to move soon
        for name, region in dict.fromkeys((one.offer.cloud, one.offer.region) for one in plan.ranked):
            if self._enough.is_set() or world.take_down.is_set():
                return
            try:
                world.cloud(name).prepare(region)
                self.prepared.add(name)
                world.events.emit("prepared", cloud=name, region=region)
            except CloudError as error:
                world.events.emit("prepare_failed", cloud=name, region=region, problem=str(error))


def _start(call: Callable[..., None], *args: object) -> threading.Thread:
    thread = threading.Thread(target=call, args=args, daemon=True)
    thread.start()
    return thread
