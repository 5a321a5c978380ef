"""Elastic deployments of the emulator: scheduler, life of containers, reuse cache and the calls."""

from __future__ import annotations

import itertools
from typing import Any

from provisioner.sandbox.autodl.deployments import Container, Deployment, Template
from provisioner.sandbox.autodl.hosts import Hosts
from provisioner.sandbox.autodl.images import Images
from provisioner.sandbox.autodl.replies import ApiError, Fields, no_money, not_found, page, time_text, wrong_parameter
from provisioner.sandbox.autodl.world import World

_CACHED_S = 7 * 86400
_STEPS = ("created", "starting", "oss_merged", "running")


class ElasticRoom:
    """All deployments of the account."""

    def __init__(self, world: World, hosts: Hosts, images: Images) -> None:
        self._world = world
        self._hosts = hosts
        self._images = images
        self._numbers = itertools.count(501)
        self.deployments: dict[str, Deployment] = {}
        self.cache: dict[str, tuple[Deployment, Container]] = {}
        self.blocked: dict[str, dict[str, Any]] = {}

    # -- calls on deployments

    def create(self, fields: Fields, _fault: str) -> dict[str, str]:
        """Accept a deployment, whether or not it can be scheduled now."""
        name = fields.text("name")
        kind = fields.choice("deployment_type", ("ReplicaSet", "Job", "Container"))
        replicas = 1 if kind == "Container" else fields.number("replica_num", 1, 1000)
        parallel = fields.number("parallelism_num", 1, 1000, None if kind == "Job" else 1)
        reuse = fields.flag("reuse_container")
        scope = fields.choice("reuse_container_scope", ("all", "deployment"), "all")
        for port in (6006, 6008):
            fields.choice(f"service_{port}_port_protocol", ("http", "tcp"), "http")
        template = Template.read(fields.inner("container_template"))
        if not self._images.is_known(template.image):
            raise wrong_parameter()
        if self._world.wallet.is_empty:
            raise no_money()
        now = self._world.clock()
        deployment = Deployment(
            number=next(self._numbers),
            id=self._world.hex(10),
            name=name,
            kind=kind,  # type: ignore[arg-type]
            replicas=replicas,
            parallel=parallel,
            reuse=reuse,
            reuse_scope=scope,
            template=template,
            created_at=now,
            updated_at=now,
        )
        self.deployments[deployment.id] = deployment
        self._world.after(self._world.config.delays.creating, lambda: self.schedule(deployment))
        return {"deployment_uuid": deployment.id}

    def listing(self, fields: Fields, _fault: str) -> dict[str, Any]:
        """List deployments, newest first; the filters are exact."""
        filters = {"name": "name", "status": "status", "deployment_uuid": "id"}
        wanted = {attribute: fields.text(field, required=False) for field, attribute in filters.items()}
        found = [
            deployment
            for deployment in reversed(self.deployments.values())
            if all(getattr(deployment, attribute) == value for attribute, value in wanted.items() if value)
        ]
        return page(fields, found, Deployment.show, pro=False)

    def set_replicas(self, fields: Fields, _fault: str) -> None:
        """Change a ReplicaSet; other types refuse [guess]."""
        deployment = self._deployment(fields)
        replicas = fields.number("replica_num", 1, 1000)
        if deployment.kind != "ReplicaSet":
            raise ApiError("BadRequest", "仅ReplicaSet类型支持修改副本数")
        deployment.replicas = replicas
        for container in deployment.live[replicas:]:
            self.end(deployment, container)
        self.schedule(deployment)

    def operate(self, fields: Fields, _fault: str) -> None:
        """Stop a deployment for good; ``stop`` is the only word."""
        deployment = self._deployment(fields)
        fields.choice("operate", ("stop",))
        self.stop(deployment)

    def delete(self, fields: Fields, _fault: str) -> None:
        """Delete a deployment; what runs is stopped first."""
        self.remove(self._deployment(fields))

    # -- calls on containers

    def events(self, fields: Fields, _fault: str) -> dict[str, Any]:
        """List what happened, newest first [guess]."""
        deployment = self._deployment(fields)
        wanted = fields.text("deployment_container_uuid", required=False)
        found = [event for event in reversed(deployment.events) if wanted in ("", event[1])]
        return page(fields, found, _event_row, pro=False)

    def containers(self, fields: Fields, _fault: str) -> dict[str, Any]:
        """List containers; those in the reuse cache count as not released [live]."""
        deployment = self._deployment(fields)
        wanted = fields.text("container_uuid", required=False)
        statuses = fields.texts("status", required=False)
        card = fields.text("gpu_name", required=False)
        released = fields.flag("released")
        found = [
            container
            for container in reversed(deployment.containers)
            if (released or not container.released)
            and wanted in ("", container.id)
            and card in ("", container.host.card)
            and (not statuses or container.status in statuses)
        ]
        return page(fields, found, lambda container: container.show(deployment.id), pro=False)

    def stop_container(self, fields: Fields, _fault: str) -> None:
        """Stop one container. A ReplicaSet replaces it unless it is told to shrink."""
        deployment, container = self._container(fields.text("deployment_container_uuid"))
        if fields.flag("decrease_one_replica_num") and deployment.kind == "ReplicaSet":
            deployment.replicas = max(0, deployment.replicas - 1)
        self.end(deployment, container, no_cache=fields.flag("no_cache"))

    def block(self, fields: Fields, _fault: str) -> None:
        """Keep future containers off a host, for a day where nothing is said."""
        minutes = fields.number("expire_in_minutes", 1, 43200, 1440)
        comment = fields.text("comment", required=False)
        _deployment, container = self._container(fields.text("deployment_container_uuid"))
        now = self._world.clock()
        self.blocked[container.host.id] = {
            "created_at": time_text(now),
            "updated_at": time_text(now),
            "data_center": container.host.region,
            "expired_time": time_text(now + minutes * 60),
            "machine_id": container.host.id,
            "msg": comment,
            "until": now + minutes * 60,
        }
        self._world.at(now + minutes * 60, self.schedule_all)

    def blocked_hosts(self, _fields: Fields, _fault: str) -> list[dict[str, Any]] | None:
        """List blocked hosts; none is null [code]."""
        rows = [
            {name: value for name, value in self.blocked[host].items() if name != "until"}
            for host in self._blocked_now()
        ]
        return rows or None

    def packages(self, fields: Fields, _fault: str) -> list[dict[str, Any]]:
        """List prepaid time: this account has none."""
        self._deployment(fields)
        return []

    # -- finding

    def _deployment(self, fields: Fields) -> Deployment:
        uuid = fields.text("deployment_uuid")
        if uuid not in self.deployments:
            raise not_found()
        return self.deployments[uuid]

    def _container(self, uuid: str) -> tuple[Deployment, Container]:
        found = self.find_container(uuid)
        if found is None:
            raise not_found()
        return found

    def find_container(self, uuid: str) -> tuple[Deployment, Container] | None:
        """Return a container with its deployment."""
        for deployment in self.deployments.values():
            for container in deployment.containers:
                if container.id == uuid:
                    return deployment, container
        return None

    def _blocked_now(self) -> set[str]:
        now = self._world.clock()
        return {host for host, row in self.blocked.items() if row["until"] > now}

    # -- life

    def schedule_all(self) -> None:
        """Look again for hosts for everything that waits."""
        for deployment in list(self.deployments.values()):
            self.schedule(deployment)

    def schedule(self, deployment: Deployment) -> None:
        """Start containers as long as some are missing and a host has room."""
        while deployment.missing > 0:
            container = self._reused(deployment) or self._fresh(deployment)
            if container is None:
                return
            container.host.ours += container.cards
            deployment.containers.append(container)
            self._become(deployment, container, "creating")
            steps = [step for step in _STEPS if step != "oss_merged" or self._images.is_private(container.image)]
            self._walk(deployment, container, steps[1:] if container.origin else steps)

    def _fresh(self, deployment: Deployment) -> Container | None:
        wish = deployment.template.wish
        host = self._hosts.place(wish, self._blocked_now())
        if host is None:
            return None
        return self._new(deployment, f"{deployment.id}-{host.id}-{self._world.hex(8)}", host, wish.count)

    def _reused(self, deployment: Deployment) -> Container | None:
        """Take a cached container, whichever: its files come with it. The new id is the old one and a suffix [live]."""
        wish = deployment.template.wish
        for uuid, (owner, cached) in list(self.cache.items()) if deployment.reuse else []:
            mine = owner is deployment or deployment.reuse_scope == "all"
            if not mine or cached.cards != wish.count or cached.image != deployment.template.image:
                continue
            host = self._hosts.place(wish, self._blocked_now(), only=cached.host.id)
            if host is not None:
                self._drop_from_cache(uuid)
                fresh = self._new(deployment, f"{uuid}-{self._world.hex(8)}", host, wish.count)
                fresh.origin = uuid
                return fresh
        return None

    def _new(self, deployment: Deployment, uuid: str, host: Any, cards: int) -> Container:
        return Container(
            number=next(self._numbers),
            id=uuid,
            host=host,
            cards=cards,
            image=deployment.template.image,
            created_at=self._world.clock(),
            password=f"Emu-{self._world.hex(12)}",
            ssh_port=self._world.random.randrange(30000, 60000),
        )

    def _become(self, deployment: Deployment, container: Container, status: str) -> None:
        now = self._world.clock()
        container.status = status
        container.updated_at = deployment.updated_at = now
        deployment.events.append((now, container.id, status))

    def _walk(self, deployment: Deployment, container: Container, steps: list[str]) -> None:
        """Take one step of the start after the other, as long as nobody ends the container."""
        delays = self._world.config.delays
        pull = delays.image_pull if steps and steps[0] == "created" else 0.0

        def go() -> None:
            if not container.is_live:
                return
            self._become(deployment, container, steps[0])
            if steps[0] == "running":
                self._run(deployment, container)
            else:
                self._walk(deployment, container, steps[1:])

        self._world.after(delays.container_step + pull, go)

    def _run(self, deployment: Deployment, container: Container) -> None:
        container.started_at = self._world.clock()
        self._world.wallet.start(container.id, container.price)
        env = {
            "AutoDLContainerUUID": container.id,
            "AutoDLDeploymentUUID": deployment.id,
            "AutoDLDataCenter": container.host.region,
        }
        self._world.start_machine(container.id, deployment.template.command, env)

    def end(self, deployment: Deployment, container: Container, *, no_cache: bool = False, count: bool = True) -> None:
        """End a container. Its card is free at once; a Job counts it as finished."""
        if not container.is_live:
            return
        self._world.wallet.stop(container.id)
        self._world.stop_machine(container.id)
        container.host.ours -= container.cards
        container.stopped_at = self._world.clock()
        self._become(deployment, container, "shutting_down")
        if deployment.reuse and not no_cache:
            self._keep(deployment, container)
        else:
            container.released = True

        def finish() -> None:
            self._become(deployment, container, "shutdown")

        self._world.after(self._world.config.delays.shutting_down, finish)
        if deployment.kind != "ReplicaSet" and count:
            deployment.finished += 1
            if deployment.finished >= deployment.replicas:
                self.stop(deployment)
        self.schedule_all()

    def _keep(self, deployment: Deployment, container: Container) -> None:
        container.cached = True
        self.cache[container.id] = (deployment, container)
        self._world.at(self._world.clock() + _CACHED_S, lambda: self._drop_from_cache(container.id))

    def _drop_from_cache(self, uuid: str) -> None:
        _owner, container = self.cache.pop(uuid, (None, None))
        if container is not None:
            container.cached = False
            container.released = True

    def stop(self, deployment: Deployment) -> None:
        """Stop a deployment and its containers, for good."""
        if deployment.status == "stopped":
            return
        deployment.status = "stopped"
        deployment.stopped_at = deployment.updated_at = self._world.clock()
        for container in deployment.live:
            self.end(deployment, container, count=False)

    def remove(self, deployment: Deployment) -> None:
        """Stop a deployment and forget it."""
        self.stop(deployment)
        self.deployments.pop(deployment.id, None)


def _event_row(event: tuple[float, str, str]) -> dict[str, Any]:
    when, container, status = event
    return {"deployment_container_uuid": container, "status": status, "created_at": time_text(when)}
