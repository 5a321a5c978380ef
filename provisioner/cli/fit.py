"""``failover fit``: which cards hold a training, how it would run there, and what that costs."""

from __future__ import annotations

import shlex
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provisioner.cli.output import print_json, print_table
from provisioner.errors import ConfigError, ExitCode
from provisioner.model import Money

if TYPE_CHECKING:
    from provisioner.catalog.listing import Row
    from provisioner.config import Config
    from provisioner.fitting import Choice, Measured

FILE = Path("failover.yaml")


@click.command()
@click.argument("script", type=click.Path(path_type=Path), required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--gpu", "gpus", multiple=True, help="This card (repeatable). Default: those of the configuration.")
@click.option("-f", "--file", "named", type=click.Path(path_type=Path), help="Configuration; default failover.yaml.")
@click.option("--python", metavar="PATH", help="Interpreter with PyTorch. Default: that of job.command, else python3.")
@click.option("--steps", type=click.IntRange(min=1), help="Tell hours and price of so many steps.")
@click.option(
    "--timeout", type=click.FloatRange(min=1), default=900.0, show_default=True, help="Seconds for the script."
)
@click.option("--yaml", "as_yaml", is_flag=True, help="Print the section job.fit for failover.yaml, and no table.")
@click.option("--json", "as_json", is_flag=True, help="Print cards and what was measured as JSON.")
@click.pass_context
def fit(  # noqa: PLR0917 - click's signature
    ctx: click.Context,
    script: Path | None,
    arguments: tuple[str, ...],
    gpus: tuple[str, ...],
    named: Path | None,
    python: str | None,
    steps: int | None,
    timeout: float,
    as_yaml: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
) -> None:
    """Show which cards hold the training of SCRIPT: memory, micro-batch, dtype, time of a step, price.

    SCRIPT runs up to its call of `fit`; what follows `--` goes to it. Without SCRIPT the section job.fit of the
    configuration counts. Exit code 3: no card holds it.
    """
    config = _config(named, needed=script is None or not gpus)
    cards = _cards(gpus, config)
    if script is not None:
        from provisioner.cli.fit_script import measure

        measured = measure(script, arguments, python or _interpreter(config), timeout)
    elif config is not None and config.job.measured is not None:
        measured = config.job.measured
    else:
        raise ConfigError("no SCRIPT, and the configuration has no job.fit", hint="failover fit train.py --gpu T4")
    if as_yaml:
        click.echo(_yaml(measured), nl=False)
        return
    found = [_Found(name, measured, config, steps) for name in cards]
    if as_json:
        print_json({"measured": measured.as_json(), "cards": [one.as_json() for one in found]})
    else:
        _print(found, steps)
    if not any(one.choice.fits for one in found):
        click.echo("no card holds it", err=True)
        ctx.exit(int(ExitCode.NO_OFFER))


class _Found:
    """A card, how the job would train there, and the cheapest machine with it whose price is known."""

    def __init__(self, name: str, measured: Measured, config: Config | None, steps: int | None) -> None:
        from provisioner.planner.fits import choice

        self.name = name
        self.choice: Choice = choice(measured, name)
        self.row = _cheapest(name, config)
        seconds = self.choice.seconds if self.choice.fits else None
        self.hours = None if steps is None or seconds is None else steps * seconds / 3600.0
        price = None if self.row is None else self.row.price
        self.cost: Money | None = None
        if price is not None and self.hours is not None:
            self.cost = Money(price.amount * Decimal(str(self.hours)), price.currency)

    def as_json(self) -> dict[str, Any]:
        from provisioner.planner import money_json

        one, row = self.choice, self.row
        return {
            "gpu": self.name,
            "fits": one.fits,
            "need_bytes": round(one.need),
            "has_bytes": round(one.card.memory) or None,
            "micro_batch": one.micro_batch,
            "accumulate": one.accumulate,
            "dtype": one.dtype,
            "checkpointing": one.checkpointing,
            "seconds_per_step": one.seconds,
            "why": one.why,
            "price_per_hour": money_json(row.price) if row else None,
            "machine": f"{row.cloud} {row.instance_type}" if row else None,
            "hours": self.hours,
            "cost": money_json(self.cost),
        }

    def cells(self, steps: int | None) -> list[str | None]:
        from provisioner.fitting import amount

        one, row = self.choice, self.row
        has = f" of {amount(one.card.memory)}" if one.card.memory else ""
        cells = [
            self.name,
            amount(one.need) + has,
            f"{one.accumulate} x {one.micro_batch}" if one.fits else None,
            (one.dtype + (", checkpointing" if one.checkpointing else "")) if one.fits else None,
            f"{one.seconds:.3g} s" if one.fits and one.seconds else None,
            f"{row.price} ({row.cloud} {row.instance_type})" if row else None,
        ]
        if steps is not None:
            cells += [
                None if self.hours is None else f"{self.hours:.3g} h",
                None if self.cost is None else f"{self.cost.amount:.3g} {self.cost.currency}",
            ]
        return [*cells, one.why]


def _print(found: list[_Found], steps: int | None) -> None:
    more = [] if steps is None else ["time", "price"]
    columns = ["GPU", "memory", "batch", "dtype", "a step", "an hour", *more, "why"]
    print_table(columns, [one.cells(steps) for one in found])
    click.echo(
        "times are reckoned from FLOPs and bandwidth and were compared with no card; prices are on demand, one machine",
        err=True,
    )


def _config(named: Path | None, *, needed: bool) -> Config | None:
    from provisioner.config import load

    if named is None and not FILE.exists() and not needed:
        return None
    return load(named or FILE)


def _cards(gpus: tuple[str, ...], config: Config | None) -> list[str]:
    """Return the cards that are meant: those named, else those that the configuration could run on."""
    from provisioner import catalog, planner

    found = dict.fromkeys(_known(name) for name in gpus)
    if gpus or config is None:
        return list(found)
    if config.primary is not None:
        names = config.primary.autodl.gpus or config.resources.gpus
        found.update(dict.fromkeys(_known(name) for name in names if catalog.autodl_stock_names(name)))
    found.update(dict.fromkeys(offer.gpu.name for offer in planner.catalog_offers(config)))
    if not found:
        raise ConfigError("the configuration names no card that a cloud has", hint="name one: --gpu T4")
    return list(found)


def _known(name: str) -> str:
    from provisioner import catalog
    from provisioner.config.names import did_you_mean

    card = catalog.card(name)
    if card is None:
        alike = [one for one in catalog.gpu_names() if one.startswith(f"{name}-")]
        hint = f"write {' or '.join(alike)}" if alike else did_you_mean(name, catalog.gpu_names())
        raise ConfigError(f"--gpu: no card is called {name!r}", hint=hint or "failover catalog ls lists them all")
    return card.name


def _cheapest(name: str, config: Config | None) -> Row | None:
    from provisioner.catalog.listing import Filter, listing
    from provisioner.model import Market

    count = 1 if config is None else config.resources.count
    rows = listing(Filter(gpus=(name,), markets=(Market.ON_DEMAND,), count=count))
    return next((row for row in rows if row.gpu == name and row.price is not None), None)


def _interpreter(config: Config | None) -> str:
    """Return the Python of the job's command where it begins with one."""
    if config is None:
        return "python3"
    command = config.job.command
    try:
        words = shlex.split(command[2]) if command[:2] == ("bash", "-c") and len(command) == 3 else list(command)
    except ValueError:
        return "python3"
    return words[0] if words and Path(words[0]).name.startswith("python") else "python3"


def _yaml(measured: Measured) -> str:
    import yaml

    text: str = yaml.safe_dump(
        {"job": {"fit": measured.as_json()}}, sort_keys=False, default_flow_style=None, width=110
    )
    return text
