"""The calls of elastic deployments: a deployment is what is wanted, containers are what runs. Enterprise accounts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from provisioner.clouds.autodl.models import BlockedHost, Container, ContainerEvent, Deployment, DurationPackage, Image
from provisioner.clouds.autodl.paging import pages
from provisioner.clouds.autodl.units import cuda_code, mapping, milli_yuan, text
from provisioner.clouds.autodl.wire import UnusableError, Wire
from provisioner.model import Money

_DEV = "/api/v1/dev"
_PREFIX = f"{_DEV}/deployment"
_ANY_PRICE = 999_000
_LOWEST_PRICE = 10

Kind = Literal["ReplicaSet", "Job", "Container"]


@dataclass(frozen=True, slots=True)
class Template:
    """What a container of a deployment is. It lives as long as ``command`` runs.

    The ranges of CPUs and memory (GB) are for the whole container and only select hosts; a high lower bound makes a
    deployment that nothing fits. ``max_price`` (an hour, before discount) is a filter on hosts and no bid.
    """

    regions: Sequence[str]
    gpu_names: Sequence[str]
    gpu_count: int
    image: str
    command: str
    cuda: tuple[tuple[int, int], tuple[int, int]] = ((11, 8), (13, 9))
    cpus: tuple[int, int] = (1, 512)
    memory_gb: tuple[int, int] = (1, 4096)
    max_price: Money | None = None
    command_before_shutdown: str = ""
    service_protocol: Literal["http", "tcp"] = "http"

    def body(self) -> dict[str, Any]:
        """Return the JSON of ``container_template``."""
        body: dict[str, Any] = {
            "dc_list": list(self.regions),
            "gpu_name_set": list(self.gpu_names),
            "gpu_num": self.gpu_count,
            "cuda_v_from": cuda_code(self.cuda[0]),
            "cuda_v_to": cuda_code(self.cuda[1]),
            "cuda_v": cuda_code(self.cuda[0]),
            "cpu_num_from": self.cpus[0],
            "cpu_num_to": self.cpus[1],
            "memory_size_from": self.memory_gb[0],
            "memory_size_to": self.memory_gb[1],
            "price_from": _LOWEST_PRICE,
            "price_to": _ANY_PRICE if self.max_price is None else milli_yuan(self.max_price),
            "image_uuid": self.image,
            "cmd": self.command,
            **self.services(),
        }
        if self.command_before_shutdown:
            body["cmd_before_shutdown"] = self.command_before_shutdown
        return body

    def services(self) -> dict[str, str]:
        """Return the fields of the two mapped ports, which AutoDL's pages put in two places: both get them."""
        return dict.fromkeys(("service_6006_port_protocol", "service_6008_port_protocol"), self.service_protocol)


