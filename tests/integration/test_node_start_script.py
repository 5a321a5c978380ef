"""The start script as machines run it: rendered, served over HTTP, with real wheels and a real node."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioner import assets
from provisioner.checkpoint import layout
from provisioner.controller import runtime
from provisioner.terraform import render
from tests.start_machines import DEPENDENCIES, Machine, installed_wheel


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("wheels")
    made = [installed_wheel(name, directory) for name in DEPENDENCIES]
    return [*made, runtime._pip(directory), runtime.build_wheel(directory)]


@pytest.fixture
def machine(tmp_path: Path, node_job: Any, wheels: list[Path]) -> Iterator[Machine]:
    made = Machine(tmp_path / "machine", node_job, wheels)
    yield made
    made.close()


def test_the_script_is_clean_and_small():
    link = (
        "https://bucket.s3.us-east-1.amazonaws.com/p/digits/epochs/1/bootstrap.json?X-Amz-Security-Token=" + "x" * 1500
    )
    script = render.bootstrap(url=link, ttl_s=3600)
    assert len(script.encode()) < 16384, "EC2 takes 16 KiB of user data"
    checker = Path(sys.executable).parent / "shellcheck"
    subprocess.run([checker, assets.path("templates/machine.sh")], check=True)
    subprocess.run([checker, "-s", "bash", "-"], input=script.encode(), check=True)
    subprocess.run(["bash", "-n"], input=script.encode(), check=True)
    # Only the link and numbers differ from one script to the next.
    other = render.bootstrap(url="https://x/", ttl_s=60)
    differing = [line for line in script.splitlines() if line not in other.splitlines()]
    assert [line.split("=")[0] for line in differing] == ["URL", "TTL"]


@pytest.mark.parametrize("as_argument", [False, True])
def test_a_bare_machine_trains_to_the_end_and_turns_itself_off(machine, node_job, as_argument):
    machine.say(node_job.trainer(steps=20, pause=0.1), steps=20)
    process = machine.boot(as_argument=as_argument)
    machine.until(lambda: "step 3" in machine.log())
    for pid in machine.mine():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        assert b"canary-signature" not in words, "the link stands in the process list"
        assert b"bootstrap.json?" not in words
    assert process.wait(60) == 0
    assert machine.shutdowns() == ["-h now"]
    assert node_job.done()["result"] == "completed"
    assert "canary-signature" not in machine.console()
    assert (machine.directory / "bootstrap.json").stat().st_mode & 0o777 == 0o600
    assert machine.until(lambda: not machine.mine()), "nothing is left running"


def test_the_training_keeps_its_own_python_settings(machine, node_job):
    machine.say("echo PYTHONPATH=$PYTHONPATH; echo step 100")
    assert machine.boot().wait(60) == 0
    assert re.search(r"^PYTHONPATH=[^:]*/python:/nonexistent/of/the/training$", machine.log(), re.MULTILINE)


def test_r16_a_start_that_was_killed_after_it_read_its_orders_starts_again_on_a_dead_link(machine, node_job):
    machine.say(node_job.trainer(steps=20), steps=20)
    machine.boot()
    machine.until((machine.directory / "bootstrap.json").exists)
    machine.pull_the_plug()
    machine.site.dead = True
    again = machine.run(["bash", str(machine.root / "user-data")])
    assert again.wait(60) == 0
    assert node_job.done()["result"] == "completed"


def test_r16_a_reboot_goes_on_after_the_last_commit(machine, node_job):
    machine.say(node_job.trainer(steps=60, pause=0.05), steps=60)
    machine.boot(ttl_s=500)
    machine.until(lambda: bool(re.search(r"step [1-4]\d is committed", machine.log())))
    first_end = (machine.directory / "deadline").read_text()
    machine.pull_the_plug()
    machine.site.dead = True
    again = machine.run(["bash", str(machine.directory / "start.sh")])
    assert again.wait(60) == 0
    assert node_job.done()["result"] == "completed"
    assert "restored step" in machine.log()
    assert (machine.directory / "deadline").read_text() == first_end, "a reboot must not begin the time anew"


def test_r16_a_dead_link_ends_the_machine(machine, node_job):
    machine.say(node_job.trainer())
    machine.site.dead = True
    assert machine.boot().wait(60) == 75
    assert machine.shutdowns() == ["-h now"]
    assert "the link is dead (HTTP 403)" in machine.console()
    assert machine.until(lambda: not machine.mine())


def test_the_end_of_life_needs_no_link(machine, node_job):
    machine.say(node_job.trainer())
    machine.site.hang = True
    machine.boot(ttl_s=2)
    assert machine.until(machine.shutdowns) == ["-h now"]
    assert "time is up (ttl)" in machine.console()


def test_a_machine_whose_disk_takes_nothing_says_so_and_ends(machine, node_job):
    machine.say(node_job.trainer())
    (machine.root / "opt").write_text("a file where the directory should be: nothing can be written")
    assert machine.boot().wait(30) == 75
    assert f"the disk of {machine.directory} takes nothing" in machine.console()
    assert machine.shutdowns() == ["-h now"]


def test_two_starts_at_once_run_one_node(machine, node_job):
    machine.say(node_job.trainer(steps=30, pause=0.05), steps=30)
    first = machine.boot()
    machine.until(lambda: "step 3" in machine.log())
    second = machine.run(["bash", str(machine.directory / "start.sh")])
    assert second.wait(30) == 0
    assert machine.shutdowns() == []
    assert first.wait(60) == 0
    assert machine.log().count("the command runs") == 1


def test_a_wheel_that_was_tampered_with_is_not_unpacked(machine, node_job):
    machine.say(node_job.trainer())
    name = next(name for name in machine.site.files if "tenacity" in name)
    machine.site.files[name] += b"x"
    assert machine.boot().wait(60) == 75
    assert "does not match its hash" in machine.console()
    assert node_job.done() is None
    assert node_job.store.get(layout.owner(1)) is None


def test_a_signal_to_the_script_reaches_the_training(machine, node_job):
    machine.say(node_job.trainer(pause=0.05))
    process = machine.boot()
    machine.until(lambda: "step 12\n" in machine.log())
    process.terminate()
    assert process.wait(60) == 75
    assert node_job.done() is None
    assert node_job.restored_state()["step"] >= 12


DOCKER = """
case "$1" in
  pull) {pull} ;;
  run)
    {run}
    ;;
