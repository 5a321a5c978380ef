"""EC2's error codes, in one table: what kind of failure, how far it reaches, how long it is left alone, what to do.

Sources: the API's list of error codes, Karpenter's eight codes for "cannot be had now", and answers seen through
Terraform. A code that is not here is ``unknown``: it blocks one offer for a short time, is counted and shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from provisioner.errors import CloudError, Unauthorized, Unreachable
from provisioner.model import Failure, FailureKind, Scope

CAPACITY_TTL_S: Final = 180.0
"""Karpenter's value: capacity comes and goes within minutes, and asking more often is answered with throttling."""
QUOTA_TTL_S: Final = 1800.0
"""A raised quota takes effect within minutes; used quota is free again when a machine ends."""
NOT_OFFERED_TTL_S: Final = 24 * 3600.0
"""What a zone offers changes by the month."""
ACCOUNT_TTL_S: Final = 600.0
"""Somebody has to change a policy or a key; look again soon after."""
BRIEF_TTL_S: Final = 60.0
UNKNOWN_TTL_S: Final = 180.0


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a code means."""

    kind: FailureKind
    scope: Scope
    ttl_s: float
    advice: str = ""


_CAPACITY = Meaning(FailureKind.NO_CAPACITY, Scope.OFFER, CAPACITY_TTL_S)
_RESERVED = Meaning(FailureKind.NO_CAPACITY, Scope.OFFER, CAPACITY_TTL_S, "the reservation has no free machine")
_ON_DEMAND_QUOTA = Meaning(
    FailureKind.QUOTA,
    Scope.FAMILY,
    QUOTA_TTL_S,
    "ask for more at Service Quotas, service ec2: L-DB2E81BA (G and VT, on demand) or L-417A185B (P, on demand)",
)
_SPOT_QUOTA = Meaning(
    FailureKind.QUOTA,
    Scope.FAMILY,
    QUOTA_TTL_S,
    "ask for more at Service Quotas, service ec2: L-3819A6DF (G and VT, spot) or L-7212CCBC (P, spot)",
)
_FLEET_QUOTA = Meaning(
    FailureKind.QUOTA, Scope.MARKET, QUOTA_TTL_S, "the account's spot requests in this region are used up"
)
_OTHER_QUOTA = Meaning(
    FailureKind.QUOTA, Scope.REGION, QUOTA_TTL_S, "a limit of this account in this region is used up"
)
_NOT_OFFERED = Meaning(FailureKind.NOT_OFFERED, Scope.TYPE, NOT_OFFERED_TTL_S, "AWS does not offer this type here")
_NOT_ON_SPOT = Meaning(
    FailureKind.NOT_OFFERED, Scope.OFFER, NOT_OFFERED_TTL_S, "AWS does not offer this type as spot here"
)
_NO_ZONE = Meaning(FailureKind.NOT_OFFERED, Scope.ZONE, NOT_OFFERED_TTL_S, "this account cannot use this zone")
_DENIED = Meaning(FailureKind.UNAUTHORIZED, Scope.ACCOUNT, ACCOUNT_TTL_S, "add the permission, or use another profile")
_CREDENTIALS = Meaning(FailureKind.UNAUTHORIZED, Scope.ACCOUNT, ACCOUNT_TTL_S, "renew or correct the AWS credentials")
_ACCOUNT = Meaning(FailureKind.UNAUTHORIZED, Scope.ACCOUNT, ACCOUNT_TTL_S, "AWS has not released this account for it")
_OPT_IN = Meaning(
    FailureKind.UNAUTHORIZED, Scope.REGION, ACCOUNT_TTL_S, "enable the region, or accept the image's terms"
)
_SPOT_ROLE = Meaning(
    FailureKind.UNAUTHORIZED,
    Scope.MARKET,
    ACCOUNT_TTL_S,
    "once per account: aws iam create-service-linked-role --aws-service-name spot.amazonaws.com",
)
_THROTTLED = Meaning(FailureKind.THROTTLED, Scope.REGION, BRIEF_TTL_S)
_SERVER = Meaning(FailureKind.NETWORK, Scope.REGION, BRIEF_TTL_S, "AWS itself has a fault; it passes")
_STALE = Meaning(FailureKind.INVALID, Scope.REGION, BRIEF_TTL_S, "the region's substrate has changed; it is made anew")
_IMAGE = Meaning(FailureKind.INVALID, Scope.REGION, ACCOUNT_TTL_S, "set fallback.aws.ami to an image of this region")
_NETWORK_SETUP = Meaning(FailureKind.INVALID, Scope.REGION, ACCOUNT_TTL_S, "set fallback.aws.vpc: own")
_DISK = Meaning(FailureKind.INVALID, Scope.REGION, ACCOUNT_TTL_S, "see fallback.aws.disk_gb and the default KMS key")
_REQUEST = Meaning(FailureKind.INVALID, Scope.OFFER, ACCOUNT_TTL_S)
_SPENT = Meaning(
    FailureKind.NO_CAPACITY,
    Scope.OFFER,
    BRIEF_TTL_S,
    "an earlier try with this token left no machine; the next has another",
)

TABLE: Final[Mapping[str, Meaning]] = {
    # No capacity
    "InsufficientInstanceCapacity": _CAPACITY,
    "InsufficientCapacity": _CAPACITY,
    "InsufficientHostCapacity": _CAPACITY,
    "InsufficientCapacityOnHost": _CAPACITY,
    "UnfulfillableCapacity": _CAPACITY,
    "InsufficientReservedInstanceCapacity": _RESERVED,
    "InsufficientReservedInstancesCapacity": _RESERVED,
    "ReservationCapacityExceeded": _RESERVED,
    "InsufficientFreeAddressesInSubnet": Meaning(
        FailureKind.NO_CAPACITY, Scope.ZONE, CAPACITY_TTL_S, "the zone's subnet has no free address"
    ),
    "InsufficientVolumeCapacity": Meaning(
        FailureKind.NO_CAPACITY, Scope.ZONE, CAPACITY_TTL_S, "the zone has no room for the disk"
    ),
    # Price
    "SpotMaxPriceTooLow": Meaning(
        FailureKind.PRICE_TOO_LOW, Scope.OFFER, 600.0, "raise fallback.aws.max_price, or wait for the price to fall"
    ),
    # Quota
    "VcpuLimitExceeded": _ON_DEMAND_QUOTA,
    "InstanceLimitExceeded": _ON_DEMAND_QUOTA,
    "MaxSpotInstanceCountExceeded": _SPOT_QUOTA,
    "MaxSpotFleetRequestCountExceeded": _FLEET_QUOTA,
    "MaxFleetCountExceeded": _OTHER_QUOTA,
    "VolumeLimitExceeded": _OTHER_QUOTA,
    "MaxIOPSLimitExceeded": _OTHER_QUOTA,
    "MaxStorageLimitExceeded": _OTHER_QUOTA,
    "NetworkInterfaceLimitExceeded": _OTHER_QUOTA,
    "ResourceLimitExceeded": _OTHER_QUOTA,
    "VpcLimitExceeded": _OTHER_QUOTA,
    "InternetGatewayLimitExceeded": _OTHER_QUOTA,
    # Not offered
    "Unsupported": _NOT_OFFERED,
    "UnsupportedOperation": Meaning(
        FailureKind.NOT_OFFERED, Scope.OFFER, NOT_OFFERED_TTL_S, "image, type and market do not go together"
    ),
    "InvalidInstanceType": _NOT_OFFERED,
    "InvalidAvailabilityZone": _NO_ZONE,
    # Not allowed
    "UnauthorizedOperation": _DENIED,
    "AccessDenied": _DENIED,
    "AccessDeniedException": _DENIED,
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": _SPOT_ROLE,
    "AuthFailure": _CREDENTIALS,
    "InvalidClientTokenId": _CREDENTIALS,
    "UnrecognizedClientException": _CREDENTIALS,
    "SignatureDoesNotMatch": _CREDENTIALS,
    "IncompleteSignature": _CREDENTIALS,
    "MissingAuthenticationToken": _CREDENTIALS,
    "ExpiredToken": _CREDENTIALS,
    "ExpiredTokenException": _CREDENTIALS,
    "RequestExpired": Meaning(
        FailureKind.UNAUTHORIZED,
        Scope.ACCOUNT,
        ACCOUNT_TTL_S,
        "renew the credentials, and look at this machine's clock",
    ),
    "InvalidAccessKeyId": _CREDENTIALS,
    "OptInRequired": _OPT_IN,
    "PendingVerification": _ACCOUNT,
    "AccountPendingVerification": _ACCOUNT,
    "AccountDisabled": _ACCOUNT,
    "Blocked": _ACCOUNT,
    # Later
    "RequestLimitExceeded": _THROTTLED,
    "Throttling": _THROTTLED,
    "ThrottlingException": _THROTTLED,
    "EC2ThrottledException": _THROTTLED,
    "RequestThrottled": _THROTTLED,
    "RequestThrottledException": _THROTTLED,
    "TooManyRequestsException": _THROTTLED,
    "ConcurrentTagAccess": _THROTTLED,
    "InternalError": _SERVER,
    "InternalFailure": _SERVER,
    "InternalServerError": _SERVER,
    "ServerInternal": _SERVER,
    "ServiceUnavailable": _SERVER,
    "Unavailable": _SERVER,
    "RequestTimeout": _SERVER,
    # Wrong
    "InvalidLaunchTemplateId.NotFound": _STALE,
    "InvalidLaunchTemplateId.VersionNotFound": _STALE,
    "InvalidLaunchTemplateName.NotFoundException": _STALE,
    "InvalidLaunchTemplateVersion.NotFound": _STALE,
    "InvalidSubnetID.NotFound": _STALE,
    "InvalidVpcID.NotFound": _STALE,
    "InvalidSecurityGroupID.NotFound": _STALE,
    "InvalidGroup.NotFound": _STALE,
    "InvalidAMIID.NotFound": _IMAGE,
    "InvalidAMIID.Malformed": _IMAGE,
    "InvalidAMIID.Unavailable": _IMAGE,
    "InvalidSnapshot.NotFound": _IMAGE,
    "VPCIdNotSpecified": _NETWORK_SETUP,
    "DefaultVpcDoesNotExist": _NETWORK_SETUP,
    "MissingInput": _NETWORK_SETUP,
    "InvalidBlockDeviceMapping": _DISK,
    "EncryptedVolumesNotSupported": _DISK,
    "InvalidParameter": _REQUEST,
    "InvalidParameterValue": _REQUEST,
    "InvalidParameterCombination": _REQUEST,
    "InvalidInput": _REQUEST,
    "InvalidRequest": _REQUEST,
    "InvalidUserData.Malformed": _REQUEST,
    "InvalidKeyPair.NotFound": _REQUEST,
    "InvalidTagKey.Malformed": _REQUEST,
    "MissingParameter": _REQUEST,
    "UnknownParameter": _REQUEST,
    "ValidationError": _REQUEST,
    # Client tokens: what they made is looked up first; this is for a token that made nothing, or nothing that lasts
    "IdempotentParameterMismatch": _SPENT,
    "IdempotentInstanceTerminated": _SPENT,
}

STALE: Final = frozenset(code for code, meaning in TABLE.items() if meaning is _STALE)
"""Codes that say that the substrate is not what we noted."""
SPENT: Final = frozenset({"IdempotentParameterMismatch", "IdempotentInstanceTerminated"})
"""Codes about the client token itself."""

_NEVER_RAN: Final[Mapping[str, Meaning]] = {
    "Server.InsufficientInstanceCapacity": _CAPACITY,
    "Server.InternalError": Meaning(FailureKind.NO_CAPACITY, Scope.OFFER, CAPACITY_TTL_S, "the host failed at launch"),
    "Client.InternalError": _DISK,
    "Client.InvalidSnapshot.NotFound": _IMAGE,
    "Client.VolumeLimitExceeded": _OTHER_QUOTA,
}
"""State reasons that AWS gives only to machines that ended at launch: they never ran."""

_PERMISSION = re.compile(r"not authorized to perform:? ([a-zA-Z0-9-]+:[A-Za-z]+)(?: on resource:? (\S+))?")
_ENCODED = re.compile(r"\s*Encoded authorization failure message:.*", re.DOTALL)
_NOT_YET = re.compile(r"iamInstanceProfile|IAM Instance Profile", re.IGNORECASE)
_WRONG_TYPE = re.compile(r"InstanceType|instance type", re.IGNORECASE)
_WRONG_ZONE = re.compile(r"availability zone", re.IGNORECASE)
_SPOT = re.compile(r"\bspot\b", re.IGNORECASE)
_SIDE = re.compile(r"^(Server|Client)\.")
_CODE_WORD = re.compile(r"\b([A-Z][A-Za-z]+(?:\.[A-Z][A-Za-z]+)?): ")
_LONGEST = 300


def code_and_message(error: Exception) -> tuple[str, str]:
    """Return AWS's code and message of a botocore ClientError; of anything else its class and text."""
    response: Mapping[str, Any] = getattr(error, "response", None) or {}
    details = response.get("Error") or {}
    code = str(details.get("Code") or type(error).__name__)
    return code, _one_line(str(details.get("Message") or error))


