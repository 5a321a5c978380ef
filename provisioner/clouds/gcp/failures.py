"""Compute Engine's error codes, in one table: what kind of failure, how far it reaches, how long, what to do.

Sources: the API's catalog of errors (cloud.google.com/compute/docs/reference/rest/v1/errors), its pages on resource
and quota errors, and answers that users of SkyPilot, dstack, Terraform and the Kubernetes autoscaler have reported. A
code that is not here is ``unknown``: it blocks one offer for a short time and is counted. TPUs are not asked for.

How far a code reaches:

- No capacity is of one machine type, in one zone and one market: a T4 that is sold out says nothing of an L4 beside it,
  nor spot of on demand. What a zone does not offer it offers in no market.
- A quota of cards is of one model in one region and, since spot has metrics of its own, one market; of vCPUs, of the
  region's market; addresses and disks are of the region. What ends with ``_ALL_REGIONS`` is of the whole project, cards
  and vCPUs alike.
- Of several errors in one answer the one that reaches farthest counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from provisioner.clouds.gcp.answers import NO_REASON, Problem, one_line
from provisioner.model import Failure, FailureKind, Scope

CAPACITY_TTL_S: Final = 180.0
"""As at AWS: capacity comes and goes within minutes."""
QUOTA_TTL_S: Final = 1800.0
NOT_OFFERED_TTL_S: Final = 24 * 3600.0
ACCOUNT_TTL_S: Final = 600.0
"""Somebody has to change a policy, a key or a setting; look again soon after."""
BRIEF_TTL_S: Final = 60.0
UNKNOWN_TTL_S: Final = 180.0

CONSOLE: Final = "https://console.cloud.google.com"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a code means."""

    kind: FailureKind
    scope: Scope
    ttl_s: float
    advice: str = ""


_CAPACITY = Meaning(FailureKind.NO_CAPACITY, Scope.OFFER, CAPACITY_TTL_S)
_PREEMPTED = Meaning(FailureKind.NO_CAPACITY, Scope.OFFER, CAPACITY_TTL_S, "it was taken away while it was made")
_RESERVED = Meaning(FailureKind.NO_CAPACITY, Scope.OFFER, CAPACITY_TTL_S, "the reservation has no free machine")
_NO_ADDRESS = Meaning(FailureKind.NO_CAPACITY, Scope.REGION, CAPACITY_TTL_S, "the region has no free address")
_SUBNET_FULL = Meaning(
    FailureKind.NO_CAPACITY, Scope.REGION, CAPACITY_TTL_S, "the subnet is full: set fallback.gcp.network: own"
)
_QUOTA = Meaning(FailureKind.QUOTA, Scope.REGION, QUOTA_TTL_S, f"ask for more at {CONSOLE}/iam-admin/quotas")
_NOT_OFFERED = Meaning(
    FailureKind.NOT_OFFERED, Scope.TYPE, NOT_OFFERED_TTL_S, "Google does not offer this machine with these cards here"
)
_NOT_ON_SPOT = Meaning(
    FailureKind.NOT_OFFERED, Scope.OFFER, NOT_OFFERED_TTL_S, "Google does not offer this machine in this market here"
)
_NO_ZONE = Meaning(FailureKind.NOT_OFFERED, Scope.ZONE, NOT_OFFERED_TTL_S, "this project cannot use this zone")
_NO_REGION = Meaning(FailureKind.NOT_OFFERED, Scope.REGION, NOT_OFFERED_TTL_S, "this project cannot use this region")
_DENIED = Meaning(FailureKind.UNAUTHORIZED, Scope.ACCOUNT, ACCOUNT_TTL_S, "grant it: docs/gcp.md lists what is needed")
_SCOPES = Meaning(
    FailureKind.UNAUTHORIZED, Scope.ACCOUNT, ACCOUNT_TTL_S, "use credentials with the scope cloud-platform"
)
_CREDENTIALS = Meaning(
    FailureKind.UNAUTHORIZED,
    Scope.ACCOUNT,
    ACCOUNT_TTL_S,
    "gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS",
)
_ACT_AS = Meaning(
    FailureKind.UNAUTHORIZED,
    Scope.ACCOUNT,
    ACCOUNT_TTL_S,
    "grant roles/iam.serviceAccountUser (iam.serviceAccounts.actAs) on the machines' service account",
)
_DISABLED = Meaning(
    FailureKind.UNAUTHORIZED,
    Scope.ACCOUNT,
    ACCOUNT_TTL_S,
    f"enable the API: {CONSOLE}/apis/library/compute.googleapis.com",
)
_BILLING = Meaning(
    FailureKind.UNAUTHORIZED, Scope.ACCOUNT, ACCOUNT_TTL_S, f"link a billing account: {CONSOLE}/billing/linkedaccount"
)
_PROJECT = Meaning(
    FailureKind.UNAUTHORIZED, Scope.ACCOUNT, ACCOUNT_TTL_S, "see fallback.gcp.project: its id, not name or number"
)
_POLICY = Meaning(
    FailureKind.UNAUTHORIZED, Scope.ACCOUNT, ACCOUNT_TTL_S, "a policy of the organization forbids it; ask its admin"
)
_LOCATION = Meaning(
    FailureKind.UNAUTHORIZED, Scope.REGION, ACCOUNT_TTL_S, "a policy of the organization forbids this region"
)
_THROTTLED = Meaning(FailureKind.THROTTLED, Scope.REGION, BRIEF_TTL_S)
_BUSY = Meaning(FailureKind.THROTTLED, Scope.OFFER, BRIEF_TTL_S, "the resource is being changed; it passes")
_SERVER = Meaning(FailureKind.NETWORK, Scope.REGION, BRIEF_TTL_S, "Google itself has a fault; it passes")
_UNREACHED = Meaning(FailureKind.NETWORK, Scope.REGION, BRIEF_TTL_S, "no usable answer from Google")
_STALE = Meaning(FailureKind.INVALID, Scope.REGION, BRIEF_TTL_S, "the region's substrate has changed; it is made anew")
NO_ACCOUNT = Meaning(
    FailureKind.INVALID, Scope.REGION, BRIEF_TTL_S, "the machines' service account is gone; it is made anew"
)
_IMAGE = Meaning(
    FailureKind.INVALID, Scope.ACCOUNT, ACCOUNT_TTL_S, "see fallback.gcp.image, and disk_gb: the image must fit"
)
_REQUEST = Meaning(FailureKind.INVALID, Scope.OFFER, ACCOUNT_TTL_S)
SPENT = Meaning(
    FailureKind.NO_CAPACITY,
    Scope.OFFER,
    BRIEF_TTL_S,
    "an earlier try with this token left no machine; the next has another",
)

