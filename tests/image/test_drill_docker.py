"""The drill with machines that are containers: the same story, and nothing of it stays in the engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from provisioner.sandbox.containers import SANDBOX_LABEL, Containers, find
from provisioner.sandbox.guest import MACHINE_LABEL
from provisioner.sandbox.machines import Machines
from tests.image.conftest import docker

IMAGE = os.environ.get("IMAGE_TEST_TRAINING", "")
DRILL = (sys.executable, "-m", "provisioner.cli", "drill")


def of_drills(*more: str) -> list[str]:
    """The containers of all drills and sandboxes on this engine, running or not."""
    return docker("ps", "--all", "--quiet", "--filter", f"label={SANDBOX_LABEL}", *more).split()


def volumes() -> set[str]:
    return set(docker("volume", "ls", "--quiet").split())


def until(true: Callable[[], object], what: str, for_s: float = 60.0) -> None:
    end = time.monotonic() + for_s
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def drill(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [*DRILL, *words]
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    before = volumes()
    yield
    assert of_drills() == []
    assert volumes() == before


def test_a_spot_notice_costs_no_step_where_machines_are_containers(tmp_path: Path) -> None:
    began = str(int(time.time()))
    folder = tmp_path / "d"
    scenario = "examples/drills/spot-notice.yaml"
    done = drill(scenario, "--json", "--provider", "stand-in", "--image", IMAGE, "--directory", str(folder))
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("machines are")] == [
        f"machines are containers of {IMAGE}: an engine answers and has it (AutoDL's are processes)"
    ]
    report = json.loads(done.stdout)
    assert report["drill"]["machines"] == f"containers of {IMAGE}"
    assert report["drill"]["cannot_prove"]
    assert (report["result"], report["steps_lost"], report["leaked"]) == ("completed", 0, [])
    assert report["model_identical"] is True
    (notice,) = report["drill"]["notices"]
    first, second = report["placements"]
    assert notice["committed_at"] < notice["deadline"]
    assert second["restored_step"] == notice["step"] >= first["last_step"]

    # The engine's own word: each of the two machines ran one container of the image.
    machines = folder / "cloud" / "machines"
    mark = f"label={SANDBOX_LABEL}={machines}"
    words = ("--since", began, "--until", str(int(time.time()) + 1), "--filter", "event=start", "--filter", mark)
    label = '{{index .Actor.Attributes "gpu-failover-machine"}} {{.Actor.Attributes.image}}'
    started = docker("events", *words, "--format", label).splitlines()
    assert sorted(started) == sorted(f"{machine} {IMAGE}" for machine in machines.iterdir())
    assert len(started) == 2


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Containers:
    return find(IMAGE, tmp_path_factory.mktemp("probe"))


SCRIPT = f"""#!/bin/bash
docker run --detach --volume /scratch --entrypoint sleep {IMAGE} 600
docker create --volume /scratch {IMAGE}
exec docker run --volume /scratch --entrypoint sleep {IMAGE} 600
"""


def running() -> bool:
    return len(of_drills("--filter", "status=running")) == 2


@pytest.mark.parametrize("end", ["kill", "halt", "stop_all"])
def test_the_containers_of_a_machine_end_with_it(tmp_path: Path, containers: Containers, end: str) -> None:
    machines = Machines(tmp_path, grace_s=1.0, containers=containers)
    try:
        machines.start("i-1", SCRIPT, {}, lambda _: None)
        until(running, "the containers run")
        machines.stop_all() if end == "stop_all" else getattr(machines, end)("i-1")
        until(lambda: not machines.alive("i-1"), "the machine is off")
        assert of_drills() == []
    finally:
        machines.stop_all()


def test_a_machine_leaves_the_containers_of_others_alone(tmp_path: Path, containers: Containers) -> None:
    machines = Machines(tmp_path, grace_s=1.0, containers=containers)
    try:
        for name in ("i-1", "i-2"):
            machines.start(name, f"#!/bin/bash\nexec docker run --entrypoint sleep {IMAGE} 600\n", {}, lambda _: None)
        until(running, "both run")
        machines.kill("i-1")
        (left,) = of_drills()
        assert docker("inspect", "--format", '{{index .Config.Labels "gpu-failover-machine"}}', left).strip() == str(
            machines.directory("i-2")
        )
    finally:
        machines.stop_all()


def test_containers_end_with_a_sandbox_that_was_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from provisioner.sandbox.containers import find\n"
        "from provisioner.sandbox.machines import Machines\n"
        "place = Path(sys.argv[1])\n"
        "Machines(place, containers=find(sys.argv[3], place)).start('i-1', sys.argv[2], {}, print); time.sleep(600)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), SCRIPT, IMAGE])
    try:
        until(running, "the containers run")
    finally:
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
    until(lambda: not of_drills(), "the containers are gone", 20)


def test_ctrl_c_leaves_no_container_and_no_folder(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    process = subprocess.Popen(
        [*DRILL, "examples/drills/spot-notice.yaml", "--provider", "stand-in", "--image", IMAGE],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: of_drills("--filter", "status=running", "--filter", f"label={MACHINE_LABEL}"), "a machine runs")
    finally:
        process.send_signal(signal.SIGINT)
        _, words = process.communicate(timeout=60)
    assert process.returncode == 130, words
    assert words.splitlines()[-1] == "interrupted"
    assert of_drills() == []
    assert list(temporary.glob("failover-drill-*")) == []


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("no-such-image:1", "the engine has no image no-such-image:1"),
        (os.environ.get("IMAGE_TEST_IMAGE", ""), "has no numpy, which the drill's training needs"),
    ],
)
def test_an_image_that_will_not_do_is_named_at_once(image: str, words: str) -> None:
    done = drill("--image", image)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("failover: ")]
    assert words in line
    assert "cloud in a box: AutoDL" not in done.stderr
