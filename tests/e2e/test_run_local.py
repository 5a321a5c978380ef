"""``failover run`` on this machine alone: no cloud, no Terraform, a directory as the store, real processes."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

TRAIN = """
import os, pathlib, sys, time
steps, pace = int(sys.argv[1]), float(sys.argv[2])
kept = pathlib.Path(os.environ["FAILOVER_CHECKPOINT_DIR"])
restored = os.environ["FAILOVER_RESTORE_PATH"]
start = 0
if restored:
    start = int(next(pathlib.Path(restored).iterdir()).name.split("-")[1])
for step in range(start + 1, steps + 1):
    time.sleep(pace)
    print("step", step, flush=True)
    if step % 5 == 0:
        draft = kept / ".draft"
        draft.write_text(str(step))
        draft.rename(kept / f"step-{step}")
if "FAIL_AT_END" in os.environ:
    print("ValueError: no such layer", flush=True)
    sys.exit(9)
"""


class Place:
    """A folder with a job, a store and a state directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "code").mkdir()
        (folder / "code/train.py").write_text(TRAIN)
        self.environ = {**os.environ, "FAILOVER_STATE_DIR": str(folder / "state")}
        self.environ.pop("AUTODL_TOKEN", None)

    def config(self, *, steps: int = 20, pace: float = 0.05, **changes: Any) -> Path:
        config: dict[str, Any] = {
            "job": {
                "name": "small",
                "command": [sys.executable, "train.py", str(steps), str(pace)],
                "workdir": "code",
                "steps": steps,
            },
            "checkpoint": {"store": f"file://{self.folder}/store"},
            "fallback": [{"local": {}}],
            "policy": {"heartbeat": "1s", "poll": "1s", "lost_after": "15s", "boot_timeout": "60s", "retry_for": "0s"},
        }
        for section, values in changes.items():
            config[section] = {**config.get(section, {}), **values}
        path = self.folder / "failover.yaml"
        path.write_text(yaml.safe_dump(config))
        return path

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "provisioner.cli", *arguments],
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def call(self, *arguments: str) -> tuple[int, str, str]:
        with self.start(*arguments) as process:
            out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def heartbeat(self) -> dict[str, Any]:
        beats = sorted(self.folder.glob("store/small/epochs/*/heartbeat.json"))
        try:
            return json.loads(beats[-1].read_text()) if beats else {}
        except (ValueError, FileNotFoundError):
            return {}

    def wait_for_step(self, step: int) -> None:
        wait(lambda: (self.heartbeat().get("step") or 0) >= step, f"step {step}")

    def nodes(self) -> list[int]:
        """Return the processes that run the node or the training of this folder."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                command = (entry / "cmdline").read_bytes().decode("utf-8", "replace")
                inside = str(self.folder) in str((entry / "cwd").readlink()) or str(self.folder) in command
            except OSError:
                continue
            if inside and ("provisioner.node" in command or "train.py" in command):
                found.append(int(entry.name))
        return found


def wait(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"waited {seconds} s for {what}"
        time.sleep(0.1)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_job_runs_to_its_end_and_leaves_nothing(place: Place) -> None:
    code, out, err = place.call("run", str(place.config()), "--json")
    assert code == 0, err
    report = json.loads(out)
    assert (report["result"], report["final_step"], report["leaked"]) == ("completed", 20, [])
    assert place.nodes() == []
    code, out, _ = place.call("logs", "small")
    assert code == 0
    assert "step 20" in out
    code, out, _ = place.call("status", "--json")
    assert [(row["job"], row["state"]) for row in json.loads(out)] == [("small", "completed")]
    code, out, _ = place.call("cost", "small", "--json")
    (machine,) = json.loads(out)["jobs"][0]["machines"]
    assert (machine["role"], machine["running"], machine["cost"]) == ("placement", False, None), "unknown, and not 0"
    assert machine["seconds"] == pytest.approx(report["placements"][0]["seconds"])


@pytest.mark.slow
def test_a_frozen_machine_is_suspected_shown_and_goes_on(place: Place) -> None:
    config = place.config(steps=60, pace=0.2, policy={"lost_after": "auto"})
    with place.start("run", str(config), "--json") as controller:
        place.wait_for_step(50)  # by then its rhythm is known
        node = next(pid for pid in place.nodes() if "provisioner.node" in Path(f"/proc/{pid}/cmdline").read_text())
        os.kill(node, signal.SIGSTOP)
        wait(lambda: json.loads(place.call("status", "small", "--json")[1])["suspected"] is not None, "suspicion")
        assert "small: its machine is suspected: no heartbeat for" in place.call("status", "small")[2]
        os.kill(node, signal.SIGCONT)
        out, err = controller.communicate(timeout=120)
    report = json.loads(out)
    assert (report["result"], len(report["placements"])) == ("completed", 1), err
    assert "is suspected" in err
    assert "its cloud says that it is running" in err
    assert json.loads(place.call("status", "small", "--json")[1])["suspected"] is None


def test_a_job_that_fails_is_exit_code_1_and_is_not_tried_again(place: Place) -> None:
    code, out, err = place.call("run", str(place.config(job={"env": {"FAIL_AT_END": "1"}})), "--json")
    assert code == 1, err
    report = json.loads(out)
    assert report["result"] == "failed"
    assert [placement["exit_code"] for placement in report["placements"]] == [9]


def test_kill_9_then_run_again_goes_on_with_the_same_machine(place: Place) -> None:
    config = place.config(steps=120, pace=0.1)
    with place.start("run", str(config), "--json") as first:
        place.wait_for_step(8)
        first.send_signal(signal.SIGKILL)
    before = place.heartbeat()
    wait(lambda: place.heartbeat().get("step", 0) > before["step"], "the node to go on without its controller")
    code, out, err = place.call("run", str(config), "--json")
    assert code == 0, err
    report = json.loads(out)
    assert report["result"] == "completed"
    assert [placement["epoch"] for placement in report["placements"]] == [1], err
    assert report["final_step"] == 120


@contextmanager
def full_disk(place: Place, what: str) -> Iterator[None]:
    """Let the run's steps be as on a full disk, for one kind of write."""
    with closing(sqlite3.connect(place.folder / "state/jobs/small/controller.1.sqlite", timeout=30)) as steps:
        steps.execute(f"CREATE TRIGGER full BEFORE {what} BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END")
        steps.commit()
        yield
        steps.execute("DROP TRIGGER full")
        steps.commit()


