"""Packs: the objects that blobs travel in, about 8 MiB each, sent in parallel with bounded memory.

The key of a pack is written once in its life. A sweeper that was stopped for hours and wakes up can so never remove
what somebody has sent again in the meantime.
"""

from __future__ import annotations

import queue
import secrets
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import blake3

from provisioner.checkpoint import layout
from provisioner.checkpoint.store import Store
from provisioner.checkpoint.tree import STANDARD, Sizes
from provisioner.errors import Abandoned


@dataclass(eq=False, slots=True)
class Pack:
    """A pack on its way. ``identity`` is empty until it is closed."""

    identity: str = ""
    size: int = 0
    digests: list[bytes] = field(default_factory=list)

    def content(self) -> str:
        """Return the part of its id that follows from what is in it."""
        return blake3.blake3(b"".join(self.digests)).hexdigest()[:32]


class Buffers:
    """A fixed number of buffers of one size: who takes the last one makes the next wait. This bounds the memory."""

    def __init__(self, count: int, size: int) -> None:
        self._size = size
        self._left = count
        self._lock = threading.Lock()
        self._free: queue.SimpleQueue[bytearray | None] = queue.SimpleQueue()

    def take(self) -> bytearray:
        """Return a buffer with anything in it, waiting for one if need be. Raises Abandoned when they are closed."""
        try:
            buffer = self._free.get_nowait()
        except queue.Empty:
            with self._lock:
                fresh = self._left > 0
                self._left -= fresh
            buffer = bytearray(self._size) if fresh else self._free.get()
        if buffer is None:
            self._free.put(None)
            raise Abandoned("the save was given up")
        return buffer

    def close(self) -> None:
        """Let everybody who waits for a buffer go."""
        self._free.put(None)

    def give_back(self, buffer: bytearray) -> None:
        """Return a buffer for the next one."""
        self._free.put(buffer)


class Packer:
    """Gathers new blobs into packs and sends them. As a context it waits for all of them, or gives up on an error.

    ``there`` gives, by content, packs that the store holds already: (id, bytes). What was sent is added to it, so that
    the next try sends nothing twice.
    """

    def __init__(
        self,
        store: Store,
        there: dict[str, tuple[str, int]],
        *,
        threads: int,
        told_to_stop: Callable[[], None] = lambda: None,
        sizes: Sizes = STANDARD,
    ) -> None:
        self.sent_bytes = 0
        self.failed = threading.Event()
        self._store = store
        self._there = there
        self._told_to_stop = told_to_stop
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="upload")
        self._sending: set[Future[None]] = set()
        self._pack_bytes = sizes.pack
        self._spare = Buffers(3, sizes.pack)
        self._open = Pack()
        self._buffer: bytearray | None = None

    def add(self, digest: bytes, data: memoryview) -> tuple[Pack, int]:
        """Copy a blob into the open pack; return the pack and the place in it. Raises what an upload has met."""
        if self._open.size + len(data) > self._pack_bytes:
            self.close()
        if self._buffer is None:
            self._buffer = self._spare.take()
        pack, offset = self._open, self._open.size
        self._buffer[offset : offset + len(data)] = data
        pack.size += len(data)
        pack.digests.append(digest)
        return pack, offset

    def whole(self, digests: Iterable[bytes], data: memoryview, done: Callable[[], None]) -> Pack:
        """Send blobs that lie side by side as a pack of their own, without a copy; ``done`` is called afterwards."""
        pack = Pack(size=len(data), digests=list(digests))
        self._send(pack, data, done)
        return pack

    def close(self) -> None:
        """Send the open pack, if anything is in it."""
        if self._buffer is None:
            return
        pack, buffer = self._open, self._buffer
        self._open, self._buffer = Pack(), None
        self._send(pack, memoryview(buffer)[: pack.size], lambda: self._spare.give_back(buffer))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        if kind is None:
            try:
                self.close()
                for future in self._sending:
                    future.result()
            finally:
                self._pool.shutdown(wait=True, cancel_futures=True)
        else:
            self.failed.set()
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _send(self, pack: Pack, data: memoryview, done: Callable[[], None]) -> None:
        content = pack.content()
        identity, size = self._there.get(content, ("", 0))
        if identity and size == pack.size:
            pack.identity = identity
            done()
            return
        pack.identity = f"{content}-{secrets.token_hex(4)}"
        self.sent_bytes += pack.size
        finished = {future for future in self._sending if future.done()}
        self._sending -= finished
        self._sending.add(self._pool.submit(self._put, pack, data, done))
        for future in finished:
            future.result()

    def _put(self, pack: Pack, data: memoryview, done: Callable[[], None]) -> None:
        try:
            if self.failed.is_set():
                return
            self._told_to_stop()
            self._store.put(layout.pack(pack.identity), data)
            self._there[pack.content()] = pack.identity, pack.size
        except BaseException:
            self.failed.set()
            raise
        finally:
            done()
