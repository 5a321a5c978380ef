"""R35: a controller is killed in the middle of a job; the source of the workflow changes, and two start at once."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from provisioner.controller.serving.database import Database
from provisioner.controller.serving.jobs import JOBS, JobStore
from tests import postgres
from tests.chaos.dying_server import MOMENTS
from tests.e2e.test_run_local import wait
from tests.e2e.test_serve_local import Queue

ROOT = Path(__file__).parents[2]
DYING = Path(__file__).with_name("dying_server.py")
COPIED = ("provisioner", "templates", "terraform", "examples", "requirements")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with postgres.cluster() as found:
        yield found


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the program whose workflow has one line more."""
    folder = tmp_path_factory.mktemp("upgraded")
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".terraform"))
    for path in ROOT.glob("*"):
        if path.is_file():
            shutil.copy(path, folder)
    engine = folder / "provisioner/controller/engine.py"
    before = engine.read_text()
    head = "def _run_flow() -> dict[str, object]:\n"
    after = before.replace(head, f"{head}    1 + 1\n")
    assert after != before
    engine.write_text(after)
    return folder


@pytest.mark.slow
@pytest.mark.skipif(bool(postgres.why_not()), reason=postgres.why_not())
@pytest.mark.parametrize("moment", MOMENTS)
def test_r35_a_job_goes_on_once_after_an_upgrade(moment: str, tmp_path: Path, url: str, upgraded: Path) -> None:
    queue = Queue(tmp_path)
    queue.environ["FAILOVER_DATABASE_URL"] = url
    queue.submit(queue.job("small", steps=40, pace=0.1))
    done = subprocess.run(
        [sys.executable, str(DYING), moment],
        env=queue.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    if moment in {"after the claim", "in adopt", "in watch"}:
        wait(lambda: queue.nodes() != [], "the machine to train without a controller")
    queue.environ["PYTHONPATH"] = str(upgraded)
    with queue.start("serve", "--once") as one, queue.start("serve", "--once") as two:
        words = [process.communicate(timeout=200)[1] for process in (one, two)]
    assert (one.returncode, two.returncode) == (0, 0), words
    assert sum("taken over from" in text for text in words) == 1, words
    assert queue.states() == {"small": "DONE"}, words
    report = queue.report("small")
    assert [placement["epoch"] for placement in report["placements"]] == [1]
    assert report["final_step"] == 40
    events = [json.loads(line) for line in (tmp_path / "state/jobs/small/events.jsonl").read_text().splitlines()]
    assert len({event["node"] for event in events if event["kind"] == "claimed"}) == 1, "one machine"
    assert len([event for event in events if event["kind"] == "begin"]) == 1, "one run"
    assert queue.nodes() == []


def test_r35_what_an_older_version_cannot_hand_on_is_left_alone_with_one_line(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    queue.submit(queue.job("small"))
    store = JobStore(Database(queue.environ))
    with store.engine.begin() as connection:
        connection.execute(sa.update(JOBS).values(state="RUNNING", version="flow-0", controller="gone:1:x"))
    store.close()
    with queue.served("--sweep-every", "0s") as server:
        assert server.stderr is not None
        told = next(line for line in server.stderr if "flow-0" in line)
        assert "failover down small" in told
        server.terminate()
        assert "small" not in server.communicate(timeout=30)[1]
    assert queue.states() == {"small": "RUNNING"}
    assert not (tmp_path / "state/jobs/small/job.json").exists()
    wait(lambda: queue.nodes() == [], "nothing to run")
