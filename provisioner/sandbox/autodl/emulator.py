"""The emulated account as a plain object: what the HTTP surface calls, and what other code of the process may call."""

from __future__ import annotations

import hmac
import itertools
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from provisioner.sandbox.autodl import seed
from provisioner.sandbox.autodl.elastic import ElasticRoom
from provisioner.sandbox.autodl.faults import Fault, Faults
from provisioner.sandbox.autodl.hosts import Hosts
from provisioner.sandbox.autodl.images import Images
from provisioner.sandbox.autodl.pro import ProRoom
from provisioner.sandbox.autodl.replies import (
    ApiError,
    Fields,
    bad_token,
    not_entitled,
    not_verified,
    wrong_parameter,
)
from provisioner.sandbox.autodl.settings import EmulatorConfig, Hooks, NoMachines, Profile
from provisioner.sandbox.autodl.world import World, real_clock

Handler = Callable[[Fields, str], Any]
Need = Literal["any", "verified", "enterprise"]
Pool = Literal["both", "elastic", "pro"]

_DEV = "/api/v1/dev"
_PRO = f"{_DEV}/instance/pro"
_ESD = f"{_DEV}/deployment"
_SECRETIVE = ("start_command", "cmd", "cmd_before_shutdown")
_LOG_LENGTH = 10_000


@dataclass(frozen=True, slots=True)
class Route:
    """A call: which account may make it, and who answers."""

    need: Need
    handler: Handler


