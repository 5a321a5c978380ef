"""Get one machine for one token: never two, whatever becomes of the answers.

``instances.insert`` says yes at once; only its operation knows whether there is a machine, so it is followed to its
end. A refusal for capacity or quota is an answer and is not repeated. What passes is repeated: a lost call with the
same request id, which Google honours, an operation that ended in a fault of Google's with the next one. The name is the
token's, so that two requests could not make two machines either.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from provisioner.clouds.clock import Clock
from provisioner.clouds.gcp.compute import Compute, Machine, Operation
from provisioner.clouds.gcp.errors import Refused, account_not_yet_known, machine_gone, spent
from provisioner.clouds.gcp.machine import LABEL_TOKEN, request_id
from provisioner.clouds.gcp.reading import failure_of
from provisioner.clouds.meaning import CAPACITY, never_sent, passing, with_failure
from provisioner.model import Failure, FailureKind, Launch, Node, Offer

CLAIM_S: Final = 60.0
"""How long a claim is repeated while Google throttles or gives no usable answer."""
CLAIM_TRIES: Final = 10
"""How often, at most."""
OPERATION_S: Final = 300.0
"""How long an operation may take. Google finds out within seconds, rarely after minutes, that there is no capacity."""
COMING: Final = frozenset({"PENDING", "PROVISIONING", "STAGING"})
GOING: Final = frozenset({"STOPPING", "SUSPENDING", "DEPROVISIONING"})
OFF: Final = GOING | {"STOPPED", "SUSPENDED", "TERMINATED"}
"""A machine in any other state, also one that Google has yet to invent, counts as running."""
_POLL_FIRST_S, _POLL_MOST_S = 0.5, 3.0
_TAKEN_AWAY: Final = frozenset({"UNSUPPORTED_OPERATION", "PREEMPTED"})


class Claim:
    """One claim in one zone."""

    def __init__(
        self,
        compute: Compute,
        clock: Clock | None = None,
        jitter: Callable[[], float] = random.random,
        *,
        new: bool = False,
    ) -> None:
        """Take the project's calls. ``jitter`` gives numbers from 0 to 1.

        ``new``: the region was prepared a moment ago, and a service account that is not there yet is waited for.
        """
        self._new = new
        self._compute = compute
        self._clock = clock or Clock()
        self._jitter = jitter

    def make(self, body: Mapping[str, Any], offer: Offer, launch: Launch) -> Node | Failure:
        """Return the machine of the token, or why there is none. ``body`` comes from ``machine.body``."""
        got = self._insert(offer.zone, body, launch.token)
        if isinstance(got, Failure):
            return got
        node_id = f"{offer.zone}/{body['name']}"
        since = got.since_s if got is not None else None  # of a claim that is made again long ago
        since = self._clock.now() if since is None else since
        return Node(node_id, offer, launch.job, launch.epoch, launch.token, since)

    def _insert(self, zone: str, body: Mapping[str, Any], token: str) -> Machine | Failure | None:
        """Insert until Google says yes or no. None: it said yes, and then nothing more."""
        name = str(body["name"])
        until = self._clock.tick() + CLAIM_S
        pause_s, repeat, doubt, tries = _POLL_FIRST_S, 0, False, 0
        while True:
            tries += 1
            try:
                operation = self._compute.insert(zone, body, request_id(token, repeat))
                doubt = True  # from here on there may be a machine
                ended = self._follow(operation, name)
            except Refused as error:
                failure = error.failure
                taken = spent(failure)  # if there is no such machine: Google frees a name some time after a failure
                again = passing(failure) or taken or (self._new and account_not_yet_known(failure))
                doubt = doubt or (failure.kind is FailureKind.NETWORK and not never_sent(error)) or taken
                repeat += taken
            else:
                if not isinstance(ended, Failure):
                    return ended
                failure, again, taken, doubt = ended, passing(ended), False, False
                repeat += 1
            if doubt and (made := self._found(zone, name, token, settle=taken or not again)) is not None:
                return made
            if not again or tries >= CLAIM_TRIES or self._clock.tick() + pause_s > until:
                return replace(failure, doubtful=failure.doubtful or doubt)
            self._clock.sleep(pause_s * (0.5 + self._jitter()))
            pause_s = min(pause_s * 2, 8.0)

    def _follow(self, operation: Operation, name: str) -> Machine | Failure | None:
        """Follow an operation to its end: it alone holds the reason. Then look at what it made."""
        until = self._clock.tick() + OPERATION_S
        pause_s = _POLL_FIRST_S
        zone = operation.zone
        while not operation.done:
            if self._clock.tick() >= until:
                return self._give_up(zone, name)
            self._clock.sleep(pause_s)
            pause_s = min(pause_s * 1.3, _POLL_MOST_S)
            try:
                operation = self._compute.operation(zone, operation.name)
            except LookupError:  # forgotten: then the machine itself must tell
                return self._settled(zone, name)
            except Refused as error:
                if not passing(error.failure):
                    raise
        if operation.problems:
            return self._refusal(zone, name, operation)
        try:
            return self._settled(zone, name)
        except Refused as error:
            if passing(error.failure):
                return None  # Google has said yes: the machine is ours, and whoever watches it asks again
            raise

    def _refusal(self, zone: str, name: str, operation: Operation) -> Failure:
        failure = failure_of(operation.problems, project=self._compute.account.project)
        taken_away = failure.code in _TAKEN_AWAY or "preempt" in failure.message
        if taken_away:  # what was made for a moment may lie there, stopped
            self._remove(zone, name)
        return failure

    def _settled(self, zone: str, name: str) -> Machine | Failure:
        """Look at a machine that was made. One that is there no more, or stands still, is a refusal that came late."""
        until = self._clock.tick() + OPERATION_S
        while True:
            machine = self._compute.machine(zone, name)
            if machine is None or machine.status in OFF:
                if machine is not None:
                    self._remove(zone, name)
                state = "gone" if machine is None else machine.status
                return machine_gone(f"{zone}/{name} is {state}")
            if machine.status not in COMING or machine.status == "STAGING":
                return machine
            if self._clock.tick() >= until:
                return self._give_up(zone, name)
            self._clock.sleep(_POLL_MOST_S)

    def _of_name(self, zone: str, name: str, token: str, *, settle: bool) -> Machine | Failure | None:
        """Find what a token made; None: nothing. A machine of this name that stands still is removed.

        Without ``settle`` one that is on its way is nothing either: its operation, which the same request finds again,
        tells more.
        """
        machine = self._compute.machine(zone, name)
        if machine is None or (machine.status in COMING and not settle):
            return None
        if machine.labels.get(LABEL_TOKEN) != token:
            return replace(machine_gone(f"{zone}/{name} is not this claim's"), kind=FailureKind.INVALID)
        return self._settled(zone, name)

    def _found(self, zone: str, name: str, token: str, *, settle: bool) -> Machine | Failure | None:
        """Find what a call whose answer was lost has made; None also while Google cannot be asked."""
        try:
            return self._of_name(zone, name, token, settle=settle)
        except Refused as error:
            if passing(error.failure):
                return None
            raise with_failure(error, replace(error.failure, doubtful=True)) from None

    def _give_up(self, zone: str, name: str) -> Machine | Failure:
        """Decide about a machine of which nothing is known after minutes: it is there, or it is sent away."""
        machine = self._compute.machine(zone, name)
        if machine is not None and machine.status not in COMING | OFF:
            return machine
        gone = self._remove(zone, name)
        failure = CAPACITY.failure("TIMEOUT", f"no machine after {OPERATION_S:.0f} s, and no reason")
        return replace(failure, doubtful=not gone)

    def _remove(self, zone: str, name: str) -> bool:
        """Ask that a machine goes away. If that fails (False), it is found by its labels later."""
        try:
            self._compute.delete_machine(zone, name)
        except Refused:
            return False
        return True
