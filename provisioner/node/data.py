"""Data on this machine's disk before the command starts: fetched beside the restore, verified, kept for the next."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

from provisioner.checkpoint.scratch import scratch
from provisioner.checkpoint.store import Store
from provisioner.errors import Abandoned, CloudError, DiskFull
from provisioner.node import data_list
from provisioner.node.arrival import Patiently
from provisioner.node.bootstrap import DataOrder
from provisioner.node.data_cache import LINKS, Cache
from provisioner.node.data_list import Entry
from provisioner.node.data_renewal import Renewal
from provisioner.node.data_work import THREADS, Desk, Work, mib, reserve


class Data:
    """Brings the data. ``start`` returns at once; ``wait`` gives the folder that the command is shown.

    ``note`` is as in ``arrival``; ``cancel`` cuts it short. ``keep_in`` is where this machine keeps the list.
    """

    def __init__(
        self,
        store: Store,
        order: DataOrder | None,
        cache: Path,
        keep_in: Path,
        *,
        patiently: Patiently,
        note: Callable[..., object],
        cancel: threading.Event,
    ) -> None:
        """Fetch nothing yet. ``order`` None: the job has no data."""
        self._store = store
        self._order = order
        self._root = cache
        self._keep = keep_in
        self._patiently = patiently
        self._note = note
        self._cancel = cancel
        self._desk = Desk(cache)
        self._found: Path | None = None
        self._held = ExitStack()
        """Locks and links, for as long as this process lives."""
        self._thread = threading.Thread(target=self._run, name="data", daemon=True)

    def start(self) -> None:
        """Begin, if there is anything to bring."""
        if self._order is not None:
            self._thread.start()

    def wait(self) -> Path | None:
        """Wait until all is here, and return its folder; None where the job has no data.

        Raises JobFailed for data that no machine can use, DiskFull, CloudError, OSError, Abandoned.
        """
        while self._order is not None and self._thread.is_alive():
            self._thread.join(0.2)
            if self._cancel.is_set():
                self._desk.stop.set()
                raise Abandoned("told to stop while the data came")
            if self._desk.error is not None:
                break
        if self._desk.error is not None:
            raise self._desk.error
        return self._found

    def progress(self) -> dict[str, int] | None:
        """Return bytes that are here and bytes that are wanted, for the heartbeat."""
        here = self._desk
        return {"bytes": here.bytes, "of": max(here.of, here.bytes)} if self._order is not None else None

    def close(self) -> None:
        """Let the next node of this machine have the cache, and remove the command's links."""
        self._held.close()

    def _run(self) -> None:
        try:
            self._found = self._bring()
        except BaseException as error:  # noqa: BLE001 - `wait` raises it in the main thread
            self._desk.failed(error)

    def _bring(self) -> Path:
        assert self._order is not None  # noqa: S101 - `start` has looked
        order, began = self._order, time.monotonic()
        entries = self._patiently(lambda: data_list.read(self._store, order.key, self._keep))
        self._desk.reader.renew = Renewal(lambda: self._newer(order.key))
        cache = Cache(self._root)
        with ThreadPoolExecutor(THREADS, thread_name_prefix="data") as pool:
            works = []
            for entry in entries:
                folder = cache.open(entry.key)
                self._held.callback(folder.close)
                works.append(Work(entry, folder, self._desk, pool))
            self._desk.of = sum(work.size for work in works)
            for work in works:
                work.look()
            self._say_begin(works)
            self._make_room(cache, works)
            links = self._held.enter_context(scratch(self._root, LINKS))
            for work in works:
                work.bring(links / work.entry.to)
            self._desk.reader.close()
        with suppress(CloudError):  # a list that was not needed holds links, which end by themselves
            self._store.delete([order.key])
        took, here = time.monotonic() - began, self._desk
        self._note(
            "data",
            f"data: {here.files} files, {mib(here.bytes)}, are here after {took:.1f} s ({mib(here.fetched)} of it "
            f"fetched)",
            bytes=here.bytes,
            fetched_bytes=here.fetched,
            seconds=round(took, 3),
        )
        return links

    def _newer(self, key: str) -> list[Entry] | None:
        if not self._store.exists(key):
            return None
        entries = data_list.read(self._store, key, self._keep)
        self._note("data", "data: links have ended; going on with new ones")
        return entries

    def _say_begin(self, works: Iterable[Work]) -> None:
        for work in works:
            missing = sum(file.size or 0 for file in work.missing)
            self._note(
                "data",
                f"data: {work.entry.to}: {len(work.missing)} of {len(work.entry.files)} files ({mib(missing)}) are to "
                f"come from {work.entry.source}"
                + (f"; changed or damaged in the cache: {work.damaged}" if work.damaged else ""),
                files=len(work.missing),
                bytes=missing,
            )

    def _make_room(self, cache: Cache, works: list[Work]) -> None:
        """Look before anything is fetched. Raises DiskFull, OSError."""
        assert self._order is not None  # noqa: S101 - as in `_bring`
        wanted = sum(work.to_come() for work in works)
        if not wanted:
            return
        ours = [work.entry.key for work in works]
        usage = shutil.disk_usage(self._root)
        short = wanted - (usage.free - reserve(usage.total))
        limit = self._order.cache_bytes
        if limit is not None:
            short = max(short, cache.used_bytes() + wanted - limit)
        if short <= 0:
            return
        freed = cache.make_room(short, ours)
        if freed:
            self._note("data", f"data: {mib(freed)} that other jobs left in the cache are removed", bytes=freed)
        if freed >= short:
            return
        if limit is not None and cache.used_bytes() + wanted > limit:
            words = f"data: {mib(wanted)} are to come, and policy.data_cache_gb leaves {mib(limit)} on a machine"
            raise DiskFull(words, hint="raise policy.data_cache_gb, or bring less")
        raise self._desk.full(f"data: {mib(wanted)} are to come")
