"""The state directory: one controller at a time, nothing lost, nothing readable by others."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioner.controller.directory import JobDirectory, JobRecord, jobs, state_root
from provisioner.controller.records import Begun
from provisioner.controller.run import Controller, begin_record, take_down
from provisioner.errors import ConfigError

HOLD = """
import sys, time
from collections.abc import Callable
from pathlib import Path
from provisioner.controller.directory import JobDirectory
with JobDirectory(Path(sys.argv[1]), "digits").lock():
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def directory(tmp_path: Path) -> JobDirectory:
    made = JobDirectory(tmp_path / "state", "digits")
    made.create()
    return made


def test_a_second_controller_is_told_who_holds_the_job_and_a_dead_one_holds_nothing(
    directory: JobDirectory, tmp_path: Path
) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "state")], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert directory.controller_pid() == holder.pid
    with pytest.raises(ConfigError, match=f"already run by process {holder.pid}"), directory.lock():
        pass
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    assert directory.controller_pid() is None
    with directory.lock():
        pass


def test_only_the_owner_can_read_what_is_written(directory: JobDirectory) -> None:
    old = os.umask(0)
    try:
        directory.write_json("job.json", {"a": 1})
        directory.write_text("launch/token.sh", "echo")
    finally:
        os.umask(old)
    for path in directory.path.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    assert directory.path.stat().st_mode & 0o077 == 0


def test_an_open_run_goes_on_and_a_closed_one_makes_way_with_the_same_uid(
    directory: JobDirectory, tmp_path: Path
) -> None:
    config = tmp_path / "failover.yaml"
    config.write_text("job: one")
    first = begin_record(directory, config, fresh=False, now=1, stored_uid="", content=config.read_bytes())
    config.write_text("job: changed")
    assert begin_record(directory, config, fresh=False, now=2, stored_uid="", content=config.read_bytes()) == first
    assert (directory.path / "failover.1.yaml").read_text() == "job: one"
    with pytest.raises(ConfigError, match="not ended"):
        begin_record(directory, config, fresh=True, now=3, stored_uid="", content=config.read_bytes())
    directory.close()
    second = begin_record(directory, config, fresh=False, now=4, stored_uid="", content=config.read_bytes())
    assert (second.uid, second.run, second.open) == (first.uid, 2, True)
    directory.close()
    third = begin_record(directory, config, fresh=True, now=5, stored_uid="", content=config.read_bytes())
    assert third.uid != first.uid


def test_a_disk_that_takes_no_more_is_not_filled_with_what_each_try_leaves(
    directory: JobDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.write_json("report.json", {"result": "completed"})

    def full(_self: Path, _target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        directory.write_json("report.json", {"result": "failed"})
    assert [path.name for path in directory.path.iterdir()] == ["report.json"]
    assert directory.read_json("report.json") == {"result": "completed"}


def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[Controller], None]) -> Controller:
    """Begin a run of a job; ``meanwhile`` happens while the store is asked whose prefix it is."""
    file = tmp_path / "failover.yaml"
    file.write_text(SMALL.format(store=tmp_path / "store", command="first"))
    controller = Controller(file, environ={"FAILOVER_STATE_DIR": str(tmp_path / "state")})
    controller.directory.create()
    (controller.directory.path / "takedown").touch()  # an earlier run's

    def asked(_store: object) -> str:
        meanwhile(controller)
        return ""

    monkeypatch.setattr("provisioner.controller.run.stored_uid", asked)
    controller.begin()
    return controller


SMALL = (
    "job: {{name: small, command: {command}}}\ncheckpoint: {{store: 'file://{store}'}}\nfallback: [{{local: {{}}}}]\n"
)


def test_a_file_that_is_saved_while_its_run_begins_counts_from_the_next_run_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of it may be there: a run that was begun with that could neither go on nor be taken down."""
    made = begun(tmp_path, monkeypatch, lambda controller: controller.config_path.write_text("job: {name: sma"))
    assert made.config.job.command[-1] == "first"
    assert made.record.open


def test_who_wants_a_job_down_while_it_begins_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = begun(tmp_path, monkeypatch, lambda controller: (controller.directory.path / "takedown").touch())
    assert made.world().why_stop(Begun(0.0, 1), ()) == "taken down"


def test_who_wants_a_job_down_says_so_until_its_controller_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that begins at that moment takes the wish for an earlier run's, and removes it."""
    made = begun(tmp_path, monkeypatch, lambda _: None)
    wish = made.directory.path / "takedown"
    down = threading.Thread(target=take_down, args=("small", made.environ), kwargs={"say": lambda _: None})
    with made.directory.lock():
        down.start()
        for _ in range(2):
            until(wish.exists)
            wish.unlink()
        until(wish.exists)
    down.join(60)
    assert not down.is_alive()
    record = made.directory.record()
    assert record is not None
    assert not record.open


def until(ready: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_what_an_earlier_run_was_told_does_not_end_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = begun(tmp_path, monkeypatch, lambda _: None)
    assert made.world().why_stop(Begun(0.0, 1), ()) == ""


def test_a_controller_on_another_machine_takes_the_uid_from_the_store(directory: JobDirectory, tmp_path: Path) -> None:
    config = tmp_path / "failover.yaml"
    config.write_text("job: one")
    assert (
        begin_record(directory, config, fresh=False, now=1, stored_uid="0a0b0c0d", content=config.read_bytes()).uid
        == "0a0b0c0d"
    )


def test_jobs_lists_what_is_known(directory: JobDirectory, tmp_path: Path) -> None:
    record = JobRecord("digits", "00000001", 1, open=True, config_path="failover.yaml", started_at=1.0)
    directory.remember(record)
    assert jobs(tmp_path / "state") == [record]
    assert jobs(tmp_path / "nothing") == []


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"FAILOVER_STATE_DIR": "/s"}, "/s"),
        ({"XDG_STATE_HOME": "/x"}, "/x/gpu-failover"),
    ],
)
def test_where_the_state_is(environ: dict[str, str], expected: str) -> None:
    assert state_root(environ) == Path(expected)


def test_a_state_directory_that_is_a_file_knows_no_job(tmp_path):
    (tmp_path / "file").touch()
    assert JobDirectory(tmp_path / "file", "digits").read_json("job.json") is None
