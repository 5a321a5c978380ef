"""Roles and instance profiles."""

from __future__ import annotations

from provisioner.sandbox.stand_in import State
from provisioner.sandbox.stand_in.aws.clients import Clients, named, tags


class Identity(Clients):
    """Create, read, update and delete what lets a machine reach its bucket."""

    def _create_iam_role(self, state: State) -> None:
        state["name"] = named(state)
        role = self._iam.create_role(
            RoleName=state["name"],
            Path=state.get("path") or "/",
            AssumeRolePolicyDocument=state["assume_role_policy"],
            Description=state.get("description") or "",
            Tags=tags(state),
        )["Role"]
        state.update(id=state["name"], arn=role["Arn"], unique_id=role["RoleId"])

    def _read_iam_role(self, state: State) -> State | None:
        self._iam.get_role(RoleName=state["id"])
        return state

    def _update_iam_role(self, state: State) -> None:
        self._iam.update_assume_role_policy(RoleName=state["id"], PolicyDocument=state["assume_role_policy"])

    def _delete_iam_role(self, state: State) -> None:
        self._iam.delete_role(RoleName=state["id"])

    def _create_iam_role_policy(self, state: State) -> None:
        state["name"] = named(state)
        self._update_iam_role_policy(state)
        state["id"] = f"{state['role']}:{state['name']}"

    def _read_iam_role_policy(self, state: State) -> State | None:
        self._iam.get_role_policy(RoleName=state["role"], PolicyName=state["name"])
        return state

    def _update_iam_role_policy(self, state: State) -> None:
        self._iam.put_role_policy(RoleName=state["role"], PolicyName=state["name"], PolicyDocument=state["policy"])

    def _delete_iam_role_policy(self, state: State) -> None:
        self._iam.delete_role_policy(RoleName=state["role"], PolicyName=state["name"])

    def _create_iam_instance_profile(self, state: State) -> None:
        state["name"] = named(state)
        profile = self._iam.create_instance_profile(
            InstanceProfileName=state["name"], Path=state.get("path") or "/", Tags=tags(state)
        )["InstanceProfile"]
        self._iam.add_role_to_instance_profile(InstanceProfileName=state["name"], RoleName=state["role"])
        state.update(id=state["name"], arn=profile["Arn"], unique_id=profile["InstanceProfileId"])

    def _read_iam_instance_profile(self, state: State) -> State | None:
        self._iam.get_instance_profile(InstanceProfileName=state["id"])
        return state

    def _delete_iam_instance_profile(self, state: State) -> None:
        self._iam.remove_role_from_instance_profile(InstanceProfileName=state["id"], RoleName=state["role"])
        self._iam.delete_instance_profile(InstanceProfileName=state["id"])
