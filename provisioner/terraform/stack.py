"""One job in one AWS region, as Terraform knows it: prepare, adopt, release, destroy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from provisioner.errors import CloudError, TerraformError
from provisioner.terraform.plan import Allow, Change, Plan
from provisioner.terraform.render import NODE_ADDRESS, StackSpec, write_stack
from provisioner.terraform.runner import Runner


@dataclass(frozen=True, slots=True)
class Substrate:
    """What a claim needs to know of a prepared region. ``subnet_ids`` maps zone to subnet."""

    launch_template_id: str
    launch_template_version: int
    security_group_id: str
    subnet_ids: Mapping[str, str]
    vpc_id: str
    image_id: str
    role_name: str | None
    instance_profile_arn: str | None


@dataclass(slots=True)
class RegionStack:
    """The stack of a job in a region. Every method can be repeated; all raise TerraformError and its kin.

    The machine is started by nobody here. It is imported after a claim, and deleted.
    """

    spec: StackSpec
    runner: Runner

    def prepare(self) -> Substrate:
        """Make or update the substrate, with no machine. Refuses while an adopted machine lives: release it first.

        An adopted machine that is gone is forgotten on the way.
        """
        held = self.node_id()
        self._write(autodl_available=True, adopted=None)
        try:
            self.runner.init()
            self.runner.apply(self.runner.plan(), Allow.PREPARE)
        except CloudError:
            if held:
                self._write(autodl_available=False, adopted=held)
            raise
        return self.substrate()

    def substrate(self) -> Substrate:
        """Return what the last ``prepare`` made, without asking the cloud."""
        outputs = self.runner.outputs()
        try:
            return _substrate(outputs)
        except KeyError as error:
            message = f"{self.runner.directory.name}: the region is not prepared: output {error} is missing"
            raise TerraformError(message) from error

    def adopt(self, instance_id: str) -> None:
        """Let Terraform take over a running machine. Never replaces it; a plan that would is refused.

        A machine of an earlier placement that is still in the state is released first.
        """
        held = self.node_id()
        if held == instance_id:
            return
        if held:
            self.release()
        self._write(autodl_available=False, adopted=instance_id)
        self.runner.init()
        try:
            self.runner.apply(self.runner.plan(), Allow.ADOPT)
        except CloudError:
            if self.node_id() != instance_id:
                self._write(autodl_available=True, adopted=None)
            raise

    def release(self) -> None:
        """Delete the adopted machine, if there is one, and nothing else. A machine that died is forgotten."""
        held = self.node_id()
        self._write(autodl_available=True, adopted=None)
        if not held:
            return
        self.runner.init()
        self.runner.apply(self._release_plan(), Allow.RELEASE)

    def drift(self) -> tuple[Change, ...]:
        """Return how the cloud differs from what Terraform noted; a delete is a thing that is gone. Changes nothing."""
        self.runner.init()
        plan = self.runner.plan(refresh_only=True)
        plan.file.unlink(missing_ok=True)
        return plan.drift

    def destroy(self) -> None:
        """Delete everything that the stack made. Fine when there is nothing."""
        if not self.runner.state():
            return
        self._write(autodl_available=True, adopted=None)
        self.runner.init()
        self.runner.destroy()

    def node_id(self) -> str:
        """Return the machine that the state holds, or an empty string. Reads the state file only."""
        return self.runner.state().get(NODE_ADDRESS, "")

    def _release_plan(self) -> Plan:
        """Plan to delete the node alone, whatever else has drifted; without a refresh if that is refused."""
        try:
            return self.runner.plan(destroy=True, targets=[NODE_ADDRESS])
        except TerraformError:
            return self.runner.plan(destroy=True, targets=[NODE_ADDRESS], refresh=False)

    def _write(self, *, autodl_available: bool, adopted: str | None) -> None:
        spec = replace(self.spec, autodl_available=autodl_available, adopted_instance_id=adopted)
        write_stack(self.runner.directory, spec)


def _substrate(outputs: Mapping[str, Any]) -> Substrate:
    return Substrate(
        launch_template_id=outputs["launch_template_id"],
        launch_template_version=int(outputs["launch_template_version"]),
        security_group_id=outputs["security_group_id"],
        subnet_ids=dict(outputs["subnet_ids"]),
        vpc_id=outputs["vpc_id"],
        image_id=outputs["image_id"],
        role_name=outputs.get("role_name"),
        instance_profile_arn=outputs.get("instance_profile_arn"),
    )