@pytest.mark.slow
def test_a_run_that_cannot_be_taken_up_as_its_disk_is_full_says_so_and_goes_on_when_it_can(place: Place) -> None:
    config = place.config(steps=300, pace=0.1)
    with place.start("run", str(config), "--json") as first:
        place.wait_for_step(3)
        first.send_signal(signal.SIGKILL)
    with full_disk(place, "UPDATE ON workflow_status"):
        code, out, err = place.call("run", str(config), "--json")
        assert (code, out) == (5, ""), err
        assert "the run's steps cannot be recorded" in err
        assert f"go on when that is mended: failover run {config}" in err
    code, out, err = place.call("run", str(config), "--json")
    assert code == 0, err
    assert [placement["epoch"] for placement in json.loads(out)["placements"]] == [1], err


def test_a_run_whose_disk_is_full_when_a_step_ends_says_so_and_goes_on_when_it_can(place: Place) -> None:
    config = place.config(steps=60, pace=0.1)
    with place.start("run", str(config), "--json") as controller:
        place.wait_for_step(3)
        with full_disk(place, "INSERT ON operation_outputs"):
            out, err = controller.communicate(timeout=120)
            assert (controller.returncode, out) == (5, ""), err
            assert "the run's steps cannot be recorded" in err
            assert f"go on when that is mended: failover run {config}" in err
    code, out, err = place.call("run", str(config), "--json")
    assert code == 0, err
    assert [placement["epoch"] for placement in json.loads(out)["placements"]] == [1], err


def test_interrupted_it_leaves_the_job_running_and_says_how_to_come_back(place: Place) -> None:
    config = place.config(steps=400, pace=0.1)
    with place.start("run", str(config)) as controller:
        place.wait_for_step(3)
        controller.send_signal(signal.SIGINT)
        out, err = controller.communicate(timeout=30)
    assert controller.returncode == 130
    assert out == ""
    assert f"failover run {config}" in err
    step = place.heartbeat()["step"]
    wait(lambda: place.heartbeat()["step"] > step, "the job to go on")
    code, out, err = place.call("down", "small", "--json")
    assert code == 0, err
    assert json.loads(out)["leaked"] == []
    wait(lambda: place.nodes() == [], "the node to end")
    code, out, _ = place.call("status", "small", "--json")
    assert json.loads(out)["state"] == "taken_down"


def test_down_asks_a_running_controller(place: Place) -> None:
    with place.start("run", str(place.config(steps=400, pace=0.1)), "--json") as controller:
        place.wait_for_step(3)
        code, _, err = place.call("down", "small", "--json")
        assert code == 0, err
        out, err = controller.communicate(timeout=30)
    assert controller.returncode == 130, err
    assert json.loads(out)["result"] == "taken_down"
    assert place.nodes() == []


