"""Claims that a cloud did not answer: each may have made a machine, which costs money and is of no use to the job.

Such a claim is entered in the ledger at the price of its offer, so that every limit counts it from when it was made.
While the run goes on its cloud is asked for the machine. One that is found is given back, and counts as long as it was
there; one that the cloud does not list, whose place it has asked, was never made and costs nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from provisioner.clouds.base import ListsPartly
from provisioner.controller.ledger import Bill, bill_of, is_token
from provisioner.controller.records import Choice
from provisioner.controller.strays import as_node, asked_at
from provisioner.errors import CloudError
from provisioner.model import Node, Owned

if TYPE_CHECKING:
    from provisioner.controller.effects import World

LOOK_S: Final = 60.0
"""Between two looks, in seconds."""
SETTLE_S: Final = 120.0
"""A machine that is not listed at one look, nor at another that is so much later, in seconds, was never made."""


class Unanswered:
    """The claims of one job that were not answered."""

    def __init__(self, world: World) -> None:
        """Ask nothing yet."""
        self._world = world
        self._looked_at = float("-inf")
        self._missing: dict[str, float] = {}
        """Since when a claim's machine was looked for in vain, by its token."""
        self._search: threading.Thread | None = None
        self._enough = threading.Event()

    def note(self, choice: Choice, epoch: int, token: str) -> None:
        """Enter a claim. It counts from when it was first made."""
        world = self._world
        since = asked_at(world.directory, epoch, token) or world.now()
        bill = bill_of(Node("", choice.offer, world.job, epoch, token, since), choice, world.config.policy.ttl)
        world.ledger.asked(replace(bill, unanswered=True))

    def look(self) -> None:
        """Look for their machines, beside what goes on, if it is time for that."""
        now = self._world.now()
        if self._enough.is_set() or now < self._looked_at + LOOK_S or (self._search and self._search.is_alive()):
            return
        names = self._world.cloud_names()  # an earlier run may have used another cloud
        pending = [bill for bill in self._world.ledger.unanswered() if bill.cloud in names]
        if pending:
            self._looked_at = now
            self._search = threading.Thread(target=self._look, args=(pending,), name="unanswered", daemon=True)
            self._search.start()

    def close(self) -> None:
        """Look no more, and wait for what is under way: the clouds' own deadlines end that."""
        self._enough.set()
        if self._search is not None:
            self._search.join()

    def _look(self, pending: Sequence[Bill]) -> None:
        for name in dict.fromkeys(bill.cloud for bill in pending):
            try:
                things = self._world.cloud(name).owned()
                for thing in things:
                    if any(bill.cloud == name and _made(bill, thing) for bill in pending):
                        self._give_back(thing)
                self.strike(name, things, settle_s=SETTLE_S)
            except CloudError as error:
                self._world.events.emit("blind", what=name, problem=str(error))

    def strike(self, cloud: str, things: Sequence[Owned], *, settle_s: float) -> None:
        """Strike out what was never made, by what a cloud lists: it was not listed ``settle_s`` seconds ago either."""
        now = self._world.now()
        for bill in self._world.ledger.unanswered():
            if bill.cloud != cloud or not self._heard(bill):
                continue
            if any(_made(bill, thing) for thing in things):
                self._missing.pop(bill.token, None)
            elif now - self._missing.setdefault(bill.token, now) >= settle_s:
                self._world.ledger.absent(cloud, bill.token, now)

    def _heard(self, bill: Bill) -> bool:
        """Say whether the place of a claim was heard when its cloud was asked for all that is there."""
        cloud = self._world.cloud(bill.cloud)
        return not isinstance(cloud, ListsPartly) or cloud.heard(bill.region)

    def _give_back(self, thing: Owned) -> None:
        world = self._world
        world.events.emit("unanswered", cloud=thing.cloud, id=thing.id, epoch=thing.epoch)
        world.cloud(thing.cloud).release(as_node(thing, world.job))
        world.ledger.removed(thing, asked_at(world.directory, thing.epoch, thing.token), world.now())


def _made(bill: Bill, thing: Owned) -> bool:
    """Say whether a thing is the machine of a claim."""
    return thing.kind == "machine" and is_token(thing.token, bill.token)
