"""What EC2 and Terraform say, typed by the table of ``failures``: by code, by sentence where the code says little."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from provisioner.clouds.aws.failures import DENIED, NEVER_RAN, NO_ZONE, NOT_OFFERED, NOT_ON_SPOT, TABLE
from provisioner.clouds.meaning import ACCOUNT_TTL_S, BRIEF_TTL_S, UNKNOWN, Meaning, one_line, passing, with_failure
from provisioner.errors import CloudError, Unauthorized, Unreachable
from provisioner.model import Failure, FailureKind, Scope

_PERMISSION = re.compile(r"not authorized to perform:? ([a-zA-Z0-9-]+:[A-Za-z]+)(?: on resource:? (\S+))?")
_ENCODED = re.compile(r"\s*Encoded authorization failure message:.*", re.DOTALL)
_NOT_YET = re.compile(r"iamInstanceProfile|IAM Instance Profile", re.IGNORECASE)
_WRONG_TYPE = re.compile(r"InstanceType|instance type", re.IGNORECASE)
_WRONG_ZONE = re.compile(r"availability zone", re.IGNORECASE)
_SPOT = re.compile(r"\bspot\b", re.IGNORECASE)
_SIDE = re.compile(r"^(Server|Client)\.")
_CODE_WORD = re.compile(r"\b([A-Z][A-Za-z]+(?:\.[A-Z][A-Za-z]+)?): ")


def code_and_message(error: Exception) -> tuple[str, str]:
    """Return AWS's code and message of a botocore ClientError; of anything else its class and text."""
    response: Mapping[str, Any] = getattr(error, "response", None) or {}
    details = response.get("Error") or {}
    code = str(details.get("Code") or type(error).__name__)
    return code, one_line(str(details.get("Message") or error))


def failure_of(error: Exception, operation: str) -> Failure:
    """Type an error of a call. ``operation`` is the API operation, e.g. ``RunInstances``."""
    code, text = code_and_message(error)
    if not isinstance(getattr(error, "response", None), Mapping):  # botocore's own errors may have a response of None
        return _local_failure(code, text)
    meaning = _by_text(code, text) or TABLE.get(code) or TABLE.get(_SIDE.sub("", code))
    if meaning is DENIED:
        text = missing_permission(text, operation)
    return (meaning or UNKNOWN).failure(code, text)


def failure_of_state(code: str, text: str) -> Failure | None:
    """Type the reason of a machine that ended before it ran; None if the reason is an ordinary end."""
    meaning = NEVER_RAN.get(code)
    return None if meaning is None else meaning.failure(code, text)


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
    elif passing(failure):
        kind = Unreachable
    return with_failure(kind(message, hint=failure.advice), failure)


def failure_in(text: str) -> Failure | None:
    """Type what Terraform says of a refusal by AWS: by the code word before a colon; the sentences change."""
    for word in _CODE_WORD.findall(text):
        meaning = TABLE.get(word)
        if meaning is not None:
            said = missing_permission(one_line(text), "") if meaning is DENIED else one_line(text)
            return meaning.failure(word, said)
    return None


def _by_text(code: str, text: str) -> Meaning | None:
    """``InvalidParameterValue`` says what is wrong only in its sentence, ``Unsupported`` what is not supported."""
    if code == "Unsupported":
        return NOT_ON_SPOT if _SPOT.search(text) else None
    if code != "InvalidParameterValue" or _NOT_YET.search(text):
        return None
    if _WRONG_ZONE.search(text):
        return NO_ZONE
    return NOT_OFFERED if _WRONG_TYPE.search(text) else None


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
