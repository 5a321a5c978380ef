"""Machines of the kind "container instance Pro". Their capacity shows only when one is created."""

from __future__ import annotations

import time
from functools import partial

from provisioner.clouds.autodl import cards
from provisioner.clouds.autodl.client import AutodlClient
from provisioner.clouds.autodl.errors import Doubtful, NotFound, Refused
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
from provisioner.clouds.autodl.naming import read_name
from provisioner.clouds.autodl.pro_api import ProOrder
from provisioner.clouds.base import Request, Tagged
from provisioner.model import Failure, FailureKind, Gpu, Market, NodeState, Offer, Owned

_STATES = {
    "running": NodeState.RUNNING,
    "shutting_down": NodeState.STOPPING,
    "shutdown": NodeState.STOPPED,
    "stopped": NodeState.STOPPED,
    "releasing": NodeState.STOPPED,
    "released": NodeState.GONE,
}
_MOST_CARDS = 4
_OLDEST_CUDA = (11, 8)


class ProMachines:
    """Offers, machines and their end, by the Pro calls."""

    def __init__(
        self,
        client: AutodlClient,
        settings: AutodlSettings,
        *,
        cuda: tuple[int, int] | None = None,
        poll_s: float = 5.0,
        release_s: float = 600.0,
        sleep: Sleep = time.sleep,
        clock: Clock = time.monotonic,
    ) -> None:
        """Hold the client. ``cuda``: the driver must support at least this."""
        self._client = client
        self._settings = settings
        self._cuda = cuda or _OLDEST_CUDA
        self._poll_s = poll_s
        self._release_s = release_s
        self._sleep = sleep
        self._clock = clock

    def offers(self, request: Request) -> tuple[list[Offer], list[Passed]]:
        """List one offer per spec and region. No free cards are told: the stock of the API is not Pro's."""
        made: list[Offer] = []
        regions = [region for region in self._settings.regions if region in cards.PRO_REGIONS]
        reason = f"Pro takes only {' and '.join(cards.PRO_REGIONS)}"
        passed = [Passed(region, reason) for region in self._settings.regions if region not in regions]
        if self._settings.regions and not regions:
            return [], passed
        specs, unfit = self._specs(request)
        passed += unfit
        for spec in specs:
            reason = self._reason_against(spec, request)
            if reason:
                passed.append(Passed(spec, reason))
                continue
            made += [self._offer(spec, region, request.count) for region in regions or [""]]
        return made, passed

    def _specs(self, request: Request) -> tuple[list[str], list[Passed]]:
        """Return the spec ids that the configuration names, or those of the cards that the job names, or all."""
        spec_of = {card: spec for spec, card in cards.pro_specs().items()}
        if not self._settings.gpus:
            wanted = cards.stock_names(request.gpus)
            passed = [Passed(name, "no Pro machine has it") for name in wanted if name not in spec_of]
            return [spec for spec, card in cards.pro_specs().items() if not request.gpus or card in wanted], passed
        specs: dict[str, None] = {}
        passed = []
        for name in self._settings.gpus:
            known = cards.stock_names([name])
            found = [spec_of[card] for card in known if card in spec_of]
            if known and not found:
                passed.append(Passed(name, "no Pro machine has it"))
            # AutoDL lists its specs nowhere: a name that our table lacks is taken for a new spec id.
            specs.update(dict.fromkeys(found if known else [name]))
        return list(specs), passed

    def _reason_against(self, spec: str, request: Request) -> str:
        card = cards.pro_specs().get(spec, spec)
        if not 1 <= request.count <= _MOST_CARDS:
            return f"a Pro machine has 1 to {_MOST_CARDS} cards, not {request.count}"
        if not fits(cards.vram_gb(card), request, named=bool(self._settings.gpus)):
            return f"{cards.vram_gb(card):g} GB of memory are less than {request.min_vram_gb:g} GB"
        limit = self._settings.max_price
        if limit is not None:
            price = cards.price(card, request.count)
            if price is None:
                return f"its price is not known, so max_price {limit} cannot be kept"
            if price.amount > limit.amount:
                return f"{price} an hour (seen {cards.PRICES_SEEN}) is more than max_price {limit}"
        return ""

    @staticmethod
    def _offer(spec: str, region: str, count: int) -> Offer:
        card = cards.pro_specs().get(spec, spec)
        return Offer(
            cloud="autodl",
            region=region,
            zone="",
            instance_type=spec,
            gpu=Gpu(card, count, cards.vram_gb(card)),
            market=Market.ON_DEMAND,
            price_per_hour=cards.price(card, count),
            available=None,
        )

    def find(self, name: str) -> str | None:
        """Return the id of the oldest instance with this name."""
        same = [item for item in self._client.pro.instances() if item.name == name]
        return min(same, key=lambda item: (item.created_at or 0.0, item.id)).id if same else None

    def create(self, name: str, offer: Offer, command: str, image: str) -> str:
        """Make an instance; it starts by itself."""
        order = ProOrder(
            name=name,
            spec=offer.instance_type,
            gpu_count=offer.gpu.count,
            image=image,
            cuda_from=self._cuda,
            regions=[offer.region] if offer.region else [],
            start_command=command,
        )
        return self._client.pro.create(order)

    def settle(self, machine: str) -> Failure | None:  # noqa: ARG002 - the contract of both ways
        """Nothing to wait for: create has taken the card."""
        return None

    def inspect(self, machine: str) -> NodeState:
        """Say what an instance does. A status that we do not know means: not there yet."""
        status = self._status(machine)
        return NodeState.UNLISTED if status is None else _STATES.get(status, NodeState.PENDING)

    def _status(self, machine: str) -> str | None:
        """Return the status word, or None for what is gone: unknown by its id, and not in the list either.

        The list is asked too before we believe that a machine is gone, which may be running and cost money.
        """
        try:
            return self._client.pro.status(machine)
        except NotFound:
            listed = {item.id: item.status for item in self._client.pro.instances()}
            return listed.get(machine)

    def release(self, machine: str) -> None:
        """Power off, wait for ``shutdown``, release, and see that it is gone.

        A power-off may be lost while the instance starts, so it is repeated until the status changes; a release is
        refused before ``shutdown``, and an answer may be lost on the way: each round looks first.
        """
        patience = Patience(self._release_s, self._poll_s, sleep=self._sleep, clock=self._clock)
        left = make_go(partial(self._status, machine), partial(self._push, machine), patience)
        if left is not None:
            raise still_there(machine, left, self._release_s)

    def _push(self, machine: str, status: str) -> None:
        """Take the next step towards the end. What the next look will show anyway is no error."""
        try:
            if status in ("shutdown", "stopped"):
                self._client.pro.release(machine)
            elif status not in ("", "shutting_down", "releasing", "released"):
                self._client.pro.power_off(machine)
        except (Doubtful, NotFound):
            return
        except Refused as error:
            if error.failure.kind not in (FailureKind.INVALID, FailureKind.UNKNOWN, FailureKind.THROTTLED):
                raise

    def tagged(self, prefix: str) -> list[Tagged]:
        """List the instances of ours whose name begins with ``prefix``."""
        found = []
        for item in self._client.pro.instances():
            tags = read_name(item.name)
            if tags is not None and item.name.startswith(prefix):
                card = cards.pro_specs().get(item.spec, item.spec)
                thing = Owned(
                    cloud="autodl",
                    region="",
                    kind="machine",
                    id=item.id,
                    state=item.status,
                    job=tags.job.name,
                    epoch=tags.epoch,
                    token=tags.token,
                    price_per_hour=cards.price(card, item.gpu_count or 1),
                )
                found.append(Tagged(thing, tags.job.uid, item.created_at))
        return found
