"""The object store behind one small interface: S3, GCS, a directory, or memory, by obstore.

This is the only module that sees obstore's exceptions. They leave it as errors of :mod:`provisioner.errors`, one line
each, without the store's own text: S3 puts the access key id into some of its answers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar
from urllib.parse import quote

import obstore
from obstore import exceptions as refused
from obstore.store import LocalStore, MemoryStore

from provisioner.checkpoint.credentials import Credentials
from provisioner.checkpoint.opening import Opened, opened
from provisioner.checkpoint.refusals import Refusal, understood
from provisioner.checkpoint.retries import Line
from provisioner.checkpoint.streaming import Stream, TakeFailed, asked, too_short
from provisioner.errors import CloudError, StoreError

if TYPE_CHECKING:
    from obstore import ObjectMeta

    from provisioner.checkpoint.credentials import Renewed

__all__ = ["Buffer", "Credentials", "Store", "Stored", "open_store"]

T = TypeVar("T")
_ANSWERS = (Refusal, refused.BaseError, OSError, ValueError)
Buffer: TypeAlias = bytes | bytearray | memoryview | obstore.Bytes

DELETES_AT_ONCE = 16
"""Objects are removed one a request: bulk removal is not known to every store that speaks S3."""
LONG_WRITE_BYTES = 256 * 1024
"""A shorter body is sent at once, and an answer must begin to come soon."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An object in a listing. ``modified`` is the store's own clock, in Unix seconds."""

    key: str
    size: int
    modified: float
    etag: str = ""
    """What tells one state of it from the next; empty where the store has no such thing."""


