"""The commands of ``failover``, and how each ends."""

from __future__ import annotations

import errno
import os
from importlib import import_module

import click

from provisioner import __version__
from provisioner.cli import streams
from provisioner.errors import ExitCode, FailoverError

COMMANDS = {
    "init": ("provisioner.cli.config:init_command", "Write a commented failover.yaml."),
    "config": ("provisioner.cli.config:config_group", "Check a failover.yaml; print its JSON schema."),
    "check": ("provisioner.cli.check:check", "Show AutoDL's stock, prices and balance; wait for cards."),
    "plan": ("provisioner.cli.plan:plan", "Show where the job would run, and why."),
    "fit": ("provisioner.cli.fit:fit", "Show which cards hold a PyTorch script, and how fast."),
    "catalog": ("provisioner.cli.catalog:catalog_group", "List GPU machines, zones and prices; bring them up to date."),
    "run": ("provisioner.cli.run:run", "Run the job until it is done, wherever there are GPUs."),
    "submit": ("provisioner.cli.queue:submit", "Put jobs into the queue."),
    "serve": ("provisioner.cli.serve:serve", "Run the jobs of the queue, many at once."),
    "list": ("provisioner.cli.queue:list_jobs", "Show the jobs of the queue."),
    "pause": ("provisioner.cli.queue:pause", "Let a job of the queue save, release its machine, and wait."),
    "resume": ("provisioner.cli.queue:resume", "Put a paused job back into the queue."),
    "cancel": ("provisioner.cli.queue:cancel", "Take a job out of the queue and its machine down."),
    "status": ("provisioner.cli.status:status", "Show jobs and their machines."),
    "cost": ("provisioner.cli.cost:cost", "Show what each machine has cost, and all together."),
    "logs": ("provisioner.cli.logs:logs", "Print or follow what a job's training has printed."),
    "home": ("provisioner.cli.home:home", "Bring a job home to AutoDL from where it trains."),
    "down": ("provisioner.cli.run:down", "Take a job's machines down and remove what was prepared."),
    "sweep": ("provisioner.cli.sweep:sweep", "Find what nobody holds at the clouds; remove it."),
    "drill": ("provisioner.cli.drill:drill", "Rehearse an outage in a cloud in a box."),
    "checkpoint": ("provisioner.cli.checkpoint:checkpoint", "List, check, push, pull, copy and remove checkpoints."),
    "state": ("provisioner.cli.state:state_group", "List, move and unlock Terraform's states of a job."),
    "runtime": ("provisioner.cli.runtime:runtime_group", "Make the node's own Python, for images without one."),
    "doctor": ("provisioner.cli.doctor:doctor", "Check this machine, the credentials and the store."),
}

DISK_FAULTS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO})


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called, so that ``--help`` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """List the commands in the order of a job's life."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command, with a did-you-mean."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            close = get_close_matches(args[0], COMMANDS, n=1)
            ctx.fail(f"No such command '{args[0]}'." + (f" Did you mean '{close[0]}'?" if close else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands with their one line, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="failover")
def cli() -> None:
    """Keep a training job alive when GPUs run out: AutoDL, then AWS or Google Cloud, from the last checkpoint on."""


def run(arguments: list[str] | None) -> int:
    """Run the command line and return the exit code. Every error is one line on stderr."""
    streams.ready()
    code = _run(arguments)
    streams.settle()
    return code


def _run(arguments: list[str] | None) -> int:
    try:
        outcome = cli.main(args=arguments, standalone_mode=False)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f" (see: {context.command_path} --help)" if context is not None else ""
        streams.tell(f"failover: {error.format_message()}{hint}")
        return int(ExitCode.BAD_INPUT)
    except (click.Abort, KeyboardInterrupt):
        return _interrupted()
    except FailoverError as error:
        streams.tell(f"failover: {error}")
        if error.hint:
            streams.tell(f"  {error.hint}")
        return int(error.exit_code)
    except OSError as error:
        return _disk_fault(error) if error.errno in DISK_FAULTS else _our_fault(error)
    except SystemExit as error:  # whoever read our output went away: click and rich end with 1, which is JOB_FAILED
        return 0 if error.code == 1 else int(error.code or 0)
    except Exception as error:  # noqa: BLE001 - the outermost boundary: one line, the rest in a file
        return _interrupted() if _of_interrupt(error) else _our_fault(error)
    return outcome if isinstance(outcome, int) else 0


def _disk_fault(error: OSError) -> int:
    """Say what this machine's disk does not do; it is no fault of ours."""
    where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, (str, bytes)) else ""
    streams.tell(f"failover: {where}{error.strerror}")
    streams.tell("  make room, or mend the rights, where FAILOVER_STATE_DIR, FAILOVER_CACHE_DIR and TMPDIR are")
    return int(ExitCode.BAD_INPUT)


def _interrupted() -> int:
    streams.tell("interrupted")
    return int(ExitCode.INTERRUPTED)


def _of_interrupt(error: BaseException | None) -> bool:
    """Say whether an error is what a library made of Ctrl-C: Python 3.11 itself does so while it makes a class."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _our_fault(error: Exception) -> int:
    """Keep the traceback in a file of the operator's, and say where."""
    import tempfile
    import traceback

    try:
        handle, name = tempfile.mkstemp(prefix="failover-crash-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write("".join(traceback.format_exception(error)))
    except OSError as full:
        name = f"none, {full.strerror}"
    streams.tell(f"failover: a fault of ours: {type(error).__name__} (details: {name})")
    return int(ExitCode.OUR_FAULT)
