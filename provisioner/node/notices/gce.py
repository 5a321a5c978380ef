"""Preemption and host maintenance, from the Compute Engine metadata server.

Both values can be waited for, so a change is known at once. A wait is short: a connection that dies without a word
would else hide a notice of 30 seconds.

Source: Compute Engine documentation, "Spot VMs" (preemption process), "Handle GPU host maintenance events", "Query
metadata server for maintenance event notices" and "Query VM metadata" (waiting for a change).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from urllib.parse import quote

from provisioner.clock import now as unix_now
from provisioner.node.notices.asking import TIMEOUT_S, ask
from provisioner.node.notices.source import Notice, SourceAway

DEFAULT_HOST = "169.254.169.254"
NOTICE_S = 30.0
"""What a preempted machine gets by default, in seconds; not guaranteed."""
NOTICE_ATTRIBUTE = "failover-preemption-notice-s"
"""Whoever starts a machine with ``preemptionNoticeDuration`` puts its seconds here: Google's own keys do not tell."""
_LONGEST_NOTICE_S = 600.0
MAINTENANCE_S = 60.0
GPU_MAINTENANCE_S = 3600.0
"""From the maintenance event to the maintenance, in seconds, without and with a GPU."""
_FLAVOR = {"Metadata-Flavor": "Google"}


class GceMetadata:
    """The metadata server. ``timeout_s`` is for each request, beside what is waited for on purpose."""

    def __init__(self, host: str = DEFAULT_HOST, *, timeout_s: float = TIMEOUT_S) -> None:
        """Ask nothing yet. ``host`` is a name or address, with a port if it is not 80."""
        self._endpoint = f"http://{host}"
        self._timeout_s = timeout_s

    def get(self, key: str, *, wait_s: float = 0.0, etag: str = "") -> tuple[str | None, str]:
        """Return the value below ``instance/`` and its etag, None where there is no such key.

        With an ``etag`` it waits up to ``wait_s`` seconds for a value that has another. Raises SourceAway.
        """
        path = f"/computeMetadata/v1/instance/{key}"
        waits = max(0, round(wait_s)) if etag else 0
        if waits:
            path += f"?wait_for_change=true&timeout_sec={waits}&last_etag={quote(etag, safe='')}"
        answer = ask(self._endpoint, "GET", path, _FLAVOR, timeout_s=self._timeout_s, wait_s=waits)
        if answer.headers.get("metadata-flavor") != "Google":
            raise SourceAway("the answer is not from Google's metadata server")
        if answer.status == 404:
            return None, ""
        if answer.status != 200:
            raise SourceAway(f"{key} got {answer.status}")
        return answer.body.decode("latin-1").strip(), answer.headers.get("etag", "")


class _Key:
    """One value that is waited for."""

    every_s = 1.0
    key = ""

    def __init__(self, metadata: GceMetadata, *, clock: Callable[[], float] = unix_now) -> None:
        """Ask nothing yet. ``clock`` gives Unix seconds."""
        self._metadata = metadata
        self._clock = clock
        self._etag = ""
        self._since: tuple[str, float] = ("", 0.0)
        self._lock = threading.Lock()

    def _value(self, wait_s: float) -> tuple[str, float]:
        """Return the value and since when it is known to hold, in Unix seconds."""
        if wait_s:
            value, self._etag = self._metadata.get(self.key, wait_s=wait_s, etag=self._etag)
        else:
            value, _ = self._metadata.get(self.key)
        with self._lock:
            if self._since[0] != (value or ""):
                self._since = (value or "", self._clock())
            return self._since


class Preemption(_Key):
    """``instance/preempted``. It becomes TRUE when the machine is taken, and stays so."""

    name = "Google's preemption notice"
    key = "preempted"

    def __init__(self, metadata: GceMetadata, *, clock: Callable[[], float] = unix_now) -> None:
        """Ask nothing yet."""
        super().__init__(metadata, clock=clock)
        self.notice_s: float | None = None
        """What this machine was started with, once it was asked."""

    def watch(self, wait_s: float) -> Notice | None:
        """Return the notice when there is one. Raises SourceAway."""
        if self.notice_s is None:  # beforehand: at the notice there is no time to lose
            self.notice_s = _notice_s(self._metadata.get(f"attributes/{NOTICE_ATTRIBUTE}")[0])
        value, since = self._value(wait_s)
        if value.upper() != "TRUE":
            return None
        return Notice("spot preempted", self.name, since + self.notice_s, f"{self.notice_s:.0f} s of notice")


class Maintenance(_Key):
    """``instance/maintenance-event``. A live migration is advice, a termination is the end."""

    name = "Google's maintenance notice"
    key = "maintenance-event"

    def __init__(self, metadata: GceMetadata, *, has_gpu: bool, clock: Callable[[], float] = unix_now) -> None:
        """Ask nothing yet. A machine with a GPU is told an hour before, any other a minute."""
        super().__init__(metadata, clock=clock)
        self._notice_s = GPU_MAINTENANCE_S if has_gpu else MAINTENANCE_S

    def watch(self, wait_s: float) -> Notice | None:
        """Return the event when there is one. Raises SourceAway."""
        value, since = self._value(wait_s)
        if value in {"", "NONE"}:
            return None
        if value == "TERMINATE_ON_HOST_MAINTENANCE":
            return Notice("host maintenance", self.name, since + self._notice_s, value)
        return Notice("host maintenance", self.name, since + MAINTENANCE_S, value[:80], final=False)


def _notice_s(attribute: str | None) -> float:
    """Read ``120`` or ``120s``; what cannot be read, and a machine without it, has the default."""
    match = re.fullmatch(r"(\d{1,4})s?", attribute or "")
    return min(_LONGEST_NOTICE_S, max(NOTICE_S, float(match[1]))) if match else NOTICE_S
