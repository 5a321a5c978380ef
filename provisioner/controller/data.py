"""The list of data for a node: what is there, by the controller's own account, and a link to each file.

The node's own key reaches only the job's prefix. So the list carries links that read one object each, for some hours.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import httpx
import zstandard

from provisioner.checkpoint import layout
from provisioner.checkpoint.store import Store
from provisioner.clock import now as unix_now
from provisioner.config import Config
from provisioner.config.data import DataConfig
from provisioner.controller.access import open_as_controller
from provisioner.errors import ConfigError, Unauthorized, Unreachable

VERSION = 1
LINK_S = 6 * 3600.0
"""How long links are asked for. Links signed with a session end with it, whatever is asked for."""
FRESH_S = 900.0
"""How long a list is handed out before it is made anew, in seconds: a node needs its links from its first moment."""
RENEW_S = 1800.0
"""How often a node whose data still come gets a new list, in seconds: links that a session signed may last an hour."""
MOST_FILES = 200_000
SIGNERS = 8
ASK_S = 30.0


@dataclass(frozen=True, slots=True)
class File:
    """One file of an entry, as the node's list has it. ``url`` is a secret."""

    name: str
    size: int | None
    etag: str
    url: str = field(default="", repr=False)


class DataLists:
    """Makes the lists of one job. ``client`` asks web servers."""

    def __init__(
        self,
        config: Config,
        store: Store,
        environ: Mapping[str, str],
        *,
        client: Callable[[], httpx.Client] = lambda: httpx.Client(timeout=ASK_S, follow_redirects=True),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask nobody yet. ``store`` is the job's, below its name."""
        self._config = config
        self._store = store
        self._environ = environ
        self._client = client
        self._monotonic = monotonic
        self._made: tuple[float, bytes] | None = None
        self._written_at = float("-inf")

    def look(self) -> None:
        """Make the list, so that what is wrong with it is known before a machine is rented.

        Raises ConfigError for data that is not there, may not be read or does not fit, CloudError.
        """
        if self._config.data:
            self._list()

    def write(self, epoch: int) -> dict[str, object] | None:
        """Put the list of an epoch's node into the store, and return what ``bootstrap.json`` says of it.

        None where the job has no data. Raises as ``look``; while a source does not answer, an older list will do.
        """
        if not self._config.data:
            return None
        key, limit = layout.data(epoch), self._config.policy.data_cache_gb
        self._store.put(key, self._list())
        self._written_at = self._monotonic()
        return {"key": key, "cache_bytes": None if limit is None else int(limit * 1e9)}

    def keep_fresh(self, epoch: int, progress: object) -> None:
        """Put a new list beside a node whose data still come, every half hour: it goes on by that when links end.

        ``progress`` is its heartbeat's. Raises as ``look``.
        """
        if not isinstance(progress, Mapping) or self._monotonic() - self._written_at < RENEW_S:
            return
        here, of = progress.get("bytes"), progress.get("of")
        if isinstance(here, int) and isinstance(of, int) and here < of:
            self.write(epoch)

    def _list(self) -> bytes:
        now = self._monotonic()
        age = now - self._made[0] if self._made else float("inf")
        if self._made is None or age > FRESH_S:
            try:
                self._made = now, self._new()
            except Unauthorized as error:  # the cloud that is asked for a machine is not to blame, and stays in play
                raise ConfigError(str(error), hint=error.hint) from error
            except Unreachable:
                if self._made is None or age > LINK_S / 2:
                    raise
        return self._made[1]

    def _new(self) -> bytes:
        entries = [self._entry(number, entry) for number, entry in enumerate(self._config.data)]
        self._refuse_too_much(entries)
        text = json.dumps({"version": VERSION, "entries": entries}, separators=(",", ":"))
        return zstandard.ZstdCompressor(level=6).compress(text.encode())

    def _entry(self, number: int, entry: DataConfig) -> dict[str, Any]:
        where = f"data[{number}]: {entry.shown}"
        made: dict[str, Any] = {
            "source": entry.shown if not _is_directory(entry) else f"{entry.shown.rstrip('/')}/",
            "place": [entry.source, entry.endpoint or ""],
            "to": entry.to,
            "sha256": entry.sha256,
            "unpack": entry.unpack,
            "ranges": True,
            "etags": True,
        }
        if entry.scheme in {"https", "http"}:
            file, made["ranges"] = self._of_the_web(entry, where)
            files = [file]
        elif entry.scheme == "file":
            files = _of_a_directory(entry, where)
        else:
            files = self._of_a_store(entry, where)
            made["etags"] = self._prove(files, where)
        _refuse_names(files, where)
        made["files"] = [(file.name, file.size, file.etag, file.url) for file in files]
        return made

    def _of_a_store(self, entry: DataConfig, where: str) -> list[File]:
        store = open_as_controller(entry.store, self._environ)
        if entry.is_folder:
            stored = store.objects("")
        else:
            found = store.look(entry.source.rpartition("/")[2])
            stored = [found] if found else []
        folders = {parent for one in stored for parent in _parents(one.key)}
        stored = [one for one in stored if one.size or one.key not in folders]  # consoles make "folders" of 0 bytes
        if not stored:
            what = "there is nothing below it" if entry.is_folder else "there is no such object"
            hint = "check the address" if entry.is_folder else "check the address; a folder ends in /"
            raise ConfigError(f"{where}: {what}", hint=hint)
        if len(stored) > MOST_FILES:
            hint = "pack them into archives, and name those with unpack: true"
            raise ConfigError(f"{where}: {len(stored)} files, and at most {MOST_FILES} are fetched", hint=hint)
        with ThreadPoolExecutor(SIGNERS, thread_name_prefix="sign") as pool:
            links = pool.map(lambda one: store.sign(one.key, LINK_S), stored)
            return [File(one.key, one.size, one.etag, link) for one, link in zip(stored, links, strict=True)]

    def _prove(self, files: Sequence[File], where: str) -> bool:
        """Read a byte by a link, as a node would; say whether the answer's ETag is that of the listing.

        An account may list and yet not read. Raises Unauthorized, Unreachable.
        """
        file = next((file for file in files if file.size), None)
        if file is None:
            return True
        answer = self._first_byte(file.url, where)
        if answer.status_code in {400, 401, 403}:
            hint = "the controller's account lists it and may not read it, or its key has ended"
            raise Unauthorized(f"{where}: a link to it is refused ({answer.status_code})", hint=hint)
        if answer.status_code not in {200, 206}:
            raise Unreachable(f"{where}: a link to it is answered with {answer.status_code}")
        return bool(answer.headers.get("ETag") == file.etag)

    def _of_the_web(self, entry: DataConfig, where: str) -> tuple[File, bool]:
        """Ask a web server for the first byte of a file: that tells its size, and whether it gives parts."""
        answer = self._first_byte(entry.source, where)
        status, headers = answer.status_code, answer.headers
        if status in {404, 410}:
            raise ConfigError(f"{where}: there is no such file ({status})", hint="check the address")
        if status in {401, 403}:
            hint = "only files that everybody may read can be fetched from a web server; use a bucket"
            raise ConfigError(f"{where}: the server refuses ({status})", hint=hint)
        if status not in {200, 206, 416}:
            raise Unreachable(f"{where}: the server answers {status}")
        total = headers.get("Content-Range", "").rpartition("/")[2] if status != 200 else ""
        total = total or ("" if "Content-Encoding" in headers else headers.get("Content-Length", ""))
        size = int(total) if total.isdecimal() else None
        etag = headers.get("ETag") or headers.get("Last-Modified") or (entry.sha256 or f"listed {unix_now():.0f}")
        name = unquote(urlsplit(entry.source).path.rpartition("/")[2])
        return File(name, size, etag, entry.source), status == 206 and size is not None

    def _first_byte(self, url: str, where: str) -> httpx.Response:
        headers = {"Range": "bytes=0-0", "Accept-Encoding": "identity"}
        try:
            with self._client() as client, client.stream("GET", url, headers=headers) as answer:
                return answer
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            kind = type(error).__name__  # its text may hold the link
        raise Unreachable(f"{where}: no answer ({kind})", hint="the controller asks once before a machine is rented")

    def _refuse_too_much(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Raise ConfigError for more than a machine's disk can have."""
        size = sum(size or 0 for entry in entries for _, size, _, _ in entry["files"])
        limit = self._config.policy.data_cache_gb
        if limit is not None and size > limit * 1e9:
            what = f"policy.data_cache_gb: data takes {size / 1e9:.1f} GB, and {limit:g} are allowed"
            raise ConfigError(what, hint="raise it, or bring less")
        for number, block in enumerate(self._config.fallback):
            room = block.aws or block.gcp
            if room is not None and size > room.disk_gb * 1e9:
                what = f"fallback[{number}].{block.cloud}.disk_gb: data takes {size / 1e9:.1f} GB of {room.disk_gb} GB"
                raise ConfigError(what, hint="write a larger disk_gb, with room for the system and checkpoints")


def _is_directory(entry: DataConfig) -> bool:
    return entry.is_folder or (entry.scheme == "file" and Path(_path(entry)).is_dir())


def _path(entry: DataConfig) -> str:
    return unquote(urlsplit(entry.source).path)


def _of_a_directory(entry: DataConfig, where: str) -> list[File]:
    """List a folder of this machine, or its one file. Symbolic links to files are followed."""
    root = Path(_path(entry))
    try:
        if root.is_file():
            return [_of_a_path(root, root.name)]
        if entry.unpack or entry.sha256:
            raise ConfigError(f"{where}: there is no such file", hint="sha256 and unpack go with one file")
        if not root.is_dir():
            raise ConfigError(f"{where}: there is no such folder or file", hint="check the address")
        found = [
            _of_a_path(path, str(path.relative_to(root)))
            for folder, _, names in os.walk(root)
            for path in (Path(folder, name) for name in sorted(names))
            if path.is_file()
        ]
    except OSError as error:
        raise ConfigError(f"{where}: {error.filename}: {error.strerror}") from None
    if not found:
        raise ConfigError(f"{where}: there is nothing below it", hint="check the address")
    return sorted(found, key=lambda file: file.name)


def _of_a_path(path: Path, name: str) -> File:
    now = path.stat()
    etag = f"{now.st_ino:x}-{now.st_mtime_ns:x}-{now.st_size:x}"
    return File(name, now.st_size, etag, f"file://{quote(os.fsencode(path.absolute()))}")


def _parents(key: str) -> Iterable[str]:
    parts = key.split("/")
    return ("/".join(parts[:count]) for count in range(1, len(parts)))


def _refuse_names(files: Sequence[File], where: str) -> None:
    """Raise ConfigError for names that a disk cannot have, or not beside each other."""
    folders = {parent for file in files for parent in _parents(file.name)}
    for file in files:
        parts = file.name.split("/")
        plain = file.name.isprintable() and not any(part in {"", ".", ".."} for part in parts)
        if not plain or any(len(part.encode("utf-8", "surrogateescape")) > 255 for part in parts):
            raise ConfigError(f"{where}: {file.name[:80]!r} is no name that a disk can have", hint="rename the object")
        if file.name in folders:
            what = f"{where}: {file.name[:80]!r} is an object, and there are others below it"
            raise ConfigError(what, hint="a disk cannot hold both: rename or remove one")