def until_it_follows(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if "following it" in line:
            return
    raise AssertionError(f"it ended with {process.wait()}")


def test_a_second_run_follows_the_first_and_ends_with_its_report(place: Place) -> None:
    config = place.config(steps=120, pace=0.1)
    with place.start("run", str(config)) as first:
        place.wait_for_step(1)
        with place.start("run", str(config), "--json") as second:
            until_it_follows(second)
            code, out, err = place.call("run", str(config), "--fresh")
            assert (code, out) == (2, ""), "options that the running one would ignore"
            assert f"already run by process {first.pid}" in err
            out, err = second.communicate(timeout=60)
        first.communicate(timeout=30)
    assert (first.returncode, second.returncode) == (0, 0)
    assert "epoch 1: completed" in err, "what happens is shown"
    report = json.loads(out)
    assert (report["result"], len(report["placements"])) == ("completed", 1)


def test_a_second_run_takes_the_job_up_when_the_first_dies_and_ctrl_c_leaves_it_alone(place: Place) -> None:
    config = place.config(steps=150, pace=0.1)
    with place.start("run", str(config)) as first:
        place.wait_for_step(1)
        with place.start("run", str(config)) as idle:
            until_it_follows(idle)
            idle.send_signal(signal.SIGINT)
            _, words = idle.communicate(timeout=20)
        assert idle.returncode == 130
        assert "the job goes on with its controller" in words
        with place.start("run", str(config), "--json") as second:
            until_it_follows(second)
            first.kill()
            out, err = second.communicate(timeout=80)
        first.communicate(timeout=30)
    assert second.returncode == 0, err
    assert "has left the job open; taking it up" in err
    report = json.loads(out)
    assert (report["result"], len(report["placements"])) == ("completed", 1), "with the machine that it had"


def test_a_node_that_is_killed_is_replaced_from_its_last_checkpoint(place: Place) -> None:
    with place.start("run", str(place.config(steps=60, pace=0.1)), "--json") as controller:
        place.wait_for_step(12)
        for pid in place.nodes():
            os.kill(pid, signal.SIGKILL)
        out, err = controller.communicate(timeout=110)
    assert controller.returncode == 0, err
    report = json.loads(out)
    assert [placement["ended"] for placement in report["placements"]][-1] == "completed"
    assert len(report["placements"]) == 2
    assert report["restored_step"] >= 5
    assert report["final_step"] == 60


def test_a_deadline_stops_the_job_with_exit_code_4(place: Place) -> None:
    code, out, err = place.call("run", str(place.config(steps=900, pace=0.1, policy={"deadline": "6s"})), "--json")
    assert code == 4, err
    assert "deadline" in json.loads(out)["reason"]
    assert place.nodes() == []


def test_a_finished_job_that_is_run_again_goes_on_from_its_checkpoint(place: Place) -> None:
    place.call("run", str(place.config(steps=20)), "--json")
    code, out, err = place.call("run", str(place.config(steps=30)), "--json")
    assert code == 0, err
    report = json.loads(out)
    assert report["placements"][0]["restored_step"] == 20
    assert report["final_step"] == 30
    code, out, err = place.call("run", str(place.config(steps=10)), "--fresh", "--json")
    assert code == 0, err
    assert json.loads(out)["placements"][0]["restored_step"] is None


def test_a_job_goes_on_from_a_replica_when_its_own_store_has_lost_the_checkpoints(place: Place) -> None:
    replicas = {"store": f"file://{place.folder}/store", "replicas": [f"file://{place.folder}/replica"], "keep": 1}
    code, out, err = place.call("run", str(place.config(steps=20, checkpoint=replicas)), "--json")
    assert code == 0, err
    (copies,) = json.loads(out)["replicas"]
    assert (copies["uri"], copies["step"], copies["behind"]) == (f"file://{place.folder}/replica", 20, 0)
    assert copies["bytes"] > 0
    assert copies["egress"] == {"amount": 0.0, "currency": "USD"}
    assert [path.name for path in (place.folder / "replica/small/checkpoints").iterdir()] == [
        "000000000020-000001.json"
    ]
    shutil.rmtree(place.folder / "store/small/checkpoints")
    shutil.rmtree(place.folder / "store/small/packs")
    code, out, err = place.call("run", str(place.config(steps=30, checkpoint=replicas)), "--json")
    assert code == 0, err
    (placement,) = json.loads(out)["placements"]
    assert placement["restored_step"] == 20
    assert placement["restored_from"]["uri"] == f"file://{place.folder}/replica"
    code, out, _ = place.call("status", "small")
    assert code == 0
    assert f"copies: file://{place.folder}/replica: step 30" in out


def test_ctrl_c_at_a_terminal_asks_and_takes_it_down(place: Place) -> None:
    config = place.config(steps=400, pace=0.1)
    terminal, inner = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "provisioner.cli", "run", str(config)],
        env=place.environ,
        stdin=inner,
        stdout=inner,
        stderr=inner,
        start_new_session=True,
    ) as controller:
        os.close(inner)
        place.wait_for_step(2)
        controller.send_signal(signal.SIGINT)
        screen = read_until(terminal, b"take it [d]own")
        os.write(terminal, b"d\n")
        screen += read_until(terminal, b"taken_down")
        controller.wait(60)
    os.close(terminal)
    assert controller.returncode == 130, screen
    assert place.nodes() == []


