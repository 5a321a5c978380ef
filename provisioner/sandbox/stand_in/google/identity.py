"""Service accounts, and what they may do in a bucket."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from provisioner.sandbox.stand_in import Refused, State
from provisioner.sandbox.stand_in.google.rest import Conflict, Rest, one, only_given

_TRIES: Final = 8


class Identity(Rest):
    """Create, read, change and delete what lets a machine reach its bucket."""

    def _create_service_account(self, state: State) -> None:
        path = f"projects/{state['project']}/serviceAccounts"
        account = only_given({"displayName": state["display_name"], "description": state["description"]})
        email = f"{state['account_id']}@{state['project']}.iam.gserviceaccount.com"
        try:
            made = self._call("iam", "POST", path, {"accountId": state["account_id"], "serviceAccount": account})
        except Conflict as error:
            if not state.get("create_ignore_already_exists"):
                message = f"Error creating service account: {error}"
                raise Refused(message) from error
            made = self._call("iam", "GET", f"{path}/{email}")
        except Refused as error:
            message = f"Error creating service account: {error}"
            raise Refused(message) from error
        state.update(_account(made))

    def _read_service_account(self, state: State) -> State:
        found = self._call("iam", "GET", state["id"])
        email = found["email"]
        return state | {
            **_account(found),
            "account_id": email.partition("@")[0],
            "project": state["id"].split("/")[1],
            "display_name": found.get("displayName") or None,
            "description": found.get("description") or None,
        }

    def _update_service_account(self, state: State) -> None:
        account = only_given({"displayName": state["display_name"], "description": state["description"]})
        self._call("iam", "PATCH", state["id"], {"serviceAccount": account, "updateMask": ",".join(account)})

    def _delete_service_account(self, state: State) -> None:
        self._call("iam", "DELETE", state["id"])

    def _create_storage_bucket_iam_member(self, state: State) -> None:
        wanted = one(state["condition"])

        def add(bindings: list[State]) -> list[State]:
            binding = only_given({"role": state["role"], "members": [state["member"]]})
            if wanted:
                binding["condition"] = only_given(
                    {name: wanted[name] for name in ("title", "description", "expression")}
                )
            return [each for each in bindings if not _holds(each, state)] + [binding]

        state["etag"] = self._change_policy(state["bucket"], add)
        state["id"] = "/".join(
            ["b", state["bucket"], state["role"], state["member"], *([wanted["title"]] if wanted else [])]
        )

    def _read_storage_bucket_iam_member(self, state: State) -> State | None:
        policy = self._policy(state["bucket"])
        return state if any(_holds(binding, state) for binding in policy.get("bindings", ())) else None

    def _delete_storage_bucket_iam_member(self, state: State) -> None:
        def take_away(bindings: list[State]) -> list[State]:
            for binding in bindings:
                if _holds(binding, state):
                    binding["members"] = [member for member in binding["members"] if member != state["member"]]
            return [binding for binding in bindings if binding["members"]]

        self._change_policy(state["bucket"], take_away)

    def _policy(self, bucket: str) -> Any:
        return self._call("storage", "GET", f"b/{quote(bucket, safe='')}/iam", optionsRequestedPolicyVersion=3)

    def _change_policy(self, bucket: str, change: Any) -> str:
        """Read, change and write a bucket's policy; read it again when another has written meanwhile."""
        for _ in range(_TRIES):
            policy = self._policy(bucket)
            written = {**policy, "version": 3, "bindings": change(list(policy.get("bindings", ())))}
            try:
                return str(self._call("storage", "PUT", f"b/{quote(bucket, safe='')}/iam", written).get("etag", ""))
            except Conflict:
                continue
        message = f"Error applying IAM policy for storage bucket b/{bucket}: too many conflicts"
        raise Refused(message)


def _account(found: Any) -> State:
    return {
        "id": f"projects/{found['projectId']}/serviceAccounts/{found['email']}",
        "name": f"projects/{found['projectId']}/serviceAccounts/{found['email']}",
        "email": found["email"],
        "member": f"serviceAccount:{found['email']}",
        "unique_id": found.get("uniqueId"),
    }


def _holds(binding: State, state: State) -> bool:
    """Say whether a binding of a policy is the one of a resource: role, member and the condition's text."""
    wanted, found = one(state["condition"]), binding.get("condition") or {}
    same = (found.get("title"), found.get("expression")) == (wanted.get("title"), wanted.get("expression"))
    return same and binding["role"] == state["role"] and state["member"] in binding.get("members", ())
