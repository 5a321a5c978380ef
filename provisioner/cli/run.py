"""``failover run`` and ``failover down``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from provisioner.cli import metrics, streams
from provisioner.cli.output import print_json
from provisioner.errors import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable

    from provisioner.controller.directory import JobDirectory

GENTLY_S = 120.0


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), default=Path("failover.yaml"))
@click.option("--fresh", is_flag=True, help="Start from nothing: earlier checkpoints of the job do not count.")
@click.option("--take-over", is_flag=True, help="Release a machine that trains for another controller, and go on.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on stdout.")
@metrics.options
def run(
    file: Path, *, fresh: bool, take_over: bool, as_json: bool, metrics_port: int | None, metrics_address: str
) -> int:
    """Run the job of FILE until it is done.

    Run it again after a crash of this machine: it takes the job up where it was, with the machine that it has. While
    it runs already, a second run follows the first, and takes the job up should that die. Ctrl-C asks whether to leave
    the job running or to take it down.
    """
    with metrics.served(metrics_port, metrics_address) as hear:
        report = _run(file, hear, fresh=fresh, take_over=take_over, as_json=as_json)
    from provisioner.cli.report import print_report

    with streams.unread():
        print_json(report) if as_json else print_report(report)
    return exit_code(report)


def _run(file: Path, hear: metrics.Hear, *, fresh: bool, take_over: bool, as_json: bool) -> dict[str, object]:
    from provisioner.cli.timeline import printer
    from provisioner.controller.directory import Held
    from provisioner.controller.run import Controller, RunOptions, attend

    tell, job = printer(), ""

    def show(event: dict[str, object]) -> None:
        hear(job, event)
        tell(event)

    report: dict[str, object] | None = None
    while report is None:
        controller = Controller(file, options=RunOptions(fresh=fresh, take_over=take_over), on_event=show)
        job = controller.directory.name
        try:
            report = controller.run(attend(None if as_json else _question(), streams.tell))
        except Interrupted as left:
            _leave(str(left))
        except Held as held:
            if fresh or take_over:
                raise
            report = _followed(controller.directory, str(held), show)
    return report


@click.command()
@click.argument("job")
@click.option("--gently", is_flag=True, help="Let it save a last checkpoint first, for two minutes at most.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON on stdout.")
def down(job: str, *, gently: bool, as_json: bool) -> int:
    """Release the machines of JOB and remove what was prepared for it. Its checkpoints stay."""
    from provisioner.cli.timeline import printer
    from provisioner.controller.run import take_down

    gently_s = GENTLY_S if gently else 0.0
    report = take_down(job, os.environ, say=streams.tell, gently_s=gently_s, on_event=printer())
    leaked = report.get("leaked")
    with streams.unread():
        if as_json:
            print_json(report)
        else:
            click.echo(f"{job}: nothing is left" if not leaked else f"{job}: left behind: {leaked}")
    return 5 if leaked else 0


def _followed(
    directory: JobDirectory, words: str, show: Callable[[dict[str, object]], None]
) -> dict[str, object] | None:
    """Follow the controller that has the job. Return its report; None when the job is left for us to take up."""
    from provisioner.controller.attached import follow

    try:
        streams.tell(f"{words}; following it (Ctrl-C ends this one only)")
        report = follow(directory, show)
    except KeyboardInterrupt:
        _leave(f"the job goes on with its controller; come back with: failover logs {directory.name} -f")
    if report is None:
        streams.tell("that controller is gone and has left the job open; taking it up")
    return report


def exit_code(report: dict[str, object]) -> int:
    """Return the exit code that a report stands for. A leak is not success."""
    code = report.get("exit_code")
    code = code if isinstance(code, int) else 70
    return 5 if code == 0 and report.get("leaked") else code


def _leave(words: str) -> NoReturn:
    """End this process at once, as a kill would: threads that watch or prepare are not waited for."""
    streams.tell(f"failover: {words}")
    streams.settle()
    os._exit(Interrupted.exit_code)


def _question() -> Callable[[], str] | None:
    """Return a way to ask the operator, or None without a terminal."""
    if not sys.stdin.isatty():
        return None

    def ask() -> str:
        answer: str = click.prompt(
            "\nThe job's machine goes on without this controller. [l]eave it running, take it [d]own, [s]tay",
            type=click.Choice(["l", "d", "s"]),
            default="l",
            show_choices=False,
            err=True,
        )
        return {"l": "leave", "d": "down", "s": "stay"}[answer]

    return ask
