"""The lock of a state in a bucket: Terraform's own object and form, made here before Terraform is started.

Terraform would draw the lock's id itself and tell it only to those who meet the lock. So nobody could prove later whose
it was: its ``Who`` is a user and a host name, which many share. Here the id is noted on the disk before the lock
exists. A lock whose id stands in our note is ours, also where the answer to the write was lost; any other is a
stranger's and is never touched. A `terraform` by hand meets it as it meets its own.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import signal
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from provisioner.errors import CloudError, StateLocked, TerraformError
from provisioner.terraform.backend import Objects, Remote, replace

TURN, NOTE = "state.turn", "state-lock.json"
TOKEN: Final = "FAILOVER_STATE_LOCK"  # noqa: S105 - a variable's name: it marks the processes that work under a lock
WHOLE: Final = "pid:[4026531836]"
"""The processes of a machine that are in no container (PROC_PID_INIT_INO of Linux)."""
_POLL_S: Final = 1.0
_LOOK_S: Final = 0.2
_NOTED: Final = 16


@dataclass(frozen=True, slots=True)
class Host:
    """This machine. ``boot`` is another one after each start, ``pids`` another one in each container.

    They are empty where the kernel does not tell.
    """

    name: str
    machine: str
    boot: str
    pids: str = WHOLE

    @classmethod
    def here(cls) -> Host:
        """Return the machine that this runs on."""
        try:
            pids = str(Path("/proc/self/ns/pid").readlink())
        except OSError:
            pids = ""
        return cls(socket.gethostname(), _line("/etc/machine-id"), _line("/proc/sys/kernel/random/boot_id"), pids)

    def sees_all_of(self, other: Host) -> bool:
        """Say whether what ran on ``other`` would be seen here if it lived: in this boot, or since that boot is over.

        A container does not see what runs beside it, and may have come from another machine.
        """
        if not self.boot or not self.pids:
            return False
        if self.boot == other.boot:
            return self.pids == other.pids
        same_machine = bool(self.machine) and (self.machine, self.name) == (other.machine, other.name)
        return same_machine and self.pids == other.pids == WHOLE


@dataclass(frozen=True, slots=True)
class Owner:
    """What a lock says of who holds it."""

    id: str
    who: str
    operation: str
    created: str

    @classmethod
    def of(cls, content: bytes) -> Owner:
        """Read a lock. What cannot be read is somebody's too."""
        try:
            said = json.loads(content)
            return cls(*(str(said.get(name) or "") for name in ("ID", "Who", "Operation", "Created")))
        except (ValueError, AttributeError):
            return cls("", "", "", "")

    def __str__(self) -> str:
        """Return ``root@host since 2026-11-30T17:53:41Z (plan)``."""
        said = f"{self.who or 'somebody'} since {self.created or 'an unknown time'}"
        return f"{said} ({self.operation})" if self.operation else said


