"""Faults that the sandbox's AWS answers with, by rules.

A rule says what it matches (every key that is given must agree) and what happens: an error, a delay, an answer that
is lost after the work was done, or a launch that is accepted and dies afterwards.
"""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass
from typing import Any, ClassVar
from xml.sax.saxutils import escape

from pydantic import Field

from provisioner.sandbox.rules import Rule, RuleBook

_MESSAGES = {
    "InsufficientInstanceCapacity": "We currently do not have sufficient {itype} capacity in the Availability Zone you "
    "requested ({az}). Our system will be working on provisioning additional capacity.",
    "VcpuLimitExceeded": "You have requested more vCPU capacity than your current vCPU limit of 0 allows for the "
    "instance bucket that the specified instance type belongs to.",
    "MaxSpotInstanceCountExceeded": "Max spot instance count exceeded",
    "Unsupported": "Your requested instance type ({itype}) is not supported in your requested Availability Zone "
    "({az}).",
    "RequestLimitExceeded": "Request limit exceeded.",
    "UnauthorizedOperation": "You are not authorized to perform this operation. User: "
    "arn:aws:iam::123456789012:user/sandbox is not authorized to perform: ec2:{action} on resource: "
    "arn:aws:ec2:{region}:123456789012:instance/* because no identity-based policy allows the ec2:{action} action",
    "SpotMaxPriceTooLow": "Your Spot request price of 0.1 is lower than the minimum required Spot request fulfillment "
    "price of 0.2.",
    "InsufficientFreeAddressesInSubnet": "There are not enough free addresses in subnet '{subnet}' to satisfy the "
    "requested number of instances.",
    "InsufficientHostCapacity": "Insufficient capacity on the hosts of the Availability Zone ({az}).",
    "IdempotentParameterMismatch": "Arguments on this idempotent request are inconsistent with arguments used in "
    "previous request(s).",
    "IdempotentInstanceTerminated": "The client token you have provided is associated with a terminated instance. "
    "Please use a different client token.",
}
STATUS = {"InsufficientInstanceCapacity": 500, "RequestLimitExceeded": 503, "UnauthorizedOperation": 403}
"""HTTP status that AWS sends with a code, where it is not 400."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request as the rules see it. ``market`` is ``spot``, ``on-demand`` or empty: it launches nothing."""

    service: str
    action: str
    region: str = ""
    itype: str = ""
    az: str = ""
    subnet: str = ""
    market: str = ""
    path: str = ""
    token: str = ""

    def row(self) -> dict[str, Any]:
        """Return what the log of launches says of it."""
        return asdict(self)


class Fault(Rule):
    """One rule. For S3 the action is the HTTP method, e.g. ``PUT``. ``delay`` in seconds."""

    EQUAL: ClassVar[tuple[str, ...]] = ("service", "region", "itype", "az", "subnet", "market")
    GLOBBED: ClassVar[tuple[str, ...]] = ("action", "path")

    service: str | None = None
    action: str | None = None
    itype: str | None = None
    az: str | None = None
    subnet: str | None = None
    path: str | None = None
    delay: float = Field(default=0.0, ge=0)
    asynchronous: bool = Field(default=False, alias="async")

    def words(self, call: Call) -> tuple[int, str, str]:
        """Return HTTP status, code and message of the answer."""
        code = self.code or "InternalError"
        return self.status or STATUS.get(code, 400), code, self.message or message(code, call)


def message(code: str, call: Call) -> str:
    """Return what AWS says with a code."""
    return _MESSAGES.get(code, code).format(**asdict(call))


class Faults(RuleBook[Fault, Call]):
    """The rules for AWS."""

    rule: ClassVar[type[Rule]] = Fault


def error_body(service: str, code: str, text: str) -> tuple[str, bytes]:
    """Return content type and body of an error as the service spells it."""
    request_id = str(uuid.uuid4())
    if service in {"ssm", "servicequotas"}:
        return "application/x-amz-json-1.1", f'{{"__type": "{code}", "message": "{text}"}}'.encode()
    if service == "s3":
        xml = f"<Error><Code>{code}</Code><Message>{escape(text)}</Message><RequestId>{request_id}</RequestId></Error>"
    elif service == "ec2":
        xml = (
            f"<Response><Errors><Error><Code>{code}</Code><Message>{escape(text)}</Message></Error></Errors>"
            f"<RequestID>{request_id}</RequestID></Response>"
        )
    else:
        xml = (
            f"<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code><Message>{escape(text)}</Message></Error>"
            f"<RequestId>{request_id}</RequestId></ErrorResponse>"
        )
    return "text/xml;charset=UTF-8", f'<?xml version="1.0" encoding="UTF-8"?>\n{xml}'.encode()
