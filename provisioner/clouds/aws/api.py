"""EC2 and IAM calls of the AWS room: time-outs, retries that know which errors are worth it, typed errors.

boto3 is imported with this module, and this module when the room is used.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential, wait_random

from provisioner.clouds.aws.reading import code_and_message, error_of, failure_of
from provisioner.clouds.meaning import passing

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_iam import IAMClient

T = TypeVar("T")
Sleep = Callable[[float], None]
CALL_ERRORS = (ClientError, BotoCoreError)
"""What a call through botocore raises."""
_CONNECT_S, _READ_S = 5.0, 20.0
READ_FOR_S = 30.0
"""How long a reading call is repeated while AWS throttles or cannot be reached."""
_DESCRIPTIONS = botocore.session.get_session().get_component("data_loader")
"""What AWS's services are like, read once for all jobs of this process: EC2's takes 12 MB and half a second."""
_ENDED = ("shutting-down", "terminated")


class Account:
    """The clients of one AWS account, made when asked for. Credentials and endpoint are those of the AWS tools."""

    def __init__(self, environ: Mapping[str, str], sleep: Sleep = time.sleep) -> None:
        """Read the credentials from ``environ``, as the AWS tools do; what is not there comes from their files."""
        self._environ = environ
        self._sleep = sleep
        self._session: boto3.Session | None = None
        self._clients: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()

    def region(self, name: str) -> Region:
        """Return the calls of one region."""
        return Region(name, self.client("ec2", name), self._sleep)

    def iam(self) -> IAMClient:
        """Return the IAM client."""
        client: IAMClient = self.client("iam", "us-east-1")
        return client

    def call(self, operation: str, call: Callable[[], T]) -> T:
        """Run a call that may be repeated. Raises Unauthorized, Unreachable or CloudError."""
        return repeat(operation, call, self._sleep)

    def client(self, service: str, region: str) -> Any:
        """Return a boto3 client, which tries each call once. Raises CloudError and its kin."""
        key = (service, region)
        with self._lock:
            if key not in self._clients:
                try:
                    self._clients[key] = self._make(service, region)
                except CALL_ERRORS as error:
                    raise error_of(failure_of(error, service)) from error
            return self._clients[key]

    def _make(self, service: str, region: str) -> Any:
        environ = self._environ
        if self._session is None:
            own = botocore.session.get_session()
            own.register_component("data_loader", _DESCRIPTIONS)
            self._session = boto3.Session(
                botocore_session=own,
                aws_access_key_id=environ.get("AWS_ACCESS_KEY_ID"),
                aws_secret_access_key=environ.get("AWS_SECRET_ACCESS_KEY"),
                aws_session_token=environ.get("AWS_SESSION_TOKEN"),
                profile_name=environ.get("AWS_PROFILE"),
            )
        config = Config(
            connect_timeout=_CONNECT_S,
            read_timeout=_READ_S,
            retries={"mode": "standard", "total_max_attempts": 1},  # ours know which errors are worth it
            user_agent_extra="gpu-failover",
        )
        variable = f"AWS_ENDPOINT_URL_{service.upper().replace('-', '_')}"
        endpoint = environ.get(variable) or environ.get("AWS_ENDPOINT_URL")
        make: Any = self._session.client  # its stub has one overload per service
        return make(service, region, endpoint_url=endpoint, config=config)


def repeat(operation: str, call: Callable[[], T], sleep: Sleep, for_s: float = READ_FOR_S) -> T:
    """Run a call again while its error is one that passes. Raises Unauthorized, Unreachable or CloudError."""
    retrying = Retrying(
        retry=retry_if_exception(_passing),
        stop=stop_after_delay(for_s),
        wait=wait_exponential(multiplier=0.5, max=8.0) + wait_random(0, 0.5),
        sleep=sleep,
        reraise=True,
    )
    try:
        return retrying(call)
    except CALL_ERRORS as error:
        raise error_of(failure_of(error, operation)) from error


class Region:
    """Calls of one region. All but :meth:`run` may be repeated, and are; they raise CloudError and its kin."""

    def __init__(self, name: str, ec2: EC2Client, sleep: Sleep) -> None:
        """Take the client; ``name`` is the region's."""
        self.name = name
        self.ec2 = ec2
        self._sleep = sleep

    def run(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Call RunInstances once; return the instance. Raises botocore's own errors: the claim judges them."""
        answer: Any = self.ec2.run_instances(**request)
        instance: dict[str, Any] = answer["Instances"][0]
        return instance

    def find(self, instance_id: str) -> dict[str, Any] | None:
        """Return one instance as DescribeInstances gives it, or None if it is not known (yet, or any more)."""
        try:
            found = self._instances(InstanceIds=[instance_id])
        except LookupError:
            return None
        return found[0] if found else None

    def tagged(self, tags: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return every instance that carries all these tags, ended ones too."""
        return self._instances(Filters=filters(tags))

    def of_spot_request(self, request_id: str) -> list[dict[str, Any]]:
        """Return the instances of a spot request that have not ended, whatever tags they carry."""
        open_states = ["pending", "running", "stopping", "stopped"]
        found = self._instances(Filters=[{"Name": "instance-state-name", "Values": open_states}])
        return [instance for instance in found if instance.get("SpotInstanceRequestId") == request_id]

    def terminate(self, instance_ids: Iterable[str]) -> None:
        """Terminate instances; one that is not known any more is fine."""
        for instance_id in instance_ids:
            try:
                self._call("TerminateInstances", partial(self.ec2.terminate_instances, InstanceIds=[instance_id]))
            except LookupError:
                continue

    def spot_requests(self, **arguments: Any) -> list[dict[str, Any]]:
        """Return spot requests, by ids or filters; unknown ids give none."""
        try:
            return self._pages("describe_spot_instance_requests", "SpotInstanceRequests", arguments)
        except LookupError:
            return []

    def cancel_spot_requests(self, request_ids: list[str]) -> None:
        """Cancel spot requests; their instances live on."""
        if request_ids:
            self._call(
                "CancelSpotInstanceRequests",
                lambda: self.ec2.cancel_spot_instance_requests(SpotInstanceRequestIds=request_ids),
            )

    def listing(self, operation: str, key: str, tags: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return what a describing operation lists under these tags, e.g. ``("describe_volumes", "Volumes", tags)``."""
        return self._pages(operation, key, {"Filters": filters(tags)})

    def addresses(self, tags: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return the public addresses under these tags. EC2 gives them in one page."""
        asked: Any = filters(tags)
        answer: Any = self._call("DescribeAddresses", lambda: self.ec2.describe_addresses(Filters=asked))
        return list(answer["Addresses"])

    def has_template(self, template_id: str) -> bool:
        """Say whether a launch template is there."""
        try:
            return bool(
                self._pages("describe_launch_templates", "LaunchTemplates", {"LaunchTemplateIds": [template_id]})
            )
        except LookupError:
            return False

    def image_named(self, name: str) -> str | None:
        """Return the newest image of this name (``*`` allowed) of Amazon's or our own, or None."""
        arguments = {"Filters": [{"Name": "name", "Values": [name]}], "Owners": ["amazon", "self"]}
        found = self._pages("describe_images", "Images", arguments)
        newest = max(found, key=lambda image: str(image.get("CreationDate", "")), default=None)
        return str(newest["ImageId"]) if newest else None

    def remove(self, operation: str, **arguments: Any) -> None:
        """Call a deleting operation; what is gone already is fine."""
        try:
            self._call(operation, lambda: getattr(self.ec2, operation)(**arguments))
        except LookupError:
            return

    def _instances(self, **arguments: Any) -> list[dict[str, Any]]:
        pages = self._pages("describe_instances", "Reservations", arguments)
        return [instance for reservation in pages for instance in reservation["Instances"]]

    def _pages(self, operation: str, key: str, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        paginator = self.ec2.get_paginator(operation)  # type: ignore[call-overload] # the operation is a value here

        def read() -> list[dict[str, Any]]:
            return [item for page in paginator.paginate(**arguments) for item in page.get(key) or ()]

        return self._call(operation, read)

    def _call(self, operation: str, call: Callable[[], T]) -> T:
        """Repeat while it may help. Raises LookupError for what is not there, else CloudError and its kin."""

        def known() -> T:
            try:
                return call()
            except ClientError as error:
                code, _ = code_and_message(error)
                if ".NotFound" in code or code.endswith("NotFoundException"):
                    raise LookupError(code) from error
                raise

        return repeat(operation, known, self._sleep)


def filters(tags: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return EC2 filters for resources that carry all these tags."""
    return [{"Name": f"tag:{name}", "Values": [value]} for name, value in tags.items()]


def tags_of(resource: Mapping[str, Any]) -> dict[str, str]:
    """Return a resource's tags as a mapping."""
    return {tag["Key"]: tag["Value"] for tag in resource.get("Tags") or ()}


def ended(instance: Mapping[str, Any]) -> bool:
    """Say whether an instance has ended or is about to: it costs nothing more."""
    return instance["State"]["Name"] in _ENDED


def _passing(error: BaseException) -> bool:
    return isinstance(error, CALL_ERRORS) and passing(failure_of(error, ""))
