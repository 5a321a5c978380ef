"""Networks, subnetworks and firewall rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from provisioner.sandbox.stand_in import Refused, State
from provisioner.sandbox.stand_in.google.rest import Missing, Rest, last, only_given, relative


class Network(Rest):
    """Create, read, change and delete what a network is made of."""

    def _create_compute_network(self, state: State) -> None:
        body = only_given({"name": state["name"], "description": state["description"]})
        body["autoCreateSubnetworks"] = state["auto_create_subnetworks"] is not False
        self._make("Network", f"projects/{state['project']}/global/networks", body, state)
        state.update(self._read_compute_network(state))

    def _read_compute_network(self, state: State) -> State:
        found = self._compute("GET", state["id"])
        return state | {
            "project": _project(state),
            "name": found["name"],
            "description": found.get("description") or None,
            "auto_create_subnetworks": found.get("autoCreateSubnetworks", False),
            "self_link": found["selfLink"],
        }

    def _delete_compute_network(self, state: State) -> None:
        self._remove("Network", state)

    def _create_compute_subnetwork(self, state: State) -> None:
        body = only_given(
            {
                "name": state["name"],
                "description": state["description"],
                "network": state["network"],
                "region": state["region"],
                "ipCidrRange": state["ip_cidr_range"],
                "privateIpGoogleAccess": state["private_ip_google_access"],
            }
        )
        self._make("Subnetwork", f"projects/{state['project']}/regions/{state['region']}/subnetworks", body, state)
        state.update(self._read_compute_subnetwork(state))

    def _read_compute_subnetwork(self, state: State) -> State:
        found = self._compute("GET", state["id"])
        return state | {
            "project": _project(state),
            "region": last(found.get("region")) or state["id"].split("/")[3],
            "name": found["name"],
            "description": found.get("description") or None,
            "network": _same(state.get("network"), found.get("network")),
            "ip_cidr_range": found.get("ipCidrRange"),
            "private_ip_google_access": bool(found.get("privateIpGoogleAccess")),
            "gateway_address": found.get("gatewayAddress"),
            "self_link": found["selfLink"],
        }

    def _update_compute_subnetwork(self, state: State) -> None:
        body = {"privateIpGoogleAccess": state["private_ip_google_access"]}
        path = f"{state['id']}/setPrivateIpGoogleAccess"
        self._done("Subnetwork to update", path, self._compute("POST", path, body))

    def _delete_compute_subnetwork(self, state: State) -> None:
        self._remove("Subnetwork", state)

    def _create_compute_firewall(self, state: State) -> None:
        self._make("Firewall", f"projects/{state['project']}/global/firewalls", _rule(state), state)
        state.update(self._read_compute_firewall(state))

    def _read_compute_firewall(self, state: State) -> State:
        found = self._compute("GET", state["id"])
        return state | {
            "project": _project(state),
            "name": found["name"],
            "description": found.get("description") or None,
            "network": _same(state.get("network"), found.get("network")),
            "direction": found.get("direction", "INGRESS"),
            "priority": found.get("priority", 1000),
            "disabled": found.get("disabled") or None,
            "source_ranges": found.get("sourceRanges") or [],
            "target_tags": found.get("targetTags") or None,
            "allow": _ports(found.get("allowed")),
            "deny": _ports(found.get("denied")),
            "self_link": found["selfLink"],
        }

    def _update_compute_firewall(self, state: State) -> None:
        self._done("Firewall to update", state["id"], self._compute("PATCH", state["id"], _rule(state)))

    def _delete_compute_firewall(self, state: State) -> None:
        self._remove("Firewall", state)

    def _data_compute_network(self, config: State) -> None:
        path = f"projects/{config['project']}/global/networks/{config['name']}"
        config.update(_found(self._read_compute_network, path))

    def _data_compute_subnetwork(self, config: State) -> None:
        path = f"projects/{config['project']}/regions/{config['region']}/subnetworks/{config['name']}"
        config.update(_found(self._read_compute_subnetwork, path))

    # --- means --------------------------------------------------------------------------------------------------------

    def _make(self, what: str, path: str, body: State, state: State) -> None:
        """Make a thing that its name identifies."""
        try:
            operation = self._compute("POST", path, body)
        except Refused as error:
            message = f"Error creating {what}: {error}"
            raise Refused(message) from error
        self._done(f"{what} to create", path, operation)
        state["id"] = f"{path}/{body['name']}"

    def _remove(self, what: str, state: State) -> None:
        try:
            operation = self._compute("DELETE", state["id"])
        except Missing:
            return
        except Refused as error:
            message = f"Error when reading or editing {what}: {error}"
            raise Refused(message) from error
        self._done(f"{what} to delete", state["id"], operation)


def _found(read: Callable[[State], State], path: str) -> State:
    """Read a thing that must exist."""
    try:
        return read({"id": path})
    except Missing as error:
        message = f"{path} not found"
        raise Refused(message) from error


def _project(state: State) -> str:
    return str(state["id"]).split("/")[1]


def _same(kept: Any, found: Any) -> Any:
    """Return the link as it is written in the configuration, if it means the same."""
    return kept if kept and relative(kept) == relative(found) else relative(found)


def _rule(state: State) -> State:
    body = only_given(
        {
            "name": state["name"],
            "description": state["description"],
            "network": state["network"],
            "direction": state["direction"],
            "priority": state["priority"],
            "sourceRanges": state["source_ranges"],
            "targetTags": state["target_tags"],
        }
    )
    for name, blocks in (("allowed", state["allow"]), ("denied", state["deny"])):
        if blocks:
            body[name] = [only_given({"IPProtocol": each["protocol"], "ports": each["ports"]}) for each in blocks]
    return body


def _ports(rules: Any) -> list[State]:
    return [{"protocol": rule["IPProtocol"], "ports": rule.get("ports") or None} for rule in rules or ()]
