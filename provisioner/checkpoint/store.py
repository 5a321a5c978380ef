"""The object store behind one small interface: S3, GCS, a directory, or memory, by obstore.

This is the only module that sees obstore's exceptions. They leave it as errors of :mod:`provisioner.errors`, one line
each, without the store's own text: S3 puts the access key id into some of its answers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore import exceptions as refused
from obstore.store import GCSStore, LocalStore, MemoryStore, S3Store

from provisioner.checkpoint.credentials import Credentials
from provisioner.checkpoint.refusals import Refusal, understood
from provisioner.checkpoint.retries import Line
from provisioner.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ClientConfig, RetryConfig

__all__ = ["Buffer", "Credentials", "Store", "Stored", "open_store"]

T = TypeVar("T")
Raw: TypeAlias = S3Store | GCSStore | LocalStore | MemoryStore
Buffer: TypeAlias = bytes | bytearray | memoryview | obstore.Bytes

DELETES_AT_ONCE = 16
"""Objects are removed one a request: bulk removal is not known to every store that speaks S3."""

_VIRTUAL_HOST_ONLY = (".aliyuncs.com", ".myqcloud.com", ".amazonaws.com", ".amazonaws.com.cn")


@dataclass(frozen=True, slots=True)
class Stored:
    """An object in a listing. ``modified`` is the store's own clock, in Unix seconds."""

    key: str
    size: int
    modified: float


