"""Get one EC2 machine for one client token: never two, whatever becomes of the answers.

RunInstances on the prepared launch template. A refusal for capacity, quota or price is an answer and is not repeated;
throttling, a fault of AWS and a lost answer are repeated with the same token, which EC2 honours.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from provisioner.clouds.aws import quotas
from provisioner.clouds.aws.api import CALL_ERRORS, Region, ended
from provisioner.clouds.aws.failures import SPENT_CODES
from provisioner.clouds.aws.reading import code_and_message, failure_of, failure_of_state, profile_not_yet_known
from provisioner.clouds.clock import Clock
from provisioner.clouds.meaning import never_sent, passing
from provisioner.errors import CloudError
from provisioner.model import TAG_TOKEN, Failure, FailureKind, Launch, Market, Node, Offer, Scope

CLAIM_S = 60.0
"""How long a claim is repeated while AWS throttles or gives no usable answer."""
CLAIM_TRIES = 10
"""How often, at most."""
SETTLE_S = 15.0
"""How long a pending machine is watched: EC2 finds out within seconds that there is no capacity after all."""
LOOK_FOR_S = 8.0
"""How long a machine is looked for by its token: a new one may take a few seconds to be listed."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where and how a machine is started: the prepared region's template and the zone's subnet."""

    template_id: str
    template_version: int
    subnet_id: str


def request(place: Place, offer: Offer, launch: Launch, max_price: str | None) -> dict[str, Any]:
    """Return the RunInstances request. It is a function of recorded values, so a repeat is the same request.

    ``max_price`` is USD an hour, for the spot market; None leaves AWS's own ceiling, the on-demand price.
    """
    tags = [{"Key": key, "Value": value} for key, value in {"Name": launch.node_name, **launch.tags}.items()]
    kinds = ["instance", "volume"]
    asked: dict[str, Any] = {
        "LaunchTemplate": {"LaunchTemplateId": place.template_id, "Version": str(place.template_version)},
        "MinCount": 1,
        "MaxCount": 1,
        "InstanceType": offer.instance_type,
        "SubnetId": place.subnet_id,
        "ClientToken": launch.token,
        "UserData": launch.user_data,
        "InstanceInitiatedShutdownBehavior": "terminate",
    }
    if offer.market is Market.SPOT:
        kinds.append("spot-instances-request")
        options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        if max_price is not None:
            options["MaxPrice"] = max_price
        asked["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
    asked["TagSpecifications"] = [{"ResourceType": kind, "Tags": tags} for kind in kinds]
    return asked


class Claim:
    """One claim in one region."""

    def __init__(self, region: Region, clock: Clock | None = None, jitter: Callable[[], float] = random.random) -> None:
        """Take the region's calls. ``jitter`` gives numbers from 0 to 1."""
        self._region = region
        self._clock = clock or Clock()
        self._jitter = jitter

    def make(self, asked: Mapping[str, Any], offer: Offer, launch: Launch) -> Node | Failure:
        """Return the machine of the token, or why there is none."""
        got = self._run(asked, launch.token)
        if isinstance(got, Failure):
            return replace(got, advice=quotas.advice(offer) or got.advice) if got.scope is Scope.FAMILY else got
        settled = self._settle(got)
        if isinstance(settled, Failure):
            return settled
        launched = settled.get("LaunchTime")  # of a claim that is made again long ago: it has cost money since
        since = launched.timestamp() if launched is not None else self._clock.now()
        return Node(str(settled["InstanceId"]), offer, launch.job, launch.epoch, launch.token, since)

    def _run(self, asked: Mapping[str, Any], token: str) -> dict[str, Any] | Failure:
        """Call RunInstances until it says yes or no."""
        until = self._clock.tick() + CLAIM_S
        pause_s, doubt, tries = 0.5, False, 0
        while True:
            tries += 1
            try:
                return self._region.run(asked)
            except CALL_ERRORS as error:
                sent = not never_sent(error)
                failure = failure_of(error, "RunInstances")
                if code_and_message(error)[0] in SPENT_CODES:
                    return self._made(token) or failure
                again = passing(failure) or profile_not_yet_known(error)
            doubt = doubt or (failure.kind is FailureKind.NETWORK and sent)
            if not again or tries >= CLAIM_TRIES or self._clock.tick() + pause_s > until:
                # A refusal is about this try; an earlier one whose answer was lost may have made a machine.
                return self._looked_up(token, failure) if doubt else failure
            self._clock.sleep(pause_s * (0.5 + self._jitter()))
            pause_s = min(pause_s * 2, 8.0)

    def _looked_up(self, token: str, failure: Failure) -> dict[str, Any] | Failure:
        """Return what a token made, else the failure: a machine that is not listed yet may come all the same."""
        try:
            made = self._made(token)
        except CloudError:
            made = None
        return made or replace(failure, doubtful=True)

    def _made(self, token: str) -> dict[str, Any] | None:
        """Find what a token made, by its tag; a machine that lives before one that has ended."""
        until = self._clock.tick() + LOOK_FOR_S
        while True:
            found = self._region.tagged({TAG_TOKEN: token})
            found.sort(key=ended)
            if found:
                return found[0]
            if self._clock.tick() >= until:
                return None
            self._clock.sleep(1.0)

    def _settle(self, instance: dict[str, Any]) -> dict[str, Any] | Failure:
        """Follow a pending machine for a while. One that ended without having run is a refusal that came late."""
        until = self._clock.tick() + SETTLE_S
        while True:
            if ended(instance):
                reason = instance.get("StateReason") or {}
                late = failure_of_state(str(reason.get("Code", "")), str(reason.get("Message", "")))
                return late or instance
            if instance["State"]["Name"] != "pending" or self._clock.tick() >= until:
                return instance
            self._clock.sleep(0.5)
            try:
                instance = self._region.find(str(instance["InstanceId"])) or instance
            except CloudError:
                return instance  # EC2 has said yes: the machine is ours, and whoever watches it asks again
