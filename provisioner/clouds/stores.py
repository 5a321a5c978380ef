"""Stores opened with the operator's own account."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from provisioner.checkpoint import accounts
from provisioner.checkpoint.credentials import Credentials
from provisioner.checkpoint.store import Store, open_store
from provisioner.config import StoreConfig

if TYPE_CHECKING:
    from provisioner.checkpoint.credentials import Renewed


def controller_credentials(store: StoreConfig, environ: Mapping[str, str]) -> Credentials | Renewed | None:
    """Return the key that the configuration names, if it is set, or the operator's account; None: the ordinary places.

    Raises ConfigError for an account that cannot be read.
    """
    if urlsplit(store.uri).scheme == "s3":
        key = environ.get(store.access_key_id_env)
        secret = environ.get(store.secret_access_key_env)
        if key and secret:
            return Credentials(key, secret, environ.get(store.session_token_env) or None)
    return accounts.own(store.uri, environ)


def open_as_controller(store: StoreConfig, environ: Mapping[str, str], *, retry_s: float = 60.0) -> Store:
    """Open a store of the configuration, not yet below the job's name. Makes no request.

    ``retry_s`` as for ``open_store``. Raises ConfigError, StoreError.
    """
    credentials = controller_credentials(store, environ)
    if isinstance(credentials, Credentials) and urlsplit(store.uri).scheme == "s3":
        return _shared(store, credentials, retry_s, frozenset(environ.items()))
    return _opened(store, credentials, retry_s, environ)


@lru_cache(maxsize=64)
def _shared(store: StoreConfig, credentials: Credentials, retry_s: float, environ: frozenset[tuple[str, str]]) -> Store:
    """Open it once for all jobs of this process that mean the same: its clients take 30 ms of CPU and connections."""
    return _opened(store, credentials, retry_s, dict(environ))


def _opened(
    store: StoreConfig, credentials: Credentials | Renewed | None, retry_s: float, environ: Mapping[str, str]
) -> Store:
    return open_store(
        store.uri,
        endpoint=store.endpoint,
        region=store.region,
        credentials=credentials,
        retry_s=retry_s,
        environ=environ,
    )
