"""What a store's refusal means: the error that the operator sees, and whether asking again may help.

obstore's exceptions are read here and nowhere else. Only the status and the store's error code are kept of its text:
S3 puts the access key id into some of its answers.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass

from obstore import exceptions as refused

from provisioner.errors import CloudError, StoreError, Unauthorized, Unreachable

_ACCOUNT_CODES = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "AccessDenied"}
_PATH_CODES = {"SecondLevelDomainForbidden", "PathStyleDomainForbidden", "InvalidPathAccess"}
_BUSY = {429, 503}
_PASSING = {408, 429, 500, 502, 503, 504}
_PASSING_CODES = {"RequestTimeout", "SlowDown", "InternalError", "ServiceUnavailable"}
_NO_BUCKET = "make the bucket first: terraform/modules/checkpoint_bucket, or your cloud's own tools"
_NO_KEY = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the variables that failover.yaml names for this store"
_NO_ACCOUNT = "set GOOGLE_APPLICATION_CREDENTIALS, or log in: gcloud auth application-default login"
_KEY = "check the key or role, and what it may do here"
_LINKS = "the account needs iam.serviceAccounts.signBlob to make start links; or give a service account's key file"

_ADDRESS = re.compile(r"Error performing \w+ (\S+) in ")
_KEY_PLACES = re.compile(
    r"/latest/api/token|security-credentials|/computeMetadata/|//169\.254\.170\.|//sts[.-]|//oauth2\.|//accounts\.google"
    r"|iamcredentials|^REDACTED$"  # obstore shows no address of a web identity's exchange
)
_PROVIDER = re.compile(r"External \w+ credential provider: (?:\w+\.)*(\w+)")
_INCOMPLETE = re.compile(
    r"non-partial response|Content-Range|Requested \d+\.\.|extract metadata|[Ii]nvalid list response|Content-Length"
)


@dataclass
class Refusal(Exception):
    """One try that failed.

    ``again``: another may succeed. ``busy``: the store asks for fewer requests. ``late``: it took too long.
    """

    error: CloudError
    status: int = 0
    again: bool = False
    busy: bool = False
    late: bool = False


def understood(error: BaseException, what: str, bucket_in_host: str = "") -> Refusal:
    """Turn what obstore raised into ours; ``what`` begins the sentence, e.g. "cannot read s3://b/k".

    ``bucket_in_host``: the endpoint to propose if the service refuses the bucket in the path.
    """
    if isinstance(error, Refusal):
        return error
    if isinstance(error, FileNotFoundError):
        return Refusal(StoreError(f"{what}: no such bucket or directory", hint=_NO_BUCKET), 404)
    if isinstance(error, refused.BaseError):
        text = str(error).split("\n\nDebug source", 1)[0]
        return _of_the_key(text, str(error), what) or _of_the_store(error, text, what, bucket_in_host)
    reason = getattr(error, "strerror", None) or type(error).__name__
    return Refusal(StoreError(f"{what}: {reason}"))


def _of_the_key(text: str, whole: str, what: str) -> Refusal | None:
    """Understand a refusal that came before the store was asked: from where the key is had."""
    if provider := _PROVIDER.search(text):
        if provider[1] == "NoKeyError":
            return Refusal(Unauthorized(f"{what}: no key was given", hint=_NO_KEY))
        if provider[1] == "Unreachable":
            return Refusal(Unreachable(f"{what}: no answer from where the key is renewed"), again=True)
        hint = "log in again, e.g. `aws sso login` or `gcloud auth application-default login`"
        return Refusal(Unauthorized(f"{what}: the key cannot be renewed ({provider[1]})", hint=hint))
    address = _ADDRESS.search(text)
    if address is None or not _KEY_PLACES.search(address[1]):
        return None
    status = _status(text)
    if status in _PASSING or (not status and "kind: Timeout" in whole and "Connect" not in whole):
        answer = f"answers {status}" if status else "does not answer"
        return Refusal(Unreachable(f"{what}: the service that gives the key {answer}"), again=True)
    if "signBlob" in address[1]:
        return Refusal(Unauthorized(f"{what}: no permission to sign", hint=_LINKS), status)
    if "/computeMetadata/" in address[1] and what.startswith("cannot sign"):  # where every account but a key file ends
        return Refusal(Unauthorized(f"{what}: this account makes no links", hint=_LINKS), status)
    if "/latest/" in address[1] or "/computeMetadata/" in address[1]:
        hint = _NO_KEY if "/latest/" in address[1] else _NO_ACCOUNT
        return Refusal(Unauthorized(f"{what}: no key was given and this machine has no role", hint=hint), status)
    if not status:
        return Refusal(Unreachable(f"{what}: no answer from the service that gives the key"), again=True)
    return Refusal(Unauthorized(f"{what}: the service that gives the key answers {status}", hint=_KEY), status)


def _of_the_store(error: refused.BaseError, text: str, what: str, bucket_in_host: str) -> Refusal:
    status = _status(text)
    code = re.search(r"<Code>(\w+)</Code>", text)
    word = code.group(1) if code else ""
    answer = f"{what}: the store answers {status} {word}".rstrip()
    if word in _PATH_CODES:
        where = f"set its endpoint to {bucket_in_host}" if bucket_in_host else "put the bucket into the endpoint's host"
        return Refusal(StoreError(f"{what}: the store wants the bucket in the host name", hint=where), status)
    denied = isinstance(error, refused.PermissionDeniedError | refused.UnauthenticatedError)
    if denied or status in {401, 403} or word in _ACCOUNT_CODES:
        hint = _KEY
        if bucket_in_host and not word:
            hint += f"; a service that refuses paths wants {bucket_in_host} as its endpoint"
        return Refusal(Unauthorized(f"{what}: {word or status or 'access denied'}", hint=hint), status)
    if status in _PASSING or word in _PASSING_CODES:
        return Refusal(Unreachable(answer), status, again=True, busy=status in _BUSY)
    if "LOCATION" in text or status in {301, 307, 308}:
        hint = "set checkpoint.region"
        return Refusal(StoreError(f"{what}: the bucket is in another region", hint=hint), status)
    if word == "NoSuchBucket":
        return Refusal(StoreError(f"{what}: no such bucket", hint=_NO_BUCKET), status)
    if status:
        return Refusal(StoreError(answer), status, again=status == 409)
    return _of_the_line(error, text, what)


def _of_the_line(error: refused.BaseError, text: str, what: str) -> Refusal:
    """Understand what came without a status: no answer, half an answer, or a directory's refusal."""
    if _INCOMPLETE.search(text):
        return Refusal(StoreError(f"{what}: the store's answer is not whole"), again=True)
    if "HTTP error" in text or "timed out" in text:
        return Refusal(Unreachable(f"{what}: no answer"), again=True, late="kind: Timeout" in str(error))
    if "Unable to rename file" in text and f"(os error {errno.ENOENT})" in text:  # a sweep took it for a dead one's
        return Refusal(StoreError(f"{what}: its unfinished file was removed"), again=True)
    if system := re.search(r"\(os error (\d+)\)", text):
        return Refusal(StoreError(f"{what}: {os.strerror(int(system[1]))}"))
    return Refusal(StoreError(f"{what}: {type(error).__name__}"))


def _status(text: str) -> int:
    found = re.search(r"status code: (\d{3})", text)
    return int(found[1]) if found else 0