TABLE: Final[Mapping[str, Meaning]] = {
    # No capacity
    "ZONE_RESOURCE_POOL_EXHAUSTED": _CAPACITY,
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": _CAPACITY,
    "RESOURCE_POOL_EXHAUSTED": _CAPACITY,
    "RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": _CAPACITY,
    "STOCKOUT": _CAPACITY,
    "insufficientCapacity": _CAPACITY,
    "VM_MIN_COUNT_NOT_REACHED": _CAPACITY,
    "UNSUPPORTED_OPERATION": _PREEMPTED,  # seen when a spot machine is taken away while it is made
    "PREEMPTED": _PREEMPTED,
    "RESERVATION_CAPACITY_EXCEEDED": _RESERVED,
    "RESERVATION_NOT_READY": _RESERVED,
    "RESERVATION_NOT_FOUND": _RESERVED,
    "IP_SPACE_EXHAUSTED": _SUBNET_FULL,
    "IP_SPACE_EXHAUSTED_WITH_DETAILS": _SUBNET_FULL,
    # Quota: the metric, which the message or the details name, decides how far
    "QUOTA_EXCEEDED": _QUOTA,
    "quotaExceeded": _QUOTA,
    "LIMIT_EXCEEDED": _QUOTA,
    "type.googleapis.com/google.rpc.QuotaFailure": _QUOTA,
    # Not allowed
    "PERMISSIONS_ERROR": _DENIED,
    "PERMISSION_DENIED": _DENIED,
    "IAM_PERMISSION_DENIED": _DENIED,
    "forbidden": _DENIED,
    "insufficientPermissions": _SCOPES,
    "ACCESS_TOKEN_SCOPE_INSUFFICIENT": _SCOPES,
    "authError": _CREDENTIALS,
    "UNAUTHENTICATED": _CREDENTIALS,
    "CREDENTIALS_MISSING": _CREDENTIALS,
    "ACCESS_TOKEN_EXPIRED": _CREDENTIALS,
    "ACCESS_TOKEN_TYPE_UNSUPPORTED": _CREDENTIALS,
    "ACCOUNT_STATE_INVALID": _CREDENTIALS,
    "SERVICE_ACCOUNT_ACCESS_DENIED": _ACT_AS,
    "accessNotConfigured": _DISABLED,
    "SERVICE_DISABLED": _DISABLED,
    "API_DISABLED": _DISABLED,
    "BILLING_DISABLED": _BILLING,
    "UREQ_PROJECT_BILLING_NOT_FOUND": _BILLING,
    "PROJECT_NOT_FOUND": _PROJECT,
    "USER_PROJECT_DENIED": _PROJECT,
    "CONSUMER_INVALID": _PROJECT,
    "CONSUMER_SUSPENDED": _PROJECT,
    "ORG_RESTRICTION_VIOLATION": _POLICY,
    "LOCATION_POLICY_VIOLATED": _LOCATION,
    # Later
    "rateLimitExceeded": _THROTTLED,
    "userRateLimitExceeded": _THROTTLED,
    "RATE_LIMIT_EXCEEDED": _THROTTLED,
    "RESOURCE_OPERATION_RATE_EXCEEDED": _BUSY,
    "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED": _THROTTLED,
    "resourceNotReady": _BUSY,
    "RESOURCE_NOT_READY": _BUSY,
    "resourceInUseByAnotherResource": _BUSY,
    "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE": _BUSY,
    "backendError": _SERVER,
    "internalError": _SERVER,
    "INTERNAL_ERROR": _SERVER,
    "INTERNAL": _SERVER,
    "serviceUnavailable": _SERVER,
    "SERVICE_UNAVAILABLE": _SERVER,
    "SERVICE_UNAVAILABLE_FOR_LOCATION": _SERVER,
    "UNAVAILABLE": _SERVER,
    "DEADLINE_EXCEEDED": _SERVER,
    NO_REASON: _UNREACHED,
    # Wrong; most say what only in their sentence (see _SENTENCES)
    "NETWORK_NOT_FOUND": _STALE,
    "VPC_NOT_FOUND": _STALE,
    "SUBNET_NOT_FOUND": _STALE,
    "SUBNET_NOT_FOUND_FOR_VPC": _STALE,
    "RESOURCE_NOT_FOUND": _STALE,
    "NOT_FOUND": _STALE,
    "notFound": _STALE,
    "SERVICE_ACCOUNT_NOT_FOUND": NO_ACCOUNT,
    "invalid": _REQUEST,
    "badRequest": _REQUEST,
    "required": _REQUEST,
    "unsupportedOperation": _REQUEST,
    "INVALID_FIELD_VALUE": _REQUEST,
    "INVALID_USAGE": _REQUEST,
    "INVALID_ARGUMENT": _REQUEST,
    "MISSING_REQUIRED_FIELD": _REQUEST,
    "FIELD_SIZE_TOO_LARGE": _REQUEST,
    "conditionNotMet": _REQUEST,
    "CONDITION_NOT_MET": _REQUEST,
    # The name: who has it is looked up first; this is for a machine that is not the token's, or has ended
    "alreadyExists": SPENT,
    "ALREADY_EXISTS": SPENT,
    "RESOURCE_ALREADY_EXISTS": SPENT,
}

