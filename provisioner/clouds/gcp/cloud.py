"""Google Cloud as a cloud: Terraform prepares regions, google-cloud-compute claims machines, Terraform adopts them."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol
from urllib.parse import urlsplit

from provisioner import catalog
from provisioner.clouds.base import Request
from provisioner.clouds.gcp import inventory, release
from provisioner.clouds.gcp.api import ENDPOINT, Account, Clock
from provisioner.clouds.gcp.claim import COMING, OFF, Claim
from provisioner.clouds.gcp.compute import Compute
from provisioner.clouds.gcp.errors import stale, with_failure
from provisioner.clouds.gcp.failures import failure_in
from provisioner.clouds.gcp.machine import Place, body
from provisioner.clouds.gcp.quotas import QuotaBook
from provisioner.clouds.gcp.substrate import Prepared, Stack, Substrate
from provisioner.config import GcpConfig
from provisioner.errors import CloudError, TerraformError, Unauthorized
from provisioner.model import Failure, FailureKind, JobRef, Launch, Node, NodeState, Offer, Owned
from provisioner.terraform.provider import Toolchain, discover
from provisioner.terraform.render import DEFAULT_GCP_IMAGE, GcpStackSpec, remove_stack
from provisioner.terraform.runner import Runner
from provisioner.terraform.stack import GcpRegionStack

SWEPT_S: Final = 60.0
"""How long ``dismantle`` waits for the last things to vanish from Google's lists, in seconds."""


class Events(Protocol):
    """Where the room tells what happens: ``telemetry.events.EventLog`` is one."""

    def emit(self, kind: str, /, **fields: Any) -> None:
        """Take one event."""
        ...