def failure_of(error: Exception, operation: str) -> Failure:
    """Type an error of a call. ``operation`` is the API operation, e.g. ``RunInstances``."""
    code, text = code_and_message(error)
    if not isinstance(getattr(error, "response", None), Mapping):  # botocore's own errors may have a response of None
        return _local_failure(code, text)
    meaning = _by_text(code, text) or TABLE.get(code) or TABLE.get(_SIDE.sub("", code))
    if meaning is None:
        return Failure(
            FailureKind.UNKNOWN, Scope.OFFER, code, text, "not a code that we know; please report it", UNKNOWN_TTL_S
        )
    if meaning is _DENIED:
        text = missing_permission(text, operation)
    return Failure(meaning.kind, meaning.scope, code, text, meaning.advice, meaning.ttl_s)


def failure_of_state(code: str, text: str) -> Failure | None:
    """Type the reason of a machine that ended before it ran; None if the reason is an ordinary end."""
    meaning = _NEVER_RAN.get(code)
    return None if meaning is None else Failure(meaning.kind, meaning.scope, code, text, meaning.advice, meaning.ttl_s)


def missing_permission(text: str, operation: str) -> str:
    """Return the sentence that names the missing permission, without AWS's encoded blob."""
    found = _PERMISSION.search(text)
    if found is None:
        guess = f", probably ec2:{operation}" if operation else ""
        return f"a permission is missing{guess} ({_ENCODED.sub('', text) or 'no more is said'})"
    where = f" on {found.group(2)}" if found.group(2) else ""
    return f"the permission {found.group(1)} is missing{where}"