_SENTENCES: Final[tuple[tuple[re.Pattern[str], Meaning], ...]] = tuple(
    (re.compile(pattern, re.IGNORECASE), meaning)
    for pattern, meaning in (
        (
            r"billing (is |has been )?(disabled|not enabled)|billing (to|must) be enabled|billing account .*not found",
            _BILLING,
        ),
        (r"has not been used in project|it is disabled\. enable it|api (is )?not enabled", _DISABLED),
        (r"does not have access to service account|iam\.serviceAccounts\.actAs", _ACT_AS),
        (r"service ?account.*(not found|does not exist|is deleted|is disabled)", NO_ACCOUNT),
        (
            r"required '[\w.]+' permission|permission '?[\w.]+'? (denied|is required)|caller does not have permission",
            _DENIED,
        ),
        (r"constraints/gcp\.resourceLocations|violates .*location", _LOCATION),
        (r"constraint constraints/|organization policy", _POLICY),
        (r"preempt", _PREEMPTED),
        (r"external ?ip resource pool|no (more )?external ip", _NO_ADDRESS),
        (r"ip space of .* is exhausted", _SUBNET_FULL),
        (r"reservations? .*(does not exist|do not exist|not have available|not ready)", _RESERVED),
        (r"sufficient capacity|enough resources available", _CAPACITY),
        (r"(failed to find project|'projects/[^/']+' was not found)", _PROJECT),
        (r"unknown zone|zones/[^/']+' was not found", _NO_ZONE),
        (r"unknown region|regions/[^/']+' was not found", _NO_REGION),
        (r"disk size cannot be smaller|/images/|sourceImage", _IMAGE),
        (r"subnetworks?/.*not found|networks?/.*not found|networkInterfaces\[", _STALE),
        (r"provisioning ?model", _NOT_ON_SPOT),
        (r"machine ?types?\b|acceleratorTypes?\b|accelerators?\b|number of gpus", _NOT_OFFERED),
        (r"not compatible for creating|network ?profile", _NOT_OFFERED),
        (r"request ?_?id\b", SPENT),
    )
)
"""For codes that say nothing: ``invalid``, ``forbidden``, and those that nobody has written down."""
_TOLD_BY_SENTENCE: Final = frozenset(
    {
        *(code for code, meaning in TABLE.items() if meaning in (_REQUEST, _DENIED)),
        *("RESOURCE_NOT_FOUND", "NOT_FOUND", "notFound", "RESOURCE_POOL_EXHAUSTED", "UNSUPPORTED_OPERATION"),
    }
)

