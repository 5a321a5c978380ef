"""What a node needs before it can start, as objects in the store: the job's spec, runtime, workdir and bootstrap."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path

from provisioner import assets
from provisioner.checkpoint import epochs, layout, workdir
from provisioner.checkpoint.store import Store
from provisioner.clouds.aws.cloud import job_prefix
from provisioner.config import Config
from provisioner.controller import launch_runtime, runtime_bundle
from provisioner.controller.access import node_store, open_as_controller
from provisioner.controller.beside import both
from provisioner.controller.data import DataLists
from provisioner.controller.directory import JobDirectory, cache_root
from provisioner.controller.records import Published
from provisioner.controller.runtime import runtime_wheels
from provisioner.controller.runtime_bundle import Bundle
from provisioner.controller.shared_runtime import SharedRuntime
from provisioner.controller.stores import nearest_first, stores
from provisioner.errors import ConfigError, FailoverError, Unreachable
from provisioner.hazard import Seen
from provisioner.model import JobRef, Launch, Market, Offer, claim_token, tags
from provisioner.planner.pools import Pool, pool
from provisioner.terraform import render

LINK_FRESH_S = 3600.0
STORED = "store://"
"""How an image in the store is written in the configuration."""
LINK_PATIENCE_S = 600.0
PULL_PATIENCE_S = 1200.0
CALL_PATIENCE_S = 900.0
"""How long a machine that stands by waits for its call before it ends itself: a controller may be down for a while."""
BODY_COMPARED = frozenset({"aws", "gcp"})
"""Clouds that compare a request with the earlier one of the same token."""
LINK_S = 6 * 3600.0
"""How long a start link is asked for. Links signed with a session end with it, whatever is asked for."""


def open_job_store(config: Config, environ: Mapping[str, str]) -> Store:
    """Open the store below the job's name. Makes no request. Raises ConfigError."""
    return open_as_controller(config.checkpoint.main, environ).at(config.job.name)


def stored_uid(store: Store) -> str:
    """Return the uid of the job that this prefix belongs to, or nothing. Raises CloudError."""
    data = store.get(layout.SPEC)
    try:
        return str(json.loads(data)["job"]["uid"]) if data else ""
    except (ValueError, KeyError, TypeError):
        return ""


