"""A region that is prepared keeps no claim waiting."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioner.clouds.substrate import PreparedRegion


@dataclass(frozen=True)
class Network:
    subnet: str


class Region(PreparedRegion[str, Network]):
    module = "aws_region"

    def _of(self, made: str) -> Network:
        return Network(made)

    def _read(self, note: Mapping[str, Any]) -> Network:
        return Network(**note)


class Terraform:
    """Makes a region once, and counts."""

    made = 0

    def node_id(self) -> str:
        return ""

    def prepare(self) -> str:
        self.made += 1
        return "subnet-1"


def test_a_claim_does_not_wait_while_terraform_adopts_a_machine(tmp_path: Path) -> None:
    terraform = Terraform()
    region = Region(tmp_path, {}, lambda: terraform)  # type: ignore[arg-type, return-value]
    assert region.prepare(lambda _: False) == Network("subnet-1")
    answers: list[Network] = []
    with region.lock:  # an adoption is under way in another thread
        claim = threading.Thread(target=lambda: answers.append(region.prepare(lambda _: False)))
        claim.start()
        claim.join(5)
        assert answers == [Network("subnet-1")]
    assert terraform.made == 1
    region.forget()
    region.prepare(lambda _: False)
    assert terraform.made == 2
