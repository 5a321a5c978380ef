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
from collections.abc import Mapping
from typing import Final

from provisioner.clouds.gcp.answers import NO_REASON
from provisioner.clouds.meaning import (
    ACCOUNT_TTL_S,
    BRIEF_TTL_S,
    CAPACITY,
    CAPACITY_TTL_S,
    NOT_OFFERED_TTL_S,
    QUOTA_TTL_S,
    REQUEST,
    RESERVED,
    SPENT,
    STALE,
    THROTTLED,
    Meaning,
)
from provisioner.model import FailureKind, Scope

CONSOLE: Final = "https://console.cloud.google.com"

_PREEMPTED = Meaning(FailureKind.NO_CAPACITY, Scope.OFFER, CAPACITY_TTL_S, "it was taken away while it was made")
_NO_ADDRESS = Meaning(FailureKind.NO_CAPACITY, Scope.REGION, CAPACITY_TTL_S, "the region has no free address")
_SUBNET_FULL = Meaning(
    FailureKind.NO_CAPACITY, Scope.REGION, CAPACITY_TTL_S, "the subnet is full: set fallback.gcp.network: own"
)
QUOTA = Meaning(FailureKind.QUOTA, Scope.REGION, QUOTA_TTL_S, f"ask for more at {CONSOLE}/iam-admin/quotas")
_NOT_OFFERED = Meaning(
    FailureKind.NOT_OFFERED, Scope.TYPE, NOT_OFFERED_TTL_S, "Google does not offer this machine with these cards here"
)
_NOT_ON_SPOT = Meaning(
    FailureKind.NOT_OFFERED, Scope.OFFER, NOT_OFFERED_TTL_S, "Google does not offer this machine in this market here"
)
_NO_ZONE = Meaning(FailureKind.NOT_OFFERED, Scope.ZONE, NOT_OFFERED_TTL_S, "this project cannot use this zone")
_NO_REGION = Meaning(FailureKind.NOT_OFFERED, Scope.REGION, NOT_OFFERED_TTL_S, "this project cannot use this region")
DENIED = Meaning(FailureKind.UNAUTHORIZED, Scope.ACCOUNT, ACCOUNT_TTL_S, "grant it: docs/gcp.md lists what is needed")
_SCOPES = Meaning(
    FailureKind.UNAUTHORIZED, Scope.ACCOUNT, ACCOUNT_TTL_S, "use credentials with the scope cloud-platform"
)
CREDENTIALS = Meaning(
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
DISABLED = Meaning(
    FailureKind.UNAUTHORIZED,
    Scope.ACCOUNT,
    ACCOUNT_TTL_S,
    f"enable the API: {CONSOLE}/apis/library/compute.googleapis.com",
)
BILLING = Meaning(
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
_BUSY = Meaning(FailureKind.THROTTLED, Scope.OFFER, BRIEF_TTL_S, "the resource is being changed; it passes")
SERVER = Meaning(FailureKind.NETWORK, Scope.REGION, BRIEF_TTL_S, "Google itself has a fault; it passes")
UNREACHED = Meaning(FailureKind.NETWORK, Scope.REGION, BRIEF_TTL_S, "no usable answer from Google")
NO_ACCOUNT = Meaning(
    FailureKind.INVALID, Scope.REGION, BRIEF_TTL_S, "the machines' service account is gone; it is made anew"
)
NO_BUCKET = Meaning(
    FailureKind.INVALID, Scope.ACCOUNT, ACCOUNT_TTL_S, "make it (gcloud storage buckets create), or name another one"
)
_IMAGE = Meaning(
    FailureKind.INVALID, Scope.ACCOUNT, ACCOUNT_TTL_S, "see fallback.gcp.image, and disk_gb: the image must fit"
)
_NOTICE = Meaning(
    FailureKind.INVALID, Scope.MARKET, ACCOUNT_TTL_S, "leave out fallback.gcp.preemption_notice: it is a preview"
)

TABLE: Final[Mapping[str, Meaning]] = {
    # No capacity
    "ZONE_RESOURCE_POOL_EXHAUSTED": CAPACITY,
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": CAPACITY,
    "RESOURCE_POOL_EXHAUSTED": CAPACITY,
    "RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": CAPACITY,
    "STOCKOUT": CAPACITY,
    "insufficientCapacity": CAPACITY,
    "VM_MIN_COUNT_NOT_REACHED": CAPACITY,
    "UNSUPPORTED_OPERATION": _PREEMPTED,  # seen when a spot machine is taken away while it is made
    "PREEMPTED": _PREEMPTED,
    "RESERVATION_CAPACITY_EXCEEDED": RESERVED,
    "RESERVATION_NOT_READY": RESERVED,
    "RESERVATION_NOT_FOUND": RESERVED,
    "IP_SPACE_EXHAUSTED": _SUBNET_FULL,
    "IP_SPACE_EXHAUSTED_WITH_DETAILS": _SUBNET_FULL,
    # Quota: the metric, which the message or the details name, decides how far
    "QUOTA_EXCEEDED": QUOTA,
    "quotaExceeded": QUOTA,
    "LIMIT_EXCEEDED": QUOTA,
    "type.googleapis.com/google.rpc.QuotaFailure": QUOTA,
    # Not allowed
    "PERMISSIONS_ERROR": DENIED,
    "PERMISSION_DENIED": DENIED,
    "IAM_PERMISSION_DENIED": DENIED,
    "forbidden": DENIED,
    "insufficientPermissions": _SCOPES,
    "ACCESS_TOKEN_SCOPE_INSUFFICIENT": _SCOPES,
    "authError": CREDENTIALS,
    "UNAUTHENTICATED": CREDENTIALS,
    "CREDENTIALS_MISSING": CREDENTIALS,
    "ACCESS_TOKEN_EXPIRED": CREDENTIALS,
    "ACCESS_TOKEN_TYPE_UNSUPPORTED": CREDENTIALS,
    "ACCOUNT_STATE_INVALID": CREDENTIALS,
    "SERVICE_ACCOUNT_ACCESS_DENIED": _ACT_AS,
    "accessNotConfigured": DISABLED,
    "SERVICE_DISABLED": DISABLED,
    "API_DISABLED": DISABLED,
    "BILLING_DISABLED": BILLING,
    "UREQ_PROJECT_BILLING_NOT_FOUND": BILLING,
    "PROJECT_NOT_FOUND": _PROJECT,
    "USER_PROJECT_DENIED": _PROJECT,
    "CONSUMER_INVALID": _PROJECT,
    "CONSUMER_SUSPENDED": _PROJECT,
    "ORG_RESTRICTION_VIOLATION": _POLICY,
    "LOCATION_POLICY_VIOLATED": _LOCATION,
    # Later
    "rateLimitExceeded": THROTTLED,
    "userRateLimitExceeded": THROTTLED,
    "RATE_LIMIT_EXCEEDED": THROTTLED,
    "RESOURCE_OPERATION_RATE_EXCEEDED": _BUSY,
    "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED": THROTTLED,
    "resourceNotReady": _BUSY,
    "RESOURCE_NOT_READY": _BUSY,
    "resourceInUseByAnotherResource": _BUSY,
    "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE": _BUSY,
    "backendError": SERVER,
    "internalError": SERVER,
    "INTERNAL_ERROR": SERVER,
    "INTERNAL": SERVER,
    "serviceUnavailable": SERVER,
    "SERVICE_UNAVAILABLE": SERVER,
    "SERVICE_UNAVAILABLE_FOR_LOCATION": SERVER,
    "UNAVAILABLE": SERVER,
    "DEADLINE_EXCEEDED": SERVER,
    NO_REASON: UNREACHED,
    # Wrong; most say what only in their sentence (see SENTENCES)
    "NETWORK_NOT_FOUND": STALE,
    "VPC_NOT_FOUND": STALE,
    "SUBNET_NOT_FOUND": STALE,
    "SUBNET_NOT_FOUND_FOR_VPC": STALE,
    "RESOURCE_NOT_FOUND": STALE,
    "NOT_FOUND": STALE,
    "notFound": STALE,
    "SERVICE_ACCOUNT_NOT_FOUND": NO_ACCOUNT,
    "invalid": REQUEST,
    "badRequest": REQUEST,
    "required": REQUEST,
    "unsupportedOperation": REQUEST,
    "INVALID_FIELD_VALUE": REQUEST,
    "INVALID_USAGE": REQUEST,
    "INVALID_ARGUMENT": REQUEST,
    "MISSING_REQUIRED_FIELD": REQUEST,
    "FIELD_SIZE_TOO_LARGE": REQUEST,
    "conditionNotMet": REQUEST,
    "CONDITION_NOT_MET": REQUEST,
    # The name: who has it is looked up first; this is for a machine that is not the token's, or has ended
    "alreadyExists": SPENT,
    "ALREADY_EXISTS": SPENT,
    "RESOURCE_ALREADY_EXISTS": SPENT,
}

SENTENCES: Final[tuple[tuple[re.Pattern[str], Meaning], ...]] = tuple(
    (re.compile(pattern, re.IGNORECASE), meaning)
    for pattern, meaning in (
        (
            r"billing (is |has been )?(disabled|not enabled)|billing (to|must) be enabled|billing account .*not found",
            BILLING,
        ),
        (r"has not been used in project|it is disabled\. enable it|api (is )?not enabled", DISABLED),
        (r"does not have access to service account|iam\.serviceAccounts\.actAs", _ACT_AS),
        (r"service ?account.*(not found|does not exist|is deleted|is disabled)", NO_ACCOUNT),
        (
            r"required '[\w.]+' permission|permission '?[\w.]+'? (denied|is required)|caller does not have permission",
            DENIED,
        ),
        (r"constraints/gcp\.resourceLocations|violates .*location", _LOCATION),
        (r"constraint constraints/|organization policy", _POLICY),
        (r"preemption ?notice", _NOTICE),
        (r"preempt", _PREEMPTED),
        (r"external ?ip resource pool|no (more )?external ip", _NO_ADDRESS),
        (r"ip space of .* is exhausted", _SUBNET_FULL),
        (r"reservations? .*(does not exist|do not exist|not have available|not ready)", RESERVED),
        (r"sufficient capacity|enough resources available", CAPACITY),
        (r"(failed to find project|'projects/[^/']+' was not found)", _PROJECT),
        (r"unknown zone|zones/[^/']+' was not found", _NO_ZONE),
        (r"unknown region|regions/[^/']+' was not found", _NO_REGION),
        (r"bucket does not exist|\bb/[^/\s]+ was not found", NO_BUCKET),
        (r"disk size cannot be smaller|/images/|sourceImage", _IMAGE),
        (r"subnetworks?/.*not found|networks?/.*not found|networkInterfaces\[", STALE),
        (r"provisioning ?model", _NOT_ON_SPOT),
        (r"machine ?types?\b|acceleratorTypes?\b|accelerators?\b|number of gpus", _NOT_OFFERED),
        (r"not compatible for creating|network ?profile", _NOT_OFFERED),
        (r"request ?_?id\b", SPENT),
    )
)
"""For codes that say nothing: ``invalid``, ``forbidden``, and those that nobody has written down."""
TOLD_BY_SENTENCE: Final = frozenset(
    {
        *(code for code, meaning in TABLE.items() if meaning in (REQUEST, DENIED)),
        *("RESOURCE_NOT_FOUND", "NOT_FOUND", "notFound", "RESOURCE_POOL_EXHAUSTED", "UNSUPPORTED_OPERATION"),
    }
)

STATUS: Final[Mapping[int, Meaning]] = {401: CREDENTIALS, 403: DENIED, 408: SERVER, 412: REQUEST, 429: THROTTLED}
