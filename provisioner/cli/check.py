"""``failover check``: AutoDL's stock, prices and balance; with ``--watch`` until a card is free."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Self

import click

from provisioner.cli.output import print_json, print_table
from provisioner.errors import CloudError, ConfigError, ExitCode

if TYPE_CHECKING:
    from provisioner.clouds.autodl.client import AutodlClient
    from provisioner.clouds.autodl.stock import Look, Question
    from provisioner.config import Config
    from provisioner.telemetry.metrics import StockMetrics
    from provisioner.telemetry.notify import Notifier

_DEFAULT = Path("failover.yaml")
_STATES = {"sold_out": "sold out", "empty": "lists no such card", "unknown_region": "unknown region: AutoDL has none"}


@click.command("check")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--region", "regions", multiple=True, help="Look at this region code only (may be repeated).")
@click.option("--gpu", "gpus", multiple=True, help="Look at this card only (may be repeated).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--watch", is_flag=True, help="Look again and again until a matching card is free.")
@click.option("--interval", type=click.FloatRange(min=0.1), default=20.0, show_default=True, help="First wait (s).")
@click.option("--timeout", type=click.FloatRange(min=0), help="Give up watching after so many seconds.")
@click.option("--forever", is_flag=True, help="Go on watching when a card came free.")
@click.option("--notify", "urls", multiple=True, help="Apprise URL to tell (may be repeated; else FAILOVER_NOTIFY).")
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="Serve autodl_gpu_available for Prometheus.")
@click.option("--metrics-address", default="127.0.0.1", show_default=True, help="Address of the metrics.")
@click.option("--base-url", envvar="AUTODL_BASE_URL", help="Where AutoDL answers, else as the file says.")
@click.pass_context
def check(  # noqa: PLR0917 - click's signature
    ctx: click.Context,
    file: Path | None,
    regions: tuple[str, ...],
    gpus: tuple[str, ...],
    as_json: bool,  # noqa: FBT001
    watch: bool,  # noqa: FBT001
    interval: float,
    timeout: float | None,
    forever: bool,  # noqa: FBT001
    urls: tuple[str, ...],
    metrics_port: int | None,
    metrics_address: str,
    base_url: str | None,
) -> None:
    """Show free cards per region, prices and the balance at AutoDL, and whether the job of FILE fits.

    FILE is failover.yaml where there is one; without it every region and card is shown. The token is read from
    AUTODL_TOKEN. Exit code 0: a matching card is free; 3: none is.
    """
    from provisioner.clouds.autodl import stock
    from provisioner.clouds.autodl import watch as watching

    if not watch and (urls or metrics_port is not None or forever or timeout is not None):
        raise ConfigError("--notify, --metrics-port, --forever and --timeout belong to --watch", hint="add --watch")
    question, address = _question(file, regions, gpus, base_url)
    with _client(address) as client:
        if not watch:
            found: Look | None = stock.look(client, question)
        else:
            with _Watcher(urls, metrics_port, metrics_address) as watcher:
                found = watching.watch(
                    lambda: stock.look(client, question),
                    watcher,
                    pace=watching.Pace(interval),
                    forever=forever,
                    timeout_s=timeout,
                )
                found = found or watcher.last
    if found is None:
        raise CloudError("AutoDL did not answer within the time to watch")
    if as_json:
        print_json(found.document())
    else:
        _print(found)
        _tell_of_google(file)
    ctx.exit(int(ExitCode.DONE if found.fits else ExitCode.NO_OFFER))


def _question(
    file: Path | None, regions: tuple[str, ...], gpus: tuple[str, ...], base_url: str | None
) -> tuple[Question, str]:
    """Return what to look for, and where AutoDL answers. Raises ConfigError."""
    from provisioner.clouds.autodl.stock import Question
    from provisioner.clouds.autodl.wire import DEFAULT_BASE_URL
    from provisioner.clouds.base import Request

    if file is None and not _DEFAULT.exists():
        return Question(regions=regions, gpus=gpus), base_url or DEFAULT_BASE_URL
    from provisioner import config

    path = file or _DEFAULT
    loaded: Config = config.load(path)
    if loaded.primary is None:
        raise ConfigError(f"{path}: primary: AutoDL is not part of this configuration", hint="add primary.autodl")
    wanted = loaded.resources
    request = Request(gpus=wanted.gpus, count=wanted.count, min_vram_gb=wanted.min_vram_gb, cuda=wanted.cuda)
    settings = loaded.primary.autodl
    return Question(settings, request, regions, gpus), base_url or settings.base_url


def _tell_of_google(file: Path | None) -> None:
    """Say on stderr whether the Google Cloud projects of the file answer: where the job goes when no card is free."""
    if file is None and not _DEFAULT.exists():
        return
    from provisioner import config

    blocks = config.load(file or _DEFAULT).fallback
    for project in dict.fromkeys(block.gcp.project for block in blocks if block.gcp):
        from provisioner.clouds.gcp.probe import look

        try:
            click.echo(f"gcp: {look(project, os.environ)}", err=True)
        except CloudError as error:
            click.echo(f"gcp: {error}; {error.hint}", err=True)


def _client(base_url: str) -> AutodlClient:
    from provisioner.clouds.autodl.client import AutodlClient
    from provisioner.clouds.autodl.wire import token_of

    return AutodlClient(token_of(os.environ), base_url)


class _Watcher:
    """Tells stderr, Prometheus and apprise what was seen. Metrics are served while it is entered."""

    def __init__(self, urls: tuple[str, ...], port: int | None, address: str) -> None:
        from provisioner.telemetry.notify import Notifier, urls_from

        self.last: Look | None = None
        self._notifier: Notifier = Notifier(urls_from(urls, os.environ))
        self._metrics: StockMetrics | None = None
        self._port = port
        self._address = address

    def __enter__(self) -> Self:
        if self._port is not None:
            from provisioner.telemetry.metrics import MetricsServer, StockMetrics

            self._metrics = StockMetrics()
            self._server = MetricsServer(self._metrics.registry, self._port, self._address)
            click.echo(f"metrics at http://{self._address}:{self._server.port}/metrics", err=True)
        return self

    def __exit__(self, *_details: object) -> None:
        if self._metrics is not None:
            self._server.close()

    def looked(self, look: Look) -> None:
        self.last = look
        if self._metrics is not None:
            self._metrics.looked(look.available, look.at)

    def failed(self, error: CloudError, wait_s: float) -> None:
        import time

        click.echo(f"{error}; next look in {wait_s:.3g} s", err=True)
        if self._metrics is not None:
            self._metrics.failed(time.time())

    def nothing(self, look: Look, wait_s: float) -> None:
        del look
        click.echo(f"no matching card is free; next look in {wait_s:.3g} s", err=True)

    def came_free(self, look: Look) -> None:
        click.echo(look.headline(), err=True)
        if len(self._notifier):
            for number in self._notifier.send("gpu-failover", f"{look.headline()}\n{look.note}"):
                click.echo(f"notification URL number {number} could not be told", err=True)


def _print(look: Look) -> None:
    """Print the table to stdout, and what it means to stderr."""
    rows: list[tuple[object, ...]] = [
        (
            cell.region,
            next(region.name for region in look.regions if region.code == cell.region),
            cell.gpu,
            cell.idle,
            cell.total,
            f"{cell.price.amount:f}" if cell.price else None,
            "fits" if cell.fits else "sold out" if not cell.idle else "",
        )
        for cell in look.cells
    ]
    rows += [
        (region.code, region.name, None, None, None, None, _STATES[region.state])
        for region in look.regions
        if region.state in ("empty", "unknown_region")
    ]
    print_table(["region", "name", "GPU", "idle", "total", "CNY/h", "note"], rows)
    print_table(["balance"], [(look.balance,)])
    from provisioner.clouds.autodl.cards import PRICES_SEEN

    for passed in look.passed:
        click.echo(f"passed over: {passed.name}: {passed.reason}", err=True)
    click.echo(
        f"prices are those last seen in public ({PRICES_SEEN}); AutoDL tells them only while a machine runs", err=True
    )
    click.echo(look.note, err=True)
    click.echo(look.headline(), err=True)
