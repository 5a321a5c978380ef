"""What opens a store to a machine that has no role for it. No ``repr`` shows a value."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from provisioner.errors import ConfigError

if TYPE_CHECKING:
    from obstore.store import GCSCredential, S3Credential

    Renewed: TypeAlias = Callable[[], S3Credential | GCSCredential]
    """Gives a key with its end, and is asked again before that. Raises Unauthorized, Unreachable."""


class NoKeyError(Exception):
    """Raised where obstore asks for a key and there is none; ``refusals`` knows it by its name."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A key for the store: an S3 key, or the JSON of a Google service account. Its ``repr`` shows nothing."""

    access_key_id: str = field(default="", repr=False)
    secret_access_key: str = field(default="", repr=False)
    session_token: str | None = field(default=None, repr=False)
    service_account: str | None = field(default=None, repr=False)

    @classmethod
    def google(cls, text: str, where: str) -> Credentials:
        """Take the JSON of a service account's key; ``where`` names its source. Raises ConfigError for another."""
        kind = google_kind(text, where)
        if kind != "service_account":
            raise ConfigError(
                f"{where}: holds credentials of the kind {kind}, which no other machine can use",
                hint="make a key of a service account that reaches only the job's bucket",
            )
        return cls(service_account=text)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any] | None) -> Credentials | None:
        """Read what ``as_json`` wrote; None: the machine's own role. Raises KeyError, TypeError."""
        if not raw:
            return None
        if raw.get("service_account"):
            return cls(service_account=str(raw["service_account"]))
        return cls(str(raw["access_key_id"]), str(raw["secret_access_key"]), raw.get("session_token"))

    def as_json(self) -> dict[str, str | None]:
        """Return it for ``bootstrap.json``, which is a secret then."""
        if self.service_account is not None:
            return {"service_account": self.service_account}
        return {
            "access_key_id": self.access_key_id,
            "secret_access_key": self.secret_access_key,
            "session_token": self.session_token,
        }

    @property
    def secrets(self) -> list[str]:
        """Return every value that must not show in a log. A private key shows line by line, if it ever does."""
        found = [self.secret_access_key, self.session_token or ""]
        if self.service_account is not None:
            key = _private_key(self.service_account)
            found += [
                key,
                json.dumps(key).strip('"'),
                *(line.strip() for line in key.splitlines() if "---" not in line),
            ]
        return [value for value in found if value]


def google_kind(text: str, where: str) -> str:
    """Return the ``type`` of Google credentials in JSON: service_account, authorized_user, external_account, ..."""
    try:
        return str(json.loads(text)["type"])
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{where}: not in the form of Google's credentials", hint="see its `type`") from None


def _private_key(text: str) -> str:
    try:
        return str(json.loads(text).get("private_key") or "")
    except (ValueError, AttributeError):
        return text
