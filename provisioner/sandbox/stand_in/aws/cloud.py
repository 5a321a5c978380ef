"""What the stand-in provider does: every resource of our modules, made and looked up at the emulator."""

from __future__ import annotations

from collections.abc import Callable

from botocore.exceptions import ClientError

from provisioner.sandbox.stand_in import State
from provisioner.sandbox.stand_in.aws.clients import missing, tags, told
from provisioner.sandbox.stand_in.aws.compute import Compute
from provisioner.sandbox.stand_in.aws.identity import Identity
from provisioner.sandbox.stand_in.aws.lookups import Lookups
from provisioner.sandbox.stand_in.aws.network import Network


class Cloud(Network, Identity, Compute, Lookups):
    """The cloud at AWS_ENDPOINT_URL, as Terraform's provider would use it. Methods raise ``Refused``.

    A resource is four methods: ``_create_``, ``_read_``, ``_update_`` and ``_delete_`` with its type behind them.
    """

    def create(self, kind: str, plan: State) -> State:
        """Make a thing; return its state."""
        made = dict(plan)
        with told(f"creating {kind}"):
            getattr(self, f"_create_{kind.removeprefix('aws_')}")(made)
        return made

    def read(self, kind: str, state: State) -> State | None:
        """Return the state as the cloud has it; None when the thing is gone."""
        look: Callable[[State], State | None] = getattr(self, f"_read_{kind.removeprefix('aws_')}")
        with told(f"reading {kind} ({state['id']})"):
            try:
                return look(dict(state))
            except ClientError as error:
                if missing(error):
                    return None
                raise

    def update(self, kind: str, plan: State) -> State:
        """Change a thing in place."""
        act = getattr(self, f"_update_{kind.removeprefix('aws_')}", None)
        made = dict(plan)
        with told(f"updating {kind} ({plan['id']})"):
            if act is not None:
                act(made)
            elif str(plan["id"]).split("-")[0] in {"vpc", "subnet", "sg", "igw", "rtb", "i"} and plan.get("tags"):
                self._ec2.create_tags(Resources=[plan["id"]], Tags=tags(plan))
        return made

    def delete(self, kind: str, state: State) -> None:
        """Delete a thing; gone already is fine."""
        with told(f"deleting {kind} ({state['id']})"):
            try:
                getattr(self, f"_delete_{kind.removeprefix('aws_')}")(state)
            except ClientError as error:
                if not missing(error):
                    raise

    def data(self, kind: str, config: State) -> State:
        """Answer a data source."""
        found = dict(config)
        with told(f"reading data {kind}"):
            getattr(self, f"_data_{kind.removeprefix('aws_')}")(found)
        return found
