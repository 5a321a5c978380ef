"""``--metrics-port`` of the commands that follow jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from provisioner.cli import streams

Hear = Callable[[str, Mapping[str, object]], None]


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``metrics_port`` and ``metrics_address`` to a command."""
    port = click.option(
        "--metrics-port", type=click.IntRange(0, 65535), help="Serve steps and efficiency of the jobs for Prometheus."
    )
    address = click.option("--metrics-address", default="127.0.0.1", show_default=True, help="Address of the metrics.")
    return port(address(command))


@contextmanager
def served(port: int | None, address: str) -> Iterator[Hear]:
    """Serve what a job's events tell, as long as it lasts; without a port nothing. Raises ConfigError."""
    if port is None:
        yield lambda _job, _event: None
        return
    from provisioner.telemetry.metrics import MetricsServer, TrainingMetrics

    metrics = TrainingMetrics()
    with MetricsServer(metrics.registry, port, address) as server:
        streams.tell(f"metrics at http://{address}:{server.port}/metrics")
        yield metrics.hear
