"""Google Cloud as a cloud: Terraform prepares regions, google-cloud-compute claims machines, Terraform adopts them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from provisioner import catalog
from provisioner.clouds.base import Request, Tagged
from provisioner.clouds.gcp import inventory, release
from provisioner.clouds.gcp.api import ENDPOINT, Account
from provisioner.clouds.gcp.claim import COMING, GOING, OFF, Claim
from provisioner.clouds.gcp.compute import Compute
from provisioner.clouds.gcp.errors import stale
from provisioner.clouds.gcp.machine import Place, body
from provisioner.clouds.gcp.quotas import QuotaBook
from provisioner.clouds.gcp.reading import failure_in
from provisioner.clouds.gcp.substrate import Prepared, Stack, Substrate
from provisioner.clouds.regional import Inquiry, RegionalCloud
from provisioner.config import GcpConfig
from provisioner.errors import CloudError, Unauthorized
from provisioner.model import Failure, FailureKind, Launch, Node, NodeState, Offer, Owned
from provisioner.terraform.render import DEFAULT_GCP_IMAGE, GcpStackSpec
from provisioner.terraform.stack import GcpRegionStack


class GcpCloud(RegionalCloud[GcpConfig, GcpStackSpec, Substrate]):
    """The projects of one job at Google Cloud."""

    name: ClassVar[str] = "gcp"
    title: ClassVar[str] = "Google Cloud"
    provider: ClassVar[str] = "google"
    toolchain_note: ClassVar[str] = "toolchain-gcp.json"
    terraform_stack: ClassVar[type[GcpRegionStack]] = GcpRegionStack

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

    def release(self, node: Node) -> None:
        """Delete the machine and its disk, and return at Google's word that both are gone.

        Terraform is not waited for: whatever touches the stack next (``prepare``, ``adopt``, ``dismantle``) lets go of
        the dead machine first, and no plan that would make one is ever applied.
        """
        zone, name = _parts(node.id)
        project = self._project_with(node)
        release.terminate(self._projects[project], zone, name, self._clock)
        self._quotas[project].forget()

    def remove(self, tagged: Tagged) -> None:
        """Ask that one thing goes away; a machine is gone when this returns. Raises CloudError."""
        compute = self._projects.get(tagged.place) or Compute(Account(tagged.place, self._environ, self._clock))
        inventory.remove(compute, tagged, self._clock, self._bucket)

    def inspect(self, node: Node) -> NodeState:
        """Say how Google sees the machine. One that it does not list is gone if Google says that it took it."""
        zone, name = _parts(node.id)
        machine = self._projects[self._project_with(node)].machine(zone, name)
        if machine is None:
            with contextlib.suppress(CloudError):
                if self.why_gone(node):
                    return NodeState.GONE
            return NodeState.UNLISTED
        if machine.status in COMING:
            return NodeState.PENDING
        if machine.status in GOING:
            return NodeState.STOPPING
        return NodeState.STOPPED if machine.status in OFF else NodeState.RUNNING

    def why_gone(self, node: Node) -> str:
        """Return what Google did to the machine, e.g. ``compute.instances.preempted: ...``; empty: nothing."""
        zone, name = _parts(node.id)
        return next(iter(self._projects[self._project_with(node)].ends(zone, name)), "")

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

    # --- what every cloud in regions asks of its room -----------------------------------------------------------------

    def _connect(self) -> None:
        self._seen_in: dict[str, str] = {}
        projects = dict.fromkeys(config.project for config in self._configs)
        self._projects = {name: Compute(Account(name, self._environ, self._clock)) for name in projects}
        self._quotas = {
            name: QuotaBook(Compute(one.account, for_s=0.0), self._clock, self._unread)
            for name, one in self._projects.items()
        }

    @classmethod
    def _own_store(cls, config: Any, environ: Mapping[str, str]) -> tuple[str | None, str]:
        return job_prefix(config, environ)

    def _open_region(self, region: str, directory: Path, make: Callable[[], Stack]) -> Substrate:
        return Substrate(directory, self.spec(region).variables(), make, self._clock.now)

    def _import_id(self, node: Node) -> str:
        zone, name = _parts(node.id)
        return f"projects/{self._project_with(node)}/zones/{zone}/instances/{name}"

    def _ended(self, region: str, import_id: str) -> bool:
        _, _, zone, _, name = import_id.rsplit("/", 4)
        machine = self._twice(lambda: self._compute(region).machine(zone, name))
        return machine is None or machine.status in OFF

    def _refusal_in(self, region: str, text: str) -> Failure | None:
        return failure_in(text, project=self._project_of(region), bucket=self._bucket or "")

    def _is_stale(self, failure: Failure) -> bool:
        return stale(failure)

    def _places(self) -> Sequence[str]:
        return tuple(self._projects)

    def _place_of(self, region: str) -> str:
        return self._project_of(region)

    def _owned_in(self, place: str) -> Sequence[Owned]:
        compute = self._projects[place]
        found = inventory.machines_and_disks(compute, self._job)
        self._seen_in |= {thing.id: place for thing in found if thing.kind == "machine"}
        found += inventory.substrate(compute, self._job, self._regions_of(place))
        try:
            found += inventory.accounts(compute.account, self._job)
        except Unauthorized as error:  # a controller without rights on IAM has made no account
            self._emit("owned_partly", cloud=self.name, place=f"IAM of {place}", problem=str(error))
        return found

    def _inquiries(self, regions: Sequence[str]) -> Iterator[Inquiry]:
        for project, compute in self._projects.items():
            for what, ask in inventory.inquiries(compute, regions):
                yield project, what, ask

    def _sweep(self, place: str) -> None:
        compute = self._projects[place]
        try:
            inventory.remove_disks(compute, self._job)
            inventory.remove_substrate(compute, self._job, self._regions_of(place))
        finally:
            inventory.remove_accounts(compute.account, self._job, self._bucket)

    # --- parts --------------------------------------------------------------------------------------------------------

    def _claim(self, offer: Offer, launch: Launch) -> Node | Failure:
        made: Prepared = self._prepared(offer.region)
        config = self._of(offer.region)
        place = Place(
            made.network,
            made.subnetwork,
            made.service_account,
            made.network_tag,
            made.image,
            config.disk_gb,
            config.preemption_notice,
        )
        claim = Claim(self._compute(offer.region), self._clock, new=self._substrate(offer.region).new)
        return claim.make(body(place, offer, launch), offer, launch)

    def _of(self, region: str) -> GcpConfig:
        """Return the entry that a region belongs to; of a region that none names any more, the first."""
        return next((config for config in self._configs if region in config.regions), self._configs[0])

    def _project_of(self, region: str) -> str:
        return self._of(region).project

    def _project_with(self, node: Node) -> str:
        """Return the project that a machine was listed in: the file may since name another one for its region."""
        return self._seen_in.get(node.id) or self._project_of(inventory.region_of(_parts(node.id)[0]))

    def _regions_of(self, project: str) -> list[str]:
        return [name for name in self._regions if self._project_of(name) == project]

    def _compute(self, region: str) -> Compute:
        return self._projects[self._project_of(region)]

    def _learn(self, offer: Offer, failure: Failure) -> None:
        super()._learn(offer, failure)
        if failure.kind is FailureKind.QUOTA:
            self._quotas[self._project_of(offer.region)].forget()

    def _unread(self, place: str, error: CloudError) -> None:
        self._emit("quotas_unknown", cloud=self.name, region=place, problem=str(error))


def _parts(node_id: str) -> tuple[str, str]:
    """Return zone and name of ``ZONE/NAME``."""
    zone, _, name = node_id.partition("/")
    return zone, name


def job_prefix(config: Any, environ: Mapping[str, str]) -> tuple[str | None, str]:
    """Return the bucket and prefix of the job's store, if its machines here reach it by a service account of ours.

    Else none: the store is elsewhere, or at an emulator that knows no accounts.
    """
    store = urlsplit(config.checkpoint.store)
    elsewhere = config.checkpoint.endpoint or environ.get("STORAGE_EMULATOR_HOST")
    if store.scheme != "gs" or (elsewhere and not environ.get("GOOGLE_STORAGE_CUSTOM_ENDPOINT")):
        return None, ""
    return store.netloc, "/".join(part for part in (store.path.strip("/"), config.job.name) if part)
