"""Machines of the sandbox: a process tree each, with a directory, a console log and a power button.

The user data really runs, with bash, as cloud-init would run them. The interpreter that runs the sandbox stands for
the machine image: its ``bin`` directory is on the machine's PATH. Nothing survives :meth:`Machines.kill`, whatever
sessions, groups, environments or containers the processes of the machine made for themselves.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from provisioner.clouds.local.process import marks, read_marks
from provisioner.sandbox import hardware
from provisioner.sandbox.guest import MACHINE_LABEL, end_containers

if TYPE_CHECKING:
    from provisioner.sandbox.containers import Containers

_LOG = logging.getLogger(__name__)
_GUEST = Path(__file__).with_name("guest.py")
_QUIET_LOOKS = 2
MARKER = "FAILOVER_SANDBOX_DIR"
"""Environment variable with the machine's directory, in every process of it. Ids repeat from sandbox to sandbox."""

_POWER = """#!/bin/bash
# Power button of a sandbox machine; understands what shutdown, poweroff, halt and reboot of systemd understand.
verb=${0##*/}; action=halt; when=now
[ "$verb" = reboot ] && action=reboot
for word in "$@"; do
  case $word in
    -c) echo cancel > "$FAILOVER_SANDBOX_DIR/power"; exit 0 ;;
    -r|--reboot) action=reboot ;;
    -k|--help) exit 0 ;;
    now|+[0-9]*|[0-9]*:[0-9]*) when=$word ;;
    -*) ;;
    *) break ;;
  esac
done
# without a time, shutdown waits a minute and the other three do not wait
[ $# -eq 0 ] && [ "$verb" = shutdown ] && when=+1
case $when in
  now) delay=0 ;;
  +*) delay=$(( 10#${when#+} * 60 )) ;;
  *) delay=$(( $(date -d "$when" +%s) - $(date +%s) )); [ "$delay" -lt 0 ] && delay=$(( delay + 86400 )) ;;
esac
echo "$action $delay" > "$FAILOVER_SANDBOX_DIR/power"
exit 0  # whatever happened: a script that sees a failure may reach for the real one of this host
"""


@dataclass(slots=True)
class _Machine:
    directory: Path
    process: subprocess.Popen[bytes]
    on_shutdown: Callable[[str], None]
    started_at: float
    plug_pulled: threading.Event = field(default_factory=threading.Event)
    off: threading.Event = field(default_factory=threading.Event)


