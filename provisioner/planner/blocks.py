"""The places that a configuration names, in their order: the primary, then each entry of ``fallback``."""

from __future__ import annotations

from dataclasses import dataclass, replace

from provisioner import catalog
from provisioner.config import Config
from provisioner.model import Market, Money, Offer


@dataclass(frozen=True, slots=True)
class Block:
    """One place, and what it takes. Empty ``regions``, ``instance_types`` or ``gpus`` take all.

    ``held_markets``: where the cloud itself refuses a machine dearer than ``max_price``, so that a price we do not know
    cannot go over it: AWS's spot market, and AutoDL's elastic scheduling.
    """

    name: str
    cloud: str
    regions: tuple[str, ...] = ()
    instance_types: tuple[str, ...] = ()
    markets: tuple[Market, ...] = (Market.SPOT, Market.ON_DEMAND)
    max_price: Money | None = None
    held_markets: frozenset[Market] = frozenset()
    gpus: tuple[str, ...] = ()
    count: int = 1
    min_vram_gb: float = 0.0
    cuda: tuple[int, int] | None = None

    def mismatch(self, offer: Offer) -> str:
        """Say why an offer is not of this place, or nothing."""
        if offer.cloud != self.cloud:
            return f"{self.name} is {self.cloud}"
        if self.regions and offer.region and offer.region not in self.regions:
            return f"{self.name} does not name the region {offer.region}"
        if offer.market not in self.markets:
            return f"{self.name} does not take {offer.market} machines"
        if self.instance_types and offer.instance_type not in self.instance_types:
            return f"{self.name} does not name {offer.instance_type}"
        return ""

    def unfit(self, offer: Offer) -> str:
        """Say why the machine cannot run the job, or nothing."""
        gpu = offer.gpu
        if self.cloud == "local":
            return ""  # the operator's own machine: what it has is what they meant
        if gpu.count == 0:
            return f"a slice of one {gpu.name}, not a whole one"
        if not catalog.matches(self.gpus, gpu.name):
            return f"has {gpu.name}, the job asks for {' or '.join(self.gpus)}"
        if gpu.count < self.count:
            return f"has {gpu.count} x {gpu.name}, the job asks for {self.count}"
        if self._too_little_memory(offer):
            has = f"{gpu.vram_gb:g} GB" if gpu.vram_gb else "an unknown amount of memory"
            return f"has {has} a card, the job asks for {self.min_vram_gb:g} GB"
        if offer.available is not None and offer.available < max(1, gpu.count):
            return f"{offer.available} cards are free, {gpu.count} are needed" if offer.available else "no card is free"
        return catalog.cuda_problem(gpu.name, self.cuda)

    def _too_little_memory(self, offer: Offer) -> bool:
        if offer.gpu.vram_gb == 0 and self.gpus:
            return False  # nobody knows, and the operator named this very card
        return offer.gpu.vram_gb < self.min_vram_gb


def blocks(config: Config) -> tuple[Block, ...]:
    """Return the places of a configuration in the order in which they are tried. GCP has no offers in this version."""
    wanted = config.resources
    job = Block("", "", gpus=wanted.gpus, count=wanted.count, min_vram_gb=wanted.min_vram_gb, cuda=wanted.cuda)
    found = []
    if config.primary is not None:
        autodl = config.primary.autodl
        held = frozenset({Market.ON_DEMAND}) if autodl.mode == "elastic" else frozenset()
        home = replace(job, name="primary.autodl", cloud="autodl", regions=autodl.regions, gpus=autodl.gpus or job.gpus)
        found.append(replace(home, max_price=autodl.max_price, held_markets=held))
    for index, entry in enumerate(config.fallback):
        block = replace(job, name=f"fallback[{index}].{entry.cloud}", cloud=entry.cloud)
        if entry.aws is not None:
            aws = entry.aws
            block = replace(block, regions=aws.regions, instance_types=aws.instance_types, markets=aws.markets)
            block = replace(block, max_price=aws.max_price, held_markets=frozenset({Market.SPOT}))
        found.append(block)
    return tuple(found)
