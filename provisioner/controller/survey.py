"""What the clouds offer right now, ranked; and a stack for those who want Terraform alone."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from provisioner import planner
from provisioner.clouds import names, open_cloud
from provisioner.clouds.aws.cloud import AwsCloud
from provisioner.clouds.base import Request
from provisioner.config import Config, workdir
from provisioner.controller.directory import JobDirectory, JobRecord, new_uid, state_root
from provisioner.controller.launch import LINK_S, Launcher, open_job_store, stored_uid
from provisioner.controller.stores import place, stores
from provisioner.errors import CloudError, ConfigError, NoOffer
from provisioner.model import Market, Offer
from provisioner.terraform.render import NodeSpec, write_stack


def request(config: Config) -> Request:
    """Return what the job asks of a machine."""
    wanted = config.resources
    return Request(gpus=tuple(wanted.gpus), count=wanted.count, min_vram_gb=wanted.min_vram_gb, cuda=wanted.cuda)


def fallback_names(config: Config) -> list[str]:
    """Name the fallbacks that this version has, each once. The plan says what is passed over."""
    known = names()
    return [name for name in dict.fromkeys(block.cloud for block in config.fallback) if name in known]


def survey(
    config: Config, environ: Mapping[str, str], *, round_trips: Mapping[tuple[str, str], float] | None = None
) -> planner.Plan:
    """Ask every cloud of the configuration and rank what they offer. A cloud that cannot be asked is passed over."""
    directory = JobDirectory(state_root(environ), config.job.name)
    record = directory.record()
    job = record.ref if record else JobRecord(config.job.name, "00000000", 0, False, "", 0.0).ref  # noqa: FBT003
    passed = planner.absent(config)
    offers: list[Offer] = []
    for name in [*(["autodl"] if config.primary else []), *fallback_names(config)]:
        try:
            cloud = open_cloud(name, job=job, config=config, directory=directory.path, environ=environ)
            offers += cloud.offers(request(config))
        except CloudError as error:
            passed.insert(0, planner.PassedOver(name, str(error)))
    places = [place(store) for store in stores(config.checkpoint, environ)]
    return planner.plan(config, offers, now=time.time(), passed_over=passed, stores=places, round_trips=round_trips)


@dataclass(frozen=True, slots=True)
class WrittenStack:
    """A stack that was written. ``link_ends`` is Unix seconds: apply before, or write it anew."""

    directory: Path
    offer: str
    price: str
    link_ends: float


def write_terraform(config: Config, path: Path, environ: Mapping[str, str], target: Path) -> WrittenStack:
    """Write a stack that starts the job's machine by itself on ``terraform apply``, at the best AWS offer.

    The runtime and the start object go to the store; nothing is claimed. Raises NoOffer, ConfigError, CloudError.
    """
    if target.exists() and any(target.iterdir()):
        message = f"{target} is not empty"
        raise ConfigError(message, hint="name a new directory")
    ranked = next((one for one in survey(config, environ).ranked if one.offer.cloud == "aws"), None)
    if ranked is None:
        message = "no AWS offer fits the job"
        raise NoOffer(message, hint="failover plan says why")
    offer = ranked.offer
    directory = JobDirectory(state_root(environ), config.job.name)
    directory.create()
    store = open_job_store(config, environ)
    old = directory.record()
    uid = old.uid if old else stored_uid(store) or new_uid()
    record = old or JobRecord(config.job.name, uid, 0, open=False, config_path=str(path.resolve()), started_at=0.0)
    directory.remember(record)
    launcher = Launcher(record.ref, config, directory, store, environ, workdir(config, path))
    launcher.write_spec()
    launch = launcher.launch(offer, launcher.newest_epoch() + 1, 0, launcher.publish())
    cloud = open_cloud("aws", job=record.ref, config=config, directory=directory.path, environ=environ)
    if not isinstance(cloud, AwsCloud):
        message = "another package provides the cloud aws, and it writes no Terraform"
        raise ConfigError(message)
    node = NodeSpec(
        instance_type=offer.instance_type,
        zone=offer.zone,
        market=offer.market,
        max_price=cloud.max_price(offer) if offer.market is Market.SPOT else None,
        user_data=launch.user_data,
        tags=launch.tags,
    )
    write_stack(target, replace(cloud.spec(offer.region), node=node, autodl_available=False))
    price = str(ranked.at_most) if ranked.at_most else "an unknown price"
    return WrittenStack(target, offer.key, price, time.time() + LINK_S)
