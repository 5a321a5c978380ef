"""The emulator's EC2, IAM and SSM by boto3, and the small things that every resource needs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from tf.types import Unknown

from provisioner.sandbox.stand_in import Refused, State

ACCOUNT: Final = "123456789012"
SETTLE_S: Final = 60.0
POLL_S: Final = 0.2


class Clients:
    """Clients of the cloud at AWS_ENDPOINT_URL."""

    def __init__(self, region: str | None) -> None:
        """Take the region; None means the one of the environment."""
        self._region = region or boto3.Session().region_name or "us-east-1"

    def _client(self, service: str) -> Any:
        settings = Config(connect_timeout=5, read_timeout=30, retries={"total_max_attempts": 3, "mode": "standard"})
        session: Any = boto3.Session()
        endpoint = os.environ["AWS_ENDPOINT_URL"]
        return session.client(service, region_name=self._region, endpoint_url=endpoint, config=settings)

    @cached_property
    def _ec2(self) -> Any:
        return self._client("ec2")

    @cached_property
    def _iam(self) -> Any:
        return self._client("iam")

    def _arn(self, kind: str, identity: str) -> str:
        return f"arn:aws:ec2:{self._region}:{ACCOUNT}:{kind}/{identity}"


def missing(error: ClientError) -> bool:
    """Say whether the cloud does not know the thing."""
    code = error.response["Error"]["Code"]
    return code.endswith(".NotFound") or code in {"NoSuchEntity", "InvalidInstanceID.Malformed"}


@contextmanager
def told(doing: str) -> Iterator[None]:
    """Say what was being done, in the words of the official provider, so that the code can be found in them."""
    try:
        yield
    except ClientError as error:
        found, status = error.response["Error"], error.response["ResponseMetadata"].get("HTTPStatusCode")
        message = (
            f"{doing}: operation error {error.operation_name}, https response error StatusCode: {status}, "
            f"api error {found['Code']}: {found['Message']}"
        )
        raise Refused(message) from error
    except BotoCoreError as error:
        message = f"{doing}: request send failed: {error}"
        raise Refused(message) from error


def given(value: Any) -> bool:
    """Say whether an attribute was set."""
    return value is not Unknown and value not in (None, "", [])


def one(value: Any) -> State:
    """Return the only block of a list of at most one."""
    return value[0] if value else {}


def named(state: State) -> str:
    """Return the name, made from the prefix as the official provider does: time and a counter."""
    if given(state.get("name")):
        return str(state["name"])
    return f"{state.get('name_prefix') or 'terraform-'}{time.time_ns()}"


def tags(state: State) -> list[dict[str, str]]:
    """Return the tags as the API takes them."""
    return [{"Key": key, "Value": value} for key, value in (state.get("tags") or {}).items()]


def tagged(kind: str, state: State) -> list[dict[str, Any]]:
    """Return the tag specification of a request that makes a thing of this kind."""
    found = tags(state)
    return [{"ResourceType": kind, "Tags": found}] if found else []


def filters(config: State) -> list[dict[str, Any]]:
    """Return the filters of a data source."""
    return [{"Name": each["name"], "Values": each["values"]} for each in config.get("filter") or ()]


def until(act: Callable[[], Any], *, retry: str) -> None:
    """Repeat a call that meets something still on its way out."""
    end = time.monotonic() + SETTLE_S
    while True:
        try:
            act()
        except ClientError as error:
            if error.response["Error"]["Code"] != retry or time.monotonic() > end:
                raise
            time.sleep(POLL_S)
        else:
            return
