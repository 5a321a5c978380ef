"""One job in one region of a cloud, as Terraform knows it: prepare, adopt, release, destroy."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar

from provisioner.errors import CloudError, StateLocked, TerraformError
from provisioner.terraform.events import Event
from provisioner.terraform.plan import Allow, Change, Plan
from provisioner.terraform.render import GcpStackSpec, StackSpec, write_stack
from provisioner.terraform.runner import Runner

Spec = TypeVar("Spec", StackSpec, GcpStackSpec)
Made = TypeVar("Made")
Given = ParamSpec("Given")
Answer = TypeVar("Answer")
Self = TypeVar("Self", bound="CloudStack[Any, Any]")


@dataclass(frozen=True, slots=True)
class Substrate:
    """What a claim needs to know of a prepared region at AWS. ``subnet_ids`` maps zone to subnet."""

    launch_template_id: str
    launch_template_version: int
    security_group_id: str
    subnet_ids: Mapping[str, str]
    vpc_id: str
    image_id: str
    role_name: str | None
    instance_profile_arn: str | None


@dataclass(frozen=True, slots=True)
class GcpSubstrate:
    """What a claim needs to know of a prepared region at Google Cloud.

    ``network`` and ``subnetwork`` are self links, ``service_account`` is an e-mail. A machine that does not carry
    ``network_tag`` is not behind the job's firewall.
    """

    network: str
    subnetwork: str
    service_account: str
    network_tag: str
    image: str


def _locked(method: Callable[Concatenate[Self, Given], Answer]) -> Callable[Concatenate[Self, Given], Answer]:
    """Hold the state's lock from the first look to the last run: what was planned is then what is applied."""

    @wraps(method)
    def alone(self: Self, /, *args: Given.args, **kwargs: Given.kwargs) -> Answer:
        with self.runner.hold(method.__name__):
            return method(self, *args, **kwargs)

    return alone


@dataclass
class CloudStack(ABC, Generic[Spec, Made]):
    """The stack of a job in a region. Every method can be repeated; all raise TerraformError and its kin.

    The machine is started by nobody here. It is imported after a claim, and deleted.
    """

    spec: Spec
    runner: Runner

    @_locked
    def prepare(self) -> Made:
        """Make or update the substrate, with no machine. Refuses while an adopted machine lives: release it first.

        An adopted machine that is gone is forgotten on the way.
        """
        held = self.node_id()
        self._write(autodl_available=True, adopted=None)
        try:
            self.runner.init()
            self._make()
        except CloudError:
            if held:
                self._write(autodl_available=False, adopted=held)
            raise
        return self.substrate()

    def substrate(self) -> Made:
        """Return what the last ``prepare`` made, without asking the cloud."""
        outputs = self.runner.outputs()
        try:
            return self._made(outputs)
        except KeyError as error:
            message = f"{self.runner.directory.name}: the region is not prepared: output {error} is missing"
            raise TerraformError(message) from error

    @_locked
    def adopt(self, instance_id: str) -> None:
        """Let Terraform take over a running machine, by its import id. A plan that would replace it is refused.

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

    @_locked
    def release(self) -> None:
        """Delete the adopted machine, if there is one, and nothing else. A machine that died is forgotten."""
        held = self.node_id()
        self._write(autodl_available=True, adopted=None)
        if not held:
            return
        self.runner.init()
        self.runner.apply(self._release_plan(), Allow.RELEASE)

    @_locked
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
        with self.runner.hold("destroy"):
            self._write(autodl_available=True, adopted=None)
            self.runner.init()
            self.runner.destroy()

    def discard(self) -> None:
        """Remove the state, where everything that it names is gone."""
        self.runner.discard()

    def node_id(self) -> str:
        """Return the machine that the state holds, or an empty string. Reads the state only."""
        return self.runner.state().get(self.spec.node_address, "")

    def _release_plan(self) -> Plan:
        """Plan to delete the node alone, whatever else has drifted; without a refresh if that is refused."""
        try:
            return self.runner.plan(destroy=True, targets=[self.spec.node_address])
        except StateLocked:
            raise
        except TerraformError:
            return self.runner.plan(destroy=True, targets=[self.spec.node_address], refresh=False)

    def _make(self) -> None:
        """Let Terraform make what the written stack says."""
        self.runner.apply(self.runner.plan(), Allow.PREPARE)

    @abstractmethod
    def _made(self, outputs: Mapping[str, Any]) -> Made:
        """Read the outputs. Raises KeyError when they are not those of a prepared region."""

    def _write(self, *, autodl_available: bool, adopted: str | None, taken: Mapping[str, str] | None = None) -> None:
        spec = replace(self.spec, autodl_available=autodl_available, adopted_instance_id=adopted)
        write_stack(self.runner.directory, spec, taken or {})


class RegionStack(CloudStack[StackSpec, Substrate]):
    """A region of AWS. A machine's import id is its instance id."""

    def _made(self, outputs: Mapping[str, Any]) -> Substrate:
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


# Google's words for a name that is taken.
_EXISTS: Final = re.compile(r"'(projects/[^']+)' already exists")
_OURS: Final = re.compile(r"module\.region\.google_\w+\.\w+(?:\[0\])?")


class GcpRegionStack(CloudStack[GcpStackSpec, GcpSubstrate]):
    """A region of Google Cloud. A machine's import id is ``projects/P/zones/Z/instances/NAME``."""

    def _make(self) -> None:
        """Make the substrate, and take over what a run made that was killed before it could note it.

        Names are fixed at Google and hold the job's id, so what has them is the job's.
        """
        taken: dict[str, str] = {}
        tell = self.runner.on_event
        while True:
            exist: dict[str, str] = {}
            self.runner.on_event = partial(_listen, exist, tell)
            try:
                super()._make()
                break
            except TerraformError:
                if not exist.keys() - taken.keys():
                    raise
                taken |= exist
                self._write(autodl_available=True, adopted=None, taken=taken)
            finally:
                self.runner.on_event = tell
        self._write(autodl_available=True, adopted=None)

    @_locked
    def drift(self) -> tuple[Change, ...]:
        """Return how the cloud differs. The adopted machine is not looked up on the way: it may be what is gone."""
        held = self.node_id()
        if not held:
            return super().drift()
        self._write(autodl_available=False, adopted=None)
        try:
            return super().drift()
        finally:
            self._write(autodl_available=False, adopted=held)

    def _made(self, outputs: Mapping[str, Any]) -> GcpSubstrate:
        return GcpSubstrate(
            network=outputs["network"],
            subnetwork=outputs["subnetwork"],
            service_account=outputs["service_account"],
            network_tag=outputs["network_tag"],
            image=outputs["image"],
        )


def _listen(exist: dict[str, str], tell: Callable[[Event], None] | None, event: Event) -> None:
    """Note what could not be made since it exists, address to id, and hand the event on."""
    address = str(event.get("address", ""))
    found = _EXISTS.search(str(event.get("message", "")))
    if found is not None and _OURS.fullmatch(address):
        exist[address] = found[1]
    if tell is not None:
        tell(event)
