"""What moto lacks against the real EC2 and what our work depends on. Importing this module loads moto (1 s and more).

With moto's own 1,300 images each region would take another second, so it gets those of images.json instead.

Each patch says what AWS does. They are installed once per process; what happens to instances is told to an observer.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

os.environ["MOTO_AMIS_PATH"] = str(Path(__file__).with_name("images.json"))  # moto reads it when it is imported

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instances import Instance, InstanceBackend, StateReason
from moto.ec2.models.launch_templates import LaunchTemplateVersion
from moto.ec2.models.spot_requests import SpotInstanceRequest, SpotRequestBackend
from moto.ec2.responses.instances import InstanceResponse
from moto.ec2.utils import convert_tag_spec, random_spot_request_id
from moto.servicequotas.models import ServiceQuotasBackend
from moto.servicequotas.responses import ServiceQuotasResponse
from moto.ssm.models import Parameter, ParameterDict

PENDING, RUNNING, SHUTTING_DOWN, TERMINATED, STOPPED = 0, 16, 32, 48, 80
_NAMES = {0: "pending", 16: "running", 32: "shutting-down", 48: "terminated", 80: "stopped"}
_USER_DATA_LIMIT = 16384
"""Bytes of raw user data that EC2 takes."""
IMAGE_ID = "ami-0fa11ed0e55a4dbc0"
_IMAGE_PARAMETERS = "/aws/service/deeplearning/ami/x86_64/"


class Observer(Protocol):
    """Learns what happens to instances, whoever asked for it."""

    def launched(self, instance: Any) -> None:
        """Take note of an instance that was accepted and is pending."""

    def ended(self, instance: Any) -> None:
        """Take note of an instance that shuts down for good."""

    def stopped(self, instance: Any) -> None:
        """Take note of an instance that was stopped; its disk stays."""

    def started(self, instance: Any) -> None:
        """Take note of a stopped instance that starts again."""

    def rebooted(self, instance: Any) -> None:
        """Take note of a reset."""


quotas: dict[str, float] = {}
"""Quotas of the account in every region: vCPUs by code. What is not in here, Service Quotas does not know."""

_observer: Observer | None = None
_installed = False


def set_state(instance: Any, code: int) -> None:
    """Put an instance into a state, by its EC2 code."""
    instance._state.code, instance._state.name = code, _NAMES[code]  # noqa: SLF001 - moto has no setter


def set_reason(instance: Any, code: str, text: str) -> None:
    """Set why the instance is in its state, as DescribeInstances gives it."""
    instance.state_reason = StateReason(text, code)
    instance._reason = text  # noqa: SLF001


def install(observer: Observer) -> None:
    """Patch moto, once, and send what happens to ``observer`` from now on."""
    global _observer, _installed  # noqa: PLW0603 - moto's own state is global too
    _observer = observer
    if _installed:
        return
    _installed = True
    _patch_answers()
    _patch_launch()
    _patch_life()
    _patch_image()
    _patch_quotas()


def _tell(event: str, instance: Any) -> None:
    if _observer is not None:
        getattr(_observer, event)(instance)


def _patch_answers() -> None:
    """Two answers without which ``terraform plan`` never settles."""

    def groups(self: Any) -> list[Any]:  # groups given on the network interface show up in groupSet
        found = list(self.__dict__.get("_groups") or [])
        for interface in getattr(self, "nics", {}).values():
            found += [group for group in interface._group_set if group not in found]  # noqa: SLF001
        return found

    Instance.security_groups = property(
        groups, lambda self, value: self.__dict__.__setitem__("_groups", list(value or []))
    )
    original = LaunchTemplateVersion.__init__

    def version(self: Any, template: Any, number: int, data: dict[str, Any], description: str) -> None:
        if data.get("TagSpecifications"):  # tags of a template are not tag specifications in it
            data["TagSpecifications"] = [
                s for s in data["TagSpecifications"] if s.get("ResourceType") != "launch-template"
            ]
        original(self, template, number, data, description)

    LaunchTemplateVersion.__init__ = version


def merged(template: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request as EC2 understands it: the template's values, overridden by those of the request.

    Tags are merged by resource type and key; everything else is replaced as a whole, as EC2 documents it.
    """
    base = {key: copy.deepcopy(value) for key, value in template.items() if value is not None}
    if base.get("UserData") is not None:
        base["UserData"] = str(base["UserData"])
    if request.get("SubnetId"):
        _move_subnet(base)
    both = {**base, **{key: value for key, value in request.items() if value is not None}}
    specifications: dict[str, dict[str, str]] = {}
    for source in (base, request):
        for kind, tags in convert_tag_spec(source.get("TagSpecifications") or []).items():
            specifications.setdefault(kind, {}).update(tags)
    if specifications:
        both["TagSpecifications"] = [
            {"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
            for kind, tags in specifications.items()
        ]
    for number, device in enumerate(both.get("BlockDeviceMappings") or []):
        if number == 0 and "Ebs" in device:  # the root volume of AWS's images goes with its machine
            device["Ebs"].setdefault("DeleteOnTermination", True)
    return both


def _move_subnet(base: dict[str, Any]) -> None:
    """Refuse what EC2 refuses: a subnet beside network interfaces."""
    if base.get("NetworkInterfaces"):
        code = "InvalidParameterCombination"
        text = "Network interfaces and an instance-level subnet ID may not be specified on the same request"
        raise EC2ClientError(code, text)


def _patch_launch() -> None:
    """RunInstances takes every value of the launch template; spot launches have a spot request."""
    run = InstanceResponse.run_instances

    def run_instances(self: Any) -> Any:
        asked = dict(self.params)
        if template := asked.get("LaunchTemplate"):
            version = self.ec2_backend._get_template_from_args(template)  # noqa: SLF001
            asked = merged(version.data, asked)
        else:
            asked = merged({}, asked)
        data = asked.get("UserData")
        if data and len(str(data)) * 3 // 4 > _USER_DATA_LIMIT + 2:
            code = "InvalidParameterValue"
            text = f"User data is limited to {_USER_DATA_LIMIT} bytes"
            raise EC2ClientError(code, text)
        before = set(self.ec2_backend.reservations)
        self.params = asked
        answer = run(self)
        for key in set(self.ec2_backend.reservations) - before:
            for instance in self.ec2_backend.reservations[key].instances:
                _attach_spot_request(self.ec2_backend, instance, asked)
        return answer

    InstanceResponse.run_instances = run_instances
    launch = InstanceBackend.run_instances

    def backend_run(self: Any, *args: Any, **kwargs: Any) -> Any:
        reservation = launch(self, *args, **kwargs)
        for instance in reservation.instances:
            set_state(instance, PENDING)
            _tell("launched", instance)
        return reservation

    InstanceBackend.run_instances = backend_run


class _FulfilledRequest(SpotInstanceRequest):  # type: ignore[misc] # moto is Any to mypy
    """A spot request for an instance that is there already."""

    ready: Any = None

    def launch_instance(self) -> Any:
        return self.ready


def _attach_spot_request(backend: Any, instance: Any, asked: Mapping[str, Any]) -> None:
    market = asked.get("InstanceMarketOptions") or {}
    if market.get("MarketType") != "spot":
        return
    options = market.get("SpotOptions") or {}
    tags = convert_tag_spec(asked.get("TagSpecifications") or [])
    kind = type("SpotInstanceRequest", (_FulfilledRequest,), {"ready": instance})
    request = kind(
        backend,
        random_spot_request_id(),
        price=str(options.get("MaxPrice") or ""),
        image_id=instance.image_id,
        spot_instance_type=options.get("SpotInstanceType") or "one-time",
        valid_from=None,
        valid_until=None,
        launch_group=None,
        availability_zone_group=None,
        key_name=instance.key_name or "",
        security_groups=[],
        user_data=instance.user_data,
        instance_type=instance.instance_type,
        placement=instance.availability_zone,
        kernel_id=None,
        ramdisk_id=None,
        monitoring_enabled=False,
        subnet_id=instance.subnet_id,
        tags={"spot-instances-request": tags.get("spot-instances-request", {})},
        spot_fleet_id=None,
        instance_interruption_behaviour=options.get("InstanceInterruptionBehavior"),
    )
    backend.spot_instance_requests[request.id] = request
    instance.lifecycle = "spot"
    instance.spot_instance_request_id = request.id


def _patch_life() -> None:
    """Instances end in steps, stay ended, and tell the observer."""
    terminate, stop, start, reboot = Instance.terminate, Instance.stop, Instance.start, Instance.reboot

    def end(self: Any) -> Any:
        if self._state.code in (SHUTTING_DOWN, TERMINATED):  # a second call changes nothing, not even the reason
            return copy.copy(self._state)
        previous = terminate(self)
        set_state(self, SHUTTING_DOWN)
        _tell("ended", self)
        return previous

    def told(original: Callable[[Any], Any], event: str) -> Callable[[Any], Any]:
        def call(self: Any) -> Any:
            answer = original(self)
            _tell(event, self)
            return answer

        return call

    Instance.terminate = end
    Instance.stop = told(stop, "stopped")
    Instance.start = told(start, "started")
    Instance.reboot = told(reboot, "rebooted")

    def cancel(self: Any, request_ids: Sequence[str]) -> list[Any]:  # a cancelled request can still be listed
        unknown = [key for key in request_ids if key not in self.spot_instance_requests]
        if unknown:
            code = "InvalidSpotInstanceRequestID.NotFound"
            text = f"The spot instance request ID '{unknown[0]}' does not exist"
            raise EC2ClientError(code, text)
        found = [self.spot_instance_requests[key] for key in request_ids]
        for request in found:
            request.state = "cancelled"
            request._status_code = "request-canceled-and-instance-running"  # noqa: SLF001
        return found

    SpotRequestBackend.cancel_spot_instance_requests = cancel


def _patch_image() -> None:
    """Name the Deep Learning Base image (of images.json) by its public SSM parameter, in every region."""
    check = ParameterDict._check_loading_status  # noqa: SLF001

    def status(self: Any, key: str) -> None:
        check(self, key)
        name = str(key or "")
        if name.startswith(_IMAGE_PARAMETERS) and name.endswith("/latest/ami-id") and name not in self.keys():
            self.setdefault(name, []).append(
                Parameter(
                    account_id=self.account_id,
                    name=name,
                    value=IMAGE_ID,
                    parameter_type="String",
                    description=None,
                    allowed_pattern=None,
                    keyid=None,
                    last_modified_date=None,
                    version=1,
                    data_type="aws:ec2:image",
                )
            )

    ParameterDict._check_loading_status = status  # noqa: SLF001


def _patch_quotas() -> None:
    """Let Service Quotas know EC2's, which moto does not."""
    get = ServiceQuotasBackend.get_service_quota

    def quota(self: Any, service_code: str, quota_code: str) -> dict[str, Any]:
        if service_code != "ec2" or quota_code not in quotas:
            found: dict[str, Any] = get(self, service_code, quota_code)
            return found
        return {"ServiceCode": "ec2", "QuotaCode": quota_code, "Value": quotas[quota_code], "Unit": "None"}

    ServiceQuotasBackend.get_service_quota = quota
    ServiceQuotasResponse.get_aws_default_service_quota = ServiceQuotasResponse.get_service_quota