class Machines:
    """Start, kill and list machines. Thread-safe."""

    def __init__(
        self,
        directory: Path,
        *,
        grace_s: float = 5.0,
        path: str | None = None,
        containers: Containers | None = None,
    ) -> None:
        """Keep machines below ``directory``. ``grace_s``: seconds from SIGTERM to SIGKILL in a guest's own shutdown.

        ``path`` is what a machine finds after the power shims; by default the ``bin`` directory of this interpreter
        and the system's. With ``containers`` a machine has a ``docker``, whose containers end with the machine.
        """
        self._directory = directory.absolute()
        self._grace_s = grace_s
        self._path = path or f"{Path(sys.executable).parent}:/usr/bin:/bin"
        self._containers = containers
        self._machines: dict[str, _Machine] = {}
        self._lock = threading.Lock()

    def start(
        self,
        machine_id: str,
        user_data: str | None,
        env: Mapping[str, str],
        on_shutdown: Callable[[str], None],
        *,
        rerun_on_reboot: bool = False,
    ) -> None:
        """Boot a machine. A directory that is there already is used again, as the disk of a stopped machine is.

        ``on_shutdown(machine_id)`` is called once, from another thread, when the guest has powered itself off; not
        after :meth:`kill`. ``env`` is added to the machine's otherwise clean environment. With ``rerun_on_reboot``
        the user data run at every boot; else a reboot runs the scripts in ``per-boot`` (FAILOVER_SANDBOX_PER_BOOT),
        and so does a start without user data: cloud-init runs user data once in the life of a disk.
        """
        with self._lock:
            old = self._machines.get(machine_id)
            if old is not None and not old.off.is_set():
                message = f"machine {machine_id} runs already"
                raise ValueError(message)
            directory = self._furnish(machine_id, user_data, env)
            guest = [sys.executable, "-I", "-S", str(_GUEST), str(directory), str(self._grace_s)]
            boot = [] if user_data is None else ["/bin/bash", str(directory / "user-data")]
            process = subprocess.Popen(
                [*guest, "1" if rerun_on_reboot else "0", *boot],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env=self._environment(machine_id, directory, env),
                start_new_session=True,
                cwd=directory / "root",
            )
            machine = _Machine(directory, process, on_shutdown, time.time())
            self._machines[machine_id] = machine
        threading.Thread(
            target=self._watch, args=(machine_id, machine), name=f"watch-{machine_id}", daemon=True
        ).start()

    def kill(self, machine_id: str) -> None:
        """Pull the plug: SIGKILL for every process. Returns when none is left. Unknown or dead already is fine."""
        machine = self._machines.get(machine_id)
        if machine is None:
            return
        machine.plug_pulled.set()
        with contextlib.suppress(OSError, ValueError):  # it may be off already, its pipe closed
            assert machine.process.stdin is not None  # noqa: S101 - we asked for a pipe
            machine.process.stdin.write(b"kill\n")
        try:
            machine.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            machine.process.kill()
            machine.process.wait()
        self._clear(machine.directory)
        machine.off.set()

    def reboot(self, machine_id: str) -> None:
        """Press the reset button: the guest ends its processes and boots again with the same disk."""
        machine = self._machines[machine_id]
        with (machine.directory / "power").open("w", encoding="ascii") as power:
            power.write("reboot 0\n")

    def halt(self, machine_id: str) -> None:
        """Press the power button, as a cloud does (ACPI soft off): the guest ends its processes and powers off."""
        machine = self._machines.get(machine_id)
        if machine is None or machine.off.is_set():
            return
        with contextlib.suppress(OSError):  # it is off already, and nobody reads
            power = os.open(machine.directory / "power", os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(power, b"halt 0\n")
            finally:
                os.close(power)

    def alive(self, machine_id: str) -> bool:
        """Say whether the machine is powered."""
        machine = self._machines.get(machine_id)
        return machine is not None and not machine.off.is_set()

    def live(self) -> list[str]:
        """List the machines that are powered."""
        return [machine_id for machine_id in list(self._machines) if self.alive(machine_id)]

    def directory(self, machine_id: str) -> Path:
        """Return the directory of a machine: ``console.log``, ``root/`` (its disk), ``home/``, ``tmp/``."""
        return self._directory / machine_id

    def console(self, machine_id: str) -> str:
        """Return what the machine has written to its console so far."""
        try:
            return (self.directory(machine_id) / "console.log").read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def forget(self, machine_id: str) -> None:
        """Kill the machine and remove its directory."""
        self.kill(machine_id)
        self._machines.pop(machine_id, None)
        shutil.rmtree(self.directory(machine_id), ignore_errors=True)

    def stop_all(self) -> None:
        """Kill every machine."""
        threads = [threading.Thread(target=self.kill, args=(machine_id,)) for machine_id in self.live()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._containers is not None:
            self._containers.remove(self._directory)

    def _clear(self, directory: Path) -> None:
        """End what the guest has left, if it was killed itself."""
        kill_marked(directory)
        if self._containers is not None:
            end_containers(str(directory / "bin" / "docker"), f"{MACHINE_LABEL}={directory}")

    def _furnish(self, machine_id: str, user_data: str | None, env: Mapping[str, str]) -> Path:
        directory = self._directory / machine_id
        hardware.disk(directory)
        for name in ("root/opt/failover", "home", "tmp", "bin", "per-boot"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        directory.chmod(0o700)  # user data and what they fetch are nobody else's business
        if user_data is not None:
            (directory / "user-data").write_text(user_data, encoding="utf-8")
        shims = dict.fromkeys(("shutdown", "poweroff", "halt", "reboot"), _POWER)
        if self._containers is not None:
            shims["docker"] = self._containers.shim(directory, self._directory, env)
        for name, text in shims.items():
            shim = directory / "bin" / name
            shim.write_text(text, encoding="utf-8")
            shim.chmod(0o755)
        return directory

    def _environment(self, machine_id: str, directory: Path, env: Mapping[str, str]) -> dict[str, str]:
        return {
            "PATH": f"{directory / 'bin'}:{self._path}",
            "HOME": str(directory / "home"),
            "TMPDIR": str(directory / "tmp"),
            "USER": "root",
            "LANG": "C.UTF-8",
            "FAILOVER_HOME": str(directory / "root/opt/failover"),
            "FAILOVER_SANDBOX_MACHINE": machine_id,
            "FAILOVER_SANDBOX_PER_BOOT": str(directory / "per-boot"),
            **hardware.clock(directory),
            **env,
            MARKER: str(directory),
        }

    def _watch(self, machine_id: str, machine: _Machine) -> None:
        """Wait for the guest's own words, then for its end."""
        powered_off = False
        with machine.process as process:  # closes both pipes, and waits
            for line in process.stdout or ():
                powered_off = line.strip() == b"off"
        if machine.plug_pulled.is_set():
            return
        self._clear(machine.directory)
        machine.off.set()
        if powered_off:
            machine.on_shutdown(machine_id)
        else:
            _LOG.warning("machine %s died of itself (code %s)", machine_id, machine.process.returncode)


def marked(directory: Path) -> set[int]:
    """Return the process ids whose environment says that they belong to the machine of this directory."""
    needle = marks(MARKER, str(directory))
    pids = {int(name) for name in os.listdir("/proc") if name.isdigit()} - {os.getpid()}  # noqa: PTH208 - names alone
    return {pid for pid in pids if needle in read_marks(pid)}


def kill_marked(directory: Path) -> None:
    """Kill what still carries the mark of a directory; for a machine a second net below the guest's own.

    A process in the middle of an exec shows no environment, so nothing seen once is not yet nothing there.
    """
    quiet = 0
    while quiet < _QUIET_LOOKS:
        pids = marked(directory)
        quiet = 0 if pids else quiet + 1
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