class ElasticApi:
    """Calls of ``/api/v1/dev/deployment`` and the image list beside it."""

    def __init__(self, wire: Wire) -> None:
        """Talk over ``wire``."""
        self._wire = wire

    def images(self) -> list[Image]:
        """List private images: the same store as Pro's list, with fewer fields."""
        return list(pages(self._wire, f"{_DEV}/image/private/list", Image.read))

    def create(
        self,
        name: str,
        kind: Kind,
        template: Template,
        *,
        replicas: int | None = None,
        parallel: int | None = None,
        reuse_container: bool = False,
        reuse_scope: Literal["all", "deployment"] = "deployment",
    ) -> str:
        """Make a deployment and return its id. It is accepted even where nothing can be scheduled now.

        Not idempotent: after Doubtful, look for the name first. A reused container keeps the files of its last run,
        which may be a stranger's: hence False by default.
        """
        body: dict[str, Any] = {
            "name": name,
            "deployment_type": kind,
            "reuse_container": reuse_container,
            "container_template": template.body(),
            **template.services(),
        }
        if reuse_container:
            body["reuse_container_scope"] = reuse_scope
        if replicas is not None:
            body["replica_num"] = replicas
        if parallel is not None:
            body["parallelism_num"] = parallel
        return self._wire.write("POST", _PREFIX, body, parse=_created)

    def deployments(self, *, name: str = "", status: str = "", deployment: str = "") -> list[Deployment]:
        """List deployments, each once. The filters are exact; ``status`` is ``running`` or ``stopped``."""
        filters = _given(name=name, status=status, deployment_uuid=deployment)
        found = pages(self._wire, f"{_PREFIX}/list", Deployment.read, filters)
        return list({item.id: item for item in found if item.id}.values())

    def events(self, deployment: str, *, container: str = "") -> list[ContainerEvent]:
        """List what happened to the containers of a deployment, oldest first."""
        filters = {"deployment_uuid": deployment, "deployment_container_uuid": container}
        found = list(pages(self._wire, f"{_PREFIX}/container/event/list", ContainerEvent.read, filters))
        # Times have seconds only, so events of one second keep the list's own order, whichever way that runs.
        if found and (found[0].created_at or 0.0) >= (found[-1].created_at or 0.0):
            found.reverse()
        return sorted(found, key=lambda event: event.created_at or 0.0)

    def containers(
        self, deployment: str, *, container: str = "", statuses: Sequence[str] = (), released: bool = False
    ) -> list[Container]:
        """List the containers of a deployment, each once. Nothing is listed while nothing is scheduled."""
        filters: dict[str, Any] = {"deployment_uuid": deployment, **_given(container_uuid=container)}
        if statuses:
            filters["status"] = list(statuses)
        if released:
            filters["released"] = True
        found = pages(self._wire, f"{_PREFIX}/container/list", Container.read, filters)
        return list({item.id: item for item in found if item.id}.values())

    def stop_container(
        self, container: str, *, shrink: bool = False, no_cache: bool = False, command_before_shutdown: str = ""
    ) -> None:
        """Stop one container. Without ``shrink`` a ReplicaSet schedules (and pays) another one in its place."""
        body: dict[str, Any] = {
            "deployment_container_uuid": container,
            "decrease_one_replica_num": shrink,
            "no_cache": no_cache,
            **_given(cmd_before_shutdown=command_before_shutdown),
        }
        self._wire.do("PUT", f"{_PREFIX}/container/stop", body)

    def set_replicas(self, deployment: str, replicas: int) -> None:
        """Set how many containers a ReplicaSet keeps."""
        body = {"deployment_uuid": deployment, "replica_num": replicas}
        self._wire.do("PUT", f"{_PREFIX}/replica_num", body)

    def stop(self, deployment: str) -> None:
        """Stop a deployment for good."""
        self._wire.do("PUT", f"{_PREFIX}/operate", {"deployment_uuid": deployment, "operate": "stop"})

    def delete(self, deployment: str) -> None:
        """Delete a deployment; what still runs of it is stopped."""
        self._wire.do("DELETE", _PREFIX, {"deployment_uuid": deployment})

    def block_host(self, container: str, *, minutes: int = 1440, comment: str = "") -> None:
        """Keep future containers off the host of this container, for up to 43200 minutes (30 days)."""
        body = {"deployment_container_uuid": container, "expire_in_minutes": minutes, "comment": comment}
        self._wire.do("POST", f"{_PREFIX}/blacklist", body)

    def blocked_hosts(self) -> list[BlockedHost]:
        """List the hosts that are blocked now."""
        return self._wire.read("GET", f"{_PREFIX}/blacklist", parse=lambda data: _rows(data, BlockedHost))

    def packages(self, deployment: str) -> list[DurationPackage]:
        """List the prepaid time that a deployment can use, in seconds."""
        query = {"deployment_uuid": deployment}
        return self._wire.read(
            "GET", f"{_PREFIX}/ddp/overview", query=query, parse=lambda data: _rows(data, DurationPackage)
        )


def _given(**filters: str) -> dict[str, str]:
    return {name: value for name, value in filters.items() if value}


def _created(data: Any) -> str:
    name = data if isinstance(data, str) else text(mapping(data), "deployment_uuid", "uuid")
    if not name:
        raise UnusableError("the answer names no deployment")
    return name


def _rows(data: Any, kind: Any) -> list[Any]:
    if data is not None and not isinstance(data, list):
        raise UnusableError("the answer is no list")
    return [kind.read(mapping(item)) for item in data or []]
