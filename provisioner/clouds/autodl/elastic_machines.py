"""Machines of the kind "elastic deployment": one deployment of type Container for one machine. Enterprise accounts."""

from __future__ import annotations

import time
from functools import partial

from provisioner.clouds.autodl import cards
from provisioner.clouds.autodl.client import AutodlClient
from provisioner.clouds.autodl.elastic_api import Template
from provisioner.clouds.autodl.errors import (
    UNSCHEDULED,
    Doubtful,
    NotFound,
    Refused,
    RefusedAccess,
    failure_for,
    not_entitled,
    refusal,
)
from provisioner.clouds.autodl.machines import (
    AutodlSettings,
    Clock,
    Passed,
    Patience,
    Sleep,
    fits,
    make_go,
    still_there,
)
from provisioner.clouds.autodl.models import Container, Deployment
from provisioner.clouds.autodl.naming import read_name
from provisioner.clouds.base import Request, Tagged
from provisioner.errors import Unreachable
from provisioner.model import Failure, FailureKind, Gpu, Market, NodeState, Offer, Owned

_ENDED = ("shutdown", "shutting_down")
_OLDEST_CUDA = (11, 8)
_NEWEST_CUDA = (13, 9)
_NO_ROOM = failure_for(UNSCHEDULED, "AutoDL found no host for the container")


