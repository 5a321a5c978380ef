"""What the stand-in provider does at Google: every resource of our modules, made and looked up at the emulator."""

from __future__ import annotations

from collections.abc import Callable

from provisioner.sandbox.stand_in import State
from provisioner.sandbox.stand_in.google.compute import Compute
from provisioner.sandbox.stand_in.google.identity import Identity
from provisioner.sandbox.stand_in.google.network import Network
from provisioner.sandbox.stand_in.google.rest import Missing


class Cloud(Network, Identity, Compute):
    """The cloud at the custom endpoints, as Terraform's provider would use it. Methods raise ``Refused``.

    A resource is three or four methods: ``_create_``, ``_read_``, ``_update_`` and ``_delete_`` with its type behind.
    """

    def create(self, kind: str, plan: State) -> State:
        """Make a thing; return its state."""
        made = dict(plan)
        getattr(self, f"_create_{kind.removeprefix('google_')}")(made)
        return made

    def read(self, kind: str, state: State) -> State | None:
        """Return the state as the cloud has it; None when the thing is gone."""
        look: Callable[[State], State | None] = getattr(self, f"_read_{kind.removeprefix('google_')}")
        try:
            return look(dict(state))
        except Missing:
            return None

    def update(self, kind: str, plan: State) -> State:
        """Change a thing in place."""
        made = dict(plan)
        act = getattr(self, f"_update_{kind.removeprefix('google_')}", None)
        if act is not None:
            act(made)
        return made

    def delete(self, kind: str, state: State) -> None:
        """Delete a thing; gone already is fine."""
        try:
            getattr(self, f"_delete_{kind.removeprefix('google_')}")(state)
        except Missing:
            return

    def data(self, kind: str, config: State) -> State:
        """Answer a data source. What does not exist is an error, as it is with the official provider since 5.0."""
        found = dict(config)
        getattr(self, f"_data_{kind.removeprefix('google_')}")(found)
        return found
