"""What the clouds offer right now, ranked. Quick to import: ``failover plan`` asks a catalog, and no cloud's client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from provisioner import planner
from provisioner.clock import now as unix_now
from provisioner.clouds import is_ours, names, open_cloud
from provisioner.clouds.base import Request
from provisioner.config import Config
from provisioner.controller.directory import JobDirectory, JobRecord, state_root
from provisioner.controller.refusals import known_to
from provisioner.controller.stores import place, stores
from provisioner.errors import CloudError
from provisioner.model import Offer

OF_CATALOG = frozenset({"aws", "gcp"})
"""Our rooms whose offers are those of the catalog: they need not be opened to be asked."""


def request(config: Config) -> Request:
    """Return what the job asks of a machine."""
    wanted = config.resources
    return Request(gpus=tuple(wanted.gpus), count=wanted.count, min_vram_gb=wanted.min_vram_gb, cuda=wanted.cuda)


def fallback_names(config: Config) -> list[str]:
    """Name the fallbacks that this version has, each once. The plan says what is passed over."""
    known = names()
    return [name for name in dict.fromkeys(block.cloud for block in config.fallback) if name in known]


def free(offers: Sequence[Offer]) -> tuple[Offer, ...]:
    """Leave out what is sold out. Where a cloud shows no stock, only a claim can tell."""
    return tuple(offer for offer in offers if offer.available is None or offer.available >= offer.gpu.count)


def survey(
    config: Config, environ: Mapping[str, str], *, round_trips: Mapping[tuple[str, str], float] | None = None
) -> planner.Plan:
    """Ask every cloud of the configuration and rank what they offer. A cloud that cannot be asked is passed over."""
    directory = JobDirectory(state_root(environ), config.job.name)
    record = directory.record()
    job = record.ref if record else JobRecord(config.job.name, "00000000", 0, False, "", 0.0).ref  # noqa: FBT003
    passed = planner.absent(config)
    offers: list[Offer] = []
    listed = planner.catalog_offers(config)
    clouds = [*(["autodl"] if config.primary else []), *fallback_names(config)]
    for name in clouds:
        if name in OF_CATALOG and is_ours(name):
            offers += [offer for offer in listed if offer.cloud == name]
            continue
        try:
            cloud = open_cloud(name, job=job, config=config, directory=directory.path, environ=environ)
            found: Sequence[Offer] = cloud.offers(request(config))
            offers += found
        except CloudError as error:
            passed.insert(0, planner.PassedOver(name, str(error)))
    places = [place(store) for store in stores(config.checkpoint, environ)]
    known = known_to(config.job.name, clouds, environ)
    return planner.plan(
        config, offers, memory=known, now=unix_now(), passed_over=passed, stores=places, round_trips=round_trips
    )
