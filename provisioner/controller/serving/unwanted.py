"""A job that the operator wants to end and that cannot be taken up here: its machines are released without its flow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from provisioner.controller.directory import JobDirectory
from provisioner.controller.hints import ask_to_save
from provisioner.controller.launch import open_job_store
from provisioner.controller.run import Controller, reopened_config
from provisioner.controller.serving.jobs import QueuedJob, Wish
from provisioner.errors import FailoverError

if TYPE_CHECKING:
    from provisioner.controller.serving.job import Serving

CANCELS = frozenset({Wish.CANCEL, Wish.CANCEL_NOW})


def taken_down(
    job: QueuedJob,
    serving: Serving,
    *,
    say: Callable[[str], None],
    note: Callable[[dict[str, object]], None],
    gently_s: float,
) -> str | None:
    """Do what ``failover down`` does, with the job's lock held. Return why it has ended; None: that is not wanted.

    The secrets of the job are not needed for it. Before that its machine may save, for ``gently_s`` seconds at most.
    Raises FailoverError.
    """
    directory = JobDirectory(serving.store.database.root, job.name)
    record = directory.record()
    if job.wish not in CANCELS or record is None or record.workflow_id != job.workflow:
        return None
    config = reopened_config(directory, record, serving.environ)
    if job.wish is Wish.CANCEL:
        try:
            ask_to_save(open_job_store(config, serving.environ), gently_s, say=say)
        except FailoverError as error:
            say(f"it was not asked for a last checkpoint: {error}")
    serving.check()
    controller = Controller(Path(record.config_path), config=config, environ=serving.environ, on_event=note)
    leaked = controller.finish(record)["leaked"]
    return f"by the operator; left behind: {leaked}" if leaked else "by the operator"
