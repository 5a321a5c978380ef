"""AutoDL as a cloud: the contract of ``clouds/base.py`` on top of the two ways of getting a machine there."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from provisioner.clock import now as unix_now
from provisioner.clouds.autodl import cards
from provisioner.clouds.autodl.client import AutodlClient
from provisioner.clouds.autodl.elastic_machines import ElasticMachines
from provisioner.clouds.autodl.errors import BALANCE, Doubtful, Refused, failure_for, failure_of
from provisioner.clouds.autodl.machines import AutodlSettings, Clock, Machines, Passed, Sleep, start_command
from provisioner.clouds.autodl.naming import PREFIX, machine_name
from provisioner.clouds.autodl.pro_machines import ProMachines
from provisioner.clouds.base import Findings, Outlook, Request, Tagged
from provisioner.clouds.meaning import never_sent
from provisioner.errors import CloudError, Unauthorized
from provisioner.model import Failure, FailureKind, JobRef, Launch, Node, NodeState, Offer, Owned, Scope

_PRO_ID = "pro-"
_BUSY_PAUSES_S = (2.0, 4.0, 8.0)
"""Waits between tries of one order while AutoDL is busy; then it counts as refused."""
_PATIENCE_S = 45.0
"""For one question of the controller, which has heartbeats to watch besides."""


class AutodlCloud:
    """One account at AutoDL, for one job. What is claimed is Pro or elastic as ``config.mode`` says.

    What exists is handled by its own kind (an instance of Pro is named ``pro-...``), so that a changed mode leaves
    nothing behind.
    """

    name: ClassVar[str] = "autodl"

    def __init__(
        self,
        config: AutodlSettings,
        job: JobRef,
        client: AutodlClient,
        *,
        request: Request | None = None,
        poll_s: float = 5.0,
        settle_s: float = 60.0,
        release_s: float = 600.0,
        second_look_s: float = 5.0,
        sleep: Sleep = time.sleep,
        clock: Clock = time.monotonic,
        wall: Clock = unix_now,
    ) -> None:
        """Hold the client; ask nothing yet.

        Args:
            config: ``primary.autodl`` of failover.yaml.
            job: Whose machines these are.
            client: The account.
            request: What the job asks of a machine; its CUDA version goes into a claim.
            poll_s: Longest wait between two looks while something is awaited.
            settle_s: How long an elastic deployment may wait for a host.
            release_s: How long a machine may take to go away.
            second_look_s: Wait before the second look for a machine after a doubtful answer.
            sleep: How to wait.
            clock: Seconds that only grow.
            wall: Unix time.
        """
        cuda = request.cuda if request is not None else None
        self._config = config
        self._job = job
        self._client = client
        self._second_look_s = second_look_s
        self._sleep = sleep
        self._wall = wall
        self._pro = ProMachines(client, config, cuda=cuda, poll_s=poll_s, release_s=release_s, sleep=sleep, clock=clock)
        self._elastic = ElasticMachines(
            client,
            config,
            cuda=cuda,
            poll_s=poll_s,
            settle_s=settle_s,
            release_s=release_s,
            sleep=sleep,
            clock=clock,
        )

    @classmethod
    def open(
        cls, *, job: JobRef, config: Any, directory: Path, environ: Mapping[str, str], events: Any = None
    ) -> AutodlCloud:
        """Open the room for a whole ``Config``. Raises Unauthorized when AUTODL_TOKEN is not set."""
        del directory, events
        settings, wanted = config.primary.autodl, config.resources
        token = environ.get("AUTODL_TOKEN", "")
        if not token:
            raise Unauthorized("AUTODL_TOKEN is not set", hint="AutoDL: console > account > settings > developer token")
        request = Request(tuple(wanted.gpus), wanted.count, wanted.min_vram_gb, wanted.cuda)
        client = AutodlClient(token, settings.base_url, patience_s=_PATIENCE_S)
        cloud = cls(settings, job, client, request=request, poll_s=min(5.0, config.policy.poll))
        weakref.finalize(cloud, client.close)
        return cloud

    @property
    def account(self) -> str:
        """Tell accounts apart without asking AutoDL: a digest of the token, which is no secret."""
        return self._client.wire.account

    @property
    def _chosen(self) -> Machines:
        return self._elastic if self._config.mode == "elastic" else self._pro

    def _of(self, machine: str) -> Machines:
        return self._pro if machine.startswith(_PRO_ID) else self._elastic

    def offers(self, request: Request) -> Sequence[Offer]:
        """List what fits. Elastic tells idle cards (0: sold out); Pro tells none, since no number predicts it.

        Prices are the last ones seen in public (``cards.PRICES_SEEN``): AutoDL tells none before a machine runs.
        """
        return self.survey(request)[0]

    def survey(self, request: Request) -> tuple[list[Offer], list[Passed]]:
        """Like ``offers``, with what was passed over and why."""
        return self._chosen.offers(request)

    def prepare(self, region: str) -> None:
        """Nothing: AutoDL needs no network, role or template."""

    def claim(self, offer: Offer, launch: Launch) -> Node | Failure:
        """Get the machine, or say why not. One name per token: what carries it is found before anything is made."""
        name = machine_name(launch)
        machines, since, machine = self._chosen, self._wall(), ""
        try:
            machine = machines.find(name) or ""
            if machine:  # a claim that is made again: it has cost money since
                made_at = (one.since for one in machines.tagged(name) if one.thing.id == machine)
                since = min(since, next(made_at, None) or since)
            else:
                made = self._too_poor(offer) or self._create(machines, name, offer, launch)
                if isinstance(made, Failure):
                    return made
                machine = made
            failure = machines.settle(machine)
        except CloudError as error:
            return replace(failure_of(error), doubtful=bool(machine))
        if failure is not None:
            return failure
        return Node(machine, offer, launch.job, launch.epoch, launch.token, since)

    def _create(self, machines: Machines, name: str, offer: Offer, launch: Launch) -> str | Failure:
        """Make the machine. An answer that does not say what happened is followed by two looks for its name."""
        doubtful = False
        image = self._config.image_uuid or cards.DEFAULT_IMAGE
        order = partial(machines.create, name, offer, start_command(launch.user_data), image)
        try:
            return self._when_it_listens(order)
        except Doubtful as error:
            failure = Failure(FailureKind.NETWORK, Scope.OFFER, "no answer", str(error), error.hint, 60.0)
            doubtful = not never_sent(error)
        except Refused as error:
            if error.failure.kind is not FailureKind.UNKNOWN:
                return error.failure
            failure = error.failure
        try:
            found = machines.find(name)
            if found is None:
                self._sleep(self._second_look_s)
                found = machines.find(name)
        except CloudError as error:
            failure, found = failure_of(error), None
        return found or replace(failure, doubtful=doubtful)

    def _when_it_listens(self, order: Callable[[], str]) -> str:
        """Give an order again while AutoDL says that these are too many requests: then nothing was made."""
        for pause_s in _BUSY_PAUSES_S:
            try:
                return order()
            except Refused as error:
                if error.failure.kind is not FailureKind.THROTTLED:
                    raise
            self._sleep(pause_s)
        return order()

    def _too_poor(self, offer: Offer) -> Failure | None:
        """Refuse to begin what the account cannot pay for an hour: AutoDL's own refusal is not documented."""
        spendable = self._client.balance().spendable
        price = offer.price_per_hour
        if spendable.amount > 0 and (price is None or spendable.amount >= price.amount):
            return None
        need = f"an hour costs {price}" if price is not None else "a machine costs money"
        return failure_for(BALANCE, f"the AutoDL account has {spendable} to spend, and {need}")

    def adopt(self, node: Node) -> None:
        """Nothing: AutoDL has no Terraform."""

    def release(self, node: Node) -> None:
        """Make the machine go away; return when AutoDL does not know it any more."""
        self._of(node.id).release(node.id)

    def inspect(self, node: Node) -> NodeState:
        """Say how AutoDL sees the machine. A Pro machine that is powered off is STOPPED: it keeps its disk."""
        return self._of(node.id).inspect(node.id)

    def outlook(self, node: Node) -> Outlook:
        """Look at the wallet, the machine's price and, for elastic ones, the stock. Raises CloudError.

        Stock says nothing of Pro, so none is told there. Nobody takes a running machine for an empty stock.
        """
        balance, price, idle = self._client.balance().spendable, node.offer.price_per_hour, None
        gpu, region = node.offer.gpu.name, node.offer.region
        if node.id.startswith(_PRO_ID):
            price = self._client.pro.snapshot(node.id).price_per_hour or price
        elif (stock := self._client.gpu_stock(region, gpu_names=[gpu]).get(gpu)) is not None:
            idle = stock.idle
        return Outlook(balance, price, idle, f"{gpu} in {region}")

    def owned(self) -> Sequence[Owned]:
        """List this job's machines and deployments, those of an earlier mode included. Raises CloudError."""
        prefix = f"{PREFIX}{self._job.name}-{self._job.uid}-"
        return [one.thing for machines in (self._pro, self._elastic) for one in machines.tagged(prefix)]

    def tagged(self, regions: Sequence[str]) -> Findings:  # noqa: ARG002 - AutoDL lists all regions at once
        """List what carries a name of ours, of every job and operator of this account."""
        found: list[Tagged] = []
        silent: dict[str, str] = {}
        for what, machines in (("Pro instances", self._pro), ("deployments", self._elastic)):
            try:
                found += machines.tagged(PREFIX)
            except CloudError as error:
                silent[what] = str(error)
        return Findings(tuple(found), silent)

    def remove(self, tagged: Tagged) -> None:
        """Make a machine go away; return when AutoDL does not know it any more. Raises CloudError."""
        self._of(tagged.thing.id).release(tagged.thing.id)

    def dismantle(self) -> None:
        """Nothing: ``prepare`` made nothing."""
