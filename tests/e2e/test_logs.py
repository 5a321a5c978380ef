"""``failover logs`` beside a real job on this machine."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.test_run_local import Place, wait


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def follow(place: Place, *options: str) -> subprocess.Popen[str]:
    wait((place.folder / "state/jobs/small/job.json").exists, "the job")
    return place.start("logs", "small", "-f", *options)


def read_until(process: subprocess.Popen[str], line: str) -> str:
    assert process.stdout is not None
    read = ""
    while not read.endswith(line):
        more = process.stdout.readline()
        assert more, read
        read += more
    return read


def steps(out: str) -> list[int]:
    return [int(line.split()[1]) for line in out.splitlines() if line.startswith("step ")]


def test_it_follows_a_job_from_its_start_across_placements_to_its_end(place: Place) -> None:
    with place.start("run", str(place.config(steps=90, pace=0.1)), "--json") as controller:
        with follow(place) as logs:
            seen = read_until(logs, "step 10\n")
            for pid in place.nodes():
                os.kill(pid, signal.SIGKILL)
            out, err = logs.communicate(timeout=110)
        controller.communicate(timeout=60)
    assert (logs.returncode, err) == (0, "")
    out = seen + out
    first, second = [line for line in out.splitlines() if line.startswith("[failover] placement")]
    assert (first.split(":")[0], second.split(":")[0]) == ("[failover] placement 1", "[failover] placement 2")
    assert "local" in second
    assert steps(out[out.index(second) :])[-1] == 90
    code, out, _ = place.call("logs", "small", "--epoch", "2", "--tail", "5", "--json")
    objects = [json.loads(line) for line in out.splitlines()]
    assert (code, len(objects), {one["epoch"] for one in objects}) == (0, 6, {2})
    assert objects[0]["placement"]["cloud"] == "local"
    code, out, err = place.call("logs", "small", "--epoch", "7")
    assert (code, out) == (2, "")
    assert "small has no placement 7" in err


def test_without_a_controller_it_ends_with_the_nodes_own_word(place: Place) -> None:
    with place.start("run", str(place.config(steps=60, pace=0.1)), "--json") as controller:
        place.wait_for_step(3)
        controller.send_signal(signal.SIGKILL)
    with follow(place, "--tail", "1") as logs:
        out, err = logs.communicate(timeout=60)
    assert logs.returncode == 0
    assert steps(out)[-1] == 60
    assert "no controller runs; the machine works on" in err


@pytest.mark.parametrize(
    ("job", "code", "last"), [({"env": {"FAIL_AT_END": "1"}}, 1, "no such layer"), ({}, 130, "")], ids=["fails", "down"]
)
def test_its_exit_code_is_the_jobs(place: Place, job: dict, code: int, last: str) -> None:
    with place.start("run", str(place.config(steps=10 if job else 400, pace=0.1, job=job))) as controller:
        with follow(place) as logs:
            place.wait_for_step(2)
            if not job:
                place.call("down", "small")
            out, err = logs.communicate(timeout=60)
        controller.communicate(timeout=60)
    assert logs.returncode == code, err
    assert last in out
    again, text, _ = place.call("logs", "small")
    assert again == 0
    assert steps(text)[: len(steps(out))] == steps(out)


def test_ctrl_c_ends_it_at_once_and_the_job_goes_on(place: Place) -> None:
    with place.start("run", str(place.config(steps=4000, pace=0.1))) as controller:
        place.wait_for_step(3)
        with follow(place) as logs:
            assert read_until(logs, "step 3\n").startswith("[failover] placement 1: local")
            logs.send_signal(signal.SIGINT)
            begin = time.monotonic()
            _, err = logs.communicate(timeout=30)
            assert time.monotonic() - begin < 2
        assert (logs.returncode, err) == (130, "failover: interrupted; the job goes on\n")
        place.call("down", "small")
        controller.communicate(timeout=60)


def test_a_reader_that_has_enough_is_no_error(place: Place) -> None:
    place.call("run", str(place.config(steps=5)))
    command = f"{sys.executable} -m provisioner.cli logs small | head -n 1"
    shell = ["bash", "-c", f"set -o pipefail; {command}"]
    done = subprocess.run(shell, env=place.environ, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_output_moves_no_cursor_of_a_terminal_but_is_whole_in_a_file(place: Place) -> None:
    (place.folder / "code/train.py").write_text(
        "import sys\n"
        "sys.stdout.buffer.write(b'\\x1b[31mred\\x1b[0m \\x1b[2Jgone \\x1b]0;title\\x07 \\xff\\xfe \\x00\\n')"
    )
    place.call("run", str(place.config(job={"steps": None})))
    shell = ["bash", "-c", f"{sys.executable} -m provisioner.cli logs small --tail 9"]
    piped = subprocess.run(shell, env=place.environ, capture_output=True, check=False, timeout=60).stdout
    assert b"\x1b[31mred\x1b[0m \x1b[2Jgone \x1b]0;title\x07 \xff\xfe \x00\n" in piped
    terminal, inner = pty.openpty()
    with subprocess.Popen(shell, env=place.environ, stdout=inner, stderr=inner) as process:
        os.close(inner)
        process.wait(60)
        screen = os.read(terminal, 65536)
    os.close(terminal)
    assert b"\x1b[31mred\x1b[0m gone  \xff\xfe \r\n" in screen
    code, out, _ = place.call("logs", "small", "--json", "--tail", "9")
    assert code == 0
    assert any("red" in json.loads(line).get("line", "") for line in out.splitlines())