class Launcher:
    """Writes for nodes, and reads what they say."""

    def __init__(
        self,
        job: JobRef,
        config: Config,
        directory: JobDirectory,
        store: Store,
        environ: Mapping[str, str],
        workdir: Path | None,
        runtime_file: Path | None = None,
    ) -> None:
        """Take the job and its store (already below the job's name).

        ``workdir`` is the directory to take along, ``runtime_file`` a bundle that was made elsewhere.
        """
        self.job = job
        self.workdir = workdir
        self.runtime_file = runtime_file
        self.config = config
        self.directory = directory
        self.store = store
        self.runtime = SharedRuntime(store.above(), job.name)
        self.environ = environ
        self.data = DataLists(config, store, environ)
        self.pools: Mapping[Pool, Seen] = {}
        """What was seen of spot pools, for the node's checkpoint interval."""
        self.stands_by: dict[int, int] = {}
        """Epochs whose machine stands by, and the epoch that still trains."""

    def write_spec(self) -> None:
        """Write what runs, without secrets."""
        spec = {
            "version": 1,
            "job": {"name": self.job.name, "uid": self.job.uid},
            "config": self.config.model_dump(mode="json"),
        }
        self.store.put(layout.SPEC, json.dumps(spec, default=str).encode())

    def newest_epoch(self) -> int:
        """Return the highest epoch that has left anything in the store."""
        return epochs.newest_used(self.store)

    def publish(self) -> Published:
        """Put the node's runtime and the packed workdir into the store; what is there already is not sent again.

        Raises ConfigError for an image that the node cannot start on, or that is not in the store.
        """
        bundle, problem = self._bundle()
        launch_runtime.check_autodl(self.config, bundle, problem)
        self._find_image()
        self.data.look()
        return replace(self._publish_runtime(bundle, problem), workdir_key=self._publish_workdir())

    def _publish_runtime(self, bundle: Bundle | None, problem: str) -> Published:
        wheels, files = [], {}
        for wheel in () if self.config.job.runtime == "bundle" else runtime_wheels(cache_root(self.environ)):
            digest = _digest(wheel, wheel.stat().st_mtime_ns)
            wheels.append((f"{layout.SHARED_RUNTIME}/{digest[:16]}/{wheel.name}", digest))
            files[wheels[-1][0]] = wheel
        made = None if bundle is None else (f"{layout.SHARED_RUNTIME}/{bundle.sha256}.tar.gz", bundle.sha256)
        if bundle is not None and made is not None:
            files[made[0]] = bundle.path
        self.runtime.note([*files])
        for key, file in files.items():
            self.runtime.share(key, file)
        return Published(tuple(wheels), None, made, problem)

    def _there(self, published: Published) -> Published:
        """Return what a machine starts with. A runtime that is there no more is put there anew, as it is made now."""
        keys = [key for key, _ in published.wheels] + ([published.bundle[0]] if published.bundle else [])
        shared = [key for key in keys if not _own(key)]
        self.runtime.note(shared)
        if self.runtime.has(shared):
            return published
        return replace(self._publish_runtime(*self._bundle()), workdir_key=published.workdir_key)

    def launch(self, offer: Offer, epoch: int, attempt: int, published: Published, *, held: bool = False) -> Launch:
        """Write the bootstrap object of an epoch (``held``: not yet) and return what the claim needs.

        The user data of one token never change, also not after a crash: EC2 and Compute Engine refuse a token with
        other parameters.
        """
        token = claim_token(self.job, epoch, offer, attempt)
        key = layout.bootstrap(epoch, token)
        if not held:
            self.write_start(offer, epoch, attempt, published)
        script = self.directory.path / "launch" / f"{token}.sh"
        fixed = offer.cloud in BODY_COMPARED
        if not script.exists() or (not fixed and not 0 <= _age_s(script) <= LINK_FRESH_S):
            policy = self.config.policy
            text = render.bootstrap(
                url=self.store.sign(key, LINK_S),
                ttl_s=policy.ttl,
                link_patience_s=int(min(LINK_PATIENCE_S, policy.boot_timeout)),
                pull_patience_s=int(min(PULL_PATIENCE_S, policy.boot_timeout * 0.8)),
            )
            self.directory.write_text(f"launch/{token}.sh", text)
        return Launch(
            job=self.job,
            epoch=epoch,
            token=token,
            user_data=script.read_text("utf-8"),
            ttl_s=self.config.policy.ttl,
            tags=tags(self.job, epoch, token),
        )

    def write_start(self, offer: Offer, epoch: int, attempt: int, published: Published) -> None:
        """Write the object by which the machine of a claim starts the job. Raises CloudError."""
        token, published = claim_token(self.job, epoch, offer, attempt), self._there(published)
        lines = self._orders(offer, epoch, published)
        data = start_object(lines, self._bootstrap(offer, epoch, token, published))
        self.store.put(layout.bootstrap(epoch, token), data)

    def remove_bootstrap(self, epoch: int, token: str) -> None:
        """Remove the object that holds secrets: the node has read it, or never will. Raises CloudError."""
        self.store.delete([layout.bootstrap(epoch, token)])

    def forget_data(self, epoch: int) -> None:
        """Remove the list of data of a node that has ended, which it may never have read: it holds links.

        Raises CloudError.
        """
        if self.config.data:
            self.store.delete([layout.data(epoch)])

    def read_signs(self, epoch: int) -> tuple[dict[str, object] | None, dict[str, object] | None]:
        """Return (done, heartbeat) as this epoch's node wrote them. Raises CloudError."""

        def done_now() -> dict[str, object] | None:
            return _object(self.store.get(layout.DONE))

        heartbeat, done = both(lambda: _object(self.store.get(layout.heartbeat(epoch))), done_now)
        if done is None and heartbeat is not None and heartbeat.get("end"):  # its last word was written before that
            done = done_now()
        return (done if done and done.get("epoch") == epoch else None), heartbeat

    def _bootstrap(self, offer: Offer, epoch: int, token: str, published: Published) -> dict[str, object]:
        job, settings = self.config.job, self.config.checkpoint
        return {
            "version": 1,
            "job": {"name": self.job.name, "uid": self.job.uid},
            "epoch": epoch,
            "token": token,
            "cloud": offer.cloud,
            "store": node_store(settings.main, offer, self.environ, role=self._has_role(offer)),
            "runtime": [
                {"name": key.rsplit("/", 1)[-1], "url": self._link(key), "sha256": digest}
                for key, digest in published.wheels
            ],
            "command": [*job.command],
            "env": {**job.env, **{name: self.environ[name] for name in job.secrets}},
            "secret_names": [*job.secrets],  # the node keeps their values out of its log
            "workdir": {"key": published.workdir_key} if published.workdir_key else None,
            "data": self.data.write(epoch),
            "steps": job.steps,
            "checkpoint": {"every_s": settings.every},
            "replicas": self._replicas(offer),
            "retention": {
                "last": settings.keep,
                "every": settings.keep_every,
                "best": settings.keep_best.model_dump() if settings.keep_best else None,
                "sweep_after_s": settings.sweep_after,
            },
            "ttl_s": self.config.policy.ttl,
            "heartbeat_s": self.config.policy.heartbeat,
            "hung_after_s": self.config.policy.hung_after,
            "oom_retries": job.oom_retries,
            "stop_signal": job.stop_signal,
            "standby": self._standby(epoch),
            "pool": asdict(self.pools.get(pool(offer), Seen())) if offer.market is Market.SPOT else None,
        }

    def _standby(self, epoch: int) -> dict[str, object] | None:
        before, failback = self.stands_by.get(epoch), self.config.policy.failback
        if before is None:
            return None
        return {"before": before, "trial_s": failback.trial, "patience_s": CALL_PATIENCE_S + failback.handover}

    def _orders(self, offer: Offer, epoch: int, published: Published) -> list[tuple[str, str]]:
        """Return what the start script reads by itself: it may have to start where there is no Python."""
        job = self.config.job
        lines = [("runtime", job.runtime), ("end-url", self.store.sign(layout.heartbeat(epoch), LINK_S, "PUT"))]
        if published.bundle is not None:
            key, digest = published.bundle[:2]
            lines += [("bundle-url", self._link(key)), ("bundle-sha256", digest)]
        elif published.no_bundle:
            lines.append(("no-bundle", published.no_bundle))
        if job.image is None or offer.cloud == "autodl":  # an AutoDL machine is a container already
            return lines
        lines += [("image", job.image), ("read-only", "yes" if job.image_read_only else "no")]
        if job.image.startswith(STORED):
            return [*lines, ("archive", self.store.above().sign(job.image.removeprefix(STORED), LINK_S))]
        lines += [("pull", name) for name in launch_runtime.pull_names(job.image, job.image_mirrors)]
        if job.image_login is not None:
            password = self.environ[job.image_login.secret].strip()
            lines += [("login", job.image_login.registry), ("login-user", job.image_login.user)]
            lines.append(("login-password", password))
        return lines

    def _bundle(self) -> tuple[Bundle | None, str]:
        """Return the node's own Python, made if it is wanted; None and why where it cannot be made but may do without.

        Raises ConfigError, Unreachable.
        """
        job = self.config.job
        if self.runtime_file is not None and job.runtime != "installed":
            return runtime_bundle.brought(self.runtime_file), ""
        if not launch_runtime.wants_bundle(self.config, self.environ):
            return None, ""
        try:
            return runtime_bundle.build(cache_root(self.environ)), ""
        except FailoverError as error:
            if job.runtime == "bundle" or isinstance(error, Unreachable):
                raise
            return None, str(error)

    def _link(self, key: str) -> str:
        return self.store.sign(key, LINK_S) if _own(key) else self.runtime.link(key, LINK_S)

    def _find_image(self) -> None:
        image = self.config.job.image or ""
        if image.startswith(STORED) and not self.store.above().exists(image.removeprefix(STORED)):
            uri = f"{self.config.checkpoint.main.uri.rstrip('/')}/{image.removeprefix(STORED)}"
            raise ConfigError(f"job.image: there is no {uri}", hint="docker save IMAGE | gzip, and upload it there")

    def _replicas(self, offer: Offer) -> list[dict[str, object]]:
        """Return how a machine opens the replicas, nearest first, with the job's own store in its place among them."""
        settings = self.config.checkpoint
        if not settings.replicas:
            return []
        own, *others = stores(settings, self.environ)
        return [
            node_store(store, offer, self.environ, role=store is own and self._has_role(offer))
            for store in nearest_first([own, *others], offer.cloud, offer.region)
        ]

    def _has_role(self, offer: Offer) -> bool:
        """Say whether the machine's own role reaches the job's prefix in the job's store."""
        return offer.cloud == "aws" and job_prefix(self.config, self.environ)[0] is not None

    def _publish_workdir(self) -> str | None:
        if self.workdir is None:
            return None
        key, data = workdir.pack(self.workdir)
        if not self.store.exists(key):
            self.store.put(key, data)
        return key


