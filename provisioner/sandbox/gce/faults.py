"""Faults that the sandbox's Google Cloud answers with, by rules.

Google refuses in two ways. A call may be refused at once, with an HTTP status and a reason such as ``quotaExceeded``.
Or it is accepted, and the operation that it became ends with an error, whose codes are in capitals: that is how
machines that cannot be had are told, seconds later. A rule follows its code, unless it says otherwise.

Words and shapes: googleapis/nodejs-compute#377, CCExtractor/sample-platform#901, kubernetes/k8s.io#9834.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, ClassVar

from pydantic import Field

from provisioner.sandbox.rules import Rule, RuleBook

_STOCK_OUT = (
    "The zone 'projects/{project}/zones/{zone}' does not have enough resources available to fulfill the request."
)
_MESSAGES = {
    "ZONE_RESOURCE_POOL_EXHAUSTED": _STOCK_OUT + "  Try a different zone, or try again later.",
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": _STOCK_OUT + "  '(resource type:compute)'.",
    "QUOTA_EXCEEDED": "Quota '{metric}' exceeded.  Limit: 0.0 in region {region}.",
    "UNSUPPORTED_OPERATION": "The instance '{name}' was preempted while it was being created.",
    "RESOURCE_NOT_FOUND": "The resource 'projects/{project}/zones/{zone}/instances/{name}' was not found",
    "RESOURCE_NOT_READY": "The resource 'projects/{project}/zones/{zone}/instances/{name}' is not ready",
    "RESOURCE_OPERATION_RATE_EXCEEDED": "Operation rate exceeded for resource "
    "'projects/{project}/zones/{zone}/instances/{name}'. Too frequent operations from the source resource.",
    "VM_MIN_COUNT_NOT_REACHED": "Requested minimum count of 1 VMs could not be created.",
    "INTERNAL_ERROR": "Internal error. Please try again or contact Google Support. (Code: '5F0A1B2C3D4E5.67890AB')",
    "quotaExceeded": "Quota '{metric}' exceeded.  Limit: 0.0 in region {region}.",
    "rateLimitExceeded": "Quota exceeded for quota metric 'Queries' and limit 'Queries per minute' of service "
    "'compute.googleapis.com' for consumer 'project_number:123456789012'.",
    "forbidden": "Required 'compute.{method}' permission for 'projects/{project}/zones/{zone}/instances/{name}'",
    "accessNotConfigured": "Compute Engine API has not been used in project 123456789012 before or it is disabled.",
    "backendError": "Backend Error",
    "internalError": "Internal Error",
    "notFound": "The resource 'projects/{project}/zones/{zone}' was not found",
    "authError": "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other "
    "valid authentication credential.",
}
_REASONS: Mapping[str, tuple[int, str, str | None]] = {
    "accessNotConfigured": (403, "usageLimits", "PERMISSION_DENIED"),
    "alreadyExists": (409, "global", None),
    "authError": (401, "global", "UNAUTHENTICATED"),
    "backendError": (503, "global", "UNAVAILABLE"),
    "conditionNotMet": (412, "global", None),
    "forbidden": (403, "global", None),
    "internalError": (500, "global", "INTERNAL"),
    "notFound": (404, "global", None),
    "quotaExceeded": (403, "usageLimits", None),
    "rateLimitExceeded": (403, "usageLimits", "PERMISSION_DENIED"),
}
"""Reason of a refused call → HTTP status, domain, canonical status where Google sends one. Others: 400, global."""
_OPERATION_STATUS = {
    "QUOTA_EXCEEDED": 403,
    "INTERNAL_ERROR": 500,
    "OPERATION_CANCELED_BY_USER": 409,
    "RESOURCE_NOT_FOUND": 404,
    "RESOURCE_OPERATION_RATE_EXCEEDED": 403,
    "ZONE_RESOURCE_POOL_EXHAUSTED": 503,
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": 503,
}
"""Code of a failed operation → ``httpErrorStatusCode``, where it is not 400."""
_HELP = {"links": [{"description": "Troubleshooting documentation", "url": "https://cloud.google.com/compute/docs"}]}


class Refused(Exception):
    """A call that is refused at once. ``reason`` is Google's, e.g. ``alreadyExists``."""

    def __init__(self, reason: str, text: str, status: int | None = None) -> None:
        """Take what Google says; the HTTP status follows from the reason where it is not given."""
        super().__init__(text)
        usual, self.domain, self.canonical = _REASONS.get(reason, (400, "global", None))
        self.reason, self.text, self.status = reason, text, status or usual

    def body(self) -> dict[str, Any]:
        """Return the answer's JSON as Compute Engine and Cloud Storage spell it."""
        one = {"message": self.text, "domain": self.domain, "reason": self.reason}
        error: dict[str, Any] = {"code": self.status, "message": self.text, "errors": [one]}
        if self.canonical is not None:
            error["status"] = self.canonical
        return {"error": error}


@dataclass(frozen=True, slots=True)
class Call:
    """A request as the rules see it. ``market`` is ``spot``, ``on-demand`` or empty: it launches nothing."""

    method: str
    project: str = ""
    region: str = ""
    zone: str = ""
    name: str = ""
    machine_type: str = ""
    accelerators: Mapping[str, int] = field(default_factory=dict)
    market: str = ""
    metric: str = ""
    request_id: str = ""

    @property
    def attachment(self) -> str:
        """The cards as Google's details name them, ``nvidia-tesla-t4:1``."""
        return ",".join(f"{name}:{count}" for name, count in self.accelerators.items())

    def row(self) -> dict[str, Any]:
        """Return what the log of launches says of it, by the names that AWS's log has."""
        return {
            "cloud": "gcp",
            "service": "compute",
            "action": self.method,
            "region": self.region,
            "az": self.zone,
            "itype": self.machine_type,
            "cards": self.attachment,
            "market": self.market,
            "name": self.name,
            "token": self.request_id,
        }


