"""``failover home``."""

from __future__ import annotations

import os

import click

from provisioner.cli import streams
from provisioner.cli.output import print_json


@click.command()
@click.argument("job")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON on stdout.")
def home(job: str, *, as_json: bool) -> int:
    """Bring JOB home to the primary, whatever policy.failback says.

    Its controller claims a machine there and lets the job train on where it is until the command has made a step at
    home. Without a card there nothing changes. This only asks: the run itself shows what comes of it.
    """
    from provisioner.controller.directory import JobDirectory, state_root
    from provisioner.controller.run import wish_home

    directory = JobDirectory(state_root(os.environ), job)
    pid = wish_home(directory, os.environ)
    with streams.unread():
        if as_json:
            print_json({"job": job, "asked": True, "controller": pid})
        elif pid is None:
            click.echo(f"{job}: noted; no controller runs now, the next `failover run` brings it home")
        else:
            click.echo(f"{job}: asked; its controller is process {pid}")
    return 0
