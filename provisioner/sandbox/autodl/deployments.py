"""What an elastic deployment and its containers are, and how they look from outside."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from provisioner.sandbox.autodl import seed
from provisioner.sandbox.autodl.hosts import Host, Wish
from provisioner.sandbox.autodl.replies import Fields, time_text

Kind = Literal["ReplicaSet", "Job", "Container"]
ENDED = ("shutting_down", "shutdown")


@dataclass(frozen=True, slots=True)
class Template:
    """What each container of a deployment is. Memory in bytes, prices in 1/1000 yuan an hour."""

    wish: Wish
    image: str
    command: str
    command_before_shutdown: str

    @classmethod
    def read(cls, fields: Fields) -> Template:
        """Read ``container_template``. CUDA comes as a range, or as one value (type Container)."""
        cuda = fields.span("cuda_v") if fields.has("cuda_v_from") or not fields.has("cuda_v") else None
        low, high = fields.span("memory_size")
        regions = fields.texts("dc_list", required=not fields.has("region_sign")) or [fields.text("region_sign")]
        wish = Wish(
            regions=tuple(regions),
            cards=tuple(fields.texts("gpu_name_set")),
            count=fields.number("gpu_num", 1, 64),
            cuda=cuda or (fields.number("cuda_v", 0, 999), 999),
            cpus=fields.span("cpu_num"),
            memory=(low * seed.GIB, high * seed.GIB),
            price=fields.span("price"),
        )
        for port in (6006, 6008):
            fields.choice(f"service_{port}_port_protocol", ("http", "tcp"), "http")
        before = fields.text("cmd_before_shutdown", required=False)
        return cls(wish, fields.text("image_uuid"), fields.text("cmd"), before)

    def show(self) -> dict[str, Any]:
        """Return it as the list shows it: memory in bytes."""
        wish = self.wish
        return {
            "dc_list": list(wish.regions),
            "gpu_name_set": list(wish.cards),
            "gpu_num": wish.count,
            "image_uuid": self.image,
            "cmd": self.command,
            "memory_size_from": wish.memory[0],
            "memory_size_to": wish.memory[1],
            "cpu_num_from": wish.cpus[0],
            "cpu_num_to": wish.cpus[1],
            "price_from": wish.price[0],
            "price_to": wish.price[1],
            "cuda_v_from": wish.cuda[0],
            "cuda_v_to": wish.cuda[1],
        }


@dataclass(slots=True)
class Container:
    """One container. ``released``: it is not kept in the reuse cache. ``origin``: the container it was made from."""

    number: int
    id: str
    host: Host
    cards: int
    image: str
    created_at: float
    password: str = field(repr=False)
    ssh_port: int
    origin: str = ""
    status: str = "creating"
    updated_at: float = 0.0
    started_at: float | None = None
    stopped_at: float | None = None
    released: bool = False
    cached: bool = False

    @property
    def is_live(self) -> bool:
        """Whether it runs or is on the way to it."""
        return self.status not in ENDED

    @property
    def price(self) -> int:
        """Price of the whole container, in 1/1000 yuan an hour."""
        return self.host.price * self.cards

    def show(self, deployment: str) -> dict[str, Any]:
        """Return it as the container list does. Access data is there only while it runs."""
        ready = self.status == "running"
        tag = self.id.rsplit("-", 1)[-1]
        info = {
            "ssh_command": f"ssh -p {self.ssh_port} root@connect.emu.example",
            "root_password": self.password,
            "service_6006_port_url": f"https://u{tag}-emu.example:8443",
            "service_6008_port_url": f"https://uu{tag}-emu.example:8443",
        }
        return {
            "id": self.number,
            "uuid": self.id,
            "machine_id": self.host.id,
            "deployment_uuid": deployment,
            "data_center": self.host.region,
            "status": self.status,
            "gpu_name": self.host.card,
            "gpu_num": self.cards,
            "cpu_num": seed.CPUS_PER_CARD * self.cards,
            "memory_size": seed.MEMORY_PER_CARD * self.cards,
            "image_uuid": self.image,
            "price": self.price,
            "version": "1",
            "info": info if ready else dict.fromkeys(info, ""),
            "started_at": time_text(self.started_at),
            "stopped_at": time_text(self.stopped_at),
            "created_at": time_text(self.created_at),
            "updated_at": time_text(self.updated_at),
        }


@dataclass(slots=True)
class Deployment:
    """A wanted state. ``replicas``: to keep (ReplicaSet) or to complete (Job)."""

    number: int
    id: str
    name: str
    kind: Kind
    replicas: int
    parallel: int
    reuse: bool
    reuse_scope: str
    template: Template
    created_at: float
    updated_at: float
    status: str = "running"
    stopped_at: float | None = None
    finished: int = 0
    containers: list[Container] = field(default_factory=list)
    events: list[tuple[float, str, str]] = field(default_factory=list)

    @property
    def live(self) -> list[Container]:
        """Containers that run or are on the way to it."""
        return [container for container in self.containers if container.is_live]

    @property
    def missing(self) -> int:
        """How many containers should be started now."""
        if self.status != "running":
            return 0
        if self.kind == "ReplicaSet":
            return self.replicas - len(self.live)
        left = self.replicas - self.finished - len(self.live)
        return min(left, self.parallel - len(self.live))

    def show(self) -> dict[str, Any]:
        """Return it as the deployment list does."""
        running = sum(container.status == "running" for container in self.containers)
        return {
            "id": self.number,
            "uid": 41008,
            "uuid": self.id,
            "name": self.name,
            "deployment_type": self.kind,
            "status": self.status,
            "replica_num": self.replicas,
            "parallelism_num": self.parallel,
            "reuse_container": self.reuse,
            "starting_num": len(self.live) - running,
            "running_num": running,
            "finished_num": self.finished,
            "image_uuid": self.template.image,
            "template": self.template.show(),
            "price_estimates": 0,
            "created_at": time_text(self.created_at),
            "updated_at": time_text(self.updated_at),
            "stopped_at": time_text(self.stopped_at),
        }
