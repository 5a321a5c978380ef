"""What Terraform says with ``-json``: progress for people, changes for the plan check, errors for the caller."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from provisioner.errors import CloudError, StateLocked, TerraformError, Unauthorized, Unreachable

Event = dict[str, Any]

# Code words of the clouds in Terraform's sentences, longest first where one contains another. The sentences around
# them differ from provider version to provider version; the words do not.
CODES: Final = (
    "InsufficientInstanceCapacity",
    "InsufficientHostCapacity",
    "InsufficientReservedInstanceCapacity",
    "VcpuLimitExceeded",
    "MaxSpotInstanceCountExceeded",
    "InstanceLimitExceeded",
    "VpcLimitExceeded",
    "SecurityGroupLimitExceeded",
    "SpotMaxPriceTooLow",
    "UnfulfillableCapacity",
    "Unsupported",
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
    "UnauthorizedOperation",
    "AccessDenied",
    "AccessDeniedException",
    "AuthFailure",
    "ExpiredToken",
    "ExpiredTokenException",
    "RequestExpired",
    "InvalidClientTokenId",
    "UnrecognizedClientException",
    "SignatureDoesNotMatch",
    "OptInRequired",
    "EntityAlreadyExists",
    "LimitExceeded",
    "DependencyViolation",
    "ParameterNotFound",
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
    "ZONE_RESOURCE_POOL_EXHAUSTED",
    "QUOTA_EXCEEDED",
    "alreadyExists",
    "accessNotConfigured",
    "SERVICE_DISABLED",
    "PERMISSION_DENIED",
)
_CODE: Final = re.compile(rf"(?<![A-Za-z])({'|'.join(CODES)})(?![A-Za-z])")
_UNAUTHORIZED: Final = frozenset(
    {
        "UnauthorizedOperation",
        "AccessDenied",
        "AccessDeniedException",
        "AuthFailure",
        "ExpiredToken",
        "ExpiredTokenException",
        "RequestExpired",
        "InvalidClientTokenId",
        "UnrecognizedClientException",
        "SignatureDoesNotMatch",
        "OptInRequired",
        "accessNotConfigured",
        "SERVICE_DISABLED",
        "PERMISSION_DENIED",
    }
)
# Google says 403 to a quota too: only what speaks of permission is a matter of credentials.
_FORBIDDEN: Final = re.compile(r"googleapi: Error 401|googleapi: Error 403:.*(?:[Pp]ermission|, forbidden)")
_NO_CREDENTIALS: Final = re.compile(
    r"No valid credential sources found|failed to refresh cached credentials|could not find default credentials|"
    r"oauth2: .*(?:invalid_grant|invalid_client|cannot fetch token)"
)
_NETWORK: Final = re.compile(
    r"no such host|connection refused|connection reset|i/o timeout|network is unreachable|TLS handshake timeout|"
    r"request send failed|context deadline exceeded"
)
# Only of what init does: elsewhere clouds say so of a type that is sold out.
_ANOTHER_TRY: Final = re.compile(
    r"unexpected EOF|StatusCode: 50[0234]|googleapi: Error 50[0234]|SlowDown|Internal Server"
)
_LOCKED: Final = "Error acquiring the state lock"
_LINK_SECRET: Final = re.compile(r"(X-Amz-(?:Signature|Credential|Security-Token)=)[^&\s\"']+", re.IGNORECASE)
_LONGEST: Final = 400


def parse(line: str) -> Event | None:
    """Return the event in a line of ``-json`` output; None for anything else (a provider that panics prints text)."""
    if not line.startswith("{"):
        return None
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def compact(event: Mapping[str, Any]) -> Event | None:
    """Return what is worth showing of an event: ``kind``, ``address``, ``action``, ``seconds``; None for the rest."""
    kind = event.get("type")
    hook = event.get("hook") or {}
    if kind in {"apply_start", "apply_progress", "apply_complete", "apply_errored", "refresh_start"}:
        return {
            "kind": kind,
            "address": (hook.get("resource") or {}).get("addr", ""),
            "action": hook.get("action", "read"),
            "seconds": hook.get("elapsed_seconds", 0),
        }
    if kind == "planned_change":
        change = event.get("change") or {}
        address = (change.get("resource") or {}).get("addr", "")
        return {"kind": kind, "address": address, "action": change.get("action", ""), "seconds": 0}
    if kind == "change_summary":
        return {"kind": kind, **(event.get("changes") or {})}
    if kind == "diagnostic" and event.get("@level") == "error":
        diagnostic = event.get("diagnostic") or {}
        return {"kind": "error", "address": diagnostic.get("address", ""), "message": _sentence(diagnostic)}
    return None


def code_in(text: str) -> str:
    """Return the cloud's code word in a sentence of Terraform, or an empty string."""
    found = _CODE.search(text)
    return found.group(1) if found else ""


def locked(text: str) -> bool:
    """Say whether an error is that another run holds the stack's lock."""
    return _LOCKED in text


def failure(what: str, diagnostics: list[Mapping[str, Any]], stderr: str, returncode: int, hint: str) -> CloudError:
    """Return the error for a run that failed: the first diagnostic, else the last words on stderr, in one line."""
    if diagnostics:
        first = diagnostics[0]
        text = ": ".join(part for part in (first.get("address") or _place(first), _sentence(first)) if part)
    else:
        text = _last_words(stderr) or f"ended with status {returncode} and said nothing"
    message = f"{what}: {text}"
    if code_in(text) in _UNAUTHORIZED or _NO_CREDENTIALS.search(text) or _FORBIDDEN.search(text):
        return Unauthorized(message, hint=hint)
    if _NETWORK.search(text) or (not diagnostics and (_NETWORK.search(stderr) or _ANOTHER_TRY.search(stderr))):
        return Unreachable(message, hint=hint)
    if locked(text):
        hint = "another Terraform run works on this stack: wait for it, or end it; its lock ends with its process"
        return StateLocked(message, hint=hint)
    return TerraformError(message, hint=hint)


def _sentence(diagnostic: Mapping[str, Any]) -> str:
    summary = str(diagnostic.get("summary", ""))
    detail = str(diagnostic.get("detail", "")).strip()
    return one_line(f"{summary}: {detail}" if detail else summary)


def _place(diagnostic: Mapping[str, Any]) -> str:
    where = diagnostic.get("range") or {}
    line = (where.get("start") or {}).get("line")
    return f"{where['filename']}:{line}" if where.get("filename") and line else ""


def _last_words(stderr: str) -> str:
    """Return the first error in Terraform's boxed text, else the last line that says something."""
    lines = [line.strip("│╷╵ \t") for line in re.sub(r"\x1b\[[0-9;]*m", "", stderr).splitlines()]
    spoken = [line for line in lines if line]
    for index, line in enumerate(spoken):
        if line.startswith("Error: "):
            return one_line(" ".join([line.removeprefix("Error: "), *spoken[index + 1 : index + 4]]))
    return one_line(spoken[-1]) if spoken else ""


def one_line(text: str) -> str:
    """Return text as one line of at most 400 characters, without the secret parts of presigned links."""
    flat = " ".join(_LINK_SECRET.sub(r"\1...", text).split())
    return flat if len(flat) <= _LONGEST else flat[: _LONGEST - 3] + "..."
