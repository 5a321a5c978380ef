"""Write Terraform stacks and start scripts from the templates, every value quoted for its language."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError

from provisioner import assets
from provisioner.errors import ConfigError
from provisioner.model import OWNER, TAG_JOB, TAG_OWNER, TAG_UID, JobRef, Market
from provisioner.terraform.quoting import Quoted, hcl, sh

NODE_ADDRESS: Final = "module.node.aws_instance.gpu[0]"
GCP_NODE_ADDRESS: Final = "module.node.google_compute_instance.gpu[0]"
VARIABLES_FILE: Final = "terraform.tfvars.json"
DEFAULT_IMAGE_PARAMETER: Final = (
    "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
)
DEFAULT_GCP_IMAGE: Final = (
    "projects/deeplearning-platform-release/global/images/family/common-cu128-ubuntu-2204-nvidia-570"
)
LABEL_OWNER: Final = "failover-owner"
LABEL_JOB: Final = "failover-job"
LABEL_UID: Final = "failover-uid"


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A machine that Terraform itself starts, for operators who want Terraform only. ``max_price`` is USD an hour."""

    instance_type: str
    zone: str
    market: Market = Market.ON_DEMAND
    max_price: str | None = None
    user_data: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StackSpec:
    """One job in one AWS region. ``prefix`` is the job's prefix in ``bucket``; no bucket: the machines get no role.

    ``node`` is None where machines are claimed by the SDK and adopted; ``adopted_instance_id`` names the adopted one.
    """

    job: JobRef
    region: str
    bucket: str | None = None
    prefix: str = ""
    vpc: str = "default"
    vpc_cidr: str = "10.73.0.0/16"
    zones: tuple[str, ...] = ()
    ssh_cidr: str | None = None
    key_name: str | None = None
    ami_id: str | None = None
    ami_ssm_parameter: str = DEFAULT_IMAGE_PARAMETER
    disk_gb: int = 100
    tags: Mapping[str, str] = field(default_factory=dict)
    autodl_available: bool = True
    adopted_instance_id: str | None = None
    node: NodeSpec | None = None

    template: ClassVar[str] = "aws_stack.tf.j2"
    modules: ClassVar[tuple[str, ...]] = ("aws_region", "aws_gpu_node")
    node_address: ClassVar[str] = NODE_ADDRESS

    def variables(self) -> dict[str, Any]:
        """Return the content of ``terraform.tfvars.json``."""
        node = self.node
        spot = {"max_price": node.max_price} if node is not None and node.market is Market.SPOT else None
        return {
            "region": self.region,
            "tags": {TAG_OWNER: OWNER, TAG_JOB: self.job.name, TAG_UID: self.job.uid, **self.tags},
            "substrate": {
                "name": f"{self.job.name}-{self.job.uid}",
                "vpc": self.vpc,
                "vpc_cidr": self.vpc_cidr,
                "zones": list(self.zones),
                "ssh_cidr": self.ssh_cidr,
                "key_name": self.key_name,
                "bucket": self.bucket,
                "prefix": self.prefix,
                "ami_id": self.ami_id,
                "ami_ssm_parameter": self.ami_ssm_parameter,
                "disk_gb": self.disk_gb,
                "spot": spot,
            },
            "autodl_available": self.autodl_available,
            "create_by_terraform": node is not None,
            "adopted_instance_id": self.adopted_instance_id,
            "node": {}
            if node is None
            else {
                "instance_type": node.instance_type,
                "zone": node.zone,
                "user_data": node.user_data,
                "tags": dict(node.tags),
            },
        }


