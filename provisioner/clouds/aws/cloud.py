"""AWS as a cloud: Terraform prepares regions, boto3 claims machines, Terraform adopts them."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, Protocol
from urllib.parse import urlsplit

from provisioner.catalog import aws_offers
from provisioner.clouds.aws import inventory, release
from provisioner.clouds.aws.account import account_name
from provisioner.clouds.aws.api import Account
from provisioner.clouds.aws.claim import Claim, Clock, Place, request
from provisioner.clouds.aws.failures import STALE, failure_in, with_failure
from provisioner.clouds.aws.quotas import AccountQuotas
from provisioner.clouds.aws.substrate import Prepared, Stack, Substrate
from provisioner.clouds.base import Request
from provisioner.config import AwsConfig
from provisioner.errors import CloudError, TerraformError, Unauthorized
from provisioner.model import Failure, FailureKind, JobRef, Launch, Market, Node, NodeState, Offer, Owned, Scope
from provisioner.terraform.provider import Toolchain, discover
from provisioner.terraform.render import DEFAULT_IMAGE_PARAMETER, StackSpec, remove_stack
from provisioner.terraform.runner import Runner
from provisioner.terraform.stack import RegionStack

NEW_S = 60.0
"""How long after a claim a machine that EC2 does not list counts as not listed yet, in seconds."""
SWEPT_S = 60.0
"""How long ``dismantle`` waits for the last things to vanish from EC2's lists."""
_STATES: Mapping[str, NodeState] = {
    "pending": NodeState.PENDING,
    "running": NodeState.RUNNING,
    "stopping": NodeState.STOPPED,
    "stopped": NodeState.STOPPED,
    "shutting-down": NodeState.GONE,
    "terminated": NodeState.GONE,
}


class Events(Protocol):
    """Where the room tells what happens: ``telemetry.events.EventLog`` is one."""

    def emit(self, kind: str, /, **fields: Any) -> None:
        """Take one event."""
        ...