class Store:
    """Keys and bytes under one prefix. Every method has deadlines and retries; safe to use from several threads."""

    def __init__(self, place: Opened, uri: str, prefix: str, line: Line) -> None:
        """Use ``open_store``. ``uri`` is for messages only, ``prefix`` ends in ``/`` or is empty."""
        self.uri = uri
        self._place = place
        self._raw = place.quick
        self._prefix = prefix
        self._line = line

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

    @property
    def create_refused(self) -> bool:
        """Whether the store has refused a conditional write: ``create`` is not tried again then."""
        return self._line.create_refused

    def at(self, folder: str) -> Store:
        """Return the store below ``folder``, e.g. the job's name. It shares the counters."""
        return Store(self._place, f"{self.uri.rstrip('/')}/{folder}", f"{self._prefix}{folder}/", self._line)

    def above(self) -> Store:
        """Return the store that this one is a folder of: what all jobs share."""
        outer = self._prefix.rstrip("/").rpartition("/")[0]
        return Store(self._place, self.uri.rstrip("/").rpartition("/")[0], f"{outer}/" if outer else "", self._line)

    def get(self, key: str) -> bytes | None:
        """Return an object, or None where there is none. Raises Unreachable, Unauthorized, StoreError."""

        def attempt() -> bytes | None:
            try:
                return obstore.get(self._raw, self._prefix + key).bytes().to_bytes()
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
            try:
                answer, is_part = asked(self._raw, self._prefix + key, start, start + length, self._line, whole=whole)
                data = answer.bytes()
            except FileNotFoundError:
                return None
            part = data if is_part else memoryview(data)[start : start + length]
            if len(part) != length:
                raise too_short(self._name(key), len(part), length, again=answer.meta["size"] >= start + length)
            return part

        return self._ask("read", key, attempt)

    def stream(
        self, key: str, start: int, length: int, take: Callable[[int, memoryview], None], *, whole: bool = False
    ) -> bool:
        """Hand ``length`` bytes from ``start`` on to ``take(place, bytes)`` as they come; False: no such object.

        ``place`` counts from ``start``. A connection that breaks is taken up where it broke, so every byte is handed
        over once, in order. ``whole`` as for ``get_range``. Raises as that, and what ``take`` raises.
        """
        stream = Stream(self._raw, self._prefix + key, self._name(key), start, length, take, self._line, whole)
        while True:
            before = stream.done
            try:
                return self._ask("read", key, stream.attempt)
            except TakeFailed as failed:
                raise failed.error from None
            except CloudError:
                if stream.done == before:
                    raise
            self._line.count(retries=1)  # the line is bad, but it brings something

    def exists(self, key: str) -> bool:
        """Say whether there is an object. Raises Unreachable, Unauthorized, StoreError."""
        return self.size(key) is not None

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes, None where there is none. Raises as ``exists``."""
        found = self.look(key)
        return None if found is None else found.size

    def look(self, key: str) -> Stored | None:
        """Return what a listing would say of one object, None where there is none. Raises as ``exists``."""

        def attempt() -> Stored | None:
            try:
                return self._stored(obstore.head(self._raw, self._prefix + key))
            except FileNotFoundError:
                return None

        return self._ask("look for", key, attempt)

    def put(self, key: str, data: Buffer | Sequence[Buffer]) -> None:
        """Write an object whole, or not at all; several buffers become one object by one request, without a copy.

        Buffers must stay as they are until this returns. Raises Unreachable, Unauthorized, StoreError.
        """
        body: Buffer | list[Buffer]
        body = data if isinstance(data, bytes | bytearray | memoryview | obstore.Bytes) else list(data)
        size = sum(map(len, body)) if isinstance(body, list) else len(body)
        long = size > LONG_WRITE_BYTES
        raw = self._place.patient if long else self._raw
        if isinstance(raw, MemoryStore):  # it would keep the caller's buffers, which are used again
            body = b"".join(body) if isinstance(body, list) else bytes(body)
        self._ask("write", key, lambda: obstore.put(raw, self._prefix + key, body, use_multipart=False), long=long)

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
                obstore.put(self._raw, self._prefix + key, data, mode="create", use_multipart=False)
            except refused.AlreadyExistsError:
                return False
            return True

        return self._ask("create", key, attempt)

    def objects(self, folder: str) -> list[Stored]:
        """List everything below ``folder`` (no trailing slash), in the order of the keys. Raises as ``get``."""

        def attempt() -> list[Stored]:
            found: list[Stored] = []
            for number, page in enumerate(obstore.list(self._raw, self._prefix + folder, chunk_size=1000)):
                self._line.count(requests=int(number > 0))
                found += [self._stored(meta) for meta in page]
            return found

        return sorted(self._ask("list", folder, attempt), key=lambda stored: stored.key)

    def folders(self, folder: str) -> list[str]:
        """List the names directly below ``folder`` that have something below them. Raises as ``get``."""
        listed = self._ask("list", folder, lambda: obstore.list_with_delimiter(self._raw, self._prefix + folder))
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

    def sign(self, key: str, expires_s: float, method: Literal["GET", "PUT"] = "GET") -> str:
        """Return a link that reads (PUT: writes) one object without a key, for ``expires_s`` seconds at most.

        A directory gives a ``file://`` link, which never ends. Raises StoreError where the store has no links.
        """
        path = self._prefix + key
        raw = self._raw
        if isinstance(raw, LocalStore):
            return f"{self.raw_uri().rstrip('/')}/{path}"
        if isinstance(raw, MemoryStore):
            raise StoreError(f"{self.uri}: memory has no links", hint="use file:// or s3://")
        if self._place.plain_links:
            return f"{self._place.plain_links}/{quote(path)}"
        return self._ask("sign", key, lambda: obstore.sign(raw, method, path, timedelta(seconds=expires_s)))

    def raw_uri(self) -> str:
        """Return the URI of the bucket or directory, without the prefix."""
        return self.uri.removesuffix("/" + self._prefix.rstrip("/")) if self._prefix else self.uri

    def _delete(self, key: str) -> None:
        def attempt() -> None:
            try:
                obstore.delete(self._raw, self._prefix + key)
            except FileNotFoundError:
                return

        self._ask("delete", key, attempt)

    def _stored(self, meta: ObjectMeta) -> Stored:
        key = meta["path"].removeprefix(self._prefix)
        return Stored(key, meta["size"], meta["last_modified"].timestamp(), meta["e_tag"] or "")

    def _name(self, key: str) -> str:
        return f"{self.uri.rstrip('/')}/{key}"

    def _ask(self, verb: str, key: str, attempt: Callable[[], T], *, long: bool = False) -> T:
        turns = self._line.turns

        def once() -> T:
            self._line.count(requests=1)
            try:
                with turns if long else nullcontext(0.0) as began:
                    answer = attempt()
            except BaseException as error:
                if not isinstance(error, _ANSWERS) and type(error).__name__ != "PanicException":  # obstore broke off
                    raise
                refusal = understood(error, f"cannot {verb} {self._name(key)}", self._place.bucket_in_host)
            else:
                if long:
                    turns.took(began, too_long=False)
                return answer
            if long and refusal.late:
                turns.took(began, too_long=True)
            if verb == "create" and refusal.status in {400, 501}:
                self._line.create_refused = True
            raise refusal

        return self._line.ask(once, long=long)


def open_store(
    uri: str,
    *,
    endpoint: str | None = None,
    region: str | None = None,
    credentials: Credentials | Renewed | None = None,
    timeout_s: float = 120.0,
    retry_s: float = 60.0,
    environ: Mapping[str, str] = os.environ,
    sleep: Callable[[float], None] = time.sleep,
) -> Store:
    """Open ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``file:///directory`` or ``memory://``.

    No request is made. ``credentials`` None means the environment's key or the machine's own role, which is renewed
    as it ends. ``timeout_s`` is for one request (a read may take longer while bytes come), ``retry_s`` for all its
    tries together (0: one try); no try begins after it, but a long write that took too long has a second one. Raises
    ConfigError for another URI or a key that cannot be read, StoreError for a directory that cannot be made.
    """
    place = opened(uri, endpoint=endpoint, region=region, credentials=credentials, timeout_s=timeout_s, environ=environ)
    return Store(place, uri, place.prefix, Line(retry_s, timeout_s, sleep))