@dataclass(frozen=True, slots=True)
class GcpNodeSpec:
    """A machine at Google Cloud that Terraform itself starts. ``name`` is empty for one that is made from the job's.

    ``accelerator`` is the type of an n1 machine's cards, e.g. ``nvidia-tesla-t4``, and None where cards are built in;
    ``max_run_s`` are the seconds after which Google deletes the machine.
    """

    machine_type: str
    zone: str
    market: Market = Market.ON_DEMAND
    accelerator: str | None = None
    accelerators: int = 1
    name: str = ""
    max_run_s: int = 86400
    user_data: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GcpStackSpec:
    """One job in one region of Google Cloud. ``prefix`` is the job's in ``bucket``; no bucket: machines reach none.

    ``node`` is None where machines are claimed by the SDK and adopted; ``adopted_instance_id`` names the adopted one,
    ``projects/P/zones/Z/instances/NAME``. ``service_account`` None: Terraform makes one.
    """

    job: JobRef
    project: str
    region: str
    zones: tuple[str, ...] = ()
    network: str = "default"
    ssh_cidr: str | None = None
    bucket: str | None = None
    prefix: str = ""
    service_account: str | None = None
    image: str = DEFAULT_GCP_IMAGE
    disk_gb: int = 100
    labels: Mapping[str, str] = field(default_factory=dict)
    autodl_available: bool = True
    adopted_instance_id: str | None = None
    node: GcpNodeSpec | None = None

    template: ClassVar[str] = "gcp_stack.tf.j2"
    modules: ClassVar[tuple[str, ...]] = ("gcp_region", "gcp_gpu_node")
    node_address: ClassVar[str] = GCP_NODE_ADDRESS

    def variables(self) -> dict[str, Any]:
        """Return the content of ``terraform.tfvars.json``."""
        return {
            "project": self.project,
            "region": self.region,
            "labels": {LABEL_OWNER: OWNER, LABEL_JOB: self.job.name, LABEL_UID: self.job.uid, **self.labels},
            "substrate": {
                "name": f"{self.job.name}-{self.job.uid}",
                "zones": list(self.zones),
                "network": self.network,
                "ssh_cidr": self.ssh_cidr,
                "bucket": self.bucket,
                "prefix": self.prefix,
                "service_account": self.service_account,
                "image": self.image,
            },
            "autodl_available": self.autodl_available,
            "create_by_terraform": self.node is not None,
            "adopted_instance_id": self.adopted_instance_id,
            "node": {"disk_gb": self.disk_gb} if self.node is None else self._node(self.node),
        }

    def _node(self, node: GcpNodeSpec) -> dict[str, Any]:
        cards = None if node.accelerator is None else {"type": node.accelerator, "count": node.accelerators}
        return {
            "name": node.name or f"failover-{self.job.name}-{self.job.uid}",
            "zone": node.zone,
            "machine_type": node.machine_type,
            "accelerator": cards,
            "spot": node.market is Market.SPOT,
            "max_run_s": node.max_run_s,
            "disk_gb": self.disk_gb,
            "user_data": node.user_data,
            "labels": dict(node.labels),
        }


def _printed(value: object) -> object:
    """Let quoted text and numbers through. Anything else is a template that forgot to quote."""
    if isinstance(value, Quoted | int | float | StrictUndefined):
        return value
    message = f"a {type(value).__name__} reached the output of a template without a filter that quotes it"
    raise TemplateError(message)


def environment() -> Environment:
    """Return the Jinja2 environment of all templates: strict, with filters ``hcl`` and ``sh``, nothing unquoted."""
    made = Environment(
        loader=FileSystemLoader(assets.path("templates")),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 - no HTML: `_printed` refuses whatever the filters have not quoted
        finalize=_printed,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(hcl=hcl, sh=sh)
    return made


def bootstrap(*, url: str, ttl_s: float, **values: str | float) -> str:
    """Return the start script of a machine. It holds one short-lived link and numbers, nothing else."""
    return environment().get_template("bootstrap.sh.j2").render(url=url, ttl_s=int(ttl_s), **values)


def write_stack(
    directory: Path, spec: StackSpec | GcpStackSpec, taken: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Write the root stack of a job in a region into ``directory``, complete with its modules.

    ``taken`` maps addresses to the ids of things that exist already and are only taken over. The directory is for its
    owner only (0700, files 0600). Files that did not change are left untouched. Raises ConfigError when a value cannot
    be written in Terraform's language.
    """
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    _copy_modules(directory / "modules", spec.modules)
    imports = {Quoted(address): identity for address, identity in taken.items()}
    try:
        template = environment().get_template(spec.template)
        _write(directory / "main.tf", template.render(adopted_instance_id=spec.adopted_instance_id, taken=imports))
        text = json.dumps(spec.variables(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        text.encode()
    except ValueError as error:
        message = f"{directory.name}: a value cannot be written for Terraform: {error}"
        raise ConfigError(message) from error
    _write(directory / VARIABLES_FILE, text)


def _copy_modules(target: Path, modules: Sequence[str]) -> None:
    source = assets.path("terraform/modules")
    for module in modules:
        (target / module).mkdir(parents=True, exist_ok=True)
        wanted = {path.name for path in (source / module).glob("*.tf")}
        for stale in (target / module).glob("*.tf"):
            if stale.name not in wanted:
                stale.unlink()
        for name in sorted(wanted):
            _write(target / module / name, (source / module / name).read_text(encoding="utf-8"))


def _write(path: Path, text: str) -> None:
    """Replace a file as a whole, readable by its owner only; a crash leaves the old one."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)


def remove_stack(directory: Path) -> None:
    """Remove a stack's directory. Only for a stack that was destroyed; a missing one is fine."""
    shutil.rmtree(directory, ignore_errors=True)
