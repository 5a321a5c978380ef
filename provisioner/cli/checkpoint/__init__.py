"""``failover checkpoint``: checkpoints by hand, with a job or without one.

What a command is asked for goes to stdout, progress and words to stderr. No module here imports a heavy library unless
failover.yaml or an account's files are used.
"""

from __future__ import annotations

import click

from provisioner.cli.checkpoint.care import gc_command, ls_command, rm_command, verify_command
from provisioner.cli.checkpoint.moves import copy_command, pull_command, push_command
from provisioner.cli.checkpoint.places import EXIT_CODES


@click.group("checkpoint", epilog=EXIT_CODES)
def checkpoint() -> None:
    """List, check, bring, send, remove, sweep and copy checkpoints, of a job or of your own.

    A URI is s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or file:///DIRECTORY, and holds the checkpoints of one run; for a
    job it is STORE/JOB. Where a failover.yaml is, it may be left out and means that job.
    """


for _command in (ls_command, verify_command, pull_command, push_command, rm_command, gc_command, copy_command):
    checkpoint.add_command(_command)
