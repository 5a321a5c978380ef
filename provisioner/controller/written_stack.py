"""A stack for those who want Terraform alone: ``failover plan --terraform DIR``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from provisioner.clock import now as unix_now
from provisioner.clouds import open_cloud
from provisioner.clouds.aws.cloud import AwsCloud
from provisioner.clouds.base import Cloud
from provisioner.clouds.gcp.cloud import GcpCloud
from provisioner.clouds.gcp.machine import labels, machine_name, split_type
from provisioner.config import Config, runtime_file, workdir
from provisioner.controller.directory import JobDirectory, JobRecord, new_uid, state_root
from provisioner.controller.launch import LINK_S, Launcher, open_job_store, stored_uid
from provisioner.controller.survey import survey
from provisioner.errors import ConfigError, NoOffer
from provisioner.model import Launch, Market, Offer
from provisioner.terraform.render import GcpNodeSpec, GcpStackSpec, NodeSpec, StackSpec, write_stack


@dataclass(frozen=True, slots=True)
class WrittenStack:
    """A stack that was written. ``link_ends`` is Unix seconds: apply before, or write it anew."""

    directory: Path
    offer: str
    price: str
    link_ends: float


def write_terraform(config: Config, path: Path, environ: Mapping[str, str], target: Path) -> WrittenStack:
    """Write a stack that starts the job's machine by itself on ``terraform apply``, at the best AWS or GCP offer.

    The runtime and the start object go to the store; nothing is claimed. Raises NoOffer, ConfigError, CloudError.
    """
    if target.exists() and any(target.iterdir()):
        message = f"{target} is not empty"
        raise ConfigError(message, hint="name a new directory")
    ranked = next((one for one in survey(config, environ).ranked if one.offer.cloud in {"aws", "gcp"}), None)
    if ranked is None:
        message = "no AWS or GCP offer fits the job"
        raise NoOffer(message, hint="failover plan says why")
    offer = ranked.offer
    directory = JobDirectory(state_root(environ), config.job.name)
    directory.create()
    store = open_job_store(config, environ)
    old = directory.record()
    uid = old.uid if old else stored_uid(store) or new_uid()
    record = old or JobRecord(config.job.name, uid, 0, open=False, config_path=str(path.resolve()), started_at=0.0)
    directory.remember(record)
    brought = workdir(config, path), runtime_file(config, path)
    launcher = Launcher(record.ref, config, directory, store, environ, *brought)
    launcher.write_spec()
    launch = launcher.launch(offer, launcher.newest_epoch() + 1, 0, launcher.publish())
    cloud = open_cloud(offer.cloud, job=record.ref, config=config, directory=directory.path, environ=environ)
    write_stack(target, spec(cloud, offer, launch))
    price = str(ranked.at_most) if ranked.at_most else "an unknown price"
    return WrittenStack(target, offer.key, price, unix_now() + LINK_S)


def spec(cloud: Cloud, offer: Offer, launch: Launch) -> StackSpec | GcpStackSpec:
    """Describe the region's stack with the machine in it."""
    if isinstance(cloud, AwsCloud):
        node = NodeSpec(
            instance_type=offer.instance_type,
            zone=offer.zone,
            market=offer.market,
            max_price=cloud.max_price(offer) if offer.market is Market.SPOT else None,
            user_data=launch.user_data,
            tags=launch.tags,
        )
        return replace(cloud.spec(offer.region), node=node, autodl_available=False)
    if isinstance(cloud, GcpCloud):
        machine, card, count = split_type(offer.instance_type)
        gcp_node = GcpNodeSpec(
            machine_type=machine,
            zone=offer.zone,
            market=offer.market,
            accelerator=card or None,
            accelerators=max(1, count),
            name=machine_name(launch),
            max_run_s=int(launch.ttl_s),
            user_data=launch.user_data,
            labels=labels(launch.tags),
        )
        return replace(cloud.spec(offer.region), node=gcp_node, autodl_available=False)
    message = f"another package provides the cloud {offer.cloud}, and it writes no Terraform"
    raise ConfigError(message)