class ElasticMachines:
    """Offers, machines and their end, by the deployment calls."""

    def __init__(
        self,
        client: AutodlClient,
        settings: AutodlSettings,
        *,
        cuda: tuple[int, int] | None = None,
        poll_s: float = 5.0,
        settle_s: float = 60.0,
        release_s: float = 600.0,
        sleep: Sleep = time.sleep,
        clock: Clock = time.monotonic,
    ) -> None:
        """Hold the client. ``settle_s``: how long a deployment may stay without a host before it is taken back."""
        self._client = client
        self._settings = settings
        self._cuda = cuda or _OLDEST_CUDA
        self._poll_s = poll_s
        self._settle_s = settle_s
        self._release_s = release_s
        self._sleep = sleep
        self._clock = clock

    def offers(self, request: Request) -> tuple[list[Offer], list[Passed]]:
        """List one offer per region and model that fits, sold-out ones with ``available`` 0."""
        made: list[Offer] = []
        passed: list[Passed] = []
        named = self._named()
        wanted = named or cards.stock_names(request.gpus)
        if request.gpus and not wanted:
            return [], [Passed(" or ".join(request.gpus), "AutoDL has no such card")]
        for region in self._settings.regions or tuple(cards.REGION_NAMES):
            stock = self._client.gpu_stock(
                region, gpu_names=wanted, cuda=request.cuda, max_price=self._settings.max_price
            )
            if not stock:
                known = region in cards.REGION_NAMES
                passed.append(Passed(region, "no such card here" if known else "AutoDL knows no such region"))
            for card, count in stock.items():
                if not cards.is_card(card) or (wanted and card not in wanted):
                    continue
                reason = self._reason_against(card, request, named=card in named)
                if reason:
                    passed.append(Passed(f"{region} {card}", reason))
                else:
                    made.append(self._offer(card, region, request.count, count.idle))
        return made, passed

    def _named(self) -> tuple[str, ...]:
        """Return the exact names that the configuration means; what our table lacks is kept as it is."""
        return tuple(
            dict.fromkeys(card for name in self._settings.gpus for card in cards.stock_names([name]) or (name,))
        )

    def _reason_against(self, card: str, request: Request, *, named: bool) -> str:
        if not fits(cards.vram_gb(card), request, named=named):
            return f"{cards.vram_gb(card):g} GB of memory are less than {request.min_vram_gb:g} GB"
        limit, price = self._settings.max_price, cards.price(card, request.count)
        if limit is not None and price is not None and price.amount > limit.amount:
            return f"{price} an hour (seen {cards.PRICES_SEEN}) is more than max_price {limit}"
        return ""

    @staticmethod
    def _offer(card: str, region: str, count: int, idle: int) -> Offer:
        return Offer(
            cloud="autodl",
            region=region,
            zone="",
            instance_type=card,
            gpu=Gpu(card, count, cards.vram_gb(card)),
            market=Market.ON_DEMAND,
            price_per_hour=cards.price(card, count),
            available=idle,
        )

    def find(self, name: str) -> str | None:
        """Return the id of the oldest deployment with this name."""
        same = [item for item in self._client.elastic.deployments(name=name) if item.name == name]
        return min(same, key=lambda item: (item.created_at or 0.0, item.id)).id if same else None

    def create(self, name: str, offer: Offer, command: str, image: str) -> str:
        """Make a deployment of one container. Without idle cards it makes none, and refuses as AutoDL would.

        ``reuse_container`` stays false: a container from the cache keeps the files of its last run.
        """
        stock = self._client.gpu_stock(offer.region, gpu_names=[offer.gpu.name])
        if offer.gpu.name not in stock or stock[offer.gpu.name].idle < offer.gpu.count:
            raise refusal(_NO_ROOM, call=f"{offer.gpu.name} in {offer.region}")
        template = Template(
            regions=[offer.region],
            gpu_names=[offer.gpu.name],
            gpu_count=offer.gpu.count,
            image=image,
            command=command,
            cuda=(self._cuda, max(self._cuda, _NEWEST_CUDA)),
            max_price=self._settings.max_price,
        )
        return self._client.elastic.create(name, "Container", template, reuse_container=False)

    def settle(self, machine: str) -> Failure | None:
        """Wait until a container is listed: a deployment is accepted even where nothing fits.

        One that finds no host in time is deleted again, or it would start, and cost, when nobody waits any more.
        """
        patience = Patience(self._settle_s, self._poll_s, sleep=self._sleep, clock=self._clock)
        while True:
            try:
                if self._client.elastic.containers(machine) or self._is_over(machine):
                    return None
            except Unreachable:
                return None  # It is made; whoever watches it finds out what became of it.
            if not patience.wait():
                break
        self.release(machine)
        return _NO_ROOM

    def _deployment(self, machine: str) -> Deployment | None:
        found = [item for item in self._client.elastic.deployments(deployment=machine) if item.id == machine]
        return found[0] if found else None

    def _status(self, machine: str) -> str | None:
        deployment = self._deployment(machine)
        return None if deployment is None else deployment.status

    def _is_over(self, machine: str) -> bool:
        deployment = self._deployment(machine)
        return deployment is None or deployment.status == "stopped" or deployment.finished > 0

    def _containers(self, machine: str) -> list[Container]:
        try:
            return self._client.elastic.containers(machine)
        except NotFound:
            return []

    def inspect(self, machine: str) -> NodeState:
        """Say what a deployment does, by its container."""
        deployment = self._deployment(machine)
        if deployment is None:
            return NodeState.UNLISTED
        statuses = [container.status for container in self._containers(machine)]
        if "running" in statuses:
            return NodeState.RUNNING
        over = deployment.status == "stopped" or deployment.finished > 0
        if over or (statuses and all(status in _ENDED for status in statuses)):
            return NodeState.STOPPED
        return NodeState.PENDING

    def release(self, machine: str) -> None:
        """Stop, delete, and see that it is gone from the list."""
        patience = Patience(self._release_s, self._poll_s, sleep=self._sleep, clock=self._clock)
        left = make_go(partial(self._status, machine), partial(self._push, machine), patience)
        if left is not None:
            raise still_there(machine, left, self._release_s)

    def _push(self, machine: str, status: str) -> None:
        """Take the next step towards the end. What the next look will show anyway is no error."""
        for call in (self._client.elastic.stop, self._client.elastic.delete)[status == "stopped" :]:
            try:
                call(machine)
            except (Doubtful, NotFound):
                continue
            except Refused as error:
                if error.failure.kind not in (FailureKind.INVALID, FailureKind.UNKNOWN, FailureKind.THROTTLED):
                    raise

    def tagged(self, prefix: str) -> list[Tagged]:
        """List our deployments whose name begins with ``prefix``. An account that may not have any has none."""
        try:
            deployments = self._client.elastic.deployments()
        except RefusedAccess as error:
            if not_entitled(error.failure):
                return []
            raise
        return [found for item in deployments if item.name.startswith(prefix) and (found := _tagged(item)) is not None]


def _tagged(item: Deployment) -> Tagged | None:
    tags = read_name(item.name)
    if tags is None:
        return None
    thing = Owned(
        cloud="autodl",
        region=item.regions[0] if len(item.regions) == 1 else "",
        kind="machine",
        id=item.id,
        state=item.status,
        job=tags.job.name,
        epoch=tags.epoch,
        token=tags.token,
        price_per_hour=cards.price(item.gpu_names[0], item.gpu_count or 1) if len(item.gpu_names) == 1 else None,
    )
    return Tagged(thing, tags.job.uid, item.created_at)