_STATUS: Final[Mapping[int, Meaning]] = {401: _CREDENTIALS, 403: _DENIED, 408: _SERVER, 412: _REQUEST, 429: _THROTTLED}
_QUOTA_NAME = re.compile(r"[Qq]uota '(?:[a-z]+\.googleapis\.com/)?(\w+)' exceeded")
_PERMISSION = re.compile(r"(?:Required '|[Pp]ermission '?)([a-z][\w]*(?:\.\w+)+)'?(?: permission)?(?: for '([^']+)')?")
_LINK = re.compile(r"https://console\.\S+?(?=[\s,]|\.?$|\. )")
_NO_ANSWER: Final = re.compile(
    r"Timeout|Connection|Transport|ChunkedEncoding|RetryError|SSL|Proxy|IncompleteRead|JSONDecode|ParseError|ContentDecoding"
)
_NO_CREDENTIALS: Final = frozenset(
    {"DefaultCredentialsError", "RefreshError", "ReauthFailError", "MutualTLSChannelError", "UserAccessTokenError"}
)
_REACH: Final = {scope: reach for reach, scope in enumerate(Scope)}
_TERRAFORM: Final = re.compile(r"Error (\d{3}): (.+?)(?:, ([a-z][A-Za-z]+))?(?:\s*$|\s+(?:with|on) )", re.DOTALL)
_CODE_WORD: Final = re.compile(r"\b([A-Z]+(?:_[A-Z]+)+)\b")


def failure_of(problems: Sequence[Problem], *, project: str = "") -> Failure:
    """Type an answer. Of several errors the one with the widest scope counts, before unknown ones; others are named."""
    typed = [(problem, meaning_of(problem)) for problem in problems] or [
        (Problem(("UNKNOWN",), "no reason given"), None)
    ]
    problem, meaning = max(typed, key=_weight)
    elsewhere = dict.fromkeys(zone for one in problems for zone in zones_with_room(one))
    text = _told(problem, meaning)
    others = [one.code for one, _ in typed if one is not problem]
    if others:
        text = f"{text} (with {', '.join(dict.fromkeys(others))})"
    if meaning is None:
        advice = "not a code that we know; please report it"
        return Failure(FailureKind.UNKNOWN, Scope.OFFER, problem.code, text, advice, UNKNOWN_TTL_S, tuple(elsewhere))
    advice = _advice(problem, meaning, project)
    if meaning is _CAPACITY and elsewhere:
        advice = f"Google names room in {', '.join(elsewhere)}"
    return Failure(meaning.kind, meaning.scope, problem.code, text, advice, meaning.ttl_s, tuple(elsewhere))


