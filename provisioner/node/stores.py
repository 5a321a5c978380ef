"""The stores that a node was told of, opened. Opening asks nobody anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from provisioner.checkpoint.store import Store, open_store
from provisioner.errors import CloudError, ConfigError
from provisioner.node.bootstrap import Access, Bootstrap

COPY_TIMEOUT_S = 60.0
RESTORE_TIMEOUT_S = 20.0
RETRY_S = 15.0
"""A replica that does not answer is given up sooner than the job's own store, in seconds; a restore waits for it."""


@dataclass(frozen=True, slots=True)
class Stores:
    """The job's own store and its replicas, each below the job's name."""

    boot: Bootstrap
    environ: Mapping[str, str]

    def own(self, *, timeout_s: float, retry_s: float) -> Store:
        """Open the job's own store. Raises ConfigError, StoreError."""
        return self._open(self.boot.own_store, timeout_s, retry_s)

    def replicas(self) -> list[Access]:
        """Return the replicas, nearest first."""
        return [access for access in self.boot.stores if not self._is_own(access)]

    def for_copies(self, access: Access) -> Store:
        """Open a replica to write to. Raises ConfigError, StoreError."""
        return self._open(access, COPY_TIMEOUT_S, RETRY_S)

    def nearest_first(self, own: Store, report: Callable[[str], None]) -> list[Store]:
        """Return where to restore from: the replicas, and ``own`` in its place among them.

        What cannot be opened is left out, with a line to ``report``.
        """
        found = []
        for access in self.boot.stores:
            try:
                found.append(own if self._is_own(access) else self._open(access, RESTORE_TIMEOUT_S, RETRY_S))
            except (CloudError, ConfigError) as error:
                report(f"the replica {access.uri} is passed over: {error}")
        return found

    def name_of(self, store_uri: str) -> str:
        """Return the URI that the configuration has for a store below the job's name."""
        known = (self.boot.store_uri, *(access.uri for access in self.boot.stores))
        return next((uri for uri in known if f"{uri.rstrip('/')}/{self.boot.job.name}" == store_uri), store_uri)

    def _is_own(self, access: Access) -> bool:
        return (access.uri, access.endpoint) == (self.boot.store_uri, self.boot.endpoint)

    def _open(self, access: Access, timeout_s: float, retry_s: float) -> Store:
        store = open_store(
            access.uri,
            endpoint=access.endpoint,
            region=access.region,
            credentials=access.credentials,
            timeout_s=timeout_s,
            retry_s=retry_s,
            environ=self.environ,
        )
        return store.at(self.boot.job.name)
