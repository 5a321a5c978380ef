"""A part of an object: one request, or several where the connection breaks and is taken up where it broke."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import obstore
from obstore import exceptions as refused
from obstore.store import LocalStore, MemoryStore

from provisioner.checkpoint.opening import Raw
from provisioner.checkpoint.refusals import Refusal
from provisioner.checkpoint.retries import Line
from provisioner.errors import StoreError

STREAM_BYTES = 256 * 1024
"""A body is handed on in pieces of about this size: they are hashed and written while they are in the cache."""

LOCAL_BYTES = 1024 * 1024
"""How much of a file of this machine is read at once: sixteen threads read, and their memory is bounded."""


class TakeFailed(Exception):
    """Carries what the taker of a stream has raised past everything that understands a store's answers."""

    def __init__(self, error: Exception) -> None:
        """Keep it."""
        super().__init__()
        self.error = error


def asked(raw: Raw, key: str, start: int, end: int, line: Line, *, whole: bool) -> tuple[obstore.GetResult, bool]:
    """Ask for the bytes from ``start`` to ``end``; also tell whether the answer is these alone, or all of the object.

    ``whole``: ask for all. A server that answers a range with everything (``rclone serve s3`` does) is asked for
    that from then on. Raises what obstore raises.
    """
    if not whole and line.ranges:
        try:
            return obstore.get(raw, key, options={"range": (start, end)}), True
        except refused.GenericError as error:
            if "NotPartial" not in str(error):
                raise
            line.ranges = False
            line.count(requests=1)
    return obstore.get(raw, key), False


def too_short(name: str, came: int, wanted: int, *, again: bool) -> Refusal:
    """Say that bytes are missing; ``again``: the object has them."""
    return Refusal(StoreError(f"cannot read {name}: {came} bytes came where {wanted} were asked for"), again=again)


@dataclass
class Stream:
    """``length`` bytes of an object from ``start`` on, handed to ``take(place, bytes)`` once and in order."""

    raw: Raw
    key: str
    name: str
    start: int
    length: int
    take: Callable[[int, memoryview], None]
    line: Line
    whole: bool
    done: int = 0

    def attempt(self) -> bool:
        """Go on where the last attempt broke; False: there is no such object. Raises also Refusal, TakeFailed."""
        if self.done == self.length:  # it broke behind the last byte
            return True
        start, end = self.start + self.done, self.start + self.length
        try:
            answer, is_part = asked(self.raw, self.key, start, end, self.line, whole=self.whole and not self.done)
        except FileNotFoundError:
            return False
        skip = 0 if is_part else start
        for chunk in self._chunks(answer):
            data = memoryview(chunk)[skip:][: self.length - self.done]
            skip = max(0, skip - len(chunk))
            if data:
                self._hand_on(data)
        if self.done < self.length:
            raise too_short(self.name, self.done, self.length, again=answer.meta["size"] >= end)
        return True

    def _hand_on(self, data: memoryview) -> None:
        try:
            self.take(self.done, data)
        except Exception as error:
            raise TakeFailed(error) from error
        self.done += len(data)

    def _chunks(self, answer: obstore.GetResult) -> Iterable[obstore.Bytes | bytes]:
        """Return the body in pieces. Of a file of this machine they are asked for: obstore would read it by 8 KiB."""
        if isinstance(self.raw, LocalStore | MemoryStore):
            return self._parts(*answer.range)
        return answer.stream(min_chunk_size=STREAM_BYTES)

    def _parts(self, start: int, end: int) -> Iterable[obstore.Bytes]:
        for at in range(start, end, LOCAL_BYTES):
            yield obstore.get_range(self.raw, self.key, start=at, end=min(at + LOCAL_BYTES, end))
