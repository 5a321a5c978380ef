"""The operator's own account: a profile, a session or a role by boto3; Google's of every kind by google-auth.

For the controller and for programs that people start, not for nodes: those two libraries are not on a bare machine.
Both are asked again before a key ends. obstore itself knows the plain kinds, and the roles of machines.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from provisioner.checkpoint.credentials import google_kind
from provisioner.errors import ConfigError, Unreachable

if TYPE_CHECKING:
    from botocore.credentials import Credentials as BotoCredentials
    from obstore.store import GCSCredential, S3Credential

    from provisioner.checkpoint.credentials import Renewed

_ASK_AGAIN = timedelta(minutes=10)
"""obstore asks again five minutes before this is over; botocore renews a session that has less than ten to live."""
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_PLAIN = {"service_account", "authorized_user"}


def own(uri: str, environ: Mapping[str, str]) -> Renewed | None:
    """Return what opens ``uri`` for the person or program that runs this; None: obstore finds it by itself.

    Makes no request. Raises ConfigError for credentials that are not there or cannot be read.
    """
    scheme = urlsplit(uri).scheme
    if scheme == "s3":
        return _profile(environ)
    if scheme == "gs":
        return _google(environ)
    return None


class _Profile:
    """A key that botocore has found, as obstore asks for it: every few minutes."""

    def __init__(self, profile: str | None) -> None:
        self._profile = profile
        self._lock = threading.Lock()
        self.found = self._look()

    def __call__(self) -> S3Credential:
        from botocore import exceptions
        from botocore.credentials import RefreshableCredentials

        with self._lock:
            try:
                if not isinstance(self.found, RefreshableCredentials):  # somebody may have written a new one
                    self.found = self._look() or self.found
                assert self.found is not None  # noqa: S101 - `own` hands out no other
                frozen = self.found.get_frozen_credentials()
            except (exceptions.HTTPClientError, exceptions.ConnectionError) as error:
                raise Unreachable(type(error).__name__) from None
        return {
            "access_key_id": frozen.access_key or "",
            "secret_access_key": frozen.secret_key or "",
            "token": frozen.token,
            "expires_at": datetime.now(UTC) + _ASK_AGAIN,
        }

    def _look(self) -> BotoCredentials | None:
        """Look in the profile's files. Machines' roles are left to obstore, which asks them only when it must."""
        from botocore.session import Session

        session = Session(profile=self._profile)
        places = session.get_component("credential_provider")
        for name in ("iam-role", "container-role"):
            places.remove(name)
        found: BotoCredentials | None = session.get_credentials()
        return found


def _profile(environ: Mapping[str, str]) -> Renewed | None:
    if environ.get("AWS_ACCESS_KEY_ID") and environ.get("AWS_SECRET_ACCESS_KEY"):
        return None
    try:
        from botocore.exceptions import BotoCoreError
    except ImportError:
        return None
    try:
        profile = _Profile(environ.get("AWS_PROFILE") or None)
    except BotoCoreError as error:
        what = f"the AWS profile cannot be read ({type(error).__name__})"
        raise ConfigError(what, hint="see AWS_PROFILE and ~/.aws; `aws configure list` shows what is found") from None
    return profile if profile.found is not None else None


class _Google:
    """A token by google-auth, as obstore asks for it."""

    def __init__(self, credentials: Any) -> None:
        self._credentials = credentials
        self._lock = threading.Lock()

    def __call__(self) -> GCSCredential:
        from google.auth.exceptions import TransportError
        from google.auth.transport.requests import Request

        with self._lock:
            try:
                if not self._credentials.valid or self._seconds_left() < _ASK_AGAIN.total_seconds():
                    self._credentials.refresh(Request())
            except TransportError:
                raise Unreachable("TransportError") from None
            return {"token": self._credentials.token, "expires_at": self._end()}

    def _end(self) -> datetime:
        expiry = self._credentials.expiry  # UTC, without saying so
        return expiry.replace(tzinfo=UTC) if expiry else datetime.now(UTC) + _ASK_AGAIN

    def _seconds_left(self) -> float:
        return float(self._end().timestamp() - time.time())


def _google(environ: Mapping[str, str]) -> Renewed | None:
    if environ.get("STORAGE_EMULATOR_HOST") or environ.get("GOOGLE_SERVICE_ACCOUNT_KEY"):
        return None
    if environ.get("GOOGLE_SERVICE_ACCOUNT") or environ.get("GOOGLE_SERVICE_ACCOUNT_PATH"):
        return None
    name = "GOOGLE_APPLICATION_CREDENTIALS"
    path = Path(environ.get(name) or _gcloud(environ))
    if not environ.get(name) and not path.exists():
        return None
    try:
        kind = google_kind(path.read_text("utf-8"), str(path))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ConfigError(f"{path}: {reason}", hint=f"{name} names the JSON file of an account") from None
    if kind in _PLAIN and environ.get(name):
        return None
    try:
        from google.auth.exceptions import GoogleAuthError
    except ImportError:
        what = f"{path}: credentials of the kind {kind} need google-auth"
        raise ConfigError(what, hint="pip install google-auth requests") from None
    try:
        return _Google(_read(json.loads(path.read_text("utf-8")), kind))
    except (GoogleAuthError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: credentials of the kind {kind} cannot be read ({type(error).__name__})") from None


def _read(info: dict[str, Any], kind: str) -> Any:
    """Make google-auth's object for a kind. Its own reader of files asks Google for a project, which costs requests."""
    from google.auth import aws, external_account_authorized_user, identity_pool, impersonated_credentials, pluggable
    from google.oauth2 import credentials, service_account

    scopes = [_SCOPE]
    if kind == "external_account":
        source = info.get("credential_source") or {}
        at_aws = info.get("subject_token_type") == "urn:ietf:params:aws:token-type:aws4_request"
        room: Any = aws if at_aws else pluggable if "executable" in source else identity_pool
        return room.Credentials.from_info(info, scopes=scopes)
    if kind == "external_account_authorized_user":
        return external_account_authorized_user.Credentials.from_info(info)  # type: ignore[no-untyped-call]
    if kind == "impersonated_service_account":
        found: Any = impersonated_credentials.Credentials
        return found.from_impersonated_service_account_info(info, scopes=scopes)
    if kind == "authorized_user":
        return credentials.Credentials.from_authorized_user_info(info, scopes)  # type: ignore[no-untyped-call]
    if kind == "service_account":
        account: Any = service_account.Credentials
        return account.from_service_account_info(info, scopes=scopes)
    raise ValueError(kind)


def _gcloud(environ: Mapping[str, str]) -> Path:
    """Return where gcloud keeps what ``gcloud auth application-default login`` has brought."""
    folder = environ.get("CLOUDSDK_CONFIG") or Path(environ.get("HOME") or "~").expanduser() / ".config" / "gcloud"
    return Path(folder) / "application_default_credentials.json"
