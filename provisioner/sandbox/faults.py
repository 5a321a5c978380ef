"""Faults that the sandbox's AWS answers with: rules, in order, the first that matches is taken.

A rule says what it matches (every key that is given must agree) and what happens: an error, a delay, an answer that
is lost after the work was done, or a launch that is accepted and dies afterwards.
"""

from __future__ import annotations

import fnmatch
import threading
import time
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal
from xml.sax.saxutils import escape

from pydantic import BaseModel, ConfigDict, Field

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


class Fault(BaseModel):
    """One rule. Unset keys match anything; ``action`` and ``path`` may hold ``*``.

    For S3 the action is the HTTP method, e.g. ``PUT``. ``times`` counts down, -1 is for ever. ``delay`` in seconds.
    """

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    service: str | None = None
    action: str | None = None
    region: str | None = None
    itype: str | None = None
    az: str | None = None
    subnet: str | None = None
    market: Literal["spot", "on-demand"] | None = None
    path: str | None = None
    code: str | None = None
    status: int | None = Field(default=None, ge=400, le=599)
    message: str | None = None
    times: int = -1
    delay: float = Field(default=0.0, ge=0)
    asynchronous: bool = Field(default=False, alias="async")
    lost: bool = False

    def matches(self, call: Call) -> bool:
        """Say whether the rule is for this call."""
        if self.times == 0:
            return False
        globbed = ((self.action, call.action), (self.path, call.path))
        plain = [
            (getattr(self, key), getattr(call, key)) for key in ("service", "region", "itype", "az", "subnet", "market")
        ]
        return all(want is None or want == have for want, have in plain) and all(
            want is None or fnmatch.fnmatchcase(have, want) for want, have in globbed
        )

    def words(self, call: Call) -> tuple[int, str, str]:
        """Return HTTP status, code and message of the answer."""
        code = self.code or "InternalError"
        return self.status or STATUS.get(code, 400), code, self.message or message(code, call)


def message(code: str, call: Call) -> str:
    """Return what AWS says with a code."""
    return _MESSAGES.get(code, code).format(**asdict(call))


class Faults:
    """The rules in force and a log of launches. Thread-safe."""

    def __init__(self) -> None:
        """Start without rules."""
        self._rules: list[Fault] = []
        self._log: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def set(self, rules: Iterable[dict[str, Any] | Fault]) -> None:
        """Replace the rules. Raises pydantic.ValidationError."""
        fresh = [rule if isinstance(rule, Fault) else Fault.model_validate(rule) for rule in rules]
        with self._lock:
            self._rules = [rule.model_copy() for rule in fresh]

    def add(self, rules: Iterable[dict[str, Any] | Fault]) -> None:
        """Put rules before those in force."""
        fresh = [rule if isinstance(rule, Fault) else Fault.model_validate(rule) for rule in rules]
        with self._lock:
            self._rules[:0] = [rule.model_copy() for rule in fresh]

    def rules(self) -> list[dict[str, Any]]:
        """Return the rules in force, as JSON values."""
        with self._lock:
            return [rule.model_dump(by_alias=True, exclude_defaults=True) for rule in self._rules]

    def hit(self, call: Call) -> Fault | None:
        """Return the rule for this call, counted down."""
        with self._lock:
            for rule in self._rules:
                if rule.matches(call):
                    if rule.times > 0:
                        rule.times -= 1
                    return rule
        return None

    def note(self, call: Call, outcome: str) -> None:
        """Add a launch to the log: what was asked, and the code or the instance it came to."""
        with self._lock:
            self._log.append({**asdict(call), "time": time.time(), "outcome": outcome})

    def log(self) -> list[dict[str, Any]]:
        """Return every launch since the start or the last reset."""
        with self._lock:
            return list(self._log)

    def clear(self) -> None:
        """Forget rules and log."""
        with self._lock:
            self._rules, self._log = [], []


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
