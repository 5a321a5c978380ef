"""The fence: who may write for a job. Each placement has an epoch that only grows; the highest with an owner rules."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable

from provisioner.checkpoint import layout
from provisioner.checkpoint.probe import weaker
from provisioner.checkpoint.store import Store
from provisioner.errors import CloudError, Fenced, StoreError, Unreachable

_NUMBER = re.compile("[0-9]{1,6}")
TRIES = 5
SETTLE_S = 1.0
"""Where a store knows no conditional writes: how long a plain one is left alone before it is believed, in seconds."""


def newest_epoch(store: Store) -> int:
    """Return the highest epoch that has an owner, 0 when there is none. ``store`` is the job's. Raises CloudError."""
    return max(_owned(store, above=0), default=0)


def newest_used(store: Store) -> int:
    """Return the highest epoch that has left anything, owned or not: the next placement takes a higher one."""
    return max(_numbers(store), default=0)


def take(
    store: Store,
    epoch: int,
    token: str,
    node: str,
    *,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Become the owner of an epoch; repeating it with the same token is fine.

    Returns an empty string, or one line for the log when the store does not honour conditional writes. Raises Fenced
    when another token owns the epoch or a newer epoch has an owner, CloudError when the store cannot tell.
    """
    key = layout.owner(epoch)
    body = json.dumps({"token": token, "node": node, "time": clock()}).encode()
    created = False
    problem: StoreError | Unreachable | None = None
    for attempt in range(TRIES):
        check_newer(store, epoch)
        try:
            created = store.create(key, body)
            problem = None
        except (StoreError, Unreachable) as error:  # it may have been stored all the same
            problem = error
        owner = _token(store, key)
        if owner is not None:
            _mine(owner, token, epoch)
            break
        if store.create_refused:
            return _take_plainly(store, epoch, token, body, sleep)
        sleep(0.2 * 2**attempt)
    else:
        if problem is None:
            raise StoreError(f"{store.uri}/{key}: the store says that it exists and that it does not")
        if isinstance(problem, Unreachable):
            raise problem
        return _take_plainly(store, epoch, token, body, sleep)
    check_newer(store, epoch)
    if created and _ignores(store, key, body):
        _settle(store, epoch, token, sleep)
        return weaker(store, "ignored")
    return ""


def check(store: Store, epoch: int, token: str) -> None:
    """Raise Fenced when this node no longer rules: a newer epoch has an owner, or the own one has another."""
    check_newer(store, epoch)
    owner = _token(store, layout.owner(epoch))
    if owner is not None:
        _mine(owner, token, epoch)


def check_newer(store: Store, epoch: int) -> None:
    """Raise Fenced when an epoch above ``epoch`` has an owner."""
    newer = max(_owned(store, above=epoch), default=0)
    if newer:
        raise Fenced(f"epoch {newer} owns the job; this node has epoch {epoch} and stops")


def _take_plainly(store: Store, epoch: int, token: str, body: bytes, sleep: Callable[[float], None]) -> str:
    """Write without a condition where the store refuses one."""
    store.put(layout.owner(epoch), body)
    _settle(store, epoch, token, sleep)
    return weaker(store, "refused")


def _ignores(store: Store, key: str, body: bytes) -> bool:
    """Say whether the store lets a conditional write pass where there is an object: ours, which stays as it is."""
    try:
        return store.create(key, body)
    except CloudError:
        return False


def _settle(store: Store, epoch: int, token: str, sleep: Callable[[float], None]) -> None:
    """Wait until the last of several writers is known. It wins, and all of them read who that is."""
    sleep(SETTLE_S)
    key = layout.owner(epoch)
    owner = _token(store, key)
    if owner is None:
        raise StoreError(f"{store.uri}/{key}: written, but it cannot be read back")
    _mine(owner, token, epoch)
    check_newer(store, epoch)


def _mine(owner: str, token: str, epoch: int) -> None:
    if owner != token:
        raise Fenced(f"epoch {epoch} belongs to another node; this one stops")


def _token(store: Store, key: str) -> str | None:
    data = store.get(key)
    if data is None:
        return None
    try:
        return str(json.loads(data)["token"])
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{store.uri}/{key}: not in the form that this release writes") from error


def _numbers(store: Store) -> list[int]:
    return [int(name) for name in store.folders(layout.EPOCHS) if _NUMBER.fullmatch(name)]


def _owned(store: Store, *, above: int) -> list[int]:
    """Return the highest owned epoch above ``above`` as a list of at most one, looking from the top."""
    for number in sorted(_numbers(store), reverse=True):
        if number <= above:
            break
        if store.exists(layout.owner(number)):
            return [number]
    return []
