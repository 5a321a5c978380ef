"""``failover state``: where Terraform's states of a job are, and who holds them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from provisioner.cli.output import print_json, print_table

if TYPE_CHECKING:
    from provisioner.controller.state_moves import StateMoves

_FILE = click.argument("file", type=click.Path(path_type=Path), default=Path("failover.yaml"))
_JSON = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")


@click.group("state")
def state_group() -> None:
    """List, move and unlock Terraform's states of a job: what it knows of networks and machines, one a region."""


@state_group.command("ls", short_help="List the states, and who holds them.")
@_FILE
@_JSON
def ls(file: Path, *, as_json: bool) -> None:
    """List the states of the job of FILE (default failover.yaml): where each is, what is in it, who holds its lock."""
    from dataclasses import asdict

    found = _moves(file).ls()
    if as_json:
        print_json([asdict(one) for one in found])
        return
    if not found:
        click.echo("no state: nothing is prepared", err=True)
        return
    rows = [(one.stack, one.serial, len(one.resources), one.where, one.lock or "nobody", one.lock_id) for one in found]
    print_table(("stack", "serial", "resources", "where", "held by", "lock"), rows)


@state_group.command("migrate", short_help="Move the states to another place.")
@_FILE
@click.option("--to", metavar="local | store | URL", help="Where to: the words of terraform.state (default: FILE's).")
@_JSON
def migrate(file: Path, to: str | None, *, as_json: bool) -> None:
    """Move every state of the job of FILE (default failover.yaml) to another place, and remove it from the old one.

    No controller may run the job meanwhile. Each state is copied here (state-backups/), moved by Terraform, and
    compared before the old one goes. The same command again goes on where one was broken off.
    """
    from dataclasses import asdict

    from provisioner.errors import FailoverError

    moves = _moves(file)
    done = []
    try:
        for one in moves.migrate(_checked(to) if to is not None else moves.wanted):
            done.append(one)
            if not as_json and one.outcome != "nothing":
                how = "moved to" if one.outcome == "moved" else "is at"
                click.echo(f"{one.stack}: {how} {one.where}, {one.resources} resources, serial {one.serial}")
                if one.backup:
                    click.echo(f"  a copy is here: {one.backup}", err=True)
    except FailoverError:
        if as_json:
            print_json([asdict(one) for one in done])
        raise
    if as_json:
        print_json([asdict(one) for one in done])
    elif not any(one.outcome != "nothing" for one in done):
        click.echo("no state: nothing is prepared", err=True)


@state_group.command("unlock", short_help="Break a lock whose owner is dead.")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("lock_id", metavar="ID")
@click.option("--yes", is_flag=True, help="Do not ask.")
def unlock(file: Path, lock_id: str, *, yes: bool) -> None:
    """Break the lock ID of a state of the job of FILE. Make sure first that its owner is dead.

    Two runs at one state at the same time can lose track of machines. `failover state ls` says who holds a lock.
    """
    moves = _moves(file)
    if not yes:
        click.confirm(f"Is the owner of lock {lock_id} dead for certain?", abort=True, err=True)
    click.echo(f"unlocked {moves.unlock(lock_id)}")


def _moves(file: Path) -> StateMoves:
    from provisioner.config import MAX_BYTES, parse
    from provisioner.controller.state_moves import StateMoves
    from provisioner.errors import ConfigError

    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}", hint="name the job's failover.yaml") from None
    return StateMoves(parse(content, str(file), file.parent, os.environ, for_start=False), os.environ)


def _checked(to: str) -> str:
    from provisioner.config import TerraformConfig

    try:
        return TerraformConfig(state=to).state
    except ValueError as error:
        from provisioner.errors import ConfigError

        words = error.errors()[0].get("ctx", {}) if hasattr(error, "errors") else {}
        message = f"--to: {words.get('message', 'is no place for states')}"
        raise ConfigError(message, hint=str(words.get("hint", ""))) from None
