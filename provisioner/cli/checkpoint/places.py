"""Which store a command works on: the URI that was given, or the job of failover.yaml."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from provisioner.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from provisioner.checkpoint.api import CheckpointStore
    from provisioner.controller.stores import Place as Location

F = TypeVar("F", bound=Callable[..., Any])

CONFIG = Path("failover.yaml")
EXIT_CODES = """\b
Exit codes:
  0    done
  2    wrong input, or a file or disk of this machine
  5    the store refuses or does not answer, there is no such checkpoint, or it is damaged
  70   a fault of ours; a file with the details is named
  130  interrupted; nothing half-done is left
"""


class MistakesError(ConfigError):
    """What is wrong with failover.yaml, a line for each."""


@dataclass(frozen=True, slots=True)
class Place:
    """A store, and where it is: for what copies cost."""

    store: CheckpointStore
    endpoint: str | None
    region: str | None

    @property
    def uri(self) -> str:
        """The root of its checkpoints."""
        return self.store.uri

    def retries(self) -> int:
        """Return how many requests had to be repeated."""
        return self.store.retries

    def located(self) -> Location:
        """Return its cloud and region, where something tells them."""
        from provisioner.controller.stores import place

        region = self.region
        if region is None and self.uri.startswith("s3://"):
            region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        return place(replace(self, region=region))


def place_options(command: F) -> F:
    """Add --endpoint and --region."""
    command = click.option("--region", metavar="NAME", help="Region of the bucket.")(command)
    endpoint = click.option(
        "--endpoint", metavar="URL", help="Address of a service that speaks S3; else the cloud's own."
    )
    return endpoint(command)


json_option = click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON on stdout.")


def opened(uri: str | None, endpoint: str | None, region: str | None, *, make: bool = False) -> Place:
    """Open the store of a URI, or that of the job of failover.yaml.

    ``make``: a directory that is not there is made. Raises ConfigError, and StoreError for such a directory.
    """
    if uri is None:
        return _of_job(endpoint, region, make=make)
    from provisioner.checkpoint.api import CheckpointStore
    from provisioner.checkpoint.inputs import is_absent

    if uri.startswith("file:///") and Path(uri.removeprefix("file://")).is_file():
        raise ConfigError(f"{uri}: is a file", hint="a store is a directory: name that")
    if "://" not in uri:
        raise ConfigError(
            f"{uri}: not the URI of a store", hint="write s3://BUCKET/PREFIX, gs://... or file:///DIRECTORY"
        )
    short = uri.rstrip("/")
    store = CheckpointStore(short if "://" in short else uri, endpoint=endpoint, region=region)
    if not make and is_absent(uri):
        raise StoreError(f"{uri}: no such directory")
    return Place(store, endpoint, region)


def parted(given: Sequence[str], name: str) -> tuple[str | None, str]:
    """Return (URI or None, the other argument) of ``[URI] name``. Raises UsageError."""
    if "" in given:
        raise click.UsageError(f"URI or {name} is empty")
    if len(given) == 2:
        return given[0], given[1]
    if len(given) == 1 and (name == "DST" or "://" not in given[0]):
        return None, given[0]
    raise click.UsageError(f"write URI and {name}" if len(given) != 1 else f"{name} is missing")


def _of_job(endpoint: str | None, region: str | None, *, make: bool) -> Place:
    if not CONFIG.exists():
        raise ConfigError(
            f"which store? Name its URI: there is no {CONFIG} here", hint="s3://BUCKET/PREFIX, for a job STORE/JOB"
        )
    from provisioner.checkpoint.api import CheckpointStore
    from provisioner.checkpoint.inputs import is_absent
    from provisioner.config import parse
    from provisioner.controller.launch import open_job_store

    try:
        config = parse(CONFIG.read_bytes(), str(CONFIG), CONFIG.parent, os.environ, for_start=False)
    except ConfigError as error:
        raise MistakesError(str(error), hint=error.hint) from None
    options = {"endpoint": endpoint, "region": region}
    settings = config.checkpoint.model_copy(update={name: value for name, value in options.items() if value})
    uri = f"{settings.store.rstrip('/')}/{config.job.name}"
    if not make and is_absent(uri):
        raise StoreError(f"{uri}: no such directory", hint="the job has saved nothing yet")
    store = open_job_store(config.model_copy(update={"checkpoint": settings}), os.environ)
    return Place(CheckpointStore(store), settings.endpoint, settings.region)
