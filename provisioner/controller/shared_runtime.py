"""The node's runtime in the store, beside the jobs, whose names have no dot: it is the same for all of them.

A job notes which version its machines start with, at its start and again while it starts machines, before it looks
whether that is there. What no job has started with for a week, and no job that goes on has noted, a sweep removes
(docs/operations.md). A version that was removed all the same is put there anew with the next machine.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from provisioner.checkpoint import epochs, layout
from provisioner.checkpoint.store import Store

SEEN_S: Final = 600.0
"""How long a part that was seen in the store is not asked for again, in seconds."""
NOTED_S: Final = 3600.0
"""How long a job's note is not written again, in seconds."""
UNUSED_S: Final = 7 * 86400.0
"""What no machine was started with for so long, in seconds, nobody fetches any more: links end within hours."""
USED: Final = f"{layout.SHARED_RUNTIME}/used"
_USED: Final = re.compile(rf"{re.escape(USED)}/([a-z0-9-]+)\.json")
_PART: Final = re.compile(
    rf"{re.escape(layout.SHARED_RUNTIME)}/(?:[0-9a-f]{{64}}\.tar\.gz|[0-9a-f]{{16}}/[\w.+-]+\.whl)"
)
_sharing = threading.Lock()
_seen: dict[tuple[str, str], float] = {}
_noted: dict[tuple[str, str], tuple[float, tuple[str, ...]]] = {}


class SharedRuntime:
    """What one job has of it. ``store`` is the one above the job's own."""

    def __init__(self, store: Store, job: str) -> None:
        """Ask nothing yet."""
        self._store, self._job = store, job

    def note(self, keys: Sequence[str]) -> None:
        """Note what the job's machines start with. Raises CloudError."""
        name, now = (self._store.uri, self._job), time.monotonic()
        noted_at, noted = _noted.get(name, (float("-inf"), ()))
        if keys and (noted != tuple(keys) or now - noted_at >= NOTED_S):
            self._store.put(f"{USED}/{self._job}.json", json.dumps({"keys": [*keys]}).encode())
            _noted[name] = now, tuple(keys)
            for key in keys:  # a sweep may have taken it before it could read the note
                _seen.pop((self._store.uri, key), None)

    def share(self, key: str, path: Path) -> None:
        """Put a part there, unless it is there. Raises CloudError."""
        with _sharing:  # many jobs begin at once, and one of them sends it
            if not self._is_there(key):
                self._store.put(key, path.read_bytes())
                _seen[self._store.uri, key] = time.monotonic() + SEEN_S

    def has(self, keys: Iterable[str]) -> bool:
        """Say whether all parts are there. Raises CloudError."""
        return all(self._is_there(key) for key in keys)

    def link(self, key: str, expires_s: float) -> str:
        """Return a link to a part. Raises StoreError."""
        return self._store.sign(key, expires_s)

    def _is_there(self, key: str) -> bool:
        name = self._store.uri, key
        if time.monotonic() < _seen.get(name, 0.0):
            return True
        if not self._store.exists(key):
            return False
        _seen[name] = time.monotonic() + SEEN_S
        return True


@dataclass(frozen=True, slots=True)
class Part:
    """A part that no job uses, or the note of a job that has none left. ``since``: last used, Unix seconds."""

    key: str
    since: float


def unused(store: Store, going_on: Collection[str], now: float) -> list[Part]:
    """Return what no job uses. ``store`` is the one above the jobs, ``going_on`` names those with a run that is open.

    Raises CloudError.
    """
    objects = store.objects(layout.SHARED_RUNTIME)
    parts = {one.key: one.modified for one in objects if _PART.fullmatch(one.key)}
    notes = {match[1]: one for one in objects if (match := _USED.fullmatch(one.key))}
    if all(now - modified < UNUSED_S for modified in [*parts.values(), *(note.modified for note in notes.values())]):
        return []
    found: list[Part] = []
    for job, note in notes.items():
        keys, goes_on = _keys(store.get(note.key)), job in going_on or now - note.modified < UNUSED_S
        used = note.modified if goes_on else max(note.modified, _heard(store, job))
        if goes_on or now - used < UNUSED_S:
            for key in keys:
                parts.pop(key, None)
        else:
            parts |= {key: max(parts[key], used) for key in keys if key in parts}
            found.append(Part(note.key, used))
    return [Part(key, used) for key, used in parts.items() if now - used >= UNUSED_S] + found


def _heard(store: Store, job: str) -> float:
    """Return when a machine of a job was last heard of, Unix seconds; 0: never."""
    own = store.at(job)
    newest = epochs.newest_used(own)
    beat = own.look(layout.heartbeat(newest)) if newest else None
    return 0.0 if beat is None else beat.modified


def _keys(data: bytes | None) -> list[str]:
    try:
        note: Mapping[str, list[str]] = json.loads(data or b"{}")
        return [str(key) for key in note["keys"]]
    except (ValueError, KeyError, TypeError):
        return []
