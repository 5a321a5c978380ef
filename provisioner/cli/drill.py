"""``failover drill``: rehearse an outage."""

from __future__ import annotations

from pathlib import Path

import click

from provisioner.cli import streams
from provisioner.cli.output import print_json


@click.command()
@click.argument("scenario", type=click.Path(dir_okay=False, path_type=Path), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on stdout, and nothing else.")
@click.option("--directory", type=click.Path(file_okay=False, path_type=Path), help="Keep everything in this folder.")
@click.option(
    "--provider",
    type=click.Choice(["auto", "official", "stand-in"]),
    default="auto",
    show_default=True,
    help="Terraform's providers: the official ones where they can be had, or the quick stand-in.",
)
@click.option(
    "--image", help="Run the machines as containers of this image, which must be here. [default: gpu-failover:latest]"
)
@click.option("--no-docker", is_flag=True, help="Run the machines as processes, whatever engine is here.")
def drill(
    scenario: Path | None, *, as_json: bool, directory: Path | None, provider: str, image: str | None, no_docker: bool
) -> int:
    """Play SCENARIO (a file of examples/drills) in a cloud in a box: no account, no cost.

    Without one: a training job loses its AutoDL machine at step 40, finds AWS zone a sold out, gets a machine in zone
    b, restores its checkpoint and finishes.

    Where a container engine answers and has the image, machines of AWS and Google Cloud run its containers; else they
    are processes.
    """
    from provisioner.cli.report import print_drill
    from provisioner.cli.run import exit_code
    from provisioner.sandbox.drill import Drill

    if no_docker and image is not None:
        raise click.UsageError("--image and --no-docker exclude each other: give one of them")
    rehearsal = Drill(
        scenario, directory=directory, provider=provider, docker=not no_docker, image=image, say=streams.tell
    )
    streams.tell("rehearsing an outage on this machine, in a cloud in a box: no account is asked, nothing costs money")
    if no_docker:
        streams.tell("machines are processes: --no-docker")
    report = rehearsal.run()
    with streams.unread():
        print_json(report) if as_json else print_drill(report)
    return exit_code(report)
