"""What a store's refusal means: the error that the operator sees, and whether asking again may help.

obstore's exceptions are read here and nowhere else. Only the status and the store's error code are kept of its text:
S3 puts the access key id into some of its answers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from obstore import exceptions as refused

from provisioner.errors import CloudError, StoreError, Unauthorized, Unreachable

_ACCOUNT_CODES = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "AccessDenied"}
_BUSY = {429, 503}
_PASSING = {408, 429, 500, 502, 503, 504}
_NO_BUCKET = "make the bucket first: terraform/modules/checkpoint_bucket, or your cloud's own tools"


@dataclass
class Refusal(Exception):
    """One try that failed. ``again``: another may succeed; ``busy``: the store asks for fewer requests."""

    error: CloudError
    status: int = 0
    again: bool = False
    busy: bool = False


def understood(error: Exception, what: str) -> Refusal:
    """Turn what obstore raised into ours; ``what`` begins the sentence, e.g. "cannot read s3://b/k"."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, FileNotFoundError):
        return Refusal(StoreError(f"{what}: no such bucket or directory", hint=_NO_BUCKET), 404)
    if isinstance(error, refused.BaseError):
        return _from_answer(error, what)
    reason = getattr(error, "strerror", None) or type(error).__name__  # a directory: disk full, permissions
    return Refusal(StoreError(f"{what}: {reason}"))


def _from_answer(error: refused.BaseError, what: str) -> Refusal:
    text = str(error)
    found = re.search(r"status code: (\d{3})", text) or re.search(r"status: (\d{3})", text)
    code = re.search(r"<Code>(\w+)</Code>", text)
    word = code.group(1) if code else ""
    status = int(found.group(1)) if found else 0
    denied = isinstance(error, refused.PermissionDeniedError | refused.UnauthenticatedError)
    if denied or status in {401, 403} or word in _ACCOUNT_CODES:
        hint = "check the key or role, and what it may do here"
        return Refusal(Unauthorized(f"{what}: {word or status or 'access denied'}", hint=hint), status)
    if "/latest/api/token" in text or "security-credentials" in text:
        hint = "set the key's environment variables"
        return Refusal(Unauthorized(f"{what}: no key was given and this machine has no role", hint=hint), status)
    if status in _PASSING or word == "RequestTimeout":
        answer = f"{what}: the store answers {status} {word}".rstrip()
        return Refusal(Unreachable(answer), status, again=True, busy=status in _BUSY)
    if "LOCATION" in text or status in {301, 307, 308}:
        hint = "set checkpoint.region"
        return Refusal(StoreError(f"{what}: the bucket is in another region", hint=hint), status)
    if status:
        return Refusal(StoreError(f"{what}: the store answers {status} {word}".rstrip()), status)
    if "HTTP error" in text or "timed out" in text:
        return Refusal(Unreachable(f"{what}: no answer"), again=True)
    if "No space left" in text:
        return Refusal(StoreError(f"{what}: the disk of the store is full"))
    return Refusal(StoreError(f"{what}: {type(error).__name__}"))
