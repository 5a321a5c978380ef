"""The start script with a real engine: an image without Python out of the store, in the container it is for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.checkpoint import layout
from provisioner.controller.runtime_bundle import Bundle
from provisioner.model import JobRef
from tests import servers
from tests.image_trees import TRAINER, bare_tree, packed_bundle
from tests.integration.conftest import NodeJob
from tests.start_machines import Machine

pytestmark = pytest.mark.slow

CLIENTS = ("/usr/bin/docker", shutil.which("docker") or "")
LOOK = """
echo "files $(ulimit -n)"; echo "nccl $NCCL_SOCKET_IFNAME"; echo "home $HOME"
echo "shm" $(df -k --output=size /dev/shm | tail -n 1)
if (echo x >/etc/x) 2>/dev/null; then echo "root can be written"; else echo "root cannot be written"; fi
echo x >"$HOME/x" && echo x >/tmp/x && echo "home and tmp can be written"
"""


class Engine:
    """A Docker engine of the test's own."""

    def __init__(self, client: str, socket: Path) -> None:
        self.words = [client, "--host", f"unix://{socket}"]

    def __call__(self, *words: str, **options) -> str:
        return subprocess.run([*self.words, *words], check=True, capture_output=True, text=True, **options).stdout


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    daemon, client = (
        shutil.which("dockerd", path=f"{os.environ['PATH']}:/usr/sbin"),
        next(filter(os.path.exists, CLIENTS), ""),
    )
    if os.geteuid() != 0 or not daemon or not client:
        pytest.skip("a Docker engine of the test's own needs root, dockerd and docker")
    root = tmp_path_factory.mktemp("engine")
    made = Engine(client, root / "docker.sock")
    options = ["--data-root", root / "data", "--exec-root", root / "exec", "--pidfile", root / "pid"]
    options += ["--host", f"unix://{root}/docker.sock", "--bridge=none", "--iptables=false", "--ip6tables=false"]
    with (root / "log").open("wb") as log:
        process = subprocess.Popen([daemon, *options], stdout=log, stderr=log, start_new_session=True)
    try:
        for _ in range(150):
            if subprocess.run([*made.words, "info"], capture_output=True, check=False).returncode == 0:
                break
            if process.poll() is not None:
                pytest.skip("dockerd does not start here")
            time.sleep(0.1)
        yield made
    finally:
        process.terminate()
        process.wait(30)
        for mount in (root / "exec" / "netns").glob("*"):
            subprocess.run(["umount", mount], check=False, capture_output=True)
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="session")
def saved_image(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An image without Python, curl and wget, as `docker save` writes it."""
    tree = bare_tree(tmp_path_factory.mktemp("image") / "tree")
    tar = subprocess.run(["tar", "-c", "-C", tree, "."], check=True, capture_output=True).stdout
    subprocess.run([*engine.words, "import", "-", "bare:1"], input=tar, check=True, capture_output=True)
    saved = subprocess.run([*engine.words, "save", "bare:1"], check=True, capture_output=True).stdout
    engine("rmi", "bare:1")
    return saved


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return packed_bundle(tmp_path_factory.mktemp("bundle"))


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    with servers.started("moto", tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def machine(tmp_path, s3, engine, saved_image, bundle, request) -> Iterator[Machine]:
    job = NodeJob(tmp_path / "job")
    job.ref = JobRef("digits-" + tmp_path.name[-20:].replace("_", "-"), "1a2b3c4d")
    job.store = s3.store("jobs").at(job.ref.name)
    made = Machine(tmp_path / "machine", job, [])
    made.shim("docker", f'exec {" ".join(engine.words)} "$@"')
    made.site.files["/image.tar"] = saved_image
    yield made
    subprocess.run(
        [*engine.words, "rm", "--force", f"failover-{made.directory.name}"], check=False, capture_output=True
    )
    made.close()


def say(machine, s3, bundle, command, **orders):
    assert s3.credentials is not None
    keys = s3.credentials.as_json()
    where = {"uri": s3.uri("jobs"), "endpoint": s3.endpoint, "region": servers.REGION, "credentials": keys}
    orders = {**machine.bring(bundle), "archive": f"{machine.site.url}/image.tar", **orders}
    machine.say(["bash", "-c", command], steps=20, image="store://image.tar", orders=orders, store=where)


def test_an_image_without_python_trains_in_a_real_container(machine, s3, bundle, engine):
    say(machine, s3, bundle, LOOK + TRAINER, **{"read-only": "yes"})
    assert machine.boot().wait(90) == 0, machine.console()
    done = machine.job.done()
    assert (done["result"], done["final_step"]) == ("completed", 20), machine.log()
    log = machine.log()
    assert "root cannot be written" in log
    assert "home and tmp can be written" in log
    hard = subprocess.run(["bash", "-c", "ulimit -Hn"], capture_output=True, text=True, check=True).stdout.strip()
    assert f"files {min(int(hard), 1048576) if hard.isdigit() else 1048576}" in log
    kb = int(re.findall(r"MemTotal: +(\d+) kB", Path("/proc/meminfo").read_text())[0])
    assert f"shm {kb // 2}" in log
    assert machine.shutdowns() == ["-h now"]
    assert engine("ps", "--all", "--quiet") == "", "the container is gone"


def test_a_stop_reaches_the_training_in_its_container(machine, s3, bundle):
    say(machine, s3, bundle, TRAINER.replace("-lt 20", "-lt 2000"))
    process = machine.boot()
    machine.until(lambda: "step 5 is committed" in machine.log() or "step 6 is committed" in machine.log(), 90)
    process.terminate()
    assert process.wait(90) == 75, machine.console()
    assert machine.job.done() is None
    assert machine.job.store.get(layout.heartbeat(1)) is not None