esac
"""
RUN_IT = """
    for word in "$@"; do case "$word" in *:/run/failover) home="${word%%:*}" ;; esac; done
    export FAILOVER_IN_CONTAINER=1 FAILOVER_RUN="$home" FAILOVER_HOME="$home"
    exec bash "$home/start.sh"
"""


NO_SUCH = "echo manifest unknown >&2; exit 1"
CANNOT_START = "the container of repo/img:tag cannot be started"


def test_an_image_is_run_by_docker(machine, node_job):
    machine.shim("docker", DOCKER.format(pull="echo pulled $2", run=RUN_IT))
    machine.say(node_job.trainer(steps=20), steps=20, image="repo/img:tag")
    assert machine.boot().wait(60) == 0
    assert node_job.done()["result"] == "completed"
    assert machine.shutdowns() == ["-h now"]


@pytest.mark.parametrize(
    ("pull", "run", "reason", "cause"),
    [
        ("sleep 60", "", "the image repo/img:tag was not pulled within 1 s", "machine"),
        *(
            (f"echo '{words}' >&2; exit 1", "", f"the image repo/img:tag cannot be pulled: {words}", cause)
            for words, cause in (
                ("manifest for r/i:t not found: manifest unknown: manifest unknown", "no_image"),
                ("pull access denied for r/i, repository does not exist or may require docker login", "no_image"),
                ("Get https://r/v2/: net/http: TLS handshake timeout", "machine"),
            )
        ),
        *(
            ("true", f"echo '{words}' >&2; exit {code}", f"{CANNOT_START} (code {code}): {words}", cause)
            for words, code, cause in (
                ("unsatisfied condition: cuda>=13.0, please update your driver", 125, "old_driver"),
                ("exec: bash: executable file not found in $PATH", 127, "machine"),
            )
        ),
    ],
)
def test_r37_an_image_that_does_not_start_is_named_and_the_machine_ends(machine, node_job, pull, run, reason, cause):
    machine.shim("docker", f'if [ "$1" = image ]; then exit 1; fi\n{DOCKER.format(pull=pull, run=run)}')
    machine.say(node_job.trainer(), image="repo/img:tag")
    assert machine.boot(pull_patience_s=1).wait(60) == 75
    heartbeat = json.loads(node_job.store.get(layout.heartbeat(1)))
    assert heartbeat["end"] == {"reason": reason, "exit_code": 75, "cause": cause}
    assert machine.shutdowns() == ["-h now"]


@pytest.mark.parametrize("tool", ["curl", "wget", "python3"])
def test_whatever_is_there_fetches_the_start_object(machine, node_job, tool):
    """The others are there and broken, as with a foreign certificate store."""
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed here")
    for other in {"curl", "wget"} - {tool}:
        machine.shim(other, 'echo "$*" >>"$HOME/asked"; exit 60')
    machine.say(["bash", "-c", "echo step 100"])
    assert machine.boot().wait(60) == 0
    assert node_job.done()["result"] == "completed"
    asked = machine.root / "asked"
    assert "canary-signature" not in (asked.read_text() if asked.exists() else "")


def starts_with(machine: Machine, tmp_path: Path, script: str) -> dict[str, str]:
    """Put a bundle behind a link whose Python is this script; return the lines that tell of it."""
    root = tmp_path / "bundle" / "runtime"
    (root / "node").mkdir(parents=True)
    (root / "python").write_text(script)
    (root / "python").chmod(0o755)
    tar = subprocess.run(["tar", "-cz", "-C", root.parent, "runtime"], check=True, capture_output=True).stdout
    machine.site.files["/runtime.tar.gz"] = tar
    link, digest = f"{machine.site.url}/runtime.tar.gz", hashlib.sha256(tar).hexdigest()
    return {"runtime": "bundle", "bundle-url": link, "bundle-sha256": digest}


@pytest.mark.parametrize("tool", ["curl", "wget", "python3"])
def test_a_bundle_that_does_not_start_ends_the_machine_with_one_line(machine, node_job, tmp_path, tool):
    """Nothing runs that could tell the controller, so the script itself leaves the last word."""
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed here")
    for other in {"curl", "wget"} - {tool}:
        machine.shim(other, "exit 60")
    orders = starts_with(machine, tmp_path, "#!/bin/sh\necho of a thread >&2\necho no new thread >&2\nexit 1\n")
    link = f"{machine.site.url}/heartbeat.json?X=canary-signature"
    machine.say(node_job.trainer(), orders={**orders, "end-url": link})
    assert machine.boot().wait(60) == 75
    told = json.loads(machine.site.given["/heartbeat.json"])
    reason = "the node's runtime does not start here: no new thread"
    assert told["end"] == {"reason": reason, "exit_code": 75, "cause": "machine"}
    assert told["end"]["reason"] in machine.console()
    assert machine.shutdowns() == ["-h now"]


def test_r37_the_cause_is_told_too_where_no_node_can_run(machine, node_job, tmp_path):
    told = f'while [ ! -e "$FAILOVER_RUN/pull.json" ]; do sleep 0.1; done; sleep 1; {NO_SUCH}'
    machine.shim("docker", f'if [ "$1" = image ]; then exit 1; fi\n{DOCKER.format(pull=told, run="")}')
    orders = starts_with(machine, tmp_path, "#!/bin/sh\nexit 1\n")
    machine.say(node_job.trainer(), image="r/i:t", orders={**orders, "end-url": f"{machine.site.url}/heartbeat.json"})
    assert machine.boot().wait(60) == 75
    end = json.loads(machine.site.given["/heartbeat.json"])["end"]
    assert end == {"reason": "the image r/i:t cannot be pulled: manifest unknown", "exit_code": 75, "cause": "no_image"}


def test_a_bundle_that_was_tampered_with_is_not_unpacked(machine, node_job, tmp_path):
    machine.site.files["/runtime.tar.gz"] = b"something else"
    link = f"{machine.site.url}/runtime.tar.gz"
    orders = {"runtime": "bundle", "bundle-url": link, "bundle-sha256": "0" * 64}
    machine.say(node_job.trainer(), orders=orders)
    assert machine.boot().wait(60) == 75
    assert "the node's runtime does not match its hash" in machine.console()
    assert not (machine.directory / "runtime").exists()


def docker_calls(machine: Machine) -> list[list[str]]:
    return [json.loads(line) for line in (machine.root / "docker-calls").read_text().splitlines()]


NOTED = """
python3 -E -c 'import json, sys; print(json.dumps(sys.argv[1:]))' "$@" >>"$HOME/docker-calls"
"""


LAYERS = """
echo '1.0: Pulling from r/i'
for layer in 0a1b2c3d4e5f 1a1b2c3d4e5f; do echo "$layer: Pulling fs layer"; done
echo '2a1b2c3d4e5f: Already exists'; echo '0a1b2c3d4e5f: Download complete'; echo '0a1b2c3d4e5f: Pull complete'
for _ in $(seq 300); do if [ -e "$HOME/go-on" ]; then break; fi; sleep 0.1; done
"""


def test_the_heartbeat_says_how_far_the_image_is_until_a_node_writes_it(machine, node_job):
    machine.shim("docker", DOCKER.format(pull=LAYERS, run=RUN_IT))
    orders = {"end-url": f"{machine.site.url}/heartbeat.json"}
    machine.say(["bash", "-c", "echo step 100"], image="r/i:t", orders=orders)
    process = machine.boot()
    told = json.loads(machine.until(lambda: machine.site.given.get("/heartbeat.json")))
    assert (told["phase"], told["image"]) == ("pulling", {"layers": 2, "of": 3})
    (machine.root / "go-on").touch()
    assert process.wait(60) == 0
    assert "orders.sh: line" not in machine.console(), "the shell has nothing to add"
    # A second start, as after a reboot, does not write over what the node has said.
    (machine.root / "go-on").unlink()
    machine.site.given.clear()
    again = machine.run(["bash", str(machine.directory / "start.sh")])
    machine.until(lambda: (machine.directory / "pulled.txt").read_text().endswith("Pull complete\n"))
    (machine.root / "go-on").touch()
    assert again.wait(60) == 0
    assert machine.site.given == {}


def test_a_word_on_the_pull_that_is_on_its_way_does_not_come_after_the_last_word(machine, node_job):
    """The store takes its time for the first one, until the pull has failed and the end is told."""
    told = f'while [ ! -e "$HOME/putting" ]; do sleep 0.1; done; {NO_SUCH}'
    machine.shim("docker", f'if [ "$1" = image ]; then exit 1; fi\n{DOCKER.format(pull=told, run="")}')
    slow = 'case "$*" in *pull.json*) touch "$HOME/putting"; sleep 3 ;; esac; exec "$(command -v -p curl)" "$@"'
    machine.shim("curl", slow)
    machine.say(node_job.trainer(), image="r/i:t", orders={"end-url": f"{machine.site.url}/heartbeat.json"})
    assert machine.boot().wait(60) == 75
    heartbeat = json.loads(node_job.store.get(layout.heartbeat(1)))
    assert heartbeat["end"]["cause"] == "no_image"
    machine.until(lambda: machine.mine() == [])
    assert machine.site.given == {}, "it would have come after the node's last heartbeat"


def test_a_store_in_a_directory_is_told_of_the_pull_too(machine, node_job):
    machine.shim("docker", DOCKER.format(pull=LAYERS, run=RUN_IT))
    place = node_job.root / "store" / layout.heartbeat(1)
    orders = {"end-url": f"file://{place}"}
    machine.say(["bash", "-c", "echo step 100"], image="r/i:t", orders=orders)
    process = machine.boot()
    machine.until(lambda: place.exists() and place.read_text().endswith("}}"))
    assert json.loads(place.read_text())["image"] == {"layers": 2, "of": 3}
    (machine.root / "go-on").touch()
    assert process.wait(60) == 0


def test_mirrors_are_tried_before_the_registry(machine, node_job):
    pull = 'case "$2" in one.example/*) echo no route >&2; exit 1 ;; esac'
    machine.shim("docker", f'{NOTED}if [ "$1" = image ]; then exit 1; fi\n{DOCKER.format(pull=pull, run=RUN_IT)}')
    machine.say(["bash", "-c", "echo step 100"], image="r/i:t")
    text = machine.site.files["/bootstrap.json"].replace(
        b"pull r/i:t\n", b"pull one.example/r/i:t\npull two.example/r/i:t\n"
    )
    machine.site.files["/bootstrap.json"] = text
    assert machine.boot().wait(60) == 0
    pulled = [call[1] for call in docker_calls(machine) if call[0] == "pull"]
    assert pulled == ["one.example/r/i:t", "two.example/r/i:t"]
    (run,) = [call for call in docker_calls(machine) if call[0] == "run"]
    assert "two.example/r/i:t" in run


def test_a_login_reaches_docker_by_its_standard_input_and_is_forgotten(machine, node_job):
    login = '[ "$1" != login ] || { cat >"$HOME/password"; echo x >"$DOCKER_CONFIG/config.json"; }'
    machine.shim("docker", f"{NOTED}{login}\n{DOCKER.format(pull='test -f $DOCKER_CONFIG/config.json', run=RUN_IT)}")
    orders = {"login": "ghcr.io", "login-user": "me", "login-password": "canary password"}
    machine.say(["bash", "-c", "echo step 100"], image="ghcr.io/r/i:t", orders=orders)
    assert machine.boot().wait(60) == 0
    assert (machine.root / "password").read_text() == "canary password"
    assert ["login", "--username", "me", "--password-stdin", "ghcr.io"] in docker_calls(machine)
    assert "canary" not in str(docker_calls(machine))
    assert list(machine.directory.glob("docker.??????")) == []
    assert (machine.directory / "orders").stat().st_mode & 0o777 == 0o600
    holding = [
        path.name for path in machine.directory.rglob("*") if path.is_file() and b"canary p" in path.read_bytes()
    ]
    assert holding == [], "the training could read it"


def test_an_image_comes_out_of_the_store_and_is_not_loaded_twice(machine, node_job):
    load = '[ "$1" != load ] || { cat >"$HOME/loaded"; echo "Loaded image: r/i:t"; }'
    machine.shim("docker", f"{NOTED}{load}\n{DOCKER.format(pull='exit 1', run=RUN_IT)}")
    machine.site.files["/image.tar"] = b"layers" * 100000
    link = f"{machine.site.url}/image.tar?X-Amz-Signature=canary-signature"
    machine.say(["bash", "-c", "sleep 2; echo step 100"], image="store://i.tar", orders={"archive": link})
    machine.boot()
    machine.until(lambda: "the command runs" in machine.log())
    machine.pull_the_plug()
    again = machine.run(["bash", str(machine.directory / "start.sh")])
    assert again.wait(60) == 0
    assert (machine.root / "loaded").read_bytes() == b"layers" * 100000
    assert [call[0] for call in docker_calls(machine)].count("load") == 1
    assert all("r/i:t" in call for call in docker_calls(machine) if call[0] == "run")


@pytest.mark.parametrize("read_only", ["yes", "no"])
def test_a_container_gets_what_training_needs_and_no_more_than_the_host_has(machine, node_job, read_only):
    machine.shim("docker", f"{NOTED}{DOCKER.format(pull='true', run=RUN_IT)}")
    machine.shim("nvidia-smi", "exit 0")
    machine.say(["bash", "-c", "echo step 100"], image="r/i:t", orders={"read-only": read_only})
    machine.write()
    limited = f"ulimit -n 4096; ulimit -l 64; exec bash {machine.root}/user-data"
    process = machine.run(["bash", "-c", limited])
    assert process.wait(60) == 0
    (run,) = [" ".join(call) for call in docker_calls(machine) if call[0] == "run"]
    assert "--gpus all" in run
    assert "--restart no" in run
    assert "--ulimit nofile=4096:4096" in run
    assert "memlock" not in run
    assert "--ipc" not in run
    kb = int(re.search(r"--shm-size (\d+)k ", run)[1])
    assert 0.4 < kb * 1024 / (os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) < 0.6
    assert ("--read-only --tmpfs /tmp" in run) is (read_only == "yes")
    if not Path("/dev/infiniband").exists():
        assert "--env NCCL_IB_DISABLE" in run


def test_the_image_is_pulled_while_the_bundle_comes(machine, node_job, tmp_path):
    """The pull ends only when the other is there; in the image the bundle is used as it lies."""
    orders = starts_with(machine, tmp_path, f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    wait = 'for _ in $(seq 100); do [ -x "$FAILOVER_RUN/runtime/python" ] && exit 0; sleep 0.1; done; exit 1'
    machine.shim("docker", f'if [ "$1" = image ]; then exit 1; fi\n{DOCKER.format(pull=wait, run=RUN_IT)}')
    machine.say(node_job.trainer(steps=20), steps=20, image="r/i:t", orders=orders)
    assert machine.boot().wait(60) == 0, machine.console()
    assert node_job.done()["result"] == "completed"
    assert machine.site.asked == ["/bootstrap.json", "/runtime.tar.gz"]


def test_an_image_that_finds_no_room_gets_that_of_what_came_beside_it(machine, node_job, tmp_path):
    """What was fetched before the image must not be why it cannot be pulled."""
    first = node_job.start(1, node_job.trainer(steps=10), steps=10, machine="earlier")
    assert first.wait() == 0
    node_job.store.delete([layout.DONE])
    orders = starts_with(machine, tmp_path, f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    brought = "$FAILOVER_RUN/node/runs/prefetched"
    pull = f"""
        if [ -e "$HOME/tried" ]; then [ ! -e {brought} ]; exit; fi
        touch "$HOME/tried"
        for _ in $(seq 300); do if compgen -G "{brought}/restored/step-*"; then break; fi; sleep 0.1; done
        echo "write /var/lib/x: no space left on device" >&2; exit 1"""
    machine.shim("docker", f'if [ "$1" = image ]; then exit 1; fi\n{DOCKER.format(pull=pull, run=RUN_IT)}')
    machine.say(node_job.trainer(steps=20), steps=20, image="r/i:t", orders=orders, epoch=2, token="token-of-2")
    assert machine.boot().wait(60) == 0, machine.console()
    assert "failover: no room for the image: what was fetched before it is removed" in machine.console()
    assert "restored step 10 of epoch 1" in machine.log()
    assert node_job.done()["final_step"] == 20
