"""What AutoDL answers, as frozen values in plain units. Unknown fields are dropped, missing ones are empty.

Passwords and link tokens of machines are kept out of ``repr``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Self

from provisioner.clouds.autodl.units import CNY, cuda_version, mapping, moment, number, text, texts, yuan
from provisioner.model import Money


@dataclass(frozen=True, slots=True)
class Balance:
    """The wallet. ``spendable`` is assets less blocked money, plus vouchers."""

    assets: Money | None
    blocked: Money | None
    vouchers: Money | None
    accumulated: Money | None

    @property
    def spendable(self) -> Money:
        """What a machine can be paid from, in CNY. Missing fields count as nothing."""
        assets, blocked, vouchers = (
            money.amount if money is not None else Decimal(0) for money in (self.assets, self.blocked, self.vouchers)
        )
        return Money(assets - blocked + vouchers, CNY)

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """Read ``wallet/balance``."""
        return cls(
            yuan(data.get("assets")),
            yuan(data.get("blocked_asset")),
            yuan(data.get("voucher_balance")),
            yuan(data.get("accumulate")),
        )


@dataclass(frozen=True, slots=True)
class ProInstance:
    """One row of the Pro list. ``region_sign`` is a name space of its own: never a region code."""

    id: str
    name: str
    status: str
    spec: str
    gpu_count: int
    region_sign: str
    created_at: float | None
    started_at: float | None

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """Read an item of ``instance/pro/list``."""
        return cls(
            id=text(data, "uuid", "instance_uuid"),
            name=text(data, "name", "instance_name"),
            status=text(data, "status"),
            spec=text(data, "gpu_spec_uuid"),
            gpu_count=number(data.get("req_gpu_amount")) or 0,
            region_sign=text(data, "region_sign"),
            created_at=moment(data.get("created_at")),
            started_at=moment(data.get("started_at")),
        )


@dataclass(frozen=True, slots=True)
class ProSnapshot:
    """Details of a Pro instance. The price holds only while it runs; SSH data may change with each power cycle."""

    price_per_hour: Money | None
    list_price_per_hour: Money | None
    gpu_name: str
    region_sign: str
    system_disk_bytes: int
    memory_limit_bytes: int
    ssh_host: str
    ssh_port: int
    root_password: str = field(repr=False)
    jupyter_token: str = field(repr=False)
    jupyter_domain: str
    services: Mapping[int, str]

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """Read ``instance/pro/snapshot``."""
        usage = mapping(data.get("usage_info"))
        disks = (number(data.get(name)) or 0 for name in ("system_init_disk_size", "expand_system_disk_size"))
        return cls(
            price_per_hour=yuan(data.get("payg_price")),
            list_price_per_hour=yuan(data.get("origin_pay_price")),
            gpu_name=text(data, "snapshot_gpu_alias_name"),
            region_sign=text(data, "region_sign"),
            system_disk_bytes=sum(disks),
            memory_limit_bytes=number(usage.get("mem_limit")) or 0,
            ssh_host=text(data, "proxy_host"),
            ssh_port=number(data.get("ssh_port")) or 0,
            root_password=text(data, "root_password"),
            jupyter_token=text(data, "jupyter_token"),
            jupyter_domain=text(data, "jupyter_domain"),
            services={port: text(data, f"service_{port}_domain") for port in (6006, 6008)},
        )


@dataclass(frozen=True, slots=True)
class Image:
    """A private image. Both lists of images show one store under different names; the size is in bytes."""

    id: str
    name: str
    status: str
    size_bytes: int

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """Read an item of either image list."""
        return cls(
            id=text(data, "image_uuid"),
            name=text(data, "image_name", "name"),
            status=text(data, "status"),
            size_bytes=number(data.get("image_size")) or 0,
        )


@dataclass(frozen=True, slots=True)
class Deployment:
    """The wanted state of elastic containers. Memory is in bytes."""

    id: str
    name: str
    kind: str
    status: str
    replicas: int
    starting: int
    running: int
    finished: int
    regions: tuple[str, ...]
    gpu_names: tuple[str, ...]
    gpu_count: int
    memory_bytes: tuple[int, int]
    cuda: tuple[tuple[int, int] | None, tuple[int, int] | None]
    created_at: float | None

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """Read an item of ``deployment/list``."""
        template = mapping(data.get("template"))
        return cls(
            id=text(data, "uuid", "deployment_uuid"),
            name=text(data, "name"),
            kind=text(data, "deployment_type"),
            status=text(data, "status"),
            replicas=number(data.get("replica_num")) or 0,
            starting=number(data.get("starting_num")) or 0,
            running=number(data.get("running_num")) or 0,
            finished=number(data.get("finished_num")) or 0,
            regions=texts(template.get("dc_list")) or texts(template.get("region_sign")),
            gpu_names=texts(template.get("gpu_name_set")),
            gpu_count=number(template.get("gpu_num")) or 0,
            memory_bytes=(number(template.get("memory_size_from")) or 0, number(template.get("memory_size_to")) or 0),
            cuda=(
                cuda_version(template.get("cuda_v_from") or template.get("cuda_v")),
                cuda_version(template.get("cuda_v_to") or template.get("cuda_v")),
            ),
            created_at=moment(data.get("created_at")),
        )


@dataclass(frozen=True, slots=True)
class Container:
    """One elastic container. Memory is in bytes; the SSH command is empty until it runs."""

    id: str
    deployment: str
    machine: str
    region: str
    status: str
    gpu_name: str
    gpu_count: int
    memory_bytes: int
    price_per_hour: Money | None
    started_at: float | None
    stopped_at: float | None
    ssh_command: str
    root_password: str = field(repr=False)

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """Read an item of ``deployment/container/list``."""
        info = mapping(data.get("info"))
        return cls(
            id=text(data, "uuid", "deployment_container_uuid"),
            deployment=text(data, "deployment_uuid"),
            machine=text(data, "machine_id"),
            region=text(data, "data_center"),
            status=text(data, "status"),
            gpu_name=text(data, "gpu_name"),
            gpu_count=number(data.get("gpu_num")) or 0,
            memory_bytes=number(data.get("memory_size")) or 0,
            price_per_hour=yuan(data.get("price")),
            started_at=moment(data.get("started_at")),
            stopped_at=moment(data.get("stopped_at")),
            ssh_command=text(info, "ssh_command"),
            root_password=text(info, "root_password"),
        )


@dataclass(frozen=True, slots=True)
class ContainerEvent:
    """A container changed its status. AutoDL promises no order: sort by ``created_at``."""

    container: str
    status: str
    created_at: float | None

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """Read an item of ``deployment/container/event/list``."""
        return cls(text(data, "deployment_container_uuid"), text(data, "status"), moment(data.get("created_at")))


@dataclass(frozen=True, slots=True)
class BlockedHost:
    """A host that deployments avoid until ``expires_at`` (Unix seconds)."""

    machine: str
    region: str
    comment: str
    expires_at: float | None

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """Read an item of ``deployment/blacklist``. What was written as ``comment`` is read as ``msg``."""
        return cls(
            text(data, "machine_id"),
            text(data, "data_center"),
            text(data, "msg", "comment"),
            moment(data.get("expired_time")),
        )


@dataclass(frozen=True, slots=True)
class GpuStock:
    """Cards of one model in one region, counted one by one: two idle cards may sit in two hosts."""

    idle: int
    total: int

    @classmethod
    def read_all(cls, data: object) -> dict[str, Self]:
        """Read ``machine/region/gpu_stock``: an array of single-key objects, or (private cloud) one object."""
        rows = data if isinstance(data, list) else [data]
        return {
            name: cls(number(mapping(row).get("idle_gpu_num")) or 0, number(mapping(row).get("total_gpu_num")) or 0)
            for item in rows
            for name, row in mapping(item).items()
        }


@dataclass(frozen=True, slots=True)
class DurationPackage:
    """Prepaid time on one GPU model, in seconds."""

    gpu_name: str
    total_s: int
    left_s: int
    regions: tuple[str, ...]

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """Read an item of ``deployment/ddp/overview``."""
        return cls(
            text(data, "gpu_type"),
            number(data.get("total")) or 0,
            number(data.get("balance")) or 0,
            texts(data.get("dc_list")),
        )
