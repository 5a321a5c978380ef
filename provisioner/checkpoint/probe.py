"""Find out what a store can do before anything depends on it: a handful of requests with one small object."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from provisioner.checkpoint.store import Store
from provisioner.errors import CloudError, StoreError

Conditional: TypeAlias = Literal["honoured", "ignored", "refused"]

FOLDER = "probe"
_OTHER = "use another store: checkpoints would be lost in this one"
_WEAKER = {
    "honoured": "",
    "ignored": "ignores conditional writes",
    "refused": "refuses conditional writes",
}


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a store was seen to do besides writing, reading, listing and deleting."""

    conditional: Conditional
    """What becomes of a write that is to succeed only where there is no object."""
    clock_skew_s: float
    """The store's clock less ours, in seconds; stores tell whole seconds."""
    line: str
    """The guarantee that is weaker here, in one line; empty where none is."""


def probe(store: Store, *, clock: Callable[[], float] = time.time) -> Abilities:
    """Write, read, list and delete one object below ``probe/``, which is gone afterwards.

    Raises Unreachable, Unauthorized, and StoreError for a store that does not do what it says; the hint names the
    setting. A store that ignores or refuses conditions is no error.
    """
    key = f"{FOLDER}/{secrets.token_hex(8)}"
    before = clock()
    try:
        conditional = _conditional(store, key)
        after = clock()
        _readable(store, key)
        found = next((stored for stored in store.objects(FOLDER) if stored.key == key), None)
    except CloudError:
        with contextlib.suppress(CloudError):
            store.delete([key])
        raise
    store.delete([key])
    if found is None:
        raise StoreError(f"{store.uri}: what was written is not listed", hint=_OTHER)
    if store.exists(key):
        raise StoreError(f"{store.uri}: what was deleted is still there", hint=_OTHER)
    return Abilities(conditional, found.modified - (before + after) / 2, weaker(store, conditional))


def weaker(store: Store, conditional: Conditional) -> str:
    """Say in one line which guarantee a store does not give, or nothing."""
    word = _WEAKER[conditional]
    return f"{store.uri} {word}: only the epoch in every name keeps two nodes apart" if word else ""


def _conditional(store: Store, key: str) -> Conditional:
    try:
        store.create(key, b"first")
        return "ignored" if store.create(key, b"second") else "honoured"
    except StoreError:
        if not store.create_refused:
            raise
    store.put(key, b"first")
    return "refused"


def _readable(store: Store, key: str) -> None:
    whole = store.get(key)
    if whole not in {b"first", b"second"}:
        raise StoreError(f"{store.uri}: what was written is not read back", hint=_OTHER)
    if bytes(store.get_range(key, 2, 3) or b"") != whole[2:5]:
        raise StoreError(f"{store.uri}: a part of an object is not read back", hint=_OTHER)