class AwsCloud:
    """One AWS account, for one job."""

    name: ClassVar[str] = "aws"

    def __init__(
        self,
        configs: Sequence[AwsConfig],
        job: JobRef,
        directory: Path,
        toolchain: Callable[[], Toolchain],
        environ: Mapping[str, str],
        *,
        bucket: str | None = None,
        prefix: str = "",
        usd_cny: Decimal = Decimal("7.1"),
        events: Events | None = None,
        clock: Clock | None = None,
        stack: Callable[[StackSpec, Path], Stack] | None = None,
    ) -> None:
        """Hold the parts; ask nothing yet.

        Args:
            configs: Every ``fallback[].aws`` of failover.yaml, in its order. A region belongs to the first that
                names it: its network, image and disk are that entry's.
            job: Whose machines these are.
            directory: The job's state directory; stacks are in ``terraform/aws-<region>``.
            toolchain: Finds Terraform, when it is first needed. Raises TerraformError.
            environ: Where credentials and endpoints are read from.
            bucket: The job's bucket, if machines reach it by their role.
            prefix: The job's prefix in it.
            usd_cny: Rate for a ``max_price`` in yuan.
            events: Gets what Terraform does, and unknown codes.
            clock: Time.
            stack: Opens a stack; by default Terraform's.
        """
        self.unknown_codes: Counter[str] = Counter()
        self._configs = tuple(configs)
        self._regions = tuple(dict.fromkeys(name for config in configs for name in config.regions))
        self._job = job
        self._directory = directory
        self._toolchain = toolchain
        self._environ = environ
        self._bucket, self._prefix = bucket, prefix
        self._usd_cny = usd_cny
        self._events = events
        self._clock = clock or Clock()
        self._account = Account(environ, self._clock.sleep)
        self._quotas = AccountQuotas(self._account, self._emit, self._clock.tick)
        self._stack = stack or self._terraform_stack
        self._substrates: dict[str, Substrate] = {}
        self._lock = threading.Lock()

    @classmethod
    def open(
        cls, *, job: JobRef, config: Any, directory: Path, environ: Mapping[str, str], events: Events | None = None
    ) -> AwsCloud:
        """Open the room for a whole ``Config``. It must name an AWS fallback."""
        configs = [block.aws for block in config.fallback if block.aws is not None]
        bucket, prefix = job_prefix(config, environ)
        return cls(
            configs,
            job,
            directory,
            lambda: _discover(directory, environ),
            environ,
            bucket=bucket,
            prefix=prefix,
            usd_cny=Decimal(str(config.policy.usd_cny)),
            events=events,
        )

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

    def prepare(self, region: str) -> None:
        """Make the region's network, role and launch template. Returns at once where they are there."""
        self._prepared(region)

    def claim(self, offer: Offer, launch: Launch) -> Node | Failure:
        """Get the machine, or say why not. Never two machines for one token."""
        prepared = self._prepared(offer.region)
        subnet = prepared.subnets.get(offer.zone)
        if subnet is None:
            text = f"the network has no subnet in {offer.zone}"
            return Failure(FailureKind.NOT_OFFERED, Scope.ZONE, "NoSubnet", text, "set fallback.aws.vpc: own", 86400.0)
        place = Place(prepared.template_id, prepared.template_version, subnet)
        claim = Claim(self._account.region(offer.region), self._clock)
        answer = claim.make(request(place, offer, launch, self.max_price(offer)), offer, launch)
        if isinstance(answer, Failure):
            self._learn(offer, answer)
        else:
            self._quotas.forget_use(offer.region)
        return answer

    def adopt(self, node: Node) -> None:
        """Let Terraform take the machine over. Never replaces it: the plan is checked before it is applied."""
        substrate = self._substrate(node.offer.region)
        with substrate.lock:
            substrate.stack.adopt(node.id)
        self._emit("adopted", node=node.id)

    def release(self, node: Node) -> None:
        """Terminate the machine and return at EC2's word that it is gone.

        Terraform, which takes half a minute, is not waited for: whatever touches the stack next (``prepare``,
        ``adopt``, ``dismantle``) lets go of the dead machine first, and no plan that would make one is ever applied.
        """
        release.terminate(self._account.region(node.offer.region), node.id, self._clock)
        self._quotas.forget_use(node.offer.region)

    def inspect(self, node: Node) -> NodeState:
        """Say how EC2 sees the machine. One that is not listed yet, just after its claim, is pending."""
        instance = self._account.region(node.offer.region).find(node.id)
        if instance is not None:
            return _STATES.get(str(instance["State"]["Name"]), NodeState.PENDING)
        return NodeState.PENDING if self._clock.now() - node.claimed_at < NEW_S else NodeState.GONE

    def why_gone(self, node: Node) -> str:
        """Return EC2's reason for the machine's state, e.g. ``Server.SpotInstanceTermination: ...``; empty: none."""
        instance = self._account.region(node.offer.region).find(node.id)
        return str(((instance or {}).get("StateReason") or {}).get("Message") or "")

    def owned(self) -> Sequence[Owned]:
        """List everything under the job's tags in every configured region, substrate too (``inventory.SUBSTRATE``)."""
        found = [thing for name in self._regions for thing in inventory.owned_in(self._account.region(name), self._job)]
        try:
            found += inventory.owned_globally(self._account, self._job)
        except Unauthorized as error:  # a controller that only claims needs no IAM rights
            self._emit("owned_partly", cloud=self.name, problem=str(error))
        return found

    def dismantle(self) -> None:
        """Destroy every region's stack; then remove by tag what Terraform does not know. Raises CloudError.

        A run that was killed between AWS's answer and Terraform's note leaves things that no state file names.
        """
        problems: dict[str, CloudError] = {}
        for name in self._regions:
            substrate = self._substrate(name)
            with substrate.lock:
                substrate.forget()
                if substrate.directory.exists():
                    try:
                        substrate.stack.destroy()
                    except TerraformError as error:
                        problems[name] = error
                inventory.remove_substrate(substrate.region, self._job)
        with contextlib.suppress(Unauthorized):  # without rights on IAM we made no role
            inventory.remove_roles(self._account, self._job)
        self._confirm_nothing_left(problems)
        for name in self._regions:
            remove_stack(self._substrate(name).directory)

    def _confirm_nothing_left(self, problems: Mapping[str, CloudError]) -> None:
        until = self._clock.tick() + SWEPT_S
        while left := self.owned():
            if self._clock.tick() >= until:
                named = ", ".join(f"{thing.region} {thing.kind} {thing.id}" for thing in left)
                reasons = "; ".join(str(error) for error in problems.values())
                message = f"AWS still lists {named}" + (f" ({reasons})" if reasons else "")
                raise CloudError(message, hint="release the machines, then dismantle again")
            self._clock.sleep(2.0)
        for name, error in problems.items():  # everything is gone, so its note means nothing any more
            self._emit("terraform_failed", region=name, problem=str(error))

    # --- parts --------------------------------------------------------------------------------------------------------

    def _prepared(self, region: str) -> Prepared:
        calls = self._account.region(region)

        def gone(instance_id: str) -> bool:
            instance = calls.find(instance_id)
            return instance is None or _STATES.get(str(instance["State"]["Name"])) is NodeState.GONE

        try:
            return self._substrate(region).prepare(gone)
        except TerraformError as error:
            refused = failure_in(str(error))
            if refused is not None:
                with_failure(error, refused)
            raise

    def _substrate(self, region: str) -> Substrate:
        with self._lock:
            if region not in self._substrates:
                directory = self._directory / "terraform" / f"aws-{region}"
                settings = {**self._settings(region), "region": region}
                make = lambda: self._stack(self.spec(region), directory)  # noqa: E731 - one line, two values
                self._substrates[region] = Substrate(directory, self._account.region(region), settings, make)
            return self._substrates[region]

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

    def _terraform_stack(self, spec: StackSpec, directory: Path) -> Stack:
        def tell(event: dict[str, Any]) -> None:
            self._emit("terraform", region=spec.region, **{("what" if k == "kind" else k): v for k, v in event.items()})

        return RegionStack(spec, Runner(self._toolchain(), directory, on_event=tell, environ=self._environ))

    def max_price(self, offer: Offer) -> str | None:
        """Return the ceiling for a spot machine in USD an hour, as EC2 takes it."""
        limit = next((config.max_price for config in self._configs if _takes(config, offer)), None)
        if limit is None or offer.market is not Market.SPOT:
            return None
        usd = limit.amount if limit.currency == "USD" else limit.amount / self._usd_cny
        return f"{usd.quantize(Decimal('0.0001')).normalize():f}"

    def _learn(self, offer: Offer, failure: Failure) -> None:
        if failure.code in STALE:
            self._substrate(offer.region).forget()
        if failure.kind is FailureKind.UNKNOWN:
            self.unknown_codes[failure.code] += 1
            self._emit("unknown_code", cloud=self.name, code=failure.code, message=failure.message)

    def _emit(self, kind: str, **fields: Any) -> None:
        if self._events is not None:
            self._events.emit(kind, **fields)


def _takes(config: AwsConfig, offer: Offer) -> bool:
    """Say whether an entry takes an offer, as the planner does: the first that does is the offer's."""
    named = not config.instance_types or offer.instance_type in config.instance_types
    named = named and (not config.zones or offer.zone in config.zones)
    return named and offer.region in config.regions and offer.market in config.markets


def _discover(directory: Path, environ: Mapping[str, str]) -> Toolchain:
    """Find Terraform; leave a note of what was found in the job's directory, for reports."""
    found = discover(directory, environ)
    (directory / "toolchain.json").write_text(json.dumps(found.describe()) + "\n", encoding="utf-8")
    return found


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
