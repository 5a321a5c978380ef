"""The prepared region at AWS: what a claim reads of it, and whether it still stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias

from provisioner.clouds import substrate
from provisioner.clouds.aws.api import Region


class Made(Protocol):
    """What a stack made: ``provisioner.terraform.stack.Substrate`` is one."""

    @property
    def launch_template_id(self) -> str:
        """Launch template that a claim starts machines from."""
        ...

    @property
    def launch_template_version(self) -> int:
        """Its newest version."""
        ...

    @property
    def subnet_ids(self) -> Mapping[str, str]:
        """Subnet of each usable zone."""
        ...


Stack: TypeAlias = substrate.Stack[Made]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared region."""

    template_id: str
    template_version: int
    subnets: Mapping[str, str]


class Substrate(substrate.PreparedRegion[Made, Prepared]):
    """One region of one job at AWS."""

    module: ClassVar[str] = "aws_region"

    def __init__(self, directory: Path, region: Region, settings: Mapping[str, Any], make: Callable[[], Stack]) -> None:
        """Take the region's calls besides what every prepared region is made from."""
        super().__init__(directory, settings, make)
        self.region = region

    def _stands(self, prepared: Prepared) -> bool:
        return self.region.has_template(prepared.template_id)

    def _of(self, made: Made) -> Prepared:
        return Prepared(made.launch_template_id, made.launch_template_version, dict(made.subnet_ids))

    def _read(self, note: Mapping[str, Any]) -> Prepared:
        return Prepared(note["template_id"], int(note["template_version"]), dict(note["subnets"]))