class AutodlEmulator:
    """One account at AutoDL. Thread-safe. ``hooks`` run its machines; without them they run nothing."""

    def __init__(
        self,
        config: EmulatorConfig | None = None,
        *,
        hooks: Hooks | None = None,
        clock: Callable[[], float] = real_clock,
    ) -> None:
        """Set the seed stock. ``clock`` is Unix time in seconds; with one of your own call ``tick`` when it moved."""
        self.config = config or EmulatorConfig()
        self._world = World(self.config, hooks or NoMachines(), clock)
        self._faults = Faults()
        self._log: deque[dict[str, Any]] = deque(maxlen=_LOG_LENGTH)
        self._numbers = itertools.count(1)
        self._furnish()

    def _furnish(self) -> None:
        """Set everything to the seed."""
        self._world.forget()
        self._profile: Profile = self.config.profile
        self._images = Images(self._world)
        self._hosts = Hosts(self._world)
        self._pro = ProRoom(self._world, self._images)
        self._elastic = ElasticRoom(self._world, self._hosts, self._images)
        self._faults.clear()
        self.routes = self._make_routes()

    def __repr__(self) -> str:
        return f"AutodlEmulator(profile={self._profile!r})"

    def _make_routes(self) -> dict[tuple[str, str], Route]:
        pro, elastic, images = self._pro, self._elastic, self._images
        return {
            ("POST", f"{_DEV}/wallet/balance"): Route("any", lambda _fields, _fault: self._world.wallet.show()),
            ("POST", f"{_DEV}/exclusive_nfs/mount"): Route("any", _mount_nfs),
            ("POST", f"{_DEV}/machine/region/gpu_stock"): Route("any", self._hosts.stock),
            ("POST", f"{_DEV}/image/private/list"): Route("any", images.elastic_list),
            ("POST", f"{_PRO}/create"): Route("verified", pro.create),
            ("GET", f"{_PRO}/snapshot"): Route("verified", pro.snapshot),
            ("GET", f"{_PRO}/status"): Route("verified", pro.status),
            ("POST", f"{_PRO}/list"): Route("any", pro.listing),
            ("POST", f"{_PRO}/power_on"): Route("verified", pro.power_on),
            ("POST", f"{_PRO}/power_off"): Route("verified", pro.power_off),
            ("POST", f"{_PRO}/release"): Route("verified", pro.release),
            ("POST", f"{_PRO}/image/save"): Route("verified", pro.save_image),
            ("POST", f"{_PRO}/image/private/list"): Route("any", images.pro_list),
            ("POST", _ESD): Route("enterprise", elastic.create),
            ("DELETE", _ESD): Route("enterprise", elastic.delete),
            ("POST", f"{_ESD}/list"): Route("enterprise", elastic.listing),
            ("POST", f"{_ESD}/container/event/list"): Route("enterprise", elastic.events),
            ("POST", f"{_ESD}/container/list"): Route("enterprise", elastic.containers),
            ("PUT", f"{_ESD}/container/stop"): Route("enterprise", elastic.stop_container),
            ("PUT", f"{_ESD}/replica_num"): Route("enterprise", elastic.set_replicas),
            ("PUT", f"{_ESD}/operate"): Route("enterprise", elastic.operate),
            ("POST", f"{_ESD}/blacklist"): Route("enterprise", elastic.block),
            ("GET", f"{_ESD}/blacklist"): Route("enterprise", elastic.blocked_hosts),
            ("GET", f"{_ESD}/ddp/overview"): Route("enterprise", elastic.packages),
        }

    # -- time

    def open(self) -> None:
        """Let time pass in a thread of its own, so that machines start and stop though nobody asks."""
        self._world.open()

    def close(self) -> None:
        """Stop that thread. Machines that run are the hooks' to end."""
        self._world.close()

    def tick(self) -> None:
        """Do what is due by the clock."""
        with self._world.turn():
            pass

    # -- the API

    def call(
        self,
        method: str,
        path: str,
        token: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None,
        *,
        fault: str = "",
    ) -> dict[str, Any]:
        """Answer a call with its envelope. Checks go from token to entitlement to parameters to state to stock.

        ``body`` is None where it was no JSON object. Raises KeyError for a path that is not there (HTTP 404).
        """
        route = self.routes[method, path]
        with self._world.turn():
            envelope: dict[str, Any] = {"code": "Success", "data": None, "msg": ""}
            try:
                self._admit(token, route.need)
                envelope["data"] = route.handler(self._fields(method, query, body), fault)
            except ApiError as error:
                envelope.update(code=error.code, msg=error.message)
            envelope["request_id"] = self._world.hex(32)
            envelope["server_hint"] = "unknown fields are to be ignored"
            return envelope

    def _admit(self, token: str, need: Need) -> None:
        if not hmac.compare_digest(token.encode(), self.config.token.encode()):
            raise bad_token()
        if need == "verified" and self._profile == "unverified":
            raise not_verified()
        if need == "enterprise" and self._profile != "enterprise":
            raise not_entitled()

    def _fields(self, method: str, query: Mapping[str, str], body: Mapping[str, Any] | None) -> Fields:
        """Take the query of a GET and the body of everything else."""
        if method != "GET":
            if body is None:
                raise wrong_parameter()
            return Fields(dict(body))
        lenient = body if self.config.lenient_get_body and body else {}
        return Fields({**lenient, **query})

    def take_fault(self, method: str, path: str) -> Fault | None:
        """Return the fault that the next call of this path meets, and count it."""
        with self._world.turn():
            return self._faults.take(method, path)

    def record(self, entry: Mapping[str, Any], body: Mapping[str, Any] | None) -> None:
        """Write a call into the request log: no token, and of commands only the length, since they hold links."""
        shown = None if body is None else _without_commands(body)
        with self._world.turn():
            self._log.append({"number": next(self._numbers), "time": self._world.clock(), **entry, "body": shown})

    # -- what machines say

    def guest_shutdown(self, machine: str) -> bool:
        """A machine called ``shutdown``: a Pro instance powers off, a container ends. False for an unknown one."""
        with self._world.turn():
            instance = self._pro.instances.get(machine)
            if instance is not None:
                if instance.status == "running":
                    self._pro.begin_shutdown(instance)
                return True
            return self._end_container(machine)

    def guest_exit(self, machine: str) -> bool:
        """A machine's start command ended: that ends a container, and not a Pro instance. False for an unknown one.

        AutoDL reports no exit code anywhere, so none is asked for.
        """
        with self._world.turn():
            return machine in self._pro.instances or self._end_container(machine)

    def _end_container(self, machine: str) -> bool:
        found = self._elastic.find_container(machine)
        if found is None:
            return False
        self._elastic.end(*found)
        return True

    # -- the control surface

    def reset(self) -> None:
        """Go back to the seed: every machine ends, stock is full, no fault waits. The request log stays."""
        with self._world.turn():
            for machine in sorted(self._world.running):
                self._world.stop_machine(machine)
            self._furnish()

    def add_fault(self, fault: Fault) -> None:
        """Let the next calls of a path meet a fault."""
        with self._world.turn():
            self._faults.add(fault)

    def clear_faults(self) -> None:
        """Let no call meet a fault any more."""
        with self._world.turn():
            self._faults.clear()

    def set_stock(
        self,
        region: str = "*",
        gpu: str = "*",
        idle: int = 0,
        *,
        total: int | None = None,
        pool: Pool = "both",
        spread: bool = False,
    ) -> None:
        """Let a card have ``idle`` free units in a region. ``*`` means all; a Pro spec id names its card.

        What our machines hold stays theirs. ``spread``: on as many hosts as there are, so that two idle cards do not
        make a machine of two cards. Containers that wait are scheduled.
        """
        card = seed.SPECS.get(gpu, gpu)
        with self._world.turn():
            if pool in ("both", "elastic"):
                for key in self._elastic_pools(region, card):
                    self._hosts.set_stock(*key, idle, total, spread=spread)
            if pool in ("both", "pro"):
                for key in self._pro.idle:
                    if region in ("*", key[0]) and card in ("*", key[1]):
                        self._pro.idle[key] = idle
            self._elastic.schedule_all()

    def _elastic_pools(self, region: str, card: str) -> list[tuple[str, str]]:
        if region != "*" and card != "*":
            return [(region, card)]
        return [key for key in self._hosts.pools if region in ("*", key[0]) and card in ("*", key[1])]

    def take_away(self, machine: str, how: Literal["vanish", "shutdown"] = "vanish") -> bool:
        """Take a machine as by the cloud: its processes end; it is unknown at once, or off. False: no such machine.

        The cards of a Pro instance that vanishes are another tenant's from then on.

        ``machine`` is the id of an instance, a container or a deployment, or the name of one.
        """
        with self._world.turn():
            for instance in list(self._pro.instances.values()):
                if machine in (instance.id, instance.name):
                    if how == "vanish":
                        instance.holds_cards = False
                        self._pro.vanish(instance)
                    else:
                        self._pro.begin_shutdown(instance)
                        self._pro.finish_shutdown(instance)
                    return True
            for deployment in list(self._elastic.deployments.values()):
                ids = [deployment.id, deployment.name, *(container.id for container in deployment.containers)]
                if machine in ids:
                    (self._elastic.remove if how == "vanish" else self._elastic.stop)(deployment)
                    return True
            return False

    def set_account(
        self, *, profile: Profile | None = None, assets: int | None = None, blocked: int | None = None
    ) -> None:
        """Change who the account is and what it has, in 1/1000 yuan."""
        with self._world.turn():
            self._profile = profile or self._profile
            if assets is not None:
                self._world.wallet.assets = assets
            if blocked is not None:
                self._world.wallet.blocked = blocked

    def requests(self, after: int = 0) -> list[dict[str, Any]]:
        """Return the request log, from the number after ``after`` on."""
        with self._world.turn():
            return [entry for entry in self._log if entry["number"] > after]

    def state(self) -> dict[str, Any]:
        """Return everything there is, as JSON."""
        with self._world.turn():
            return {
                "profile": self._profile,
                "assets": self._world.wallet.assets,
                "blocked": self._world.wallet.blocked,
                "instances": [
                    {
                        "id": item.id,
                        "name": item.name,
                        "status": item.status,
                        "region": item.region,
                        "spec": item.spec,
                        "cards": item.cards,
                    }
                    for item in self._pro.instances.values()
                ],
                "deployments": [
                    {
                        "id": item.id,
                        "name": item.name,
                        "type": item.kind,
                        "status": item.status,
                        "finished": item.finished,
                        "containers": [
                            {
                                "id": container.id,
                                "status": container.status,
                                "region": container.host.region,
                                "host": container.host.id,
                                "gpu": container.host.card,
                                "cached": container.cached,
                                "reused_from": container.origin,
                            }
                            for container in item.containers
                        ],
                    }
                    for item in self._elastic.deployments.values()
                ],
                "pro_stock": [
                    {"region": region, "gpu": card, "idle": idle} for (region, card), idle in self._pro.idle.items()
                ],
                "faults": [fault.show() for fault in self._faults.waiting],
            }


def _mount_nfs(fields: Fields, _fault: str) -> None:
    fields.text("data_center")
    if fields.number("mountable", -1, 1) == 0:
        raise wrong_parameter()


def _without_commands(body: Mapping[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name, value in body.items():
        if name in _SECRETIVE and isinstance(value, str):
            shown[name] = f"<{len(value)} characters>"
        else:
            shown[name] = _without_commands(value) if isinstance(value, dict) else value
    return shown