class Store:
    """Keys and bytes under one prefix. Every method has deadlines and retries; safe to use from several threads."""

    def __init__(self, raw: Raw, uri: str, prefix: str = "", line: Line | None = None) -> None:
        """Wrap an obstore store; ``uri`` is for messages only, ``prefix`` ends in ``/`` or is empty."""
        self.raw = raw
        self.uri = uri
        self._prefix = prefix
        self._line = line or Line(0)

    def __repr__(self) -> str:
        """Name the place, not the key."""
        return f"Store({self.uri})"

    @property
    def requests(self) -> int:
        """How many requests were made, retries included, by this store and all that ``at`` made of it."""
        return self._line.requests

    @property
    def retries(self) -> int:
        """How many of ``requests`` repeated one that had failed."""
        return self._line.retries

    def at(self, folder: str) -> Store:
        """Return the store below ``folder``, e.g. the job's name. It shares the counters."""
        return Store(self.raw, f"{self.uri.rstrip('/')}/{folder}", f"{self._prefix}{folder}/", self._line)

    def get(self, key: str) -> bytes | None:
        """Return an object, or None where there is none. Raises Unreachable, Unauthorized, StoreError."""

        def attempt() -> bytes | None:
            try:
                return obstore.get(self.raw, self._prefix + key).bytes().to_bytes()
            except FileNotFoundError:
                return None

        return self._ask("read", key, attempt)

    def get_range(self, key: str, start: int, length: int, *, whole: bool = False) -> Buffer | None:
        """Return ``length`` bytes of an object from ``start`` on; None where there is no such object.

        The bytes are not copied. ``whole`` says that this is all of the object: then no range is asked for. A server
        that answers a range with the whole object (``rclone serve s3`` does) is asked for that from then on. Raises
        Unreachable, Unauthorized, and StoreError where the object ends before.
        """
        if length == 0:
            return b"" if self.exists(key) else None

        def attempt() -> Buffer | None:
            ranged = not whole and self._line.ranges
            options: GetOptions = {"range": (start, start + length)} if ranged else {}
            try:
                answer = obstore.get(self.raw, self._prefix + key, options=options)
                data = answer.bytes()
            except FileNotFoundError:
                return None
            except refused.GenericError as error:
                if not ranged or "NotPartial" not in str(error):
                    raise
                self._line.ranges = False
                return attempt()
            part = data if ranged else memoryview(data)[start : start + length]
            if len(part) == length:
                return part
            held = answer.meta["size"]
            text = f"cannot read {self._name(key)}: {len(part)} bytes came where {length} were asked for"
            raise Refusal(StoreError(text), again=held >= start + length)

        return self._ask("read", key, attempt)

    def exists(self, key: str) -> bool:
        """Say whether there is an object. Raises Unreachable, Unauthorized, StoreError."""

        def attempt() -> bool:
            try:
                obstore.head(self.raw, self._prefix + key)
            except FileNotFoundError:
                return False
            return True

        return self._ask("look for", key, attempt)

    def put(self, key: str, data: Buffer | Sequence[Buffer]) -> None:
        """Write an object whole, or not at all; several buffers become one object by one request, without a copy.

        Buffers must stay as they are until this returns. Raises Unreachable, Unauthorized, StoreError.
        """
        body = data if isinstance(data, bytes | bytearray | memoryview | obstore.Bytes) else list(data)
        self._ask("write", key, lambda: obstore.put(self.raw, self._prefix + key, body, use_multipart=False))

    def create(self, key: str, data: bytes) -> bool:
        """Write an object only if there is none; False: the store says that there is one.

        That one may be ours, written by a try whose answer was lost, and a 409 may have stored nothing: read it back.
        Some stores ignore the condition and answer True; one that refuses it (StoreError) is not asked again.
        Raises Unreachable, Unauthorized, StoreError.
        """
        if self._line.create_refused:
            raise StoreError(f"cannot create {self._name(key)}: the store refuses conditional writes")

        def attempt() -> bool:
            try:
                obstore.put(self.raw, self._prefix + key, data, mode="create", use_multipart=False)
            except refused.AlreadyExistsError:
                return False
            return True

        return self._ask("create", key, attempt)

    def objects(self, folder: str) -> list[Stored]:
        """List everything below ``folder`` (no trailing slash), in the order of the keys. Raises as ``get``."""

        def attempt() -> list[Stored]:
            found: list[Stored] = []
            for number, page in enumerate(obstore.list(self.raw, self._prefix + folder, chunk_size=1000)):
                self._line.count(requests=int(number > 0))
                found += [
                    Stored(meta["path"].removeprefix(self._prefix), meta["size"], meta["last_modified"].timestamp())
                    for meta in page
                ]
            return found

        return sorted(self._ask("list", folder, attempt), key=lambda stored: stored.key)

    def folders(self, folder: str) -> list[str]:
        """List the names directly below ``folder`` that have something below them. Raises as ``get``."""
        listed = self._ask("list", folder, lambda: obstore.list_with_delimiter(self.raw, self._prefix + folder))
        return sorted(path.rstrip("/").rsplit("/", 1)[-1] for path in listed["common_prefixes"])

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects, several at a time; one that is gone already is fine. Raises as ``get``, at the first."""
        todo = list(keys)
        if len(todo) < 2:
            for key in todo:
                self._delete(key)
            return
        with ThreadPoolExecutor(min(DELETES_AT_ONCE, len(todo)), thread_name_prefix="delete") as pool:
            jobs = [pool.submit(self._delete, key) for key in todo]
            try:
                for job in jobs:
                    job.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def sign(self, key: str, expires_s: float) -> str:
        """Return a link that reads one object without a key, for ``expires_s`` seconds at most.

        A directory gives a ``file://`` link, which never ends. Raises StoreError where the store has no links.
        """
        path = self._prefix + key
        raw = self.raw
        if isinstance(raw, LocalStore):
            return f"{self.raw_uri().rstrip('/')}/{path}"
        if isinstance(raw, MemoryStore):
            raise StoreError(f"{self.uri}: memory has no links", hint="use file:// or s3://")
        return self._ask("sign", key, lambda: obstore.sign(raw, "GET", path, timedelta(seconds=expires_s)))

    def raw_uri(self) -> str:
        """Return the URI of the bucket or directory, without the prefix."""
        return self.uri.removesuffix("/" + self._prefix.rstrip("/")) if self._prefix else self.uri

    def _delete(self, key: str) -> None:
        def attempt() -> None:
            try:
                obstore.delete(self.raw, self._prefix + key)
            except FileNotFoundError:
                return

        self._ask("delete", key, attempt)

    def _name(self, key: str) -> str:
        return f"{self.uri.rstrip('/')}/{key}"

    def _ask(self, verb: str, key: str, attempt: Callable[[], T]) -> T:
        def once() -> T:
            self._line.count(requests=1)
            try:
                return attempt()
            except (Refusal, refused.BaseError, OSError, ValueError) as error:
                refusal = understood(error, f"cannot {verb} {self._name(key)}")
            if verb == "create" and refusal.status in {400, 501}:
                self._line.create_refused = True
            raise refusal

        return self._line.ask(once)


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
    line = Line(retry_s)
    retry: RetryConfig = {"max_retries": 0, "retry_timeout": timedelta(seconds=retry_s)}
    client: ClientConfig = {"timeout": timedelta(seconds=timeout_s), "connect_timeout": timedelta(seconds=5)}
    prefix = parts.path.strip("/")
    prefix = f"{prefix}/" if prefix else ""
    if parts.scheme == "s3" and parts.netloc:
        config, extra = _s3(parts.netloc, endpoint=endpoint, region=region, credentials=credentials, environ=environ)
        return Store(
            S3Store(parts.netloc, config=config, client_options={**client, **extra}, retry_config=retry),
            uri,
            prefix,
            line,
        )
    if parts.scheme == "gs" and parts.netloc:
        gcs: dict[str, Any] = {"base_url": endpoint} if endpoint else {}
        if endpoint and endpoint.startswith("http://"):
            client["allow_http"] = True
        return Store(
            GCSStore(parts.netloc, config=gcs or None, client_options=client, retry_config=retry),  # type: ignore[arg-type]
            uri,
            prefix,
            line,
        )
    if parts.scheme == "file" and parts.path.startswith("/") and not parts.netloc:
        return Store(_directory(parts.path, uri), uri, "", line)
    if parts.scheme == "memory":
        return Store(MemoryStore(), uri, prefix, line)
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
        "region": region or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1",
        "disable_bulk_delete": True,
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