class GceFault(Rule):
    """One rule. ``delay``: seconds before the answer, or before the operation fails."""

    EQUAL: ClassVar[tuple[str, ...]] = ("region", "zone", "market")
    GLOBBED: ClassVar[tuple[str, ...]] = ("method", "machine_type")

    method: str | None = None
    zone: str | None = None
    machine_type: str | None = None
    accelerator: str | None = None
    also: tuple[str, ...] = ()
    """Further codes of the same operation."""
    metric: str | None = None
    """The quota that is exceeded, e.g. ``GPUS_ALL_REGIONS``; by default the one of the machine's cards."""
    asynchronous: bool | None = Field(default=None, alias="async")
    zones_available: tuple[str, ...] = ()
    delay: float | None = Field(default=None, ge=0)

    def matches(self, call: Call) -> bool:
        """Say whether the rule is for this call."""
        return super().matches(call) and (self.accelerator is None or self.accelerator in call.accelerators)

    @property
    def later(self) -> bool:
        """Whether the call is accepted and its operation fails: R22's way, and Google's for stock and quota."""
        if self.code is None:
            return False
        if self.asynchronous is not None:
            return self.asynchronous
        return self.status is None and self.code.isupper()

    def refusal(self, call: Call) -> Refused | None:
        """Return what a call that is not even accepted is told."""
        if self.code is None or self.later:
            return None
        return Refused(self.code, self.message or words(self.code, call, self.metric), self.status)

    def failure(self, call: Call) -> dict[str, Any] | None:
        """Return what the operation of an accepted call ends with: the keys of an operation that failed."""
        if self.code is None or not self.later:
            return None
        errors = [self._error(code, call) for code in (self.code, *self.also)]
        return failed(errors, self.status)

    def _error(self, code: str, call: Call) -> dict[str, Any]:
        text = self.message if self.message and code == self.code else words(code, call, self.metric)
        error: dict[str, Any] = {"code": code, "message": text}
        if code.startswith("ZONE_RESOURCE_POOL_EXHAUSTED"):
            error["errorDetails"] = stock_details(call, self.zones_available)
        elif code == "QUOTA_EXCEEDED":
            error["errorDetails"] = [quota_details(self.metric or call.metric, call.region, 0.0)]
        return error


def words(code: str, call: Call, metric: str | None = None) -> str:
    """Return what Google says with a code. A quota that is not regional says so."""
    everywhere = (metric or "").endswith("_ALL_REGIONS")
    text = _MESSAGES.get(code, code).replace(
        " in region {region}", " globally" if everywhere else " in region {region}"
    )
    return text.format(
        project=call.project,
        region=call.region,
        zone=call.zone,
        name=call.name,
        method=call.method,
        metric=metric or call.metric,
    )


def failed(errors: list[dict[str, Any]], status: int | None = None) -> dict[str, Any]:
    """Return the keys of an operation that failed. The first error decides the HTTP status."""
    code = status or _OPERATION_STATUS.get(errors[0]["code"], 400)
    return {
        "error": {"errors": errors},
        "httpErrorStatusCode": code,
        "httpErrorMessage": HTTPStatus(code).phrase.upper(),
    }


def stock_details(call: Call, zones: Iterable[str]) -> list[dict[str, Any]]:
    """Return the details of a stock-out, which name the zones that have room."""
    there = ", ".join(zones)
    cards = f" with {call.attachment.partition(':')[2]} {call.attachment.partition(':')[0]} accelerator(s)"
    text = f"A {call.machine_type} VM instance{cards if call.attachment else ''} is currently unavailable in the "
    text += f"{call.zone} zone. "
    if there:
        text += f"Consider trying your request in the {there} zone(s), which currently has capacity to accommodate "
        text += "your request. "
    text += (
        "Alternatively, you can try your request again with a different VM hardware configuration or at a later time."
    )
    info = {
        "domain": "compute.googleapis.com",
        "reason": "resource_availability",
        "metadatas": {
            "attachment": call.attachment,
            "vmType": call.machine_type,
            "zone": call.zone,
            "zonesAvailable": there.replace(" ", ""),
        },
    }
    return [{"help": _HELP}, {"localizedMessage": {"locale": "en-US", "message": text}}, {"errorInfo": info}]


def quota_details(metric: str, region: str, limit: float) -> dict[str, Any]:
    """Return the details of an exceeded quota. One for all regions names none."""
    everywhere = metric.endswith("_ALL_REGIONS")
    scope = "per-project" if everywhere else "per-project-region"
    return {
        "quotaInfo": {
            "metricName": f"compute.googleapis.com/{metric.lower()}",
            "limitName": f"{metric.replace('_', '-')}-{scope}",
            "limit": limit,
            "dimensions": {"global": "global"} if everywhere else {"region": region},
        }
    }


class GceFaults(RuleBook[GceFault, Call]):
    """The rules for Google Cloud."""

    rule: ClassVar[type[Rule]] = GceFault
