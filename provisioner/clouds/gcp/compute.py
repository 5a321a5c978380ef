"""The calls of Compute Engine that the room makes, and machines and disks as it sees them.

Google's own objects do not leave this file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from provisioner.clouds.gcp import answers
from provisioner.clouds.gcp.answers import Problem
from provisioner.clouds.gcp.api import READ_FOR_S, Account
from provisioner.clouds.meaning import one_line

_SPOT: Final = "SPOT"
_EVENT: Final = "compute.instances."
"""How the type of an operation begins that Google began: ``preempted``, ``hostError``, ``guestTerminate``."""


@dataclass(frozen=True, slots=True)
class Machine:
    """An instance. ``cards`` maps the accelerator types that were added to it (n1) to their number."""

    zone: str
    name: str
    status: str
    labels: Mapping[str, str]
    machine_type: str = ""
    cards: Mapping[str, int] = field(default_factory=dict)
    spot: bool = False
    since: str = ""
    """When it was last started, else made, as Google writes it."""

    @property
    def since_s(self) -> float | None:
        """The same in Unix seconds; None where Google does not say."""
        return unix_s(self.since)

    @property
    def id(self) -> str:
        """``ZONE/NAME``, unique in a project."""
        return f"{self.zone}/{self.name}"


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk. ``kind`` is e.g. ``pd-balanced``."""

    zone: str
    name: str
    status: str
    labels: Mapping[str, str]
    size_gb: int = 0
    kind: str = ""
    since: str = ""
    """When it was made, as Google writes it."""


@dataclass(frozen=True, slots=True)
class Operation:
    """Work that Google has taken on. ``problems`` are the reasons why it failed, known when it is ``done``."""

    zone: str
    name: str
    done: bool
    problems: Sequence[Problem] = ()


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit and what is used of it."""

    metric: str
    limit: float
    usage: float


class Compute:
    """Calls of one project. All but :meth:`insert` may be repeated, and are; they raise Refused and its kin."""

    def __init__(self, account: Account, for_s: float = READ_FOR_S) -> None:
        """Take the project. ``for_s``: how long a call is repeated while its error is one that passes, in seconds."""
        self.account = account
        self._for_s = for_s

    def insert(self, zone: str, body: Mapping[str, Any], request_id: str) -> Operation:
        """Ask for a machine, once: a claim judges errors. ``body`` is the instance as the REST reference writes it.

        It goes as it is: google-cloud-compute before 1.51 does not know ``scheduling.preemptionNoticeDuration``.
        """

        def ask() -> Any:
            from google.api_core import exceptions
            from google.cloud import compute_v1

            refused: Any = exceptions.from_http_response
            told: Any = compute_v1.Operation
            answer = self.account.post_compute(f"zones/{zone}/instances", body, {"requestId": request_id})
            if answer.status_code >= 400:
                raise refused(answer)
            return _named(told.from_json(answer.content, ignore_unknown_fields=True))

        return _operation(zone, self.account.once(ask))

    def operation(self, zone: str, name: str) -> Operation:
        """Look at an operation of a zone. Raises LookupError when Google has forgotten it."""
        return _operation(zone, self._get("ZoneOperationsClient", "get", zone=zone, operation=name))

    def ends(self, zone: str, name: str) -> list[str]:
        """Return what Google itself did to an instance, e.g. ``compute.instances.preempted: ...``, the newest first."""
        asked = {"zone": zone, "filter": f'targetLink eq ".*/instances/{name}"'}
        found = self.account.call(
            lambda: list(self.account.compute("ZoneOperationsClient", "list", asked)), self._for_s
        )
        events = [one for one in found if str(one.operation_type).startswith(_EVENT)]
        events.sort(key=lambda one: str(one.insert_time), reverse=True)
        return [f"{one.operation_type}: {one_line(str(one.status_message))}".rstrip(": ") for one in events]

    def machine(self, zone: str, name: str) -> Machine | None:
        """Return one instance, or None."""
        try:
            return _machine(zone, self._get("InstancesClient", "get", zone=zone, instance=name))
        except LookupError:
            return None

    def machines(self, label: tuple[str, str]) -> list[Machine]:
        """Return the instances of every zone that carry a label, whatever their state."""
        found = self._aggregated("InstancesClient", "instances", label)
        return [_machine(zone, one) for zone, one in found if dict(one.labels).get(label[0]) == label[1]]

    def delete_machine(self, zone: str, name: str) -> Operation | None:
        """Ask that an instance goes away; None: it is gone."""
        try:
            return _operation(zone, self._get("InstancesClient", "delete_unary", zone=zone, instance=name))
        except LookupError:
            return None

    def disk(self, zone: str, name: str) -> Disk | None:
        """Return one disk, or None."""
        try:
            return _disk(zone, self._get("DisksClient", "get", zone=zone, disk=name))
        except LookupError:
            return None

    def disks(self, label: tuple[str, str]) -> list[Disk]:
        """Return the disks of every zone that carry a label."""
        found = self._aggregated("DisksClient", "disks", label)
        return [_disk(zone, one) for zone, one in found if dict(one.labels).get(label[0]) == label[1]]

    def delete_disk(self, zone: str, name: str) -> Operation | None:
        """Ask that a disk goes away; None: it is gone."""
        try:
            return _operation(zone, self._get("DisksClient", "delete_unary", zone=zone, disk=name))
        except LookupError:
            return None

    def firewalls(self) -> list[str]:
        """Name the project's firewall rules."""
        return self._listed(lambda: self.account.compute("FirewallsClient", "list", {}))

    def networks(self) -> list[str]:
        """Name the project's networks."""
        return self._listed(lambda: self.account.compute("NetworksClient", "list", {}))

    def subnetworks(self, region: str) -> list[str]:
        """Name the subnets of a region."""
        return self._listed(lambda: self.account.compute("SubnetworksClient", "list", {"region": region}))

    def delete_firewall(self, name: str) -> None:
        """Ask that a firewall rule goes away. Returns before it has."""
        self._delete("FirewallsClient", firewall=name)

    def delete_network(self, name: str) -> None:
        """Ask that a network goes away. Returns before it has."""
        self._delete("NetworksClient", network=name)

    def delete_subnetwork(self, region: str, name: str) -> None:
        """Ask that a subnet goes away. Returns before it has."""
        self._delete("SubnetworksClient", region=region, subnetwork=name)

    def region_quotas(self, region: str) -> dict[str, Quota]:
        """Return the quotas of a region, by metric."""
        return _quotas(self._get("RegionsClient", "get", region=region))

    def project_quotas(self) -> dict[str, Quota]:
        """Return the quotas of the whole project, by metric."""
        return _quotas(self._get("ProjectsClient", "get"))

    def _get(self, client: str, method: str, **request: Any) -> Any:
        return self.account.call(lambda: _named(self.account.compute(client, method, request)), self._for_s)

    def _delete(self, client: str, **request: Any) -> None:
        try:
            self._get(client, "delete_unary", **request)
        except LookupError:
            return

    def _listed(self, ask: Callable[[], Any]) -> list[str]:
        return self.account.call(lambda: [str(one.name) for one in ask()], self._for_s)

    def _aggregated(self, client: str, key: str, label: tuple[str, str]) -> list[tuple[str, Any]]:
        """List what carries a label in all zones. A zone that does not answer fails the whole: half a list lies."""
        asked = {"filter": f'labels.{label[0]}="{label[1]}"'}  # unquoted, an id of digits alone would be a number

        def read() -> list[tuple[str, Any]]:
            pages = self.account.compute(client, "aggregated_list", asked)
            return [(_last(place), one) for place, scoped in pages for one in getattr(scoped, key)]

        return self.account.call(read, self._for_s)


