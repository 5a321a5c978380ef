"""Real containers of the image train, stop, go on, and say what is wrong."""

from __future__ import annotations

import os

import pytest

from provisioner.controller import runtime
from tests.image.conftest import Container, docker
from tests.start_machines import DEPENDENCIES, Machine, installed_wheel

TRAIN = "exec python /opt/training/train_digits.py"
HARDENED = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
FILL = "python -c 'x = bytearray(); [x.extend(b\"1\" * 2**20) for _ in range(4096)]'"


def test_r12_c_a_stopped_container_comes_again_and_the_next_one_ends_with_the_same_bytes(job, run, s3, tmp_path):
    first = job.start(1, f"{TRAIN} --steps 120 --step-seconds 0.05", steps=120)
    first.until(lambda: job.step(1) >= 15)
    assert first.stop() == 75
    beat = job.heartbeat(1)
    assert (beat["end"]["reason"], beat["end"]["exit_code"]) == ("signal SIGTERM", 75)
    assert beat["last_commit"]["step"] == beat["step"]
    assert job.done() is None

    second = job.start(2, f"{TRAIN} --steps 120", steps=120)
    assert second.wait() == 0, second.output()
    assert job.heartbeat(2)["restored_step"] == beat["step"]
    assert (job.done()["result"], job.done()["final_step"]) == ("completed", 120)

    alone = type(job)(s3, tmp_path, run)
    assert alone.start(1, f"{TRAIN} --steps 120", steps=120).wait() == 0
    assert job.checkpoint() == alone.checkpoint()


def test_a_read_only_root_without_any_capability_is_enough(job):
    container = job.start(1, f"{TRAIN} --steps 20", steps=20, options=HARDENED)
    assert container.wait() == 0, container.output()
    assert job.done()["final_step"] == 20


def test_a_command_that_takes_all_memory_is_reported_as_out_of_memory(job):
    container = job.start(1, f"exec {FILL}", options=("--memory", "256m", "--memory-swap", "256m"))
    assert container.wait() == 1
    assert job.done()["reason"] == "the command was killed by the kernel: the machine is out of memory (OOM)"


def test_a_node_that_the_kernel_kills_ends_the_container_with_137_and_the_next_one_goes_on(job):
    # The command makes its parent, the node, the one that the kernel chooses.
    sacrifice = "echo 1000 >/proc/$PPID/oom_score_adj"
    command = f"{TRAIN.removeprefix('exec ')} --steps 20; {sacrifice}; sleep 3; exec {FILL}"
    container = job.start(1, command, options=("--memory", "256m", "--memory-swap", "256m"))
    assert container.wait() == 137, container.output()
    assert container.inspect("{{.State.OOMKilled}}") == "true"
    assert job.heartbeat(1)["end"] is None
    second = job.start(2, f"{TRAIN} --steps 30", steps=30)
    assert second.wait() == 0, second.output()
    assert job.heartbeat(2)["restored_step"] == 20


def test_a_full_disk_is_named(job):
    fill = 'cd "$FAILOVER_CHECKPOINT_DIR" && head -c 100M /dev/zero >tmp-1 && mv tmp-1 step-1'
    container = job.start(1, fill, disk="size=64m")
    assert container.wait() == 1, container.output()
    assert "the disk /run/failover has" in job.done()["reason"]
    assert "No space left on device" in job.log(1)


def test_health_follows_the_nodes_sign_of_life(job):
    container = job.start(1, "sleep 300", options=("--health-interval", "1s", "--health-retries", "2"))
    health = "{{.State.Health.Status}}"
    container.until(lambda: container.inspect(health) == "healthy")
    container.python(
        "import os, pathlib, signal\n"
        "for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):\n"
        "    if b'provisioner.node\\0--bootstrap' in path.read_bytes() and path.parent.name != '1':\n"
        "        os.kill(int(path.parent.name), signal.SIGSTOP)\n"
    )
    container.until(lambda: container.inspect(health) == "unhealthy", timeout=90)
    assert "sign of life is" in container.inspect("{{json .State.Health.Log}}")


def test_a_bucket_that_is_not_there_is_one_clear_line(job):
    where = job.access() | {"uri": "s3://no-such-bucket/jobs"}
    container = job.start(1, "true", store=where)
    assert container.wait() == 5, container.output()
    lines = [line for line in container.output().splitlines() if "no-such-bucket" in line]
    assert len(lines) == 1, container.output()
    assert "Traceback" not in container.output()


@pytest.mark.parametrize("options", [(), HARDENED], ids=["as is", "hardened"])
def test_a_container_without_a_bootstrap_file_says_what_is_missing(run, options):
    container = run(*options)
    assert container.wait() == 2
    assert container.output() == "/run/failover/bootstrap.json: no such file. the start script writes it\n"


@pytest.fixture
def machine(job, tmp_path, tmp_path_factory):
    wheels = tmp_path_factory.mktemp("wheels")
    files = [
        *(installed_wheel(name, wheels) for name in DEPENDENCIES),
        runtime._pip(wheels),
        runtime.build_wheel(wheels),
    ]
    made = Machine(tmp_path / "machine", job, files)
    engine = " ".join(f"{name}={os.environ[name]}" for name in ("DOCKER_HOST",) if name in os.environ)
    made.shim("docker", f'{engine} exec {os.environ["DOCKER"]} "$@"')
    yield made
    docker("rm", "--force", f"failover-{made.directory.name}", check=False)
    made.close()


def test_a_machines_start_script_trains_in_the_image_and_saves_when_the_machine_is_stopped(machine, job):
    machine.say(
        f"{TRAIN} --steps 2000 --step-seconds 0.05",
        image=os.environ["IMAGE_TEST_TRAINING"],
        steps=2000,
        store=job.access(),
    )
    process = machine.boot()
    machine.until(lambda: job.step(1) >= 5)
    container = Container(f"failover-{machine.directory.name}")
    container.until(lambda: container.inspect("{{.State.Health.Status}}") == "healthy")
    process.terminate()
    assert process.wait(60) == 75, machine.console()
    beat = job.heartbeat(1)
    assert (beat["end"]["reason"], beat["end"]["exit_code"]) == ("signal SIGTERM", 75)
    assert beat["last_commit"]["step"] == beat["step"]
    assert machine.shutdowns() == ["-h now"]
