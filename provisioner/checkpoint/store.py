"""The object store behind one small interface: S3, GCS, a directory, or memory, by obstore.

This is the only module that sees obstore's exceptions. They leave it as errors of :mod:`provisioner.errors`, one line
each, without the store's own text: S3 puts the access key id into some of its answers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

import obstore
from obstore import exceptions as refused
from obstore.store import GCSStore, LocalStore, MemoryStore, S3Store

from provisioner.errors import CloudError, ConfigError, StoreError, Unauthorized, Unreachable

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

Raw: TypeAlias = S3Store | GCSStore | LocalStore | MemoryStore

_VIRTUAL_HOST_ONLY = (".aliyuncs.com", ".myqcloud.com", ".amazonaws.com", ".amazonaws.com.cn")
_ACCOUNT_CODES = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "AccessDenied"}


@dataclass(frozen=True, slots=True)
class Credentials:
    """A key for the store. Its ``repr`` shows nothing."""

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Stored:
    """An object in a listing. ``modified`` is the store's own clock, in Unix seconds."""

    key: str
    size: int
    modified: float


class Store:
    """Keys and bytes under one prefix. Every method has deadlines and retries; safe to use from several threads."""

    def __init__(self, raw: Raw, uri: str, prefix: str = "") -> None:
        """Wrap an obstore store; ``uri`` is for messages only, ``prefix`` ends in ``/`` or is empty."""
        self.raw = raw
        self.uri = uri
        self._prefix = prefix

    def __repr__(self) -> str:
        """Name the place, not the key."""
        return f"Store({self.uri})"

    def at(self, folder: str) -> Store:
        """Return the store below ``folder``, e.g. the job's name."""
        return Store(self.raw, f"{self.uri.rstrip('/')}/{folder}", f"{self._prefix}{folder}/")

    def get(self, key: str) -> bytes | None:
        """Return an object, or None where there is none. Raises Unreachable, Unauthorized, StoreError."""
        with self._errors("read", key):
            try:
                return obstore.get(self.raw, self._prefix + key).bytes().to_bytes()
            except FileNotFoundError:
                return None

    def exists(self, key: str) -> bool:
        """Say whether there is an object. Raises Unreachable, Unauthorized, StoreError."""
        with self._errors("look for", key):
            try:
                obstore.head(self.raw, self._prefix + key)
            except FileNotFoundError:
                return False
            return True

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Write an object whole, or not at all. Raises Unreachable, Unauthorized, StoreError."""
        with self._errors("write", key):
            obstore.put(self.raw, self._prefix + key, data, use_multipart=False)

    def create(self, key: str, data: bytes) -> bool:
        """Write an object only if there is none; False: the store says that there is one.

        That one may be ours, written by a try whose answer was lost, and a 409 may have stored nothing: read it back.
        Some stores ignore the condition and answer True. Raises Unreachable, Unauthorized, StoreError.
        """
        with self._errors("create", key):
            try:
                obstore.put(self.raw, self._prefix + key, data, mode="create", use_multipart=False)
            except refused.AlreadyExistsError:
                return False
            return True

    def objects(self, folder: str) -> list[Stored]:
        """List everything below ``folder`` (no trailing slash), in the order of the keys. Raises as ``get``."""
        with self._errors("list", folder):
            found = [
                Stored(
                    key=meta["path"].removeprefix(self._prefix),
                    size=meta["size"],
                    modified=meta["last_modified"].timestamp(),
                )
                for page in obstore.list(self.raw, self._prefix + folder, chunk_size=1000)
                for meta in page
            ]
        return sorted(found, key=lambda stored: stored.key)

    def folders(self, folder: str) -> list[str]:
        """List the names directly below ``folder`` that have something below them. Raises as ``get``."""
        with self._errors("list", folder):
            listed = obstore.list_with_delimiter(self.raw, self._prefix + folder)
        return sorted(path.rstrip("/").rsplit("/", 1)[-1] for path in listed["common_prefixes"])

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; one that is gone already is fine. Raises as ``get``."""
        for key in keys:
            with self._errors("delete", key):
                try:
                    obstore.delete(self.raw, self._prefix + key)
                except FileNotFoundError:
                    continue

    def sign(self, key: str, expires_s: float) -> str:
        """Return a link that reads one object without a key, for ``expires_s`` seconds at most.

        A directory gives a ``file://`` link, which never ends. Raises StoreError where the store has no links.
        """
        path = self._prefix + key
        if isinstance(self.raw, LocalStore):
            return f"{self.raw_uri().rstrip('/')}/{path}"
        if isinstance(self.raw, MemoryStore):
            raise StoreError(f"{self.uri}: memory has no links", hint="use file:// or s3://")
        with self._errors("sign", key):
            return obstore.sign(self.raw, "GET", path, timedelta(seconds=expires_s))

    def raw_uri(self) -> str:
        """Return the URI of the bucket or directory, without the prefix."""
        return self.uri.removesuffix("/" + self._prefix.rstrip("/")) if self._prefix else self.uri

    @contextmanager
    def _errors(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except refused.BaseError as error:
            raise _translated(error, f"cannot {verb} {self.uri.rstrip('/')}/{key}") from None
        except FileNotFoundError:
            hint = "make the bucket first: terraform/modules/checkpoint_bucket, or your cloud's own tools"
            raise StoreError(
                f"cannot {verb} {self.uri.rstrip('/')}/{key}: no such bucket or directory", hint=hint
            ) from None
        except (OSError, ValueError) as error:  # a directory store: disk full, permissions
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise StoreError(f"cannot {verb} {self.uri.rstrip('/')}/{key}: {reason}") from None


def open_store(
    uri: str,
    *,
    endpoint: str | None = None,
    region: str | None = None,
    credentials: Credentials | None = None,
    timeout_s: float = 120.0,
    retry_s: float = 60.0,
    environ: Mapping[str, str] = os.environ,
) -> Store:
    """Open ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``file:///directory`` or ``memory://``.

    No request is made. ``credentials`` None means the environment's key or the machine's own role. ``timeout_s`` is
    for one request, ``retry_s`` for all its tries together (0: one try). Raises ConfigError for another URI.
    """
    parts = urlsplit(uri)
    retry: RetryConfig = {
        "max_retries": 6 if retry_s >= 30 else int(retry_s > 0),
        "retry_timeout": timedelta(seconds=retry_s),
        "backoff": {
            "init_backoff": timedelta(milliseconds=200),
            "max_backoff": timedelta(seconds=10),
            "base": 2,
        },
    }
    client: ClientConfig = {"timeout": timedelta(seconds=timeout_s), "connect_timeout": timedelta(seconds=5)}
    prefix = parts.path.strip("/")
    prefix = f"{prefix}/" if prefix else ""
    if parts.scheme == "s3" and parts.netloc:
        config, extra = _s3(parts.netloc, endpoint=endpoint, region=region, credentials=credentials, environ=environ)
        return Store(
            S3Store(parts.netloc, config=config, client_options={**client, **extra}, retry_config=retry), uri, prefix
        )
    if parts.scheme == "gs" and parts.netloc:
        gcs: dict[str, Any] = {"base_url": endpoint} if endpoint else {}
        if endpoint and endpoint.startswith("http://"):
            client["allow_http"] = True
        return Store(
            GCSStore(parts.netloc, config=gcs or None, client_options=client, retry_config=retry),  # type: ignore[arg-type]
            uri,
            prefix,
        )
    if parts.scheme == "file" and parts.path.startswith("/") and not parts.netloc:
        return Store(_directory(parts.path, uri), uri)
    if parts.scheme == "memory":
        return Store(MemoryStore(), uri, prefix)
    raise ConfigError(f"{uri}: no such store", hint="write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or file:///DIRECTORY")


def _directory(path: str, uri: str) -> LocalStore:
    """Open a directory, which is made. Raises StoreError."""
    try:
        Path(path).mkdir(mode=0o700, parents=True, exist_ok=True)
        return LocalStore(path)
    except (OSError, ValueError, refused.BaseError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise StoreError(f"{uri}: {reason}", hint="name a directory that can be written") from None


def _s3(
    bucket: str,
    *,
    endpoint: str | None,
    region: str | None,
    credentials: Credentials | None,
    environ: Mapping[str, str],
) -> tuple[Any, ClientConfig]:
    """Return obstore's configuration for a bucket: address style, key or role, plain HTTP only where asked for."""
    client: ClientConfig = {}
    endpoint = endpoint or environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    config: dict[str, Any] = {
        "region": region or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    }
    if endpoint:
        config["endpoint"], config["virtual_hosted_style_request"] = _address(bucket, endpoint.rstrip("/"))
        if endpoint.startswith("http://"):
            client["allow_http"] = True
    else:
        # A bucket with dots has no certificate of its own under *.s3.amazonaws.com.
        config["virtual_hosted_style_request"] = "." not in bucket
    if credentials is not None:
        config["access_key_id"] = credentials.access_key_id
        config["secret_access_key"] = credentials.secret_access_key
        if credentials.session_token:
            config["session_token"] = credentials.session_token
    elif metadata := environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT"):
        config["metadata_endpoint"] = metadata.rstrip("/")
    return config, client


def _address(bucket: str, endpoint: str) -> tuple[str, bool]:
    """Return the endpoint to use and whether the bucket stands in the host name. Some services refuse paths."""
    parts = urlsplit(endpoint)
    host = parts.hostname or ""
    if host.startswith(f"{bucket}."):
        return endpoint, True
    if host.endswith(_VIRTUAL_HOST_ONLY) and "." not in bucket:
        return parts._replace(netloc=f"{bucket}.{parts.netloc}").geturl(), True
    return endpoint, False


def _translated(error: refused.BaseError, what: str) -> CloudError:
    """Turn obstore's exception into ours. Only the status and the code are kept of the store's text."""
    text = str(error)
    status = re.search(r"status code: (\d{3})", text)
    code = re.search(r"<Code>(\w+)</Code>", text)
    word = code.group(1) if code else ""
    number = int(status.group(1)) if status else 0
    denied = isinstance(error, refused.PermissionDeniedError | refused.UnauthenticatedError)
    if denied or number in {401, 403} or word in _ACCOUNT_CODES:
        return Unauthorized(
            f"{what}: {word or number or 'access denied'}", hint="check the key or role, and what it may do here"
        )
    if "/latest/api/token" in text or "security-credentials" in text:
        return Unauthorized(
            f"{what}: no key was given and this machine has no role", hint="set the key's environment variables"
        )
    if number == 429 or (number >= 500 and number != 501):  # 501: it will never do this
        return Unreachable(f"{what}: the store answers {number} {word}".rstrip())
    if "LOCATION" in text or number in {301, 307, 308}:
        return StoreError(f"{what}: the bucket is in another region", hint="set checkpoint.region")
    if number:
        return StoreError(f"{what}: the store answers {number} {word}".rstrip())
    if "HTTP error" in text or "timed out" in text:
        return Unreachable(f"{what}: no answer")
    if "No space left" in text:
        return StoreError(f"{what}: the disk of the store is full")
    return StoreError(f"{what}: {type(error).__name__}")
