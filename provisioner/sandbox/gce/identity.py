"""Service accounts, policies and buckets of the sandbox's Google Cloud: IAM v1, Resource Manager v1, Storage v1."""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Mapping
from typing import Any

from provisioner.sandbox.gce.faults import Refused
from provisioner.sandbox.gce.requests import default_account
from provisioner.sandbox.gce.world import PROJECT_NUMBER, Resource, fingerprint, now

_ACCOUNT_ID = re.compile(r"[a-z](?:[-a-z0-9]{4,28}[a-z0-9])")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
_CONDITIONS_VERSION = 3


class IamRefused(Refused):
    """A refusal as the newer APIs spell it: a canonical status, no list of errors."""

    def __init__(self, status: int, canonical: str, text: str) -> None:
        """Take HTTP status, canonical status and text."""
        super().__init__(canonical, text, status)
        self.canonical = canonical

    def body(self) -> dict[str, Any]:
        """Return the answer's JSON."""
        return {"error": {"code": self.status, "message": self.text, "status": self.canonical}}


class Identity:
    """Accounts, policies and buckets of one project. The caller holds the world's lock."""

    def __init__(self, project: str) -> None:
        """Begin with what every project has."""
        self.project = project
        self._numbers = itertools.count(100_000_000_000_000_000_001)
        self._accounts: dict[str, Resource] = {}
        self._policies: dict[str, Resource] = {}
        self._buckets: dict[str, Resource] = {}

    def clear(self) -> None:
        """Go back to the beginning."""
        self._accounts.clear()
        self._policies.clear()
        self._buckets.clear()

    def emails(self) -> set[str]:
        """Return the e-mails of the accounts that somebody made."""
        return set(self._accounts)

    def bindings(self) -> list[dict[str, Any]]:
        """Return who has which role on what."""
        return [
            {"on": on, "role": binding["role"], "member": member}
            for on, policy in self._policies.items()
            for binding in policy["bindings"]
            for member in binding["members"]
        ]

    def buckets(self) -> list[str]:
        """Return the names of the buckets."""
        return sorted(self._buckets)

    def add_bucket(self, name: str, location: str = "US") -> Resource:
        """Make a bucket. Raises Refused."""
        if not _BUCKET.fullmatch(name):
            raise Refused("invalid", f"Invalid bucket name: '{name}'")
        if name in self._buckets:
            text = "Your previous request to create the named bucket succeeded and you already own it."
            raise Refused("conflict", text, 409)
        self._buckets[name] = {
            "kind": "storage#bucket",
            "id": name,
            "name": name,
            "projectNumber": PROJECT_NUMBER,
            "location": location.upper(),
            "storageClass": "STANDARD",
            "metageneration": "1",
            "timeCreated": now(),
            "updated": now(),
            "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}, "publicAccessPrevention": "enforced"},
        }
        return self._buckets[name]

    # --- /v1: IAM and Resource Manager --------------------------------------------------------------------------------

    def answer(self, verb: str, path: str, query: Mapping[str, str], body: Resource) -> Resource:
        """Answer a request below ``/v1/``. Raises Refused."""
        project = re.fullmatch(rf"projects/({self.project}|{PROJECT_NUMBER}|-)(?::(\w+))?", path)
        if project is not None:
            return self._project(verb, project.group(2), body)
        found = re.fullmatch(rf"projects/({self.project}|-)/serviceAccounts(?:/([^:/]+))?(?::(\w+))?", path)
        if found is None:
            raise IamRefused(404, "NOT_FOUND", f"Requested entity was not found: {path}")
        name, action = found.group(2), found.group(3)
        if name is None:
            return self._make_account(body) if verb == "POST" else self._list(query)
        account = self._account(name)
        if action in ("getIamPolicy", "setIamPolicy"):
            return self._policy(f"serviceAccounts/{account['email']}", verb, action, body.get("policy"))
        if verb == "DELETE":
            self._forget(account)
            return {}
        if verb in ("PATCH", "PUT"):
            fresh = body.get("serviceAccount", body)
            account.update({key: fresh[key] for key in ("displayName", "description") if key in fresh})
        return account

    def _project(self, verb: str, action: str | None, body: Resource) -> Resource:
        if action is not None:
            return self._policy("project", verb, action, body.get("policy"))
        return {
            "projectNumber": PROJECT_NUMBER,
            "projectId": self.project,
            "lifecycleState": "ACTIVE",
            "name": self.project,
        }

    def _account(self, name: str) -> Resource:
        found = self._accounts.get(name)
        found = found or next((one for one in self._accounts.values() if one["uniqueId"] == name), None)
        if found is None and name == default_account():
            return {
                "name": f"projects/{self.project}/serviceAccounts/{name}",
                "email": name,
                "uniqueId": PROJECT_NUMBER,
            }
        if found is None:
            raise IamRefused(404, "NOT_FOUND", "Unknown service account")
        return found

    def _make_account(self, body: Resource) -> Resource:
        name = str(body.get("accountId") or "")
        if not _ACCOUNT_ID.fullmatch(name):
            text = "The account ID must be between 6 and 30 characters long, lower case, digits and dashes."
            raise IamRefused(400, "INVALID_ARGUMENT", f'Invalid value for "account_id": "{name}". {text}')
        email = f"{name}@{self.project}.iam.gserviceaccount.com"
        if email in self._accounts:
            text = f"Service account {name} already exists within project projects/{self.project}."
            raise IamRefused(409, "ALREADY_EXISTS", text)
        given = body.get("serviceAccount") or {}
        number = str(next(self._numbers))
        made = {
            "name": f"projects/{self.project}/serviceAccounts/{email}",
            "projectId": self.project,
            "uniqueId": number,
            "email": email,
            "etag": "MDEwMjE5MjA=",
            "oauth2ClientId": number,
        }
        made |= {key: given[key] for key in ("displayName", "description") if given.get(key)}
        self._accounts[email] = made
        return made

    def _list(self, query: Mapping[str, str]) -> Resource:
        accounts = [self._accounts[email] for email in sorted(self._accounts)]
        start, size = int(query.get("pageToken") or 0), int(query.get("pageSize") or 20)
        answer: Resource = {"accounts": accounts[start : start + size]}
        if start + size < len(accounts):
            answer["nextPageToken"] = str(start + size)
        return answer

    def _forget(self, account: Resource) -> None:
        """Remove an account. Policies keep its name with a mark, as Google's do."""
        self._accounts.pop(account["email"], None)
        member = f"serviceAccount:{account['email']}"
        gone = f"deleted:{member}?uid={account['uniqueId']}"
        for policy in self._policies.values():
            for binding in policy["bindings"]:
                binding["members"] = [gone if one == member else one for one in binding["members"]]

    # --- /storage/v1: buckets and their policies ----------------------------------------------------------------------

    def storage(self, verb: str, path: str, query: Mapping[str, str], body: Resource) -> Resource:
        """Answer a request below ``/storage/v1/``. Raises Refused."""
        parts = path.strip("/").split("/")
        if parts == ["b"]:
            if verb == "POST":
                return self.add_bucket(str(body.get("name") or ""), str(body.get("location") or "US"))
            return {"kind": "storage#buckets", "items": [self._buckets[name] for name in self.buckets()]}
        bucket = self._buckets.get(parts[1]) if len(parts) > 1 and parts[0] == "b" else None
        if bucket is None:
            raise Refused("notFound", "The specified bucket does not exist.")
        if parts[2:] == ["iam"]:
            return self._bucket_policy(bucket, verb, query, body)
        if parts[2:] == ["iam", "testPermissions"]:
            return {
                "kind": "storage#testIamPermissionsResponse",
                "permissions": query.get("permissions", "").split(","),
            }
        if verb == "DELETE":
            self._buckets.pop(bucket["name"])
            self._policies.pop(f"b/{bucket['name']}", None)
            return {}
        return bucket

    def _bucket_policy(self, bucket: Resource, verb: str, query: Mapping[str, str], body: Resource) -> Resource:
        on = f"b/{bucket['name']}"
        policy = self._policy(on, verb, "setIamPolicy" if verb == "PUT" else "getIamPolicy", body)
        conditional = any("condition" in binding for binding in policy["bindings"])
        if verb == "GET" and conditional and int(query.get("optionsRequestedPolicyVersion") or 1) < _CONDITIONS_VERSION:
            policy = {**policy, "bindings": [_unconditional(binding) for binding in policy["bindings"]]}
        return {**policy, "kind": "storage#policy", "resourceId": f"projects/_/buckets/{bucket['name']}"}

    def _policy(self, on: str, verb: str, action: str, fresh: Resource | None) -> Resource:
        empty: Resource = {"version": 1, "bindings": [], "etag": base64.b64encode(on.encode()[:8]).decode()}
        policy = self._policies.get(on, empty)
        if action != "setIamPolicy":
            return policy
        wanted = fresh or {}
        if wanted.get("etag") not in (None, "", policy["etag"]):
            text = "There were concurrent policy changes. Please retry the whole read-modify-write."
            if verb == "PUT":
                raise Refused("conditionNotMet", text)
            raise IamRefused(409, "ABORTED", text)
        bindings = [dict(binding) for binding in wanted.get("bindings") or () if binding.get("members")]
        version = int(wanted.get("version") or 1)
        if any("condition" in one for one in bindings) and version != _CONDITIONS_VERSION:
            raise Refused("badRequest", "Invalid argument: a policy with conditions needs version 3.")
        for binding in bindings:
            for member in binding["members"]:
                self._check_member(member)
        policy = {"version": version, "bindings": bindings, "etag": fingerprint([on, bindings, policy["etag"]])}
        self._policies[on] = policy
        return policy

    def _check_member(self, member: str) -> None:
        kind, _, name = member.partition(":")
        ours = name.endswith(f"@{self.project}.iam.gserviceaccount.com")
        if kind == "serviceAccount" and ours and name not in self._accounts:
            raise Refused("invalid", f"Service account {name} does not exist.")


def _unconditional(binding: Resource) -> Resource:
    """Return a binding as one sees it who did not ask for conditions: its role says that there is more."""
    if "condition" not in binding:
        return binding
    return {
        "role": f"{binding['role']}_withcond_{fingerprint(binding['condition'])[:10]}",
        "members": binding["members"],
    }
