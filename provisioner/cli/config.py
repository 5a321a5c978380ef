"""``failover init`` and ``failover config``: write a commented failover.yaml, check one, print its schema."""

from __future__ import annotations

from pathlib import Path

import click

from provisioner.cli.output import print_json
from provisioner.errors import ConfigError, ExitCode


@click.group("config")
def config_group() -> None:
    """Check a failover.yaml; print its JSON schema."""


@config_group.command("validate")
@click.argument("file", type=click.Path(path_type=Path), default=Path("failover.yaml"))
@click.option("--json", "as_json", is_flag=True, help="Print the mistakes as JSON.")
@click.pass_context
def validate_command(ctx: click.Context, file: Path, as_json: bool) -> None:  # noqa: FBT001 - click's signature
    """Check FILE (failover.yaml) without touching a cloud.

    Secrets that it names must be set in the environment.
    """
    from provisioner.config import ConfigMistakes, load

    try:
        config = load(file)
    except ConfigMistakes as error:
        if as_json:
            print_json({"valid": False, "errors": [mistake.as_json() for mistake in error.mistakes]})
        else:
            for mistake in error.mistakes:
                click.echo(str(mistake), err=True)
        ctx.exit(int(ExitCode.BAD_INPUT))
    if as_json:
        print_json({"valid": True, "errors": []})
    else:
        places = [*(["AutoDL"] if config.primary else []), *(block.cloud for block in config.fallback)]
        click.echo(f"{file}: valid: job {config.job.name}, {' then '.join(places)}")


@config_group.command("schema")
@click.option("--json", "as_json", is_flag=True, help="Accepted for the sake of uniformity: it is JSON anyway.")
def schema_command(as_json: bool) -> None:  # noqa: ARG001, FBT001 - click's signature
    """Print the JSON schema of failover.yaml."""
    from provisioner.config.schema import schema_text

    click.echo(schema_text(), nl=False)


@click.command("init")
@click.argument("file", type=click.Path(path_type=Path), default=Path("failover.yaml"))
def init_command(file: Path) -> None:
    """Write a commented FILE (failover.yaml) to begin with, and its JSON schema beside it for editors.

    A file that is there already is left alone.
    """
    from provisioner import assets
    from provisioner.config.schema import SCHEMA_NAME, is_ours, schema_text

    if file.exists() or file.is_symlink():
        raise ConfigError(f"{file} is there already", hint="name another file: failover init other.yaml")
    beside = file.parent / SCHEMA_NAME
    try:
        if not beside.exists():
            create(beside, schema_text())
        elif is_ours(beside.read_text(encoding="utf-8", errors="replace")):
            replace(beside, schema_text())
        else:
            raise ConfigError(f"{beside} is there already and is not ours", hint="move it, or name another directory")
        create(file, assets.path("examples/failover.yaml").read_text(encoding="utf-8"))
    except FileExistsError as error:
        raise ConfigError(f"{error.filename2 or file} is there already", hint="name another file") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from None
    click.echo(f"wrote {file}; next: failover config validate {file}", err=True)


def create(path: Path, text: str) -> None:
    """Write a new file whole or not at all. Raises FileExistsError, and never replaces anything; or OSError."""
    part = _part(path, text)
    try:
        path.hardlink_to(part)  # unlike a rename, a link fails when the name is taken meanwhile
    except PermissionError:  # a file system without links, such as FAT
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    finally:
        part.unlink()


def replace(path: Path, text: str) -> None:
    """Write a file whole or not at all, in the place of one that is there. Raises OSError."""
    _part(path, text).replace(path)


def _part(path: Path, text: str) -> Path:
    import os
    import tempfile

    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
        os.fchmod(file.fileno(), 0o644)
    return Path(name)
