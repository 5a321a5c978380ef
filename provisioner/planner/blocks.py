"""The places that a configuration names, in their order: the primary, then each entry of ``fallback``."""

from __future__ import annotations

from dataclasses import dataclass, replace

from provisioner import catalog
from provisioner.catalog import geography
from provisioner.config import AwsConfig, Config, GcpConfig
from provisioner.fitting import Measured
from provisioner.model import Market, Money, Offer
from provisioner.planner import fits


@dataclass(frozen=True, slots=True)
class Block:
    """One place, and what it takes. Empty ``regions``, ``zones``, ``instance_types``, ``gpus``, ``countries`` take all.

    ``held_markets``: where the cloud itself refuses a machine dearer than ``max_price``, so that a price we do not know
    cannot go over it: AWS's spot market, and AutoDL's elastic scheduling. ``home``: the primary.
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
    zones: tuple[str, ...] = ()
    countries: tuple[str, ...] = ()
    home: bool = False
    driver: int | None = None
    fit: Measured | None = None

    def mismatch(self, offer: Offer) -> str:
        """Say why an offer is not of this place, or nothing."""
        if offer.cloud != self.cloud:
            return f"{self.name} is {self.cloud}"
        if self.regions and offer.region and offer.region not in self.regions:
            return f"{self.name} does not name the region {offer.region}"
        if self.zones and offer.zone and offer.zone not in self.zones:
            return f"{self.name} does not name the zone {offer.zone}"
        if offer.market not in self.markets:
            return f"{self.name} does not take {offer.market} machines"
        if self.instance_types and not self._names(offer.instance_type):
            return f"{self.name} does not name {offer.instance_type}"
        return ""

    def _names(self, instance_type: str) -> bool:
        """Say whether a type is named; ``n1-standard-8`` names it with any cards (``n1-standard-8+1xT4``)."""
        return instance_type in self.instance_types or instance_type.partition("+")[0] in self.instance_types

    def unfit(self, offer: Offer) -> str:
        """Say why the machine cannot run the job, or nothing."""
        gpu = offer.gpu
        if self.cloud == "local":
            return ""  # the operator's own machine: what it has is what they meant
        if abroad := self._abroad(offer):
            return abroad
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
            free = {0: "no card is", 1: "1 card is"}.get(offer.available, f"{offer.available} cards are")
            return f"{free} free, {gpu.count} are needed" if offer.available else f"{free} free"
        return catalog.cuda_problem(gpu.name, self.cuda) or self._wrong_driver(gpu.name) or self._does_not_hold(offer)

    def _does_not_hold(self, offer: Offer) -> str:
        if self.fit is None:
            return ""
        found = fits.choice(self.fit, offer.gpu.name, offer.gpu.vram_gb)
        return "" if found.fits else f"{offer.gpu.name}: {found.why} (job.fit)"

    def _wrong_driver(self, name: str) -> str:
        card = catalog.card(name)
        if self.driver is None or card is None:
            return ""
        if card.driver_from and self.driver < card.driver_from:
            return f"{name} needs driver {card.driver_from} or newer, the job has {self.driver}"
        if card.driver_to and self.driver > card.driver_to:
            return f"{name} ends with driver {card.driver_to}, the job has {self.driver}"
        return ""

    def _abroad(self, offer: Offer) -> str:
        if not self.countries:
            return ""
        country = geography.country(offer.cloud, offer.region)
        allowed = f"resources.countries allows {', '.join(self.countries)}"
        if not country:
            return f"nobody knows in which country {offer.region} is, and {allowed}"
        return "" if country in self.countries else f"{offer.region or offer.cloud} is in {country}, and {allowed}"

    def _too_little_memory(self, offer: Offer) -> bool:
        if offer.gpu.vram_gb == 0 and self.gpus:
            return False  # nobody knows, and the operator named this very card
        return offer.gpu.vram_gb < self.min_vram_gb


def blocks(config: Config) -> tuple[Block, ...]:
    """Return the places of a configuration in the order of the file."""
    wanted = config.resources
    job = Block("", "", gpus=wanted.gpus, count=wanted.count, min_vram_gb=wanted.min_vram_gb, cuda=wanted.cuda)
    job = replace(job, countries=wanted.countries, driver=wanted.driver, fit=config.job.measured)
    found = []
    if config.primary is not None:
        autodl = config.primary.autodl
        held = frozenset({Market.ON_DEMAND}) if autodl.mode == "elastic" else frozenset()
        home = replace(job, name="primary.autodl", cloud="autodl", regions=autodl.regions, gpus=autodl.gpus or job.gpus)
        found.append(replace(home, max_price=autodl.max_price, held_markets=held, home=True))
    for index, entry in enumerate(config.fallback):
        block = replace(job, name=f"fallback[{index}].{entry.cloud}", cloud=entry.cloud)
        if entry.aws is not None:
            held = frozenset({Market.SPOT})
            block = replace(_at(block, entry.aws), instance_types=entry.aws.instance_types, held_markets=held)
        elif entry.gcp is not None:  # it holds no machine to a price
            block = replace(_at(block, entry.gcp), instance_types=entry.gcp.machine_types)
        found.append(block)
    return tuple(found)


def _at(block: Block, entry: AwsConfig | GcpConfig) -> Block:
    """Take over what the entries of both clouds have."""
    return replace(block, regions=entry.regions, zones=entry.zones, markets=entry.markets, max_price=entry.max_price)
