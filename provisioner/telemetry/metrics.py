"""Prometheus metrics, served on a port of the operator's choice. ``prometheus_client`` is imported when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
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


_OVER = frozenset({"ended", "released", "finished"})
_TRAINING = {
    "step": ("failover_step", "Newest step that is known"),
    "step_s": ("failover_step_seconds", "What a step takes"),
    "loader_wait": ("failover_loader_wait_ratio", "Share of the time that is lost to waiting for the loader"),
    "gpu_busy": ("failover_gpu_busy_ratio", "Share of the time in which the card works"),
    "gpu_memory_used_bytes": ("failover_gpu_memory_used_bytes", "Peak of the card's memory in use"),
    "gpu_memory_total_bytes": ("failover_gpu_memory_total_bytes", "Memory of the card"),
    "cores_used": ("failover_cores_used", "Cores that the training and its loader keep busy"),
    "cores": ("failover_cores", "Cores that they may use"),
    "memory_used_bytes": ("failover_memory_used_bytes", "Host memory in use"),
    "memory_limit_bytes": ("failover_memory_limit_bytes", "Host memory that there is"),
    "disk_read_bytes_per_s": (
        "failover_disk_read_bytes_per_second",
        "What training and loader read from disks",
    ),
}


class TrainingMetrics:
    """What the heartbeats of jobs tell, as gauges with the label ``job``. A machine that is gone has none."""

    def __init__(self) -> None:
        """Make a registry of its own, without the metrics of this process."""
        from prometheus_client import CollectorRegistry, Gauge

        self.registry: CollectorRegistry = CollectorRegistry()
        self._gauges = {
            key: Gauge(name, words, ["job"], registry=self.registry) for key, (name, words) in _TRAINING.items()
        }

    def hear(self, job: str, event: Mapping[str, object]) -> None:
        """Take an event of a job."""
        if event.get("kind") not in {"heartbeat", *_OVER}:
            return
        told = event.get("efficiency")
        values = {**(told if isinstance(told, dict) else {}), "step": event.get("step")}
        for key, gauge in self._gauges.items():
            value = values.get(key)
            if event.get("kind") == "heartbeat" and isinstance(value, int | float):
                gauge.labels(job).set(value)
            else:
                with suppress(KeyError):  # it has none
                    gauge.remove(job)


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
