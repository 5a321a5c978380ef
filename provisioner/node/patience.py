"""Ask a store again while it does not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from tenacity import (
    Retrying,
    retry_if_exception,
    sleep_using_event,
    stop_after_delay,
    stop_any,
    stop_when_event_set,
)
from tenacity.wait import wait_exponential_jitter

from provisioner.errors import Unauthorized, Unreachable

T = TypeVar("T")

ROLE_PATIENCE_S = 90.0
"""How long a new machine's role may stay unknown to the store, in seconds."""


def patiently(call: Callable[[], T], *, seconds: float, cancel: threading.Event | None, by_role: bool) -> T:
    """Call until it answers, for ``seconds`` or until ``cancel``; then raise what it raised last.

    ``by_role``: the machine's own role gives access, which takes a moment to be known everywhere.
    """
    role_known_by = time.monotonic() + ROLE_PATIENCE_S if by_role else 0.0

    def is_worth_it(error: BaseException) -> bool:
        late_role = isinstance(error, Unauthorized) and time.monotonic() < role_known_by
        return late_role or isinstance(error, Unreachable)

    interrupt = cancel or threading.Event()
    retrying = Retrying(
        retry=retry_if_exception(is_worth_it),
        stop=stop_any(stop_after_delay(seconds), stop_when_event_set(interrupt)),
        wait=wait_exponential_jitter(initial=1, max=15),
        sleep=sleep_using_event(interrupt),
        reraise=True,
    )
    return retrying(call)
