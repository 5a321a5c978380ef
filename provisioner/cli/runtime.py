"""``failover runtime``: the node's own Python, as a file."""

from __future__ import annotations

from pathlib import Path

import click

from provisioner.cli.output import print_json
from provisioner.errors import ConfigError


@click.group("runtime")
def runtime_group() -> None:
    """Make the node's own Python, for machines whose image has none."""


@runtime_group.command("build", short_help="Make the bundle for machines without a fitting Python.")
@click.option("--python", metavar="VERSION", help="Which Python, as 3.12 (default: 3.12 from uv, else this one).")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write it to this file too.")
@click.option("--json", "as_json", is_flag=True, help="Print its manifest as JSON on stdout.")
def build(python: str | None, output: Path | None, *, as_json: bool) -> None:
    """Make the bundle that a machine without a fitting Python gets, and say what it needs.

    `failover run` makes it by itself where it is needed. A file made elsewhere is named under job.runtime_file.
    """
    import os
    import shutil
    from dataclasses import asdict

    from provisioner.controller import runtime_bundle
    from provisioner.controller.directory import cache_root

    bundle = runtime_bundle.build(cache_root(os.environ), python)
    path = bundle.path
    if output is not None:
        try:
            path = Path(shutil.copyfile(bundle.path, output))
        except OSError as error:
            raise ConfigError(f"{output} cannot be written: {error.strerror}", hint="name another file") from None
    manifest = bundle.manifest
    if as_json:
        print_json({**asdict(manifest), "sha256": bundle.sha256, "bytes": bundle.size, "file": str(path)})
        return
    click.echo(path)
    click.echo(
        f"Python {manifest.python}, {manifest.platform}, {manifest.needs} or newer, {bundle.size / 1e6:.0f} MB, "
        f"from {manifest.built_from}",
        err=True,
    )