def _own(key: str) -> bool:
    """Say whether a part of the runtime is the job's own, as an older release published it."""
    return key.startswith(f"{layout.RUNTIME}/")


@lru_cache(maxsize=64)
def _digest(path: Path, changed_ns: int) -> str:
    """Return the SHA-256 of a file as it was then: thirty megabytes that every job would read anew."""
    del changed_ns
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def start_object(lines: Sequence[tuple[str, str]], bootstrap: Mapping[str, object]) -> bytes:
    """Return what a machine reads first: plain lines for the shell, the script's second part, the node's JSON.

    Raises ConfigError for a value that is more than a line.
    """
    for name, value in lines:
        if not value.isprintable():
            raise ConfigError(f"{name} of the start object is not one line of text")
    head = "".join(f"{name} {value}\n" for name, value in [("version", "1"), *lines])
    script = assets.path("templates/machine.sh").read_text(encoding="utf-8")
    return f"{head}--- script\n{script}--- json\n{json.dumps(bootstrap)}\n".encode()


def _object(data: bytes | None) -> dict[str, object] | None:
    if data is None:
        return None
    try:
        value = json.loads(data)
    except ValueError:
        return None  # half a write of a store without atomic puts: the next look reads it whole
    return value if isinstance(value, dict) else None


def _age_s(file: Path) -> float:
    """Return how long ago a file was written, by the clock that dates files; negative where that was set back."""
    return time.time() - file.stat().st_mtime  # noqa: TID251