@dataclass(slots=True)
class StateLock:
    """The lock of one stack's state. ``folder`` is this machine's, for the note; ``uri`` names the state in messages.

    ``on_wait(owner)`` is told once when somebody else has to be waited for. ``met`` holds, by id, when each lock of
    others was first met, by ``clock``: one that was waited for in vain is not waited for again.
    """

    objects: Objects
    key: str
    folder: Path
    uri: str
    timeout_s: float = 120.0
    grace_s: float = 20.0
    on_wait: Callable[[Owner], None] | None = None
    host: Host = field(default_factory=Host.here)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    met: dict[str, float] = field(default_factory=dict)
    file: str = "FILE"

    @classmethod
    def of(cls, remote: Remote, folder: Path, **more: Any) -> StateLock:
        """Return the lock of a state in a bucket."""
        wait_s = remote.waits.left_s()
        common = {"met": remote.waits.met, "file": remote.file, **more}
        return cls(remote.objects, remote.lock_key, folder, remote.uri, wait_s, **common)

    @contextmanager
    def held(self, operation: str) -> Iterator[str]:
        """Hold the lock; give its id. Raises StateLocked when others do not let go of it in time, and CloudError.

        What this state directory held and lost (a controller or a machine that died) is taken over, once no process
        that worked under it is left.
        """
        until = self.clock() + self.timeout_s
        with self.turn(until), self.held_in_turn(operation, until) as lock_id:
            yield lock_id

    @contextmanager
    def held_in_turn(self, operation: str, until: float) -> Iterator[str]:
        """Hold the lock for one who has the turn, as for two locks at once. Raises as ``held``."""
        lock_id = self._take(operation, until)
        try:
            yield lock_id
        finally:
            self._let_go(lock_id)

    @contextmanager
    def turn(self, until: float) -> Iterator[None]:
        """Have the turn among this state directory's processes. The kernel lets go of it when the process dies."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.folder / TURN).open("a", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o600)
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if self.clock() >= until:
                        message = f"{self.uri}: another process of this machine works on this state"
                        raise StateLocked(message, hint="wait for it; failover status names controllers") from None
                    self.sleep(_LOOK_S)
            yield

    def _take(self, operation: str, until: float) -> str:
        told = False
        while True:
            found = self.objects.get(self.key)
            if found is not None:
                owner = Owner.of(found)
                if self._is_ours(owner.id):
                    self._end_workers(owner.id, until)
                    self.objects.put(self.key, self._content(owner.id, operation))
                    self._note(owner.id)
                    return owner.id
                now = self.clock()
                since = self.met.setdefault(owner.id, now)
                if now >= min(until, since + self.timeout_s):
                    raise self._locked(owner, now - since)
                if not told and self.on_wait is not None:
                    self.on_wait(owner)
                told = True
                self.sleep(_POLL_S)
                continue
            mine = str(uuid.uuid4())
            self._note(mine)
            self.objects.create(self.key, self._content(mine, operation))
            # Only what stands there now tells: "exists" may be our own write whose answer was lost.
            found = self.objects.get(self.key)
            if found is not None and Owner.of(found).id == mine:
                return mine

    def _let_go(self, lock_id: str) -> None:
        """Remove the lock if it is still the one that was taken: somebody may have broken it by hand.

        Where the store does not answer, the lock and its note stay, and the next run here takes them over.
        """
        with suppress(CloudError):
            now = self.objects.get(self.key)
            if now is not None and Owner.of(now).id == lock_id:
                self.objects.delete([self.key])
            self._write_notes([note for note in self._notes() if note["id"] != lock_id])

    def _is_ours(self, lock_id: str) -> bool:
        """Say whether this state directory made the lock, on this machine: before now or before its last start.

        Whoever asks has the turn, so on this boot whoever made it is dead.
        """
        note = next((note for note in self._notes() if note["id"] == lock_id), None)
        if note is None or not lock_id:
            return False
        return self.host.sees_all_of(Host(note["host"], note["machine"], note["boot"], note["pids"]))

    def _end_workers(self, lock_id: str, until: float) -> None:
        """Wait for what still works under a lock of the dead; when the time is over interrupt it, then kill it."""
        if self._gone(lock_id, until):
            return
        _send(lock_id, signal.SIGINT)
        if self._gone(lock_id, self.clock() + self.grace_s):
            return
        if not self._gone(lock_id, self.clock() + self.grace_s, kill=True):
            message = f"{self.uri}: processes that worked under a lock of ours do not end"
            raise TerraformError(message, hint=f"end them: {' '.join(map(str, workers(lock_id)))}")

    def _gone(self, lock_id: str, until: float, *, kill: bool = False) -> bool:
        """Wait until nobody works under a lock. What is killed may have started another one a moment before."""
        while workers(lock_id):
            if self.clock() >= until:
                return False
            if kill:
                _send(lock_id, signal.SIGKILL)
            self.sleep(_LOOK_S)
        return True

    def _note(self, lock_id: str) -> None:
        """Note which lock is ours, before it exists. Older ones stay a while: a write may come late."""
        here = self.host
        noted = {"id": lock_id, "host": here.name, "machine": here.machine, "boot": here.boot, "pids": here.pids}
        self._write_notes([*(note for note in self._notes() if note["id"] != lock_id), noted][-_NOTED:])

    def _notes(self) -> list[dict[str, str]]:
        try:
            found = json.loads((self.folder / NOTE).read_text(encoding="utf-8"))
            return [{name: str(note[name]) for name in ("id", "host", "machine", "boot", "pids")} for note in found]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def _write_notes(self, notes: list[dict[str, str]]) -> None:
        replace(self.folder / NOTE, json.dumps(notes))

    def _content(self, lock_id: str, operation: str) -> bytes:
        said: dict[str, Any] = {
            "ID": lock_id,
            "Operation": operation,
            "Info": f"gpu-failover, process {os.getpid()}",
            "Who": f"{_user()}@{self.host.name}",
            "Version": "",
            "Created": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
            "Path": self.uri,
        }
        return json.dumps(said).encode()

    def _locked(self, owner: Owner, waited_s: float) -> StateLocked:
        named = f"{self.uri} is locked by {owner}, lock {owner.id or 'without an id'}"
        command = f": failover state unlock {self.file} {owner.id}" if owner.id else f", remove {self.key} there"
        message = f"{named}; it was waited for for {waited_s:.0f} s"
        return StateLocked(message, hint=f"if that run is dead for certain{command}")


def workers(lock_id: str) -> list[int]:
    """Return the processes that were started under a lock and still live. Knows of none where there is no /proc."""
    mark = f"{TOKEN}={lock_id}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int(entry.name) != os.getpid() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def _send(lock_id: str, number: signal.Signals) -> None:
    for pid in workers(lock_id):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