def profile_not_yet_known(error: Exception) -> bool:
    """Say whether EC2 has not heard yet of an instance profile that IAM made a moment ago."""
    code, text = code_and_message(error)
    return code == "InvalidParameterValue" and _NOT_YET.search(text) is not None


def error_of(failure: Failure) -> CloudError:
    """Return the error for a failure that stops a call which has no failure in its answer."""
    message = f"AWS: {failure.code}: {failure.message}"
    kind = CloudError
    if failure.kind is FailureKind.UNAUTHORIZED:
        kind = Unauthorized
    elif failure.kind in {FailureKind.NETWORK, FailureKind.THROTTLED}:
        kind = Unreachable
    return with_failure(kind(message, hint=failure.advice), failure)


def with_failure(error: CloudError, failure: Failure) -> CloudError:
    """Let an error carry its failure, as ``controller.refusals.as_failure`` reads it."""
    carrier: Any = error
    carrier.failure = failure
    return error


def failure_in(text: str) -> Failure | None:
    """Type what Terraform says of a refusal by AWS: by the code word before a colon; the sentences change."""
    for word in _CODE_WORD.findall(text):
        meaning = TABLE.get(word)
        if meaning is not None:
            said = missing_permission(_one_line(text), "") if meaning is _DENIED else _one_line(text)
            return Failure(meaning.kind, meaning.scope, word, said, meaning.advice, meaning.ttl_s)
    return None


