"""What an ELF file asks of the system that runs it: libraries by name, the glibc that has all its symbols, the kernel.

Reads 64-bit little-endian files (x86_64, aarch64), which is what machines with GPUs run.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

MAGIC = b"\x7fELF\x02\x01"
MACHINES = {62: "x86_64", 183: "aarch64"}
_PT_LOAD, _PT_DYNAMIC, _PT_NOTE = 1, 2, 4
_NT_GNU_ABI_TAG, _OF_LINUX = 1, 0
_DT_NEEDED, _DT_STRTAB, _DT_VERNEED, _DT_VERNEEDNUM = 1, 5, 0x6FFFFFFE, 0x6FFFFFFF
_NAMED_ABIS = {"GLIBC_ABI_DT_RELR": (2, 36)}
"""Versions without a number, and the first glibc that has them."""


@dataclass(frozen=True, slots=True)
class Elf:
    """``machine`` as ``uname -m`` says it; ``needed`` in the file's order; ``glibc`` (0, 0) where it asks for none."""

    machine: str
    needed: tuple[str, ...]
    glibc: tuple[int, int]


def is_elf(data: bytes) -> bool:
    """Say whether these are the first bytes of a file that :func:`read` can read."""
    return data.startswith(MAGIC)


def read(data: bytes) -> Elf:
    """Read a file's bytes. Raises ValueError for what is no ELF file, or a damaged one."""
    if not is_elf(data):
        raise ValueError("not a 64-bit little-endian ELF file")
    try:
        return _read(data)
    except (struct.error, IndexError, OverflowError) as error:
        raise ValueError(f"a damaged ELF file ({error})") from None


def kernel(data: bytes) -> tuple[int, int, int]:
    """Return the oldest Linux that a file's ABI note names, as (3, 2, 0). Raises ValueError for a file without one."""
    if not is_elf(data):
        raise ValueError("not a 64-bit little-endian ELF file")
    try:
        for at, owner, kind in _notes(data):
            system, *oldest = struct.unpack_from("<IIII", data, at)
            if (owner, kind, system) == (b"GNU\0", _NT_GNU_ABI_TAG, _OF_LINUX):
                return (oldest[0], oldest[1], oldest[2])
    except (struct.error, OverflowError) as error:
        raise ValueError(f"a damaged ELF file ({error})") from None
    raise ValueError("an ELF file without an ABI note for Linux")


def _notes(data: bytes) -> Iterator[tuple[int, bytes, int]]:
    """Yield where each note of at least 16 bytes has its content, its owner, and its kind."""
    for segment in _segments(data):
        at, end = segment[2], segment[2] + segment[5]
        while segment[0] == _PT_NOTE and at < end:
            name, size, kind = struct.unpack_from("<III", data, at)
            body = at + 12 + -(-name // 4) * 4
            if size >= 16:
                yield body, data[at + 12 : at + 12 + name], kind
            at = body + -(-size // 4) * 4


def _segments(data: bytes) -> list[tuple[int, ...]]:
    """Return (kind, flags, offset, address, physical address, length) of each."""
    table = struct.unpack_from("<Q", data, 32)[0]
    size, count = struct.unpack_from("<HH", data, 54)
    return [struct.unpack_from("<IIQQQQ", data, table + one * size) for one in range(count)]


def _read(data: bytes) -> Elf:
    number = struct.unpack_from("<H", data, 18)[0]
    machine = MACHINES.get(number, str(number))
    segments = _segments(data)
    loads = [(vaddr, offset, length) for kind, _, offset, vaddr, _, length in segments if kind == _PT_LOAD]
    entries = _dynamic(data, [(one[2], one[5]) for one in segments if one[0] == _PT_DYNAMIC])
    if _DT_STRTAB not in entries:
        return Elf(machine, (), (0, 0))
    strings = _place(loads, entries[_DT_STRTAB][0])

    def text(position: int) -> str:
        start = strings + position
        return data[start : data.index(b"\0", start)].decode("ascii", "replace")

    versions = [(0, 0)]
    if _DT_VERNEED in entries:
        names = _needed_versions(data, _place(loads, entries[_DT_VERNEED][0]), entries[_DT_VERNEEDNUM][0])
        versions += [_glibc(text(name)) for name in names]
    return Elf(machine, tuple(map(text, entries.get(_DT_NEEDED, []))), max(versions))


def _dynamic(data: bytes, places: list[tuple[int, int]]) -> dict[int, list[int]]:
    """Return tag -> values of the dynamic section, which lies at these (offset, length)."""
    entries: dict[int, list[int]] = {}
    for offset, length in places:
        for tag, value in struct.iter_unpack("<qQ", data[offset : offset + length - length % 16]):
            if tag == 0:
                break
            entries.setdefault(tag, []).append(value)
    return entries


def _place(loads: list[tuple[int, int, int]], address: int) -> int:
    """Return where an address of the running program stands in the file."""
    for vaddr, offset, length in loads:
        if vaddr <= address < vaddr + length:
            return address - vaddr + offset
    raise IndexError("an address outside of the file")


def _needed_versions(data: bytes, at: int, count: int) -> Iterator[int]:
    """Yield where the name of each needed version stands in the string table."""
    for _ in range(count):
        _, versions, _, first, following = struct.unpack_from("<HHIII", data, at)
        one = at + first
        for _ in range(versions):
            _, _, _, name, next_one = struct.unpack_from("<IHHII", data, one)
            yield name
            one += next_one
        at += following


def _glibc(name: str) -> tuple[int, int]:
    if name in _NAMED_ABIS:
        return _NAMED_ABIS[name]
    found = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", name)
    return (int(found[1]), int(found[2])) if found else (0, 0)