def unix_s(moment: str) -> float | None:
    """Return a moment as Google writes it in Unix seconds; None for what is none."""
    try:
        return datetime.fromisoformat(moment).timestamp()
    except ValueError:
        return None


def _named(found: Any) -> Any:
    """Return what was read. All that Google has bears a name; without one a machine would look as if it stood still."""
    if not found.name:
        raise ValueError("nothing with a name")
    return found


def _operation(zone: str, found: Any) -> Operation:
    done = _word(found.status) == "DONE"
    return Operation(zone, str(found.name), done, tuple(answers.of_operation(found)) if done else ())


def _machine(zone: str, found: Any) -> Machine:
    cards = {_last(one.accelerator_type): int(one.accelerator_count) for one in found.guest_accelerators}
    return Machine(
        zone=zone,
        name=str(found.name),
        status=_word(found.status),
        labels=dict(found.labels),
        machine_type=_last(found.machine_type),
        cards=cards,
        spot=_word(found.scheduling.provisioning_model) == _SPOT,
        since=str(found.last_start_timestamp or found.creation_timestamp or ""),
    )


def _disk(zone: str, found: Any) -> Disk:
    size = int(found.size_gb or 0)
    kind, since = _last(found.type_), str(found.creation_timestamp or "")
    return Disk(zone, str(found.name), _word(found.status), dict(found.labels), size, kind, since)


def _quotas(found: Any) -> dict[str, Quota]:
    quotas = [Quota(_word(one.metric), float(one.limit), float(one.usage)) for one in found.quotas]
    return {quota.metric: quota for quota in quotas}


def _word(value: Any) -> str:
    """Return an enumerated value as Google writes it; the library gives some as members and some as text."""
    return str(getattr(value, "name", value))


def _last(link: Any) -> str:
    return str(link or "").rpartition("/")[2]
