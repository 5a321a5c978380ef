"""The emulator on a port of its own, with real processes as its machines: AutoDL's part of the sandbox server."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import uvicorn

from provisioner.sandbox.autodl.app import create_app
from provisioner.sandbox.autodl.emulator import AutodlEmulator
from provisioner.sandbox.autodl.settings import EmulatorConfig
from provisioner.sandbox.machines import Machines

_SPEED = 4.0
"""A machine of the sandbox is up after a second and gone after half of one."""


class ProcessMachines:
    """Hooks that run each machine as a process tree of the sandbox."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self.emulator: AutodlEmulator | None = None

    def on_start(self, instance_id: str, command: str, env: Mapping[str, str]) -> None:
        """Boot, and run the command. A container (every id but Pro's) lives as long as its command does."""
        ending = "" if instance_id.startswith("pro-") else "\nshutdown -h now"
        self._machines.start(instance_id, f"#!/bin/bash\n{command}{ending}\n", env, self._off)

    def on_stop(self, instance_id: str) -> None:
        """Pull the plug."""
        self._machines.kill(instance_id)

    def _off(self, instance_id: str) -> None:
        if self.emulator is not None:
            self.emulator.guest_shutdown(instance_id)


class Box:
    """AutoDL on a loopback port. ``token`` is this box's developer token."""

    def __init__(self, machines: Machines, *, speed: float = _SPEED) -> None:
        hooks = ProcessMachines(machines)
        self.token = secrets.token_hex(24)
        self.emulator = AutodlEmulator(EmulatorConfig(token=self.token, speed=speed), hooks=hooks)
        hooks.emulator = self.emulator
        self._server = Server(self.emulator)
        self.url = self._server.url

    def stop(self) -> None:
        """Close the port and let the emulator's time stand still. Machines are their owner's to end."""
        self._server.stop()

    def take(self, machine_id: str) -> None:
        """Take a machine away: it is unknown to the API at once."""
        self.emulator.take_away(machine_id)

    def set_stock(self, stock: list[dict[str, Any]]) -> None:
        """Set free cards of Pro and elastic alike, ``[{region, gpu, idle, total}]``; what is not named has none."""
        self.emulator.set_stock(idle=0)
        for row in stock:
            self.emulator.set_stock(row["region"], row["gpu"], row["idle"], total=row.get("total"))

    def state(self) -> dict[str, Any]:
        """Return what the account holds."""
        return self.emulator.state()

    def reset(self) -> None:
        """Go back to the seed: no machine, full stock, no fault."""
        self.emulator.reset()


class Server:
    """An emulator served by uvicorn in a thread, on a loopback port that the system chooses."""

    def __init__(self, emulator: AutodlEmulator) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(
            create_app(emulator=emulator),
            log_level="critical",
            access_log=False,
            ws="none",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="autodl-server", daemon=True
        )
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise RuntimeError("the AutoDL emulator did not come up")
            time.sleep(0.01)

    def stop(self) -> None:
        """Close the port. Returns when the server has ended."""
        self._server.should_exit = True
        self._thread.join(timeout=10)
        self._socket.close()


def open_box(machines: Machines, directory: Path) -> Box:  # noqa: ARG001 - the emulator keeps nothing on disk
    """Open AutoDL's part of the sandbox."""
    return Box(machines)
