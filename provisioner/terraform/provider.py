"""Find Terraform and its AWS provider on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Toolchain:
    """How to call Terraform here. ``source`` is where the provider comes from; ``note`` one line about it."""

    terraform: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    source: str = "operator"
    note: str = ""
    identity: str = ""