def _by_text(code: str, text: str) -> Meaning | None:
    """``InvalidParameterValue`` says what is wrong only in its sentence, ``Unsupported`` what is not supported."""
    if code == "Unsupported":
        return _NOT_ON_SPOT if _SPOT.search(text) else None
    if code != "InvalidParameterValue" or _NOT_YET.search(text):
        return None
    if _WRONG_ZONE.search(text):
        return _NO_ZONE
    return _NOT_OFFERED if _WRONG_TYPE.search(text) else None


_UNREACHED: Final = frozenset(
    {
        "ConnectTimeoutError",
        "ReadTimeoutError",
        "EndpointConnectionError",
        "ConnectionClosedError",
        "ConnectionError",
        "HTTPClientError",
        "IncompleteReadError",
        "ProxyConnectionError",
        "ResponseStreamingError",
        "ResponseParserError",
        "SSLError",
    }
)
_NO_CREDENTIALS: Final = frozenset(
    {
        "NoCredentialsError",
        "PartialCredentialsError",
        "CredentialRetrievalError",
        "ProfileNotFound",
        "ConfigNotFound",
        "UnauthorizedSSOTokenError",
        "SSOTokenLoadError",
        "TokenRetrievalError",
        "MetadataRetrievalError",
    }
)


def _local_failure(name: str, text: str) -> Failure:
    if name in _UNREACHED:
        return Failure(FailureKind.NETWORK, Scope.REGION, name, text, "no usable answer from AWS", BRIEF_TTL_S)
    if name in _NO_CREDENTIALS:
        advice = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        return Failure(FailureKind.UNAUTHORIZED, Scope.ACCOUNT, name, text, advice, ACCOUNT_TTL_S)
    return Failure(FailureKind.INVALID, Scope.REGION, name, text, "", ACCOUNT_TTL_S)


def _one_line(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _LONGEST else flat[: _LONGEST - 3] + "..."


def passing_failure(failure: Failure) -> bool:
    """Say whether a failure passes by itself within seconds: throttled, a fault of AWS, no answer."""
    return failure.kind in {FailureKind.THROTTLED, FailureKind.NETWORK}
