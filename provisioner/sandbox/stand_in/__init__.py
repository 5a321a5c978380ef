"""A stand-in for Terraform's AWS provider, where the official one cannot be had: sandbox and chaos tests only.

``schema.json`` holds the official schema of what our modules use, :mod:`.cloud` does the work at the emulator.
Terraform, modules, plans, state and imports are real; what AWS's own provider does beyond that is not shown by it. It
refuses to talk to anything but an endpoint on this machine.
"""

from __future__ import annotations

from typing import Any

State = dict[str, Any]


class Refused(Exception):
    """The cloud refused a call. The text is one sentence for the operator."""
