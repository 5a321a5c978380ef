"""Who opens a store with what: the controller with the operator's own account, a node with a role or a key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from provisioner.checkpoint.credentials import Credentials
from provisioner.clouds.stores import controller_credentials, open_as_controller
from provisioner.config import StoreConfig
from provisioner.errors import ConfigError
from provisioner.model import Offer

__all__ = [
    "controller_credentials",
    "node_credentials",
    "node_endpoint",
    "node_store",
    "open_as_controller",
]

GOOGLE_KEY = "GOOGLE_APPLICATION_CREDENTIALS"
EMULATOR = "STORAGE_EMULATOR_HOST"


def node_store(store: StoreConfig, offer: Offer, environ: Mapping[str, str], *, role: bool) -> dict[str, object]:
    """Return how a node opens a store, for ``bootstrap.json``: uri, endpoint, region, credentials. A secret.

    ``role``: the machine has a role that reaches this store. Raises ConfigError where there is no key to hand out.
    """
    key = node_credentials(store, offer.cloud, environ, role=role)
    at_aws = urlsplit(store.uri).scheme == "s3"
    return {
        "uri": store.uri,
        "endpoint": node_endpoint(store, environ),
        "region": store.region or (environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") if at_aws else None),
        "credentials": key.as_json() if key else None,
    }


def node_endpoint(store: StoreConfig, environ: Mapping[str, str]) -> str | None:
    """Return the address of a store's service, as the file or the controller's environment names it."""
    scheme = urlsplit(store.uri).scheme
    if store.endpoint or scheme == "file":
        return store.endpoint
    if scheme == "gs":
        emulator = environ.get(EMULATOR) or None
        return f"http://{emulator}" if emulator and "://" not in emulator else emulator
    return environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or None


def node_credentials(store: StoreConfig, cloud: str, environ: Mapping[str, str], *, role: bool) -> Credentials | None:
    """Return the key that a node at ``cloud`` uses; None where the machine has a role for the store.

    Only keys that outlive the controller are handed out. Raises ConfigError where there is none.
    """
    scheme = urlsplit(store.uri).scheme
    where = f"{store.uri}: a machine at {cloud} needs a key for it"
    if scheme == "file" or role:
        return None
    if scheme == "gs":
        return _google(store, cloud, environ, where)
    key, secret = environ.get(store.access_key_id_env), environ.get(store.secret_access_key_env)
    if not key or not secret:
        hint = f"set {store.access_key_id_env} and {store.secret_access_key_env}; a profile is not handed out"
        raise ConfigError(where, hint=hint)
    if environ.get(store.session_token_env):
        raise ConfigError(
            f"{where} that does not expire, and {store.session_token_env} is set",
            hint="make a key that reaches only the job's prefix, and set it without a session",
        )
    return Credentials(key, secret)


def _google(store: StoreConfig, cloud: str, environ: Mapping[str, str], where: str) -> Credentials | None:
    endpoint = node_endpoint(store, environ)
    if cloud == "gcp" or environ.get(EMULATOR) or (endpoint and urlsplit(endpoint).scheme == "http"):
        return None  # its own service account; an emulator asks for none
    path = environ.get(GOOGLE_KEY)
    if not path:
        hint = f"set {GOOGLE_KEY} to the key file of a service account that reaches only this bucket"
        raise ConfigError(where, hint=hint)
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ConfigError(f"{GOOGLE_KEY}: {path}: {reason}", hint="name the key file of a service account") from None
    return Credentials.google(text, f"{GOOGLE_KEY}: {path}")