def test_a_machine_that_trains_for_another_controller_is_not_taken_unasked(place: Place) -> None:
    config = place.config(steps=100, pace=0.1)
    with place.start("run", str(config), "--json") as first:
        place.wait_for_step(12)
        first.send_signal(signal.SIGKILL)
    record = place.folder / "state/jobs/small/job.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "open": False}))  # a controller that knows nothing
    code, out, err = place.call("run", str(config), "--json")
    assert (code, out) == (2, "")
    assert "which this run did not start" in err
    assert "--take-over" in err
    code, out, err = place.call("run", str(config), "--take-over", "--json")
    assert code == 0, err
    report = json.loads(out)
    assert [placement["epoch"] for placement in report["placements"]] == [2]
    assert report["placements"][0]["restored_step"] >= 10
    assert report["final_step"] == 100


def test_down_works_without_the_file_its_secrets_and_its_workdir(place: Place) -> None:
    """What starts a job may be gone when its machine must go."""
    place.environ["SMALL_SECRET"] = "canary-of-a-secret"
    config = place.config(steps=400, pace=0.1, job={"secrets": ["SMALL_SECRET"]})
    with place.start("run", str(config), "--json") as controller:
        place.wait_for_step(2)
        controller.send_signal(signal.SIGKILL)
    del place.environ["SMALL_SECRET"]
    config.unlink()
    shutil.rmtree(place.folder / "code")
    code, out, err = place.call("down", "small", "--json")
    assert code == 0, err
    assert json.loads(out)["leaked"] == []
    assert "nothing is left at the clouds" in err, "it tells what it does and waits for, as a run does"
    wait(lambda: place.nodes() == [], "the node to end")


def test_down_does_not_take_an_earlier_report_for_its_own(place: Place) -> None:
    code, _, err = place.call("run", str(place.config(steps=5)), "--json")
    assert code == 0, err
    with place.start("run", str(place.config(steps=400, pace=0.1)), "--json") as controller:
        place.wait_for_step(8)
        controller.send_signal(signal.SIGKILL)
    assert place.nodes()
    code, out, err = place.call("down", "small", "--json")
    assert (code, json.loads(out)["result"]) == (0, "taken_down"), err
    wait(lambda: place.nodes() == [], "the node to end")


def test_a_store_that_fails_at_the_end_costs_no_machine_its_keeper(place: Place) -> None:
    """The start object cannot be removed; the machine must go all the same."""
    with place.start("run", str(place.config(steps=400, pace=0.1)), "--json") as controller:
        place.wait_for_step(2)
        epochs = place.folder / "store/small/epochs"
        epochs.rename(epochs.with_name("away"))
        epochs.write_text("in the way")
        place.call("down", "small", "--json")
        out, err = controller.communicate(timeout=60)
    assert json.loads(out)["result"] == "taken_down", err
    assert place.nodes() == []


def test_a_wrong_option_is_one_line(place: Place) -> None:
    for arguments in (["rum"], ["run", "--no-such"], ["logs"], ["drill", "--provider", "none"]):
        code, out, err = place.call(*arguments)
        assert (code, out) == (2, ""), arguments
        assert len(err.strip().splitlines()) == 1, err


def read_until(terminal: int, words: bytes) -> bytes:
    """Read a terminal until the words are on it."""
    screen = b""
    os.set_blocking(terminal, False)

    def seen() -> bool:
        nonlocal screen
        with contextlib.suppress(BlockingIOError):
            screen += os.read(terminal, 65536)
        return words in screen

    wait(seen, words.decode())
    return screen


FULL = """
import resource, sys
from provisioner.cli.command import run
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
sys.exit(run(sys.argv[1:]))
"""


def test_a_disk_that_takes_no_more_keeps_no_machine_whose_controller_is_dead(place: Place) -> None:
    """What cannot be written is said, and nothing of the job costs money any more."""
    with place.start("run", str(place.config(steps=2000))) as controller:
        place.wait_for_step(3)
        controller.kill()
        controller.communicate()
    assert place.nodes()
    command = [sys.executable, "-c", FULL, "down", "small"]
    down = subprocess.run(command, env=place.environ, capture_output=True, text=True, timeout=120, check=False)
    assert down.returncode == 5, down.stderr
    assert "nothing is left at the clouds, but the end of the run cannot be written to" in down.stderr
    assert "again: failover down small" in down.stderr
    assert place.nodes() == []
    code, out, _ = place.call("down", "small")
    assert (code, out) == (0, "small: nothing is left\n")
    assert '"taken_down"' in place.call("status", "--json")[1]