def failure_in(text: str, *, project: str = "") -> Failure | None:
    """Type what Terraform says of a refusal by Google; None where it says something else."""
    found = _TERRAFORM.search(text)
    if found is not None:
        codes = (found.group(3),) if found.group(3) else ()
        problem = Problem(codes, one_line(found.group(2)), int(found.group(1)))
    else:
        codes = tuple(word for word in _CODE_WORD.findall(text) if word in TABLE)
        problem = Problem(codes or (("QUOTA_EXCEEDED",) if _QUOTA_NAME.search(text) else ()), one_line(text))
    if not problem.codes and not problem.status:
        return None
    failure = failure_of([problem], project=project)
    return None if failure.kind is FailureKind.UNKNOWN else failure


def meaning_of(problem: Problem) -> Meaning | None:
    """Return what one error means; None: nobody has written it down."""
    if problem.status == 401:
        return _CREDENTIALS
    known = next((code for code in problem.codes if code in TABLE), "")
    if known and TABLE[known] is _QUOTA:
        return _quota(problem)
    if known and known not in _TOLD_BY_SENTENCE:
        return TABLE[known]
    told = next((meaning for pattern, meaning in _SENTENCES if pattern.search(problem.message)), None)
    if told is not None:
        return told
    if known:
        return TABLE[known]
    if problem.status:
        return _SERVER if problem.status >= 500 else _STATUS.get(problem.status)
    return _local(problem.code)


def zones_with_room(problem: Problem) -> tuple[str, ...]:
    """Return the zones that Google itself names as having room for this machine."""
    return tuple(zone for zone in re.split(r"[,\s]+", problem.details.get("zonesAvailable", "")) if zone)


def quota_link(metric: str, project: str) -> str:
    """Return the console's page of a quota, where more is asked for."""
    about = f"service=compute.googleapis.com&metric=compute.googleapis.com/{metric.lower()}" if metric else ""
    query = "&".join(part for part in (about, f"project={project}" if project else "") if part)
    return f"{CONSOLE}/iam-admin/quotas" + (f"?{query}" if query else "")


def quota_scope(metric: str) -> Scope:
    """Return how far a quota reaches, by its name."""
    if metric.endswith("_ALL_REGIONS"):
        return Scope.ACCOUNT
    if "GPU" in metric:
        return Scope.FAMILY
    return Scope.MARKET if metric.endswith("CPUS") else Scope.REGION


def missing_permission(problem: Problem) -> str:
    """Return the sentence that names the missing permission, or Google's own."""
    found = _PERMISSION.search(problem.message)
    permission = problem.details.get("permission") or (found.group(1) if found else "")
    if not permission:
        return problem.message
    where = found.group(2) if found else None
    return f"the permission {permission} is missing" + (f" on {where}" if where else "")


def _weight(typed: tuple[Problem, Meaning | None]) -> int:
    meaning = typed[1]
    return -1 if meaning is None else _REACH[meaning.scope]


def _quota(problem: Problem) -> Meaning:
    metric = _metric(problem)
    if metric.endswith("_ALL_REGIONS") or "globally" in problem.message:
        return Meaning(_QUOTA.kind, Scope.ACCOUNT, QUOTA_TTL_S)
    if "in zone" in problem.message:
        return Meaning(_QUOTA.kind, Scope.ZONE, QUOTA_TTL_S)
    return Meaning(_QUOTA.kind, quota_scope(metric), QUOTA_TTL_S)


def _metric(problem: Problem) -> str:
    found = _QUOTA_NAME.search(problem.message)
    return (found.group(1) if found else problem.details.get("metricName", "").rpartition("/")[2]).upper()


def _told(problem: Problem, meaning: Meaning | None) -> str:
    return missing_permission(problem) if meaning is _DENIED else problem.message


def _advice(problem: Problem, meaning: Meaning, project: str) -> str:
    if meaning.kind is FailureKind.QUOTA:
        metric = _metric(problem)
        return f"ask for more {metric}".rstrip() + f": {quota_link(metric, project)}"
    if meaning in (_DISABLED, _BILLING):
        found = _LINK.search(problem.message)
        link = problem.details.get("activationUrl") or problem.details.get("link") or (found.group(0) if found else "")
        return f"{meaning.advice.partition(':')[0]}: {link}" if link else meaning.advice
    return meaning.advice


def _local(name: str) -> Meaning | None:
    """Type an error that never came from Google, by its class."""
    if name in _NO_CREDENTIALS:
        return _CREDENTIALS
    return _UNREACHED if _NO_ANSWER.search(name) else None
