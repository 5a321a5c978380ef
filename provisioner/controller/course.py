"""A race in the real world: one epoch and attempt of one job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from provisioner.controller.ledger import bill_of
from provisioner.controller.records import Choice, Claimed, Published, Surplus
from provisioner.controller.refusals import as_failure
from provisioner.controller.strays import asked_at
from provisioner.errors import CloudError
from provisioner.model import Failure, FailureKind, Node, Offer, Scope, claim_token

if TYPE_CHECKING:
    from provisioner.controller.effects import World


class WorldCourse:
    """What ``race.race`` asks of the world."""

    def __init__(self, world: World, epoch: int, attempt: int, published: Published) -> None:
        """Take the world, and which claims these are."""
        self._world = world
        self._epoch, self._attempt, self._published = epoch, attempt, published

    def prepare(self, offer: Offer) -> None:
        """Make the region ready. A failure is met again by the claim."""
        try:
            self._world.cloud(offer.cloud).prepare(offer.region)
        except CloudError as error:
            self._world.events.emit("prepare_failed", cloud=offer.cloud, region=offer.region, problem=str(error))

    def claim(self, choice: Choice) -> Claimed:
        """Claim a machine that waits for its start object."""
        return self._world.claim(choice, self._epoch, self._attempt, self._published, held=True)

    def lives(self, node: Node) -> bool:
        """Ask the cloud; where it does not answer, its yes to the claim counts."""
        try:
            return not self._world.cloud(node.offer.cloud).inspect(node).is_over
        except CloudError:
            return True

    def choose(self, node: Node) -> Failure | None:
        """Note the choice, then write the start object."""
        try:
            self._world.directory.write_json(self._name(node.token), {"kept": True})
            self._world.launcher.write_start(node.offer, self._epoch, self._attempt, self._published)
        except CloudError as error:
            return as_failure(error)
        except OSError as error:
            return Failure(FailureKind.INVALID, Scope.OFFER, type(error).__name__, str(error), "look at this disk")
        return None

    def chosen(self, choices: Sequence[Choice]) -> Choice | None:
        """Return the choice whose machine was noted as kept."""
        for choice in choices:
            if self._world.directory.read_json(self._name(self._token(choice.offer))) is not None:
                return choice
        return None

    def made(self, choices: Sequence[Choice]) -> Sequence[Claimed]:
        """Find machines by the tokens that they carry; and by our notes those that have gone back already.

        What cannot be found now, ``finish`` finds.
        """
        by_token = {self._token(choice.offer): choice for choice in choices}
        found = {}
        for name in dict.fromkeys(choice.offer.cloud for choice in choices):
            try:
                things = self._world.cloud(name).owned()
            except CloudError as error:
                self._world.events.emit("blind", what=name, problem=str(error))
                continue
            for thing in things:
                token = _whole(thing.token, by_token)
                if thing.kind == "machine" and token:
                    offer, now = by_token[token].offer, self._world.now()
                    since = asked_at(self._world.directory, self._epoch, token) or now
                    node = Node(thing.id, offer, self._world.job, self._epoch, token, min(since, now))
                    found[token] = Claimed(offer, now, node, None, by_token[token].at_most)
                    self._world.ledger.found(bill_of(node, by_token[token], self._world.config.policy.ttl))
        gone = (self._went_back(token, choice) for token, choice in by_token.items() if token not in found)
        return [*found.values(), *(one for one in gone if one is not None)]

    def give_back(self, node: Node) -> Surplus:
        """Release it, at once. That it is about to go is noted before, so that a race that is run again counts it."""
        self._world.events.emit("surplus", epoch=self._epoch, offer=node.offer.key, node=node.id)
        try:
            note = {"id": node.id, "claimed_at": node.claimed_at}
            self._world.directory.write_json(self._name(node.token, "back"), note)
        except OSError as error:
            self._world.events.emit("blind", what="the state directory", problem=str(error))
        released = self._world.release(node)
        return Surplus(node, released.at, released.problem)

    def _went_back(self, token: str, choice: Choice) -> Claimed | None:
        note = self._world.directory.read_json(self._name(token, "back"))
        if not isinstance(note, dict):
            return None
        now = self._world.now()
        node = Node(note["id"], choice.offer, self._world.job, self._epoch, token, note["claimed_at"])
        return Claimed(choice.offer, now, None, None, choice.at_most, surplus=Surplus(node, now))

    def _token(self, offer: Offer) -> str:
        return claim_token(self._world.job, self._epoch, offer, self._attempt)

    @staticmethod
    def _name(token: str, what: str = "kept") -> str:
        return f"race/{token}.{what}.json"


def _whole(token: str, known: dict[str, Choice]) -> str:
    """Return the token of ours that this is, or begins: some clouds have room for its beginning only."""
    return next((one for one in known if token and one.startswith(token)), "")
