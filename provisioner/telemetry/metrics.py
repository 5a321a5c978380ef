"""Prometheus metrics, served on a port of the operator's choice. ``prometheus_client`` is imported when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from provisioner.errors import ConfigError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

LOOPBACK = "127.0.0.1"


class StockMetrics:
    """``autodl_gpu_available{region,gpu}`` and the times of the last look and the last failed one."""

    def __init__(self) -> None:
        """Make a registry of its own, without the metrics of this process."""
        from prometheus_client import CollectorRegistry, Gauge

        self.registry: CollectorRegistry = CollectorRegistry()
        self._available = Gauge(
            "autodl_gpu_available",
            "Free cards, counted one by one, as elastic deployments see them",
            ["region", "gpu"],
            registry=self.registry,
        )
        self._looked = Gauge("autodl_stock_last_success_timestamp_seconds", "Last good look", registry=self.registry)
        self._failed = Gauge("autodl_stock_last_failure_timestamp_seconds", "Last failed look", registry=self.registry)

    def looked(self, available: Mapping[tuple[str, str], int], at: float) -> None:
        """Take the free cards by (region, card), seen at ``at`` (Unix seconds). What is not there any more goes."""
        self._available.clear()
        for (region, gpu), cards in available.items():
            self._available.labels(region, gpu).set(cards)
        self._looked.set(at)

    def failed(self, at: float) -> None:
        """Note a look that got no answer: the numbers stay as they were, and their age shows."""
        self._failed.set(at)


class MetricsServer:
    """Serves a registry on ``/metrics``. A context manager; ``port`` 0 lets the system choose."""

    def __init__(self, registry: CollectorRegistry, port: int, address: str = LOOPBACK) -> None:
        """Open the port. Raises ConfigError where it cannot be had."""
        from prometheus_client import start_http_server

        try:
            self._server, self._thread = start_http_server(port, addr=address, registry=registry)
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise ConfigError(
                f"metrics cannot be served on {address} port {port}: {reason}",
                hint="choose another --metrics-port or --metrics-address",
            ) from None
        self.port: int = self._server.server_port

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)
