"""AutoDL in a box: an emulator of its developer API, true to what public sources record of the real one."""

from __future__ import annotations

from provisioner.sandbox.autodl.app import create_app
from provisioner.sandbox.autodl.emulator import AutodlEmulator
from provisioner.sandbox.autodl.faults import Fault
from provisioner.sandbox.autodl.settings import Delays, EmulatorConfig, Hooks

__all__ = ["AutodlEmulator", "Delays", "EmulatorConfig", "Fault", "Hooks", "create_app"]
