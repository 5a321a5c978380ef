"""What a node needs before it can start, as objects in the store: the job's spec, runtime, workdir and bootstrap."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from provisioner.checkpoint import epochs, layout, workdir
from provisioner.checkpoint.store import Credentials, Store, open_store
from provisioner.clouds.aws.cloud import job_prefix, store_endpoint
from provisioner.config import CheckpointConfig, Config
from provisioner.controller.directory import JobDirectory, cache_root
from provisioner.controller.records import Published
from provisioner.controller.runtime import runtime_wheels
from provisioner.errors import ConfigError
from provisioner.model import JobRef, Launch, Offer, claim_token, tags
from provisioner.terraform import render

LINK_FRESH_S = 3600.0
LINK_PATIENCE_S = 600.0
PULL_PATIENCE_S = 1200.0
LINK_S = 6 * 3600.0
"""How long a start link is asked for. Links signed with a session end with it, whatever is asked for."""


def controller_credentials(settings: CheckpointConfig, environ: Mapping[str, str]) -> Credentials | None:
    """Return the key that the configuration names, if it is set; None means the ordinary places."""
    key = environ.get(settings.access_key_id_env)
    secret = environ.get(settings.secret_access_key_env)
    if key and secret:
        return Credentials(key, secret, environ.get(settings.session_token_env) or None)
    if urlsplit(settings.store).scheme == "s3":
        return _profile_credentials()
    return None


def _profile_credentials() -> Credentials | None:
    """Return the key of the operator's AWS profile, as boto3 finds it."""
    import boto3

    found = boto3.Session().get_credentials()
    if found is None or found.method in {"iam-role", "container-role"}:
        return None  # obstore asks the machine's role by itself, and renews it
    frozen = found.get_frozen_credentials()
    if not frozen.access_key or not frozen.secret_key:
        return None
    return Credentials(frozen.access_key, frozen.secret_key, frozen.token)


def open_job_store(config: Config, environ: Mapping[str, str]) -> Store:
    """Open the store below the job's name. Makes no request. Raises ConfigError."""
    settings = config.checkpoint
    store = open_store(
        settings.store,
        endpoint=settings.endpoint,
        region=settings.region,
        credentials=controller_credentials(settings, environ),
        environ=environ,
    )
    return store.at(config.job.name)


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
    ) -> None:
        """Take the job and its store (already below the job's name). ``workdir`` is the directory to take along."""
        self.job = job
        self.workdir = workdir
        self.config = config
        self.directory = directory
        self.store = store
        self.environ = environ

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
        """Put the node's runtime and the packed workdir into the store; what is there already is not sent again."""
        wheels = []
        for wheel in runtime_wheels(cache_root(self.environ)):
            data = wheel.read_bytes()
            digest = hashlib.sha256(data).hexdigest()
            key = f"{layout.RUNTIME}/{digest[:16]}/{wheel.name}"
            if not self.store.exists(key):
                self.store.put(key, data)
            wheels.append((key, digest))
        return Published(tuple(wheels), self._publish_workdir())

    def launch(self, offer: Offer, epoch: int, attempt: int, published: Published) -> Launch:
        """Write the bootstrap object of an epoch and return what the claim needs.

        The user data of one token never change, also not after a crash: EC2 refuses a token with other parameters.
        """
        token = claim_token(self.job, epoch, offer, attempt)
        key = layout.bootstrap(epoch, token)
        self.store.put(key, json.dumps(self._bootstrap(offer, epoch, token, published)).encode())
        script = self.directory.path / "launch" / f"{token}.sh"
        if not script.exists() or (offer.cloud != "aws" and time.time() - script.stat().st_mtime > LINK_FRESH_S):
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

    def remove_bootstrap(self, epoch: int, token: str) -> None:
        """Remove the object that holds secrets: the node has read it, or never will. Raises CloudError."""
        self.store.delete([layout.bootstrap(epoch, token)])

    def read_signs(self, epoch: int) -> tuple[dict[str, object] | None, dict[str, object] | None]:
        """Return (done, heartbeat) as this epoch's node wrote them. Raises CloudError."""
        heartbeat = _object(self.store.get(layout.heartbeat(epoch)))
        done = _object(self.store.get(layout.DONE))
        return (done if done and done.get("epoch") == epoch else None), heartbeat

    def _bootstrap(self, offer: Offer, epoch: int, token: str, published: Published) -> dict[str, object]:
        job, settings = self.config.job, self.config.checkpoint
        return {
            "version": 1,
            "job": {"name": self.job.name, "uid": self.job.uid},
            "epoch": epoch,
            "token": token,
            "cloud": offer.cloud,
            "store": {
                "uri": settings.store,
                "endpoint": store_endpoint(self.config, self.environ),
                "region": settings.region or self.environ.get("AWS_REGION") or self.environ.get("AWS_DEFAULT_REGION"),
                "credentials": self._node_credentials(offer),
            },
            "runtime": [
                {"name": key.rsplit("/", 1)[-1], "url": self.store.sign(key, LINK_S), "sha256": digest}
                for key, digest in published.wheels
            ],
            "image": job.image if offer.cloud != "autodl" else None,  # an AutoDL machine is a container already
            "command": [*job.command],
            "env": {**job.env, **{name: self.environ[name] for name in job.secrets}},
            "secret_names": [*job.secrets],  # the node keeps their values out of its log
            "workdir": {"key": published.workdir_key} if published.workdir_key else None,
            "steps": job.steps,
            "checkpoint": {
                "every_s": settings.every,
                "keep": settings.keep,
            },
            "ttl_s": self.config.policy.ttl,
            "heartbeat_s": self.config.policy.heartbeat,
        }

    def _node_credentials(self, offer: Offer) -> dict[str, str | None] | None:
        """Return the key that a node outside the store's cloud uses; None where the machine has a role for it."""
        settings = self.config.checkpoint
        if urlsplit(settings.store).scheme == "file":
            return None
        if offer.cloud == "aws" and job_prefix(self.config, self.environ)[0]:
            return None
        key = self.environ.get(settings.access_key_id_env)
        secret = self.environ.get(settings.secret_access_key_env)
        where = f"checkpoint.store: a machine at {offer.cloud} needs a key for {settings.store}"
        if not key or not secret:
            hint = f"set {settings.access_key_id_env} and {settings.secret_access_key_env}; a profile is not handed out"
            raise ConfigError(where, hint=hint)
        if self.environ.get(settings.session_token_env):
            message = f"{where} that does not expire, and {settings.session_token_env} is set"
            raise ConfigError(
                message, hint="make a key that reaches only the job's prefix, and set it without a session"
            )
        return {"access_key_id": key, "secret_access_key": secret, "session_token": None}

    def _publish_workdir(self) -> str | None:
        if self.workdir is None:
            return None
        key, data = workdir.pack(self.workdir)
        if not self.store.exists(key):
            self.store.put(key, data)
        return key


def _object(data: bytes | None) -> dict[str, object] | None:
    if data is None:
        return None
    try:
        value = json.loads(data)
    except ValueError:
        return None  # half a write of a store without atomic puts: the next look reads it whole
    return value if isinstance(value, dict) else None
