"""AWS as a cloud: Terraform prepares regions, boto3 claims machines, Terraform adopts them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from provisioner.catalog import aws_offers
from provisioner.clouds.aws import inventory, release
from provisioner.clouds.aws.account import account_name
from provisioner.clouds.aws.api import Account, ended
from provisioner.clouds.aws.claim import Claim, Place, request
from provisioner.clouds.aws.failures import NO_SUBNET, STALE_CODES
from provisioner.clouds.aws.quotas import AccountQuotas
from provisioner.clouds.aws.reading import failure_in
from provisioner.clouds.aws.substrate import Prepared, Stack, Substrate
from provisioner.clouds.base import Request, Tagged
from provisioner.clouds.regional import Events, Inquiry, RegionalCloud
from provisioner.config import AwsConfig
from provisioner.errors import CloudError, Unauthorized
from provisioner.model import Failure, JobRef, Launch, Market, Node, NodeState, Offer, Owned
from provisioner.terraform.render import DEFAULT_IMAGE_PARAMETER, StackSpec
from provisioner.terraform.stack import RegionStack

NEW_S = 60.0
"""How long after a claim a machine that EC2 does not list counts as not listed yet, in seconds."""
_STATES: Mapping[str, NodeState] = {
    "pending": NodeState.PENDING,
    "running": NodeState.RUNNING,
    "stopping": NodeState.STOPPING,
    "stopped": NodeState.STOPPED,
    "shutting-down": NodeState.STOPPING,
    "terminated": NodeState.GONE,
}


class AwsCloud(RegionalCloud[AwsConfig, StackSpec, Substrate]):
    """One AWS account, for one job."""

    name: ClassVar[str] = "aws"
    title: ClassVar[str] = "AWS"
    provider: ClassVar[str] = "aws"
    toolchain_note: ClassVar[str] = "toolchain.json"
    terraform_stack: ClassVar[type[RegionStack]] = RegionStack

    usd_cny = Decimal("7.1")
    """Rate for a ``max_price`` in yuan."""

    @classmethod
    def open(
        cls, *, job: JobRef, config: Any, directory: Path, environ: Mapping[str, str], events: Events | None = None
    ) -> AwsCloud:
        """Open the room for a whole ``Config``. It must name an AWS fallback."""
        room = super().open(job=job, config=config, directory=directory, environ=environ, events=events)
        room.usd_cny = Decimal(str(config.policy.usd_cny))
        return room

    def offers(self, request: Request) -> Sequence[Offer]:
        """List what the catalog says could run the job. Asks nobody."""
        found = {
            offer.key: offer
            for config in self._configs
            for offer in aws_offers(config.regions, request, config.instance_types, config.markets)
        }
        return list(found.values())

    @property
    def account(self) -> str:
        """Tell accounts apart, without asking AWS."""
        return account_name(self._environ)

    def over_quota(self, offers: Sequence[Offer]) -> Mapping[str, Failure]:
        """Return, by key, the offers that the account's vCPU quotas leave no room for. Never raises."""
        return self._quotas.over([offer for offer in offers if offer.cloud == self.name])

    def claim(self, offer: Offer, launch: Launch) -> Node | Failure:
        """Get the machine, or say why not. Never two machines for one token."""
        prepared: Prepared = self._prepared(offer.region)
        subnet = prepared.subnets.get(offer.zone)
        if subnet is None:
            return NO_SUBNET.failure("NoSubnet", f"the network has no subnet in {offer.zone}")
        place = Place(prepared.template_id, prepared.template_version, subnet)
        claim = Claim(self._account.region(offer.region), self._clock)
        answer = claim.make(request(place, offer, launch, self.max_price(offer)), offer, launch)
        if isinstance(answer, Failure):
            self._learn(offer, answer)
        else:
            self._quotas.forget_use(offer.region)
        return answer

    def release(self, node: Node) -> None:
        """Terminate the machine and return at EC2's word that it is gone.

        Terraform, which takes half a minute, is not waited for: whatever touches the stack next (``prepare``,
        ``adopt``, ``dismantle``) lets go of the dead machine first, and no plan that would make one is ever applied.
        """
        release.terminate(self._account.region(node.offer.region), node.id, self._clock)
        self._quotas.forget_use(node.offer.region)

    def remove(self, tagged: Tagged) -> None:
        """Ask that one thing goes away; a machine is gone when this returns. Raises CloudError."""
        inventory.remove(self._account, tagged, self._clock)

    def inspect(self, node: Node) -> NodeState:
        """Say how EC2 sees the machine. One that is not listed yet, just after its claim, is pending.

        A machine that has ended is listed as ``terminated`` for an hour.
        """
        instance = self._account.region(node.offer.region).find(node.id)
        if instance is not None:
            return _STATES.get(str(instance["State"]["Name"]), NodeState.PENDING)
        return NodeState.PENDING if self._clock.now() - node.claimed_at < NEW_S else NodeState.UNLISTED

    def why_gone(self, node: Node) -> str:
        """Return EC2's reason for the machine's state, e.g. ``Server.SpotInstanceTermination: ...``; empty: none."""
        instance = self._account.region(node.offer.region).find(node.id)
        return str(((instance or {}).get("StateReason") or {}).get("Message") or "")

    def spec(self, region: str) -> StackSpec:
        """Describe the stack; an image that is given by its name is looked up. Raises CloudError."""
        config = self._of(region)
        image = config.ami or ""
        parameter = image if image.startswith("/") else DEFAULT_IMAGE_PARAMETER
        ami_id = image if image.startswith("ami-") else None
        if image and ami_id is None and parameter != image:
            ami_id = self._account.region(region).image_named(image)
            if ami_id is None:
                message = f"{region} has no machine image named {image!r}"
                raise CloudError(message, hint="set fallback.aws.ami to an image of this region")
        return StackSpec(
            job=self._job,
            region=region,
            bucket=self._bucket,
            prefix=self._prefix,
            vpc=config.vpc,
            ssh_cidr=None if config.ssh_cidr is None else str(config.ssh_cidr),
            ami_id=ami_id,
            ami_ssm_parameter=parameter,
            disk_gb=config.disk_gb,
        )

    def max_price(self, offer: Offer) -> str | None:
        """Return the ceiling for a spot machine in USD an hour, as EC2 takes it."""
        limit = next((config.max_price for config in self._configs if _takes(config, offer)), None)
        if limit is None or offer.market is not Market.SPOT:
            return None
        usd = limit.amount if limit.currency == "USD" else limit.amount / self.usd_cny
        return f"{usd.quantize(Decimal('0.0001')).normalize():f}"

    # --- what every cloud in regions asks of its room -----------------------------------------------------------------

    def _connect(self) -> None:
        self._account = Account(self._environ, self._clock.sleep)
        self._quotas = AccountQuotas(self._account, self._emit, self._clock.tick)

    @classmethod
    def _own_store(cls, config: Any, environ: Mapping[str, str]) -> tuple[str | None, str]:
        return job_prefix(config, environ)

    def _open_region(self, region: str, directory: Path, make: Callable[[], Stack]) -> Substrate:
        settings = {**self._settings(region), "region": region}
        return Substrate(directory, self._account.region(region), settings, make)

    def _import_id(self, node: Node) -> str:
        return node.id

    def _ended(self, region: str, import_id: str) -> bool:
        instance = self._twice(lambda: self._account.region(region).find(import_id))
        return instance is None or ended(instance)

    def _refusal_in(self, _region: str, text: str) -> Failure | None:
        return failure_in(text)

    def _is_stale(self, failure: Failure) -> bool:
        return failure.code in STALE_CODES

    def _places(self) -> Sequence[str]:
        return (*self._regions, inventory.GLOBAL)

    def _place_of(self, region: str) -> str:
        return region

    def _owned_in(self, place: str) -> Sequence[Owned]:
        if place != inventory.GLOBAL:
            return inventory.owned_in(self._account.region(place), self._job)
        try:
            return inventory.owned_globally(self._account, self._job)
        except Unauthorized as error:  # a controller without rights on IAM has made no role
            self._emit("owned_partly", cloud=self.name, place="IAM", problem=str(error))
            return []

    def _inquiries(self, regions: Sequence[str]) -> Iterator[Inquiry]:
        for name in regions:
            for kind in inventory.KINDS:
                yield name, kind, partial(inventory.of_anyone, self._account, name, kind)
        yield inventory.GLOBAL, "roles", partial(inventory.roles_of_anyone, self._account)
        yield inventory.GLOBAL, "instance profiles", partial(inventory.profiles_of_anyone, self._account)

    def _sweep(self, place: str) -> None:
        if place != inventory.GLOBAL:
            inventory.remove_substrate(self._account.region(place), self._job)
            return
        with contextlib.suppress(Unauthorized):
            inventory.remove_roles(self._account, self._job)

    # --- parts --------------------------------------------------------------------------------------------------------

    def _of(self, region: str) -> AwsConfig:
        """Return the entry that a region belongs to."""
        return next(config for config in self._configs if region in config.regions)

    def _settings(self, region: str) -> dict[str, Any]:
        config = self._of(region)
        return {
            "job": [self._job.name, self._job.uid],
            "bucket": self._bucket,
            "prefix": self._prefix,
            "vpc": config.vpc,
            "ssh_cidr": config.ssh_cidr,
            "disk_gb": config.disk_gb,
            "ami": config.ami,
        }


def _takes(config: AwsConfig, offer: Offer) -> bool:
    """Say whether an entry takes an offer, as the planner does: the first that does is the offer's."""
    named = not config.instance_types or offer.instance_type in config.instance_types
    named = named and (not config.zones or offer.zone in config.zones)
    return named and offer.region in config.regions and offer.market in config.markets


def store_endpoint(config: Any, environ: Mapping[str, str]) -> str | None:
    """Return the address of an S3-compatible store, as the file or the environment names it; None is AWS's own."""
    endpoint: str | None = config.checkpoint.endpoint
    return endpoint or environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or None


def job_prefix(config: Any, environ: Mapping[str, str]) -> tuple[str | None, str]:
    """Return the bucket and prefix of the job's store, if its machines at AWS reach it by their role; else none."""
    store = urlsplit(config.checkpoint.store)
    endpoint = store_endpoint(config, environ)
    at_home = endpoint is None or endpoint == environ.get("AWS_ENDPOINT_URL")
    if store.scheme != "s3" or not at_home:
        return None, ""
    return store.netloc, "/".join(part for part in (store.path.strip("/"), config.job.name) if part)