class GcpCloud:
    """The projects of one job at Google Cloud."""

    name: ClassVar[str] = "gcp"

    def __init__(
        self,
        configs: Sequence[GcpConfig],
        job: JobRef,
        directory: Path,
        toolchain: Callable[[], Toolchain],
        environ: Mapping[str, str],
        *,
        bucket: str | None = None,
        prefix: str = "",
        events: Events | None = None,
        clock: Clock | None = None,
        stack: Callable[[GcpStackSpec, Path], Stack] | None = None,
    ) -> None:
        """Hold the parts; ask nothing and import nothing of Google's yet.

        Args:
            configs: Every ``fallback[].gcp`` of failover.yaml, in its order. A region belongs to the first that names
                it: its project, network, image and disk are that entry's.
            job: Whose machines these are.
            directory: The job's state directory; stacks are in ``terraform/gcp-<region>``.
            toolchain: Finds Terraform, when it is first needed. Raises TerraformError.
            environ: Where credentials and endpoints are read from.
            bucket: The job's bucket, if machines reach it by their service account.
            prefix: The job's prefix in it.
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
        self._events = events
        self._clock = clock or Clock()
        self._stack = stack or self._terraform_stack
        projects = dict.fromkeys(config.project for config in configs)
        self._projects = {name: Compute(Account(name, environ, self._clock)) for name in projects}
        self._quotas = {
            name: QuotaBook(Compute(one.account, for_s=0.0), self._clock, self._unread)
            for name, one in self._projects.items()
        }
        self._substrates: dict[str, Substrate] = {}
        self._lock = threading.Lock()

    @classmethod
    def open(
        cls, *, job: JobRef, config: Any, directory: Path, environ: Mapping[str, str], events: Events | None = None
    ) -> GcpCloud:
        """Open the room for a whole ``Config``. It must name a Google Cloud fallback."""
        configs = [block.gcp for block in config.fallback if block.gcp is not None]
        bucket, prefix = job_prefix(config, environ)
        toolchain = lambda: _discover(directory, environ)  # noqa: E731 - two values that are known later
        return cls(configs, job, directory, toolchain, environ, bucket=bucket, prefix=prefix, events=events)

    @property
    def account(self) -> str:
        """Tell accounts apart, without asking Google: by the projects."""
        projects = ", ".join(self._projects)
        return f"{projects} at {self._environ[ENDPOINT]}" if self._environ.get(ENDPOINT) else projects

    def offers(self, request: Request) -> Sequence[Offer]:
        """List what the catalog says could run the job. Asks nobody."""
        found = {
            offer.key: offer
            for config in self._configs
            for offer in catalog.gcp_offers(config.regions, request, config.machine_types, config.markets)
        }
        return list(found.values())

    def over_quota(self, offers: Sequence[Offer]) -> Mapping[str, Failure]:
        """Return, by key, the offers that the projects' quotas leave no room for. Never raises."""
        found: dict[str, Failure] = {}
        for project, quotas in self._quotas.items():
            ours = [one for one in offers if one.cloud == self.name and self._project_of(one.region) == project]
            found |= quotas.over_quota(ours)
        return found

    def prepare(self, region: str) -> None:
        """Make the region's network, firewall and service account. Returns at once where they are there."""
        self._prepared(region)

    def claim(self, offer: Offer, launch: Launch) -> Node | Failure:
        """Get the machine, or say why not. Never two machines for one token.

        A region whose substrate somebody has removed is prepared anew, and asked once more.
        """
        answer = self._claim(offer, launch)
        if isinstance(answer, Failure) and stale(answer):
            self._substrate(offer.region).forget()
            answer = self._claim(offer, launch)
        if isinstance(answer, Failure):
            self._learn(offer, answer)
        else:
            self._quotas[self._project_of(offer.region)].forget()
        return answer

    def _claim(self, offer: Offer, launch: Launch) -> Node | Failure:
        made, config = self._prepared(offer.region), self._of(offer.region)
        place = Place(made.network, made.subnetwork, made.service_account, made.network_tag, made.image, config.disk_gb)
        claim = Claim(self._compute(offer.region), self._clock, new=self._substrate(offer.region).new)
        return claim.make(body(place, offer, launch), offer, launch)

    def adopt(self, node: Node) -> None:
        """Let Terraform take the machine over. Never replaces it: the plan is checked before it is applied."""
        zone, name = _parts(node.id)
        substrate = self._substrate(node.offer.region)
        with substrate.lock:
            substrate.stack.adopt(f"projects/{self._project_of(node.offer.region)}/zones/{zone}/instances/{name}")
        self._emit("adopted", node=node.id)

    def release(self, node: Node) -> None:
        """Delete the machine and its disk, and return at Google's word that both are gone.

        Terraform is not waited for: whatever touches the stack next (``prepare``, ``adopt``, ``dismantle``) lets go of
        the dead machine first, and no plan that would make one is ever applied.
        """
        zone, name = _parts(node.id)
        release.terminate(self._compute(inventory.region_of(zone)), zone, name, self._clock)
        self._quotas[self._project_of(inventory.region_of(zone))].forget()

    def inspect(self, node: Node) -> NodeState:
        """Say how Google sees the machine. A claim has seen it, so one that Google does not know is gone."""
        zone, name = _parts(node.id)
        machine = self._compute(inventory.region_of(zone)).machine(zone, name)
        if machine is None:
            return NodeState.GONE
        if machine.status in COMING:
            return NodeState.PENDING
        return NodeState.STOPPED if machine.status in OFF else NodeState.RUNNING

    def owned(self) -> Sequence[Owned]:
        """List everything of the job in its projects, in every zone, substrate too (``inventory.SUBSTRATE``)."""
        found: list[Owned] = []
        for project, compute in self._projects.items():
            found += inventory.machines_and_disks(compute, self._job)
            found += inventory.substrate(compute, self._job, self._regions_of(project))
            try:
                found += inventory.accounts(compute.account, self._job)
            except Unauthorized as error:  # a controller that only claims needs no rights on IAM
                self._emit("owned_partly", cloud=self.name, problem=str(error))
        return found

    def dismantle(self) -> None:
        """Destroy every region's stack; then remove by label and name what Terraform does not know. Raises CloudError.

        A run that was killed between Google's answer and Terraform's note leaves things that no state file names.
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
        self._confirm_nothing_left(problems)
        for name in self._regions:
            remove_stack(self._substrate(name).directory)

    def _confirm_nothing_left(self, problems: Mapping[str, CloudError]) -> None:
        until = self._clock.tick() + SWEPT_S
        while left := self.owned():
            if self._clock.tick() >= until:
                named = ", ".join(f"{thing.region} {thing.kind} {thing.id}" for thing in left)
                reasons = "; ".join(str(error) for error in problems.values())
                message = f"Google Cloud still lists {named}" + (f" ({reasons})" if reasons else "")
                raise CloudError(message, hint="release the machines, then dismantle again")
            for project, compute in self._projects.items():
                self._remove(project, compute)
            self._clock.sleep(2.0)
        for name, error in problems.items():  # everything is gone, so its note means nothing any more
            self._emit("terraform_failed", region=name, problem=str(error))

    def _remove(self, project: str, compute: Compute) -> None:
        """Ask that what is left goes away. What is still in use goes the next time."""
        with contextlib.suppress(CloudError):
            inventory.remove_disks(compute, self._job)
            inventory.remove_substrate(compute, self._job, self._regions_of(project))
        with contextlib.suppress(CloudError):  # another job may have changed the bucket's policy meanwhile
            inventory.remove_accounts(compute.account, self._job, self._bucket)

    # --- parts --------------------------------------------------------------------------------------------------------

    def _prepared(self, region: str) -> Prepared:
        compute = self._compute(region)

        def gone(import_id: str) -> bool:
            _, _, zone, _, name = import_id.rsplit("/", 4)
            machine = compute.machine(zone, name)
            return machine is None or machine.status in OFF

        try:
            return self._substrate(region).prepare(gone)
        except TerraformError as error:
            refused = failure_in(str(error), project=self._project_of(region))
            if refused is not None:
                with_failure(error, refused)
            raise

    def _substrate(self, region: str) -> Substrate:
        with self._lock:
            if region not in self._substrates:
                directory = self._directory / "terraform" / f"gcp-{region}"
                make = lambda: self._stack(self.spec(region), directory)  # noqa: E731 - one line, two values
                self._substrates[region] = Substrate(directory, self.spec(region).variables(), make, self._clock.now)
            return self._substrates[region]

    def _of(self, region: str) -> GcpConfig:
        """Return the entry that a region belongs to; of a region that none names any more, the first."""
        return next((config for config in self._configs if region in config.regions), self._configs[0])

    def _project_of(self, region: str) -> str:
        return self._of(region).project

    def _regions_of(self, project: str) -> list[str]:
        return [name for name in self._regions if self._project_of(name) == project]

    def _compute(self, region: str) -> Compute:
        return self._projects[self._project_of(region)]

    def spec(self, region: str) -> GcpStackSpec:
        """Describe the stack of a region."""
        config = self._of(region)
        return GcpStackSpec(
            job=self._job,
            project=config.project,
            region=region,
            network=config.network,
            ssh_cidr=None if config.ssh_cidr is None else str(config.ssh_cidr),
            bucket=None if config.service_account else self._bucket,
            prefix=self._prefix,
            service_account=config.service_account,
            image=config.image or DEFAULT_GCP_IMAGE,
            disk_gb=config.disk_gb,
        )

    def _terraform_stack(self, spec: GcpStackSpec, directory: Path) -> Stack:
        def tell(event: dict[str, Any]) -> None:
            self._emit("terraform", region=spec.region, **{("what" if k == "kind" else k): v for k, v in event.items()})

        return GcpRegionStack(spec, Runner(self._toolchain(), directory, on_event=tell, environ=self._environ))

    def _learn(self, offer: Offer, failure: Failure) -> None:
        if stale(failure):
            self._substrate(offer.region).forget()
        if failure.kind is FailureKind.QUOTA:
            self._quotas[self._project_of(offer.region)].forget()
        if failure.kind is FailureKind.UNKNOWN:
            self.unknown_codes[failure.code] += 1
            self._emit("unknown_code", cloud=self.name, code=failure.code, message=failure.message)

    def _unread(self, place: str, error: CloudError) -> None:
        self._emit("quotas_unknown", cloud=self.name, region=place, problem=str(error))

    def _emit(self, kind: str, **fields: Any) -> None:
        if self._events is not None:
            self._events.emit(kind, **fields)


def _parts(node_id: str) -> tuple[str, str]:
    """Return zone and name of ``ZONE/NAME``."""
    zone, _, name = node_id.partition("/")
    return zone, name


def _discover(directory: Path, environ: Mapping[str, str]) -> Toolchain:
    """Find Terraform; leave a note of what was found in the job's directory, for reports."""
    found = discover(directory, environ, "google")
    (directory / "toolchain-gcp.json").write_text(json.dumps(found.describe()) + "\n", encoding="utf-8")
    return found


def job_prefix(config: Any, environ: Mapping[str, str]) -> tuple[str | None, str]:
    """Return the bucket and prefix of the job's store, if its machines here reach it by a service account of ours.

    Else none: the store is elsewhere, or at an emulator that knows no accounts.
    """
    store = urlsplit(config.checkpoint.store)
    elsewhere = config.checkpoint.endpoint or environ.get("STORAGE_EMULATOR_HOST")
    if store.scheme != "gs" or (elsewhere and not environ.get("GOOGLE_STORAGE_CUSTOM_ENDPOINT")):
        return None, ""
    return store.netloc, "/".join(part for part in (store.path.strip("/"), config.job.name) if part)
